"""Offline: makes the bundles that the service loads. May import torch, transformers and optimum; the service never imports it."""

import os

# Optimum loads ONNX Runtime, which reports sessions and graph hashes to its maker unless told otherwise before it loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
