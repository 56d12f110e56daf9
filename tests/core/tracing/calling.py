"""Raw calls with a trace context."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer

PATIENCE_S = 60
SERVICE = "sentiment.v1.SentimentService"
PARENT = "00f067aa0ba902b7"


def trace_id(number: int) -> str:
    return f"{number:032x}"


def context(trace: str, sampled: bool = True) -> tuple[tuple[str, str], ...]:
    """Metadata with the context of this trace."""
    return (("traceparent", f"00-{trace}-{PARENT}-{int(sampled):02x}"),)


@contextmanager
def stub_of(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        yield pb_grpc.SentimentServiceStub(channel)


def classify(server: RunningServer, text: str, metadata: tuple[tuple[str, str], ...] = (), **options: Any) -> pb.ClassifyResponse:
    with stub_of(server) as stub:
        return stub.Classify(pb.ClassifyRequest(text=text, **options), metadata=metadata, timeout=PATIENCE_S)


def http(server: RunningServer, path: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
