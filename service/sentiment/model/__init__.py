"""A bundle in memory: tokenizer, session, scores. Knows no request, no queue and no network."""

import os

# From 1.29 on, ONNX Runtime sends telemetry (sessions and graph hashes) to its maker. It reads this switch when it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
