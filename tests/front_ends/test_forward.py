"""Calls that a front end forwards, with a stand-in for the executor and clients that may not read."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from sentiment.call import calls as calls_module
from sentiment.call.call import CALLER, REQUEST_ID
from sentiment.call.calls import CODE_NAMES, CallLimits, Calls
from sentiment.call.names import SERVICE
from sentiment.call.parsing import FIELDS_MAX
from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.handlers import Handlers
from sentiment.doors.grpc.receiving import Receiving
from sentiment.lifecycle.registry import Models
from sentiment.model.lease import InUse
from sentiment.observability.metrics import Metrics
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_front_ends.executor_client import GONE
from sentiment_front_ends.forward import Forward

PATIENCE_S = 10
ASKED = pb.ExplainRequest(text="good").SerializeToString()
EXPLAINED = pb.ClassifyRequest(text="good", explain=pb.ExplainOptions()).SerializeToString()


class Aborted(Exception):
    pass


class Context:
    """A client: its deadline, its headers, and whether it reads."""

    def __init__(self, time_left_s: float | None = None, reads: bool = True) -> None:
        self.time_left_s = time_left_s
        self.reads = reads
        self.written: list[bytes] = []
        self.aborted: tuple[Any, ...] = ()
        self.message = b""

    async def read(self) -> bytes:
        return self.message

    def time_remaining(self) -> float | None:
        return self.time_left_s

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [(REQUEST_ID, "mine"), ("user-agent", "test"), (CALLER, "a lie")]

    def peer(self) -> str:
        return "ipv4:10.0.0.7:41234"

    async def write(self, message: bytes) -> None:
        if not self.reads:
            await asyncio.Event().wait()
        self.written.append(message)

    async def abort(self, *told: Any) -> None:
        self.aborted = told
        raise Aborted


@dataclass
class Executor:
    """Records what reaches it."""

    answers: bool = True
    refuses: bool = False
    headers: list[dict[str, Any]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    times_left_s: list[float] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, context: Any) -> None:
        self.headers.append(dict(context.invocation_metadata()))
        self.times_left_s.append(context.time_remaining())
        self.arrived.set()
        if self.refuses:
            # As gRPC does above its limit of calls.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "secret")
        if not self.answers:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()

    async def unary(self, data: bytes, context: Any) -> bytes:
        self.requests.append(data)
        await self.take(context)
        return b"answer"

    async def stream(self, data: bytes, context: Any) -> None:
        self.requests.append(data)
        await context.write(b"part")
        await self.take(context)


@dataclass
class Joined:
    executor: Executor
    handlers: dict[str, Handler]
    registry: CollectorRegistry
    server: grpc.aio.Server
    served: Any

    async def call(self, method: str, data: bytes, context: Context) -> Any:
        handler = self.handlers[method]
        context.message = data
        async with asyncio.timeout(PATIENCE_S):
            return await cast(Any, handler.stream_stream or handler.stream_unary)(None, context)

    def count(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"sentiment_{name}", labels)
        assert found is not None
        return found


@pytest.fixture
async def joined(tmp_path: Path) -> AsyncIterator[Joined]:
    executor, metrics = Executor(), Metrics(CODE_NAMES)
    unary = grpc.unary_unary_rpc_method_handler(executor.unary)
    theirs: Any = {"GetModel": unary, "Classify": unary, "Explain": grpc.unary_stream_rpc_method_handler(executor.stream)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, theirs),))
    server.add_insecure_port(f"unix:{tmp_path}/calls.sock")
    await server.start()
    models = Models("tiny")
    served: Any = SimpleNamespace(id="tiny/1", name="tiny", version=1, metrics=metrics.model("tiny/1", [], ()), users=InUse())
    models.follow([served], [served])
    forward = Forward(tmp_path / "calls.sock", models)
    calls = Calls(metrics, CallLimits(2**20, 60.0, 60.0, 1, 0.5, 0.002))
    handlers: dict[str, Handler] = {}
    nothing: Any = None
    forward.adapt(handlers, Handlers(calls, Receiving(RequestBytes(2**24), 2**20, 60.0)), nothing)
    yield Joined(executor, handlers, metrics.registry, server, served)
    await forward.close()
    await server.stop(0)


@pytest.mark.parametrize(("method", "data", "reads"), [("Explain", ASKED, False), ("Classify", EXPLAINED, True)])
async def test_a_call_ends_at_its_deadline_if_the_client_does_not_read_or_the_executor_does_not_answer(
    joined: Joined, method: str, data: bytes, reads: bool
) -> None:
    joined.executor.answers = not reads
    context = Context(0.1, reads=reads)

    with pytest.raises(Aborted):
        await joined.call(method, data, context)

    assert context.aborted[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert joined.count("requests_total", method=method, code="DEADLINE_EXCEEDED", model="tiny/1") == 1
    assert joined.count("request_seconds_count", method=method, model="tiny/1") == 1


async def test_a_request_of_too_many_fields_is_refused_before_it_is_parsed(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    context, read = Context(10.0), []
    monkeypatch.setattr(calls_module, "parsed", lambda *arguments: read.append(arguments))
    words = [pb.WordSet()] * (FIELDS_MAX + 1)

    with pytest.raises(Aborted):
        await joined.call(
            "Classify", pb.ClassifyRequest(text="good", explain=pb.ExplainOptions(without=words)).SerializeToString(), context
        )

    assert context.aborted[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert not read


@pytest.mark.smoke
async def test_headers_and_the_bounded_deadline_reach_the_executor(joined: Joined) -> None:
    assert await joined.call("GetModel", pb.GetModelRequest().SerializeToString(), Context(1e6)) == b"answer"

    assert joined.executor.headers[0][REQUEST_ID] == "mine"
    assert joined.executor.headers[0][CALLER] == "ipv4:10.0.0.7:41234"
    # gRPC writes it with few digits, rounded up.
    assert 50 < joined.executor.times_left_s[0] < 62
    assert joined.count("requests_total", method="GetModel", code="OK", model="tiny/1") == 1
    assert joined.count("request_seconds_count", method="GetModel", model="tiny/1") == 1


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetModel", pb.GetModelRequest()),
        ("Explain", pb.ExplainRequest(text="good", label="positive")),
        ("Classify", pb.ClassifyRequest(text="good", explain=pb.ExplainOptions(), model="tiny")),
    ],
)
async def test_a_forwarded_call_names_the_version_in_use_and_holds_it(joined: Joined, method: str, request_: Any) -> None:
    joined.executor.answers = False
    calling = asyncio.create_task(joined.call(method, request_.SerializeToString(), Context()))
    async with asyncio.timeout(PATIENCE_S):
        await joined.executor.arrived.wait()
    used = bool(joined.served.users)
    calling.cancel()
    await asyncio.wait({calling})

    (told,) = [type(request_).FromString(data) for data in joined.executor.requests]
    assert told.model == "tiny/1"
    told.model = request_.model
    assert told == request_
    assert (used, bool(joined.served.users)) == (True, False)


@pytest.mark.parametrize("method", ["Explain", "Classify"])
async def test_a_cancelled_call_is_cancelled_at_the_executor_too(joined: Joined, method: str) -> None:
    joined.executor.answers = False
    calling = asyncio.create_task(joined.call(method, ASKED if method == "Explain" else EXPLAINED, Context()))
    async with asyncio.timeout(PATIENCE_S):
        await joined.executor.arrived.wait()

        calling.cancel()
        await joined.executor.left.wait()

    await asyncio.wait({calling})
    assert joined.count("requests_total", method=method, code="CANCELLED", model="tiny/1") == 1


@pytest.mark.parametrize(
    ("gone", "code", "says"),
    [(True, grpc.StatusCode.UNAVAILABLE, GONE), (False, grpc.StatusCode.RESOURCE_EXHAUSTED, "the executor process has too many calls")],
)
async def test_a_text_that_the_executor_does_not_take_fails_in_plain_words_and_is_counted(
    joined: Joined, gone: bool, code: grpc.StatusCode, says: str
) -> None:
    joined.executor.refuses = True
    if gone:
        await joined.server.stop(0)
    context = Context()

    with pytest.raises(Aborted):
        await joined.call("Classify", EXPLAINED, context)

    assert context.aborted[:2] == (code, says)
    for name in ("requests_total", "items_total"):
        assert joined.count(name, method="Classify", code=code.name, model="tiny/1") == 1


async def test_forwarded_calls_count_as_open_calls(joined: Joined) -> None:
    joined.executor.answers = False
    first = asyncio.create_task(joined.call("Explain", ASKED, Context()))
    async with asyncio.timeout(PATIENCE_S):
        await joined.executor.arrived.wait()
    context = Context()

    with pytest.raises(Aborted):
        await joined.call("Explain", ASKED, context)

    assert context.aborted[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(joined.executor.headers) == 1
    first.cancel()
    await asyncio.wait({first})
