"""Who may call, and how connections are kept private: files of tokens, keys and certificates, read again while the server runs.

It knows neither gRPC nor HTTP; ``api.grpc.guard`` and ``api.http.guard`` stand at the two doors.
"""
