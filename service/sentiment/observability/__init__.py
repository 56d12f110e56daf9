"""What is told of the service: metrics, logs and traces."""
