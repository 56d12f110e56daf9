"""A text's way through a loaded model, and what observes the answer afterwards."""
