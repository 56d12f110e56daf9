"""What speaks to callers: gRPC and HTTP."""
