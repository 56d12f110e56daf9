"""Runs that do not end by themselves: those that hear the stop, and those that do not."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.doors.grpc.health import LIVENESS
from sentiment.errors import RunnerLost
from sentiment.model.session import Stop
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import PLAIN, RunningServer
from tests.core.grpc.gate import (
    PATIENCE_S,
    FixedCost,
    Start,
    assert_nothing_left,
    batch_request,
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
Stubs = Callable[[RunningServer], tuple[Any, Any]]


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


@pytest.fixture
async def stubs() -> AsyncIterator[Stubs]:
    """The service's and the health service's stubs."""
    channels: list[grpc.aio.Channel] = []

    def begin(server: RunningServer) -> tuple[Any, Any]:
        channels.append(grpc.aio.insecure_channel(server.target, PLAIN))
        return pb_grpc.SentimentServiceStub(channels[-1]), health_pb2_grpc.HealthStub(channels[-1])

    yield begin
    for channel in channels:
        await channel.close()


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


async def test_a_run_that_hears_the_stop_fails_its_rows_and_the_server_is_ready_again(hang: Hang, stubs: Stubs, logs: list[Any]) -> None:
    server, hanging = hang(hears=True, stall_s=1.0)
    stub, health = stubs(server)
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


@pytest.mark.parametrize("comes_back", [False, True], ids=["never-ends", "ends-too-late"])
async def test_a_run_that_ignores_the_stop_fails_its_rows_and_the_server_drains_to_be_replaced(
    hang: Hang, stubs: Stubs, logs: list[Any], comes_back: bool
) -> None:
    server, hanging = hang(hears=False, drain_wait_s=0.5)
    stub, health = stubs(server)
    begun = time.monotonic()
    hung = send(stub.ClassifyBatch(batch_request([HANGING] * 3)))
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)
    before = await classify(stub, "good")

    results = (await hung).results
    seconds = time.monotonic() - begun
    await becomes(health, "", NOT_SERVING)
    await becomes(health, LIVENESS, NOT_SERVING)
    if comes_back:
        hanging.let_go.set()
        await asyncio.to_thread(hanging.ended.wait, PATIENCE_S)
    meanwhile = await classify(stub, "good")
    await must_be_replaced(server)

    assert [result.error.code for result in results] == [Code.INTERNAL.value[0]] * 3
    # Asked to end after the limit, given up after as long again.
    assert 2 * STALL_S <= seconds < 2 * STALL_S + 1
    assert before.prediction.label == meanwhile.prediction.label == "positive"
    assert total(server, "items", code="INTERNAL") == total(server, "wasted_rows", reason="failed") == 3
    assert_nothing_left(server)
    given_up = [entry for entry in logs if entry["event"] == "batch_given_up"]
    assert [(entry["log_level"], entry["rows"]) for entry in given_up] == [("critical", 3)]
    assert "batch_failed" not in [entry["event"] for entry in logs]
    assert "yzzy" not in json.dumps(logs, default=str)


async def test_when_the_last_runner_is_lost_waiting_calls_are_unavailable_at_once(hang: Hang, stubs: Stubs) -> None:
    """Nobody here can answer them any more, and another server could."""
    server, hanging = hang(hears=False, runners=1, drain_wait_s=0.1)
    stub, _ = stubs(server)
    hung = classify(stub, HANGING)
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)
    waiting = classify(stub, "good", 2)

    error = await hung
    begun = time.monotonic()
    told = await waiting
    seconds = time.monotonic() - begun
    hanging.let_go.set()
    await must_be_replaced(server)

    assert error.code() is Code.INTERNAL
    assert_nothing_left(server)
    assert told.code() is Code.UNAVAILABLE
    assert seconds < 1


async def test_a_stop_during_a_hung_run_ends_it_and_the_server(hang: Hang, stubs: Stubs) -> None:
    """SIGTERM comes while a run hangs that would hear: its caller gets the error, and the drain does not wait for its deadline."""
    server, hanging = hang(hears=True, drain_grace_s=20.0)
    hanging.let_go.set()
    stub, _ = stubs(server)
    hung = classify(stub, HANGING, 3)
    assert await asyncio.to_thread(hanging.entered.wait, PATIENCE_S)

    begun = time.monotonic()
    await asyncio.to_thread(server.stop)
    seconds = time.monotonic() - begun

    assert (await hung).code() is Code.INTERNAL
    assert seconds < 2


async def test_a_run_within_the_time_limit_affects_no_other_call(hang: Hang, stubs: Stubs) -> None:
    server, _ = hang(hears=True, stall_s=PATIENCE_S)
    stub, health = stubs(server)
    first = classify(stub, "w1")
    await until(lambda: served_by(server).batcher.stalled_s() > 0.1, "it has run for a while")

    ready = await status(health, "")
    second = classify(stub, "w1")

    assert ready == SERVING
    assert [type(outcome) for outcome in await asyncio.gather(first, second)] == [pb.ClassifyResponse] * 2
