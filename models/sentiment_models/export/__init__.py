"""Export a checkpoint to a bundle, and verify, compare and sign bundles."""
