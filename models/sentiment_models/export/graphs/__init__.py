"""Rewriting ONNX graphs."""
