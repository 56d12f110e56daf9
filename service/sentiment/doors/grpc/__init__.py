"""The gRPC server. Connections, messages as bytes, streams, health and admin; ``sentiment.call`` answers the calls."""
