"""The gRPC server. It converts messages to queries and answers to messages; the pipeline does the work in between."""
