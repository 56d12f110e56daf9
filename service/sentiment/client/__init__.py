"""The Python client: ``Client`` (blocking) and ``AsyncClient``. Needs neither onnxruntime nor a bundle."""

from sentiment.client.aio import AsyncClient
from sentiment.client.results import CallFailed, Classification, ModelId, Result, Timing, Violation
from sentiment.client.sync import Client

__all__ = ["AsyncClient", "CallFailed", "Classification", "Client", "ModelId", "Result", "Timing", "Violation"]
