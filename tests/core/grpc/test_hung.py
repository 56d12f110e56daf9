"""Runs that do not end by themselves: those that hear the stop, and those that do not."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.doors.grpc.health import LIVENESS
from sentiment.errors import RunnerLost
from sentiment.model.session import Stop
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import PLAIN, RunningServer
from tests.core.grpc.gate import (
    PATIENCE_S,
    FixedCost,
    Start,
    assert_nothing_left,
    id_of,
    send,
    served_by,
    set_cost,
    total,
    until,
)

Code = grpc.StatusCode
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
# Nothing of it may be logged.
HANGING = "awful XyzzySecret"
STALL_S = 0.3


class AskedStop(Stop):
    """A stop that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def ask(self) -> None:
        super().ask()
        self.asked.set()


class Hanging:
    """Makes a server's runs hang that have the hanging text in them."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch, hears: bool) -> None:
        self.entered, self.let_go, self.ended = threading.Event(), threading.Event(), threading.Event()
        # Two runs of the word w1 at once, or none.
        self.both = threading.Barrier(2)
        session = served_by(server).classifier.session
        run = session.run

        def hang(feeds: Any, stop: AskedStop) -> Any:
            if (feeds["input_ids"] == id_of("awful")).any():
                self.entered.set()
                assert not hears or stop.asked.wait(PATIENCE_S), "nobody asked it to stop"
                assert self.let_go.wait(PATIENCE_S)
                assert stop.asked.is_set()
                self.ended.set()
                raise RuntimeError("terminated")
            if (feeds["input_ids"] == id_of("w1")).any():
                self.both.wait(PATIENCE_S)
            return run(feeds, stop)

        monkeypatch.setattr(session, "run", hang)


Hang = Callable[..., tuple[RunningServer, Hanging]]
Connect = Callable[..., Any]


@pytest.fixture
def hang(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    made: list[Hanging] = []
    monkeypatch.setattr("sentiment.serving.app.WATCHDOG_S", 0.02)
    monkeypatch.setattr("sentiment.model.runner.Stop", AskedStop)

    def begin(hears: bool, **settings: Any) -> tuple[RunningServer, Hanging]:
        server = start(**{"stall_s": STALL_S, "runners": 2, **settings})
        # A batch costs the same whatever is in it: rows that come together run together.
        set_cost(server, FixedCost(row_s=1e-6, batch_s=1e-3))
        made.append(Hanging(server, monkeypatch, hears))
        return server, made[-1]

    yield begin
    for hanging in made:
        hanging.let_go.set()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def classify(stub: Any, text: str, timeout_s: float | None = None) -> asyncio.Task[Any]:
    return send(stub.Classify(pb.ClassifyRequest(text=text), timeout=timeout_s))


async def must_be_replaced(server: RunningServer) -> None:
    """Stop the server, whose lost runner is an error."""
    with pytest.raises(RunnerLost, match="this process must be replaced"):
        await asyncio.to_thread(server.stop)
    server.failure = None


async def status(health: Any, service: str) -> int:
    return int((await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)).status)


async def becomes(health: Any, service: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await status(health, service) != wanted:
            await asyncio.sleep(0.005)


async def test_a_run_that_hears_the_stop_fails_its_rows_and_the_server_is_ready_again(
    hang: Hang, connect: Connect, logs: list[Any]
) -> None:
    server, hanging = hang(hears=True, stall_s=1.0)
    stub, health = connect(server, PLAIN), connect(server, PLAIN, health_pb2_grpc.HealthStub)
    hung = classify(stub, HANGING)
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)

    await becomes(health, "", NOT_SERVING)
    alive, meanwhile = await status(health, LIVENESS), await classify(stub, "good")
    hanging.let_go.set()
    error = await hung
    await becomes(health, "", SERVING)

    assert (error.code(), error.details()) == (Code.INTERNAL, "the model could not compute this text")
    assert alive == SERVING
    assert meanwhile.prediction.label == "positive"
    # Both runners are there. The second text comes when the first one runs, or they would share a run.
    first = classify(stub, "w1")
    await until(lambda: hanging.both.n_waiting == 1, "a run of the first text")
    assert [type(outcome) for outcome in await asyncio.gather(first, classify(stub, "w1"))] == [pb.ClassifyResponse] * 2
    assert total(server, "items", code="INTERNAL") == total(server, "wasted_rows", reason="failed") == 1
    assert_nothing_left(server)
    assert [entry["event"] for entry in logs if entry["log_level"] in ("error", "critical")] == [
        "stalled",
        "batch_failed",
        "call_failed",
        "stall_ended",
    ]
    assert "yzzy" not in json.dumps(logs, default=str)


async def test_when_the_last_runner_is_lost_waiting_calls_are_unavailable_at_once(hang: Hang, connect: Connect) -> None:
    """Nobody here can answer them any more, and another server could."""
    server, hanging = hang(hears=False, runners=1, drain_wait_s=0.1)
    stub = connect(server, PLAIN)
    hung = classify(stub, HANGING)
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)
    waiting = classify(stub, "good", PATIENCE_S)

    error, told = await hung, await waiting
    hanging.let_go.set()
    await must_be_replaced(server)

    assert error.code() is Code.INTERNAL
    assert_nothing_left(server)
    # At once: later it would be its deadline.
    assert told.code() is Code.UNAVAILABLE


async def test_a_stop_during_a_hung_run_ends_it_and_the_server(hang: Hang, connect: Connect) -> None:
    """SIGTERM comes while a run hangs that would hear: its caller gets the error, and the drain does not wait for its deadline."""
    server, hanging = hang(hears=True, drain_grace_s=20.0)
    hanging.let_go.set()
    stub = connect(server, PLAIN)
    hung = classify(stub, HANGING, PATIENCE_S)
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)

    await asyncio.to_thread(server.stop)

    # Its deadline would be another code.
    assert (await hung).code() is Code.INTERNAL
