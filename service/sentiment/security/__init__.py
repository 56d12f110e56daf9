"""Authentication and TLS: tokens, keys and certificates from files, which are reloaded while the server runs.

It is independent of gRPC and HTTP; ``doors.grpc.server`` and ``doors.http.screening`` apply it to calls.
"""
