"""Traces of sampled requests. ``trace`` is the interface for the stages; ``otel`` samples and exports the spans."""
