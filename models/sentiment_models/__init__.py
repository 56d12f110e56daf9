"""Makes the bundles that the service loads. May import torch, transformers and optimum. The service never imports this package."""

import os

# Optimum loads ONNX Runtime, which sends telemetry (sessions, graph hashes) unless this is set before it loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
