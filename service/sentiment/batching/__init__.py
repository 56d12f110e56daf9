"""Dynamic batching: which rows run together, and when. ``scheduler`` and ``cost`` are pure decision code; ``batcher`` drives them."""
