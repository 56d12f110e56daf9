"""The servers that callers connect to: gRPC and HTTP."""
