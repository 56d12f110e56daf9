"""Tools for tests of a real server: a gate before its model, fixed costs, raw requests, and how calls end."""

import asyncio
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status

from sentiment.batching.class_queue import ClassQueue
from sentiment.batching.cost import CostTable
from sentiment.batching.ticket import Priority
from sentiment.pipeline.served import Served
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer
from tests.tiny import SPECIAL, WEIGHTS

T = TypeVar("T")
Start = Callable[..., RunningServer]
METHODS = ("Classify", "ClassifyBatch", "ClassifyStream")
every_method = pytest.mark.parametrize("method", METHODS)
# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 60
MODEL = "tiny/1"


def served_by(server: RunningServer) -> Served:
    return server.models.find("")


def id_of(word: str) -> int:
    """The token id of a word of the tiny model."""
    return len(SPECIAL) + list(WEIGHTS).index(word)


def positive(weight: int) -> float:
    """The score for positive of the word ``w<weight>``."""
    return 1 / (1 + math.exp(-2 * weight / 64))


class FixedCost(CostTable):
    """Costs ``row_s`` a row and ``batch_s`` a batch, whatever really happens: so a test can say what is predicted."""

    def __init__(self, row_s: float, batch_s: float = 0.0) -> None:
        super().__init__({(rows, 32): batch_s + rows * row_s for rows in (1, 2, 4, 8, 16)})

    def observe(self, rows: int, length: int, run_s: float, wide: bool = False) -> None:
        """Learn nothing."""


def in_loop(server: RunningServer, act: Callable[[], T]) -> T:
    """Do something in the server's event loop."""

    async def run() -> T:
        return act()

    return asyncio.run_coroutine_threadsafe(run(), server.loop).result(PATIENCE_S)


def set_cost(server: RunningServer, cost: CostTable) -> None:
    """From now on the scheduler predicts with this table. Nothing may wait or run."""
    scheduler = served_by(server).batcher.scheduler

    def exchange() -> None:
        assert scheduler.rows_waiting == scheduler.rows_running == 0
        scheduler.cost = cost
        scheduler._reprice()

    in_loop(server, exchange)


def class_queue_of(server: RunningServer, priority: Priority) -> ClassQueue[Any]:
    return served_by(server).batcher.scheduler.queues[priority]


class Gate:
    """Holds the batches of a server: each waits before the model until it is let go, and raises if poison is in it."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self._opened = False
        self._begun: queue.SimpleQueue[list[list[int]]] = queue.SimpleQueue()
        self.poison: int | None = None
        # The ids of each batch's rows, in the order in which batches began.
        self.batches: list[list[list[int]]] = []
        session = served_by(server).classifier.session
        run = session.run

        def held(feeds: Any, stop: Any = None) -> Any:
            rows = feeds["input_ids"].tolist()
            self.batches.append(rows)
            self._begun.put(rows)
            assert self._opened or self._permits.acquire(timeout=PATIENCE_S), "the gate was never opened"
            if any(self.poison in row for row in rows):
                raise RuntimeError("kernel failed")
            return run(feeds, stop)

        monkeypatch.setattr(session, "run", held)

    async def begun(self) -> list[list[int]]:
        """The ids of the next batch that begins."""
        return await asyncio.to_thread(self._begun.get, timeout=PATIENCE_S)

    def let(self, batches: int = 1) -> None:
        """Let batches go, those that wait or those that come."""
        self._permits.release(batches)

    def open(self) -> None:
        """Let all go from now on."""
        self._opened = True
        self._permits.release(64)


Hold = Callable[[RunningServer], Gate]


def fail_after(server: RunningServer, monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """Make every run of the model after the first ``runs`` fail."""
    session = served_by(server).classifier.session
    run, left = session.run, iter(range(runs))

    def failing(feeds: Any, stop: Any = None) -> Any:
        if next(left, None) is None:
            raise RuntimeError("kernel failed")
        return run(feeds, stop)

    monkeypatch.setattr(session, "run", failing)


def http_socket(server: RunningServer) -> socket.socket:
    """A connection to the server's HTTP port."""
    return socket.create_connection(("127.0.0.1", server.app.http_port), timeout=PATIENCE_S)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for what has no event to wait for, such as a number in another thread."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.002)


async def queued(server: RunningServer, rows: int) -> None:
    await until(lambda: server.metric("sentiment_queue_rows", model=MODEL) == rows, f"{rows} rows wait")


def total(server: RunningServer, name: str, **labels: str) -> float:
    """The sum of a counter over all series that have these labels."""
    samples = [sample for sample in server.samples() if sample.name == f"sentiment_{name}_total"]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def assert_nothing_left(server: RunningServer) -> None:
    """Nothing waits, runs or is open, wherever the server keeps such things."""
    batcher = served_by(server).batcher
    assert server.metric("sentiment_queue_rows", model=MODEL) == 0
    assert (batcher.scheduler.rows_waiting, batcher.scheduler.rows_running) == (0, 0)
    assert batcher.stalled_s() == 0.0
    assert batcher.idle
    assert server.calls.open == 0
    assert not server.streams.open


class Busy:
    """A server whose only runner is held before the model by a short text, so that what comes waits; and a client's stub."""

    def __init__(self, server: RunningServer, gate: Gate, stub: Any) -> None:
        self.server, self.gate, self.stub = server, gate, stub

    async def begin(self) -> None:
        self._plug = send(self.stub.Classify(pb.ClassifyRequest(text="good"), timeout=60))
        await self.gate.begun()

    async def assert_in_order(self, texts: int) -> None:
        """The short text has its answer, every text was counted once, and nothing is left."""
        self.gate.open()
        assert isinstance(await self._plug, pb.ClassifyResponse)
        server = self.server
        await until(lambda: server.calls.open == 0, "no call is open")
        await until(lambda: not served_by(server).batcher.stalled_s(), "no batch runs")
        assert total(server, "items") == total(server, "deadline_outcome") == texts
        assert_nothing_left(server)


def ask(stub: Any, method: str, request: pb.ClassifyRequest, timeout_s: float | None = None) -> Any:
    """A call with this one text, interactive, however its method takes it."""
    request.priority = pb.PRIORITY_INTERACTIVE
    if method == "Classify":
        return stub.Classify(request, timeout=timeout_s)
    item = pb.Item(text=request.text, targets=request.targets)
    options = {"truncation": request.truncation, "sentences": request.sentences, "priority": request.priority}
    if method == "ClassifyBatch":
        return stub.ClassifyBatch(pb.ClassifyBatchRequest(items=[item], **options), timeout=timeout_s)
    one = pb.ClassifyStreamRequest(item=item, options=pb.StreamOptions(**options))
    if timeout_s is not None:
        one.timeout.FromNanoseconds(int(timeout_s * 1e9))
    return stub.ClassifyStream(iter([one]))


async def code_of(call: Any) -> int:
    """How the one text of such a call ended."""
    outcome = await outcome_of(call)
    if isinstance(outcome, grpc.aio.AioRpcError):
        return int(outcome.code().value[0])
    if isinstance(outcome, pb.ClassifyResponse):
        return 0
    (result,) = outcome if isinstance(outcome, list) else outcome.results
    return int(result.error.code)


def stream_requests(
    texts: Iterable[str], priority: pb.Priority.ValueType = pb.PRIORITY_UNSPECIFIED, timeout_s: float | None = None
) -> list[pb.ClassifyStreamRequest]:
    requests = []
    for number, text in enumerate(texts):
        requests.append(pb.ClassifyStreamRequest(id=str(number), item=pb.Item(text=text), options=pb.StreamOptions(priority=priority)))
        if timeout_s is not None:
            requests[-1].timeout.FromNanoseconds(int(timeout_s * 1e9))
    return requests


def batch_request(texts: Sequence[str], priority: pb.Priority.ValueType = pb.PRIORITY_UNSPECIFIED) -> pb.ClassifyBatchRequest:
    return pb.ClassifyBatchRequest(items=[pb.Item(text=text) for text in texts], priority=priority)


async def bounded(work: Coroutine[Any, Any, T]) -> T:
    """A wait that cannot hang the tests."""
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def outcome_of(call: Any) -> Any:
    """A call's response, the list of its responses if it is a stream, or the error that it ended with."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return [response async for response in call] if hasattr(call, "__aiter__") else await call
    except grpc.aio.AioRpcError as error:
        return error


def send(call: Any) -> asyncio.Task[Any]:
    """Send a call now; the task is its outcome."""
    return asyncio.create_task(outcome_of(call))


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str]:
    """Code, field and message of a blocking call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)
    assert status is not None
    field, bad = "", BadRequest()
    for detail in status.details:
        if detail.Unpack(bad):
            (violation,) = bad.field_violations
            field = violation.field
    return caught.value.code(), field, status.message
