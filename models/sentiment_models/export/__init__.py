"""From a checkpoint to a bundle, and what a bundle must prove."""
