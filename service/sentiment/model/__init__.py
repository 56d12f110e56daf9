"""A bundle in memory: tokenizer, session, scores. Knows no request, no queue and no network."""

import os

# From 1.29 on, ONNX Runtime reports sessions and graph hashes to its maker unless told otherwise before any module here loads it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
