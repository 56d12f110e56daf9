"""The HTTP server: metrics, health and JSON, with the same conversion, limits and admission control as gRPC."""
