"""Models from their folders to their end: loading, warm-up, the registry, and exchange while they serve."""
