"""The Python client: ``Client`` (blocking) and ``AsyncClient``. Needs gRPC and protobuf; NumPy for explanations only."""

import sentiment.client.notebook  # noqa: F401  # models show themselves
from sentiment.client.aio import AsyncClient
from sentiment.client.columns import Targeted
from sentiment.client.explain_options import AttentionOptions, ExplainOptions, NeuronOptions
from sentiment.client.explanations import Explanation
from sentiment.client.frames import Results
from sentiment.client.model_id import ModelId
from sentiment.client.requests import Effort, Priority, Truncation
from sentiment.client.results import (
    CallFailed,
    Classification,
    FeedbackTaken,
    Prediction,
    Result,
    Sentence,
    TargetAnswer,
    Timing,
    Violation,
)
from sentiment.client.sync import Client
from sentiment.proto_json import json_dict as model_json
from sentiment.security.client_credentials import Credentials

__all__ = [
    "AsyncClient",
    "AttentionOptions",
    "CallFailed",
    "Classification",
    "Client",
    "Credentials",
    "Effort",
    "ExplainOptions",
    "Explanation",
    "FeedbackTaken",
    "ModelId",
    "NeuronOptions",
    "Prediction",
    "Priority",
    "Result",
    "Results",
    "Sentence",
    "TargetAnswer",
    "Targeted",
    "Timing",
    "Truncation",
    "Violation",
    "model_json",
]
