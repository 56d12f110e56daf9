"""The Python client: ``Client`` (blocking) and ``AsyncClient``. Needs gRPC and protobuf; NumPy for explanations only."""

from sentiment.client.aio import AsyncClient
from sentiment.client.columns import Targeted
from sentiment.client.explain_options import AttentionOptions, ExplainOptions, NeuronOptions
from sentiment.client.explanations import Explanation
from sentiment.client.frames import Results
from sentiment.client.model_id import ModelId
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
    "ExplainOptions",
    "Explanation",
    "FeedbackTaken",
    "ModelId",
    "NeuronOptions",
    "Prediction",
    "Result",
    "Results",
    "Sentence",
    "TargetAnswer",
    "Targeted",
    "Timing",
    "Violation",
    "model_json",
]
