"""The gRPC side: bytes to queries and answers to bytes. Knows the pipeline, not how it works."""
