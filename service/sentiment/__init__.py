"""A sentiment classification service over gRPC, its client and its command line."""
