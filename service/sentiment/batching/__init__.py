"""Who runs with whom, and when. ``scheduler`` and ``cost`` decide and are pure; ``batcher`` acts."""
