"""Calls that gRPC's core ends are counted, though nothing of Python sees them."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES, RunningServer

CALLS = 60
PATIENCE_S = 30


def counted(server: RunningServer) -> tuple[float, float]:
    """Calls that started and that ended, by the core."""
    return server.metric("sentiment_grpc_calls_started_total"), server.metric("sentiment_grpc_calls_ended_total")


def eventually(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_calls_that_the_loop_never_looked_at_started_and_did_not_end(start: Callable[..., RunningServer]) -> None:
    server = start(calls_pending_max=4)
    let_go = threading.Event()
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        call: Any = channel.unary_unary("/sentiment.v1.SentimentService/Classify")  # bytes in and out
        request = pb.ClassifyRequest(text="good").SerializeToString()
        call(request, timeout=PATIENCE_S)
        server.loop.call_soon_threadsafe(let_go.wait, PATIENCE_S)
        made = [call.future(request, timeout=PATIENCE_S) for _ in range(CALLS)]
        eventually(lambda: counted(server)[0] == CALLS + 1)
        let_go.set()
        codes = Counter(one.code() for one in made)

    lost = codes[grpc.StatusCode.CANCELLED]
    assert lost >= CALLS - 8
    assert codes[grpc.StatusCode.OK] == CALLS - lost
    eventually(lambda: counted(server) == (CALLS + 1, CALLS + 1 - lost))
    assert server.metric("sentiment_requests_total", method="Classify", code="OK", model="tiny/1") == CALLS + 1 - lost
    assert server.metric("sentiment_requests_total", method="Classify", code="CANCELLED", model="tiny/1") == 0


def test_calls_that_fail_or_are_of_no_method_end_too(start: Callable[..., RunningServer]) -> None:
    server = start()
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for method in ("/sentiment.v1.SentimentService/Classify", "/sentiment.v1.SentimentService/NoSuch", "/no.Such/Method"):
            call: Any = channel.unary_unary(method)
            for timeout in (PATIENCE_S, 1e-9):
                assert call.future(b"\xff", timeout=timeout).code() is not grpc.StatusCode.OK

    eventually(lambda: counted(server)[0] >= 3)
    eventually(lambda: counted(server)[0] == counted(server)[1])


def test_a_server_counts_its_own_calls_alone(start: Callable[..., RunningServer]) -> None:
    first, second = start(), start()
    with first.client() as client:
        client.classify("good")

    eventually(lambda: counted(first)[0] > 0)
    assert counted(second) == (0, 0)
