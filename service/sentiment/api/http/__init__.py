"""The HTTP side: metrics, health, JSON. The same conversion, limits and admission as gRPC."""
