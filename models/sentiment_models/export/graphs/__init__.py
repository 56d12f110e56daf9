"""Rewrites and checks of ONNX graphs."""
