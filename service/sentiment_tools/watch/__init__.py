"""Watches a model offline: what the server's metrics tell of its answers, for a file of texts or a journal. ``counts`` is pure."""
