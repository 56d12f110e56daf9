"""Authentication and TLS: tokens, keys and certificates from files, which are reloaded while the server runs.

It is independent of gRPC and HTTP; ``doors.grpc.guard`` and ``doors.http.guard`` apply it to calls.
"""
