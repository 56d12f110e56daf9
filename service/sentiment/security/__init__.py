"""Authentication and TLS: tokens, keys and certificates from files, which are reloaded while the server runs.

It is independent of gRPC and HTTP; ``api.grpc.guard`` and ``api.http.guard`` apply it to calls.
"""
