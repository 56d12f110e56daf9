"""Experiments on models: tests of papers, training from scratch, pre-training, import of other checkpoints."""
