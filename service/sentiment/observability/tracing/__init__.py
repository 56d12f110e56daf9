"""Traces: what becomes of sampled requests, told in spans. ``trace`` is what the stages know of it, ``otel`` sends it."""
