"""What all methods share: malformed messages, request ids, and server faults."""

import asyncio
import contextlib
import gc
import json
import struct
import time
import weakref
from collections import Counter
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2

from sentiment.call.calls import CODE_NAMES, HOLD_LEFT_S_MIN, CallLimits, Calls
from sentiment.call.request_bytes import RequestBytes
from sentiment.client import CallFailed
from sentiment.doors.grpc.handlers import Handlers
from sentiment.doors.grpc.receiving import Receiving
from sentiment.errors import Expired, Refused
from sentiment.observability.metrics import Metrics
from sentiment.pipeline.refusals import TURN_S
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.faults import raw
from tests.core.grpc.gate import Start, served_by, total
from tests.core.servers import until
from tests.virtual_time import VirtualClock, VirtualTimeLoop

Code = grpc.StatusCode


def test_a_bug_is_internal_says_nothing_of_internals_and_is_logged_under_its_request_id(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    monkeypatch.setattr(served_by(server).classifier.tokenizer, "encode_short", lambda *_: 1 / 0)

    with structlog.testing.capture_logs() as logs, server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("good")

    logged = next(entry for entry in logs if entry["event"] == "call_failed")
    assert caught.value.code is Code.INTERNAL
    assert caught.value.request_id == logged["request_id"]
    assert caught.value.message == f"internal error; see the server's log for request id {logged['request_id']}"
    assert server.metric("sentiment_requests_total", method="Classify", code="INTERNAL", model="tiny/1") == 1
    assert server.metric("sentiment_items_total", method="Classify", code="INTERNAL", model="tiny/1") == 1


@pytest.mark.parametrize(("sent", "kept"), [("abc-123", True), ("x" * 129, False), ("", False)])
def test_the_clients_request_id_is_kept_if_it_is_one(server: RunningServer, sent: str, kept: bool) -> None:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel, pytest.raises(grpc.RpcError) as caught:
        call = channel.unary_unary("/sentiment.v1.SentimentService/Classify")
        call(pb.ClassifyRequest().SerializeToString(), metadata=(("x-request-id", sent),))

    found = dict(caught.value.trailing_metadata())["x-request-id"]
    assert (found == sent) is kept
    assert 0 < len(found) <= 128


def test_ids_that_the_server_gives_tell_nothing_of_each_other(server: RunningServer) -> None:
    def given() -> int:
        with pytest.raises(CallFailed) as caught:
            client.classify("")
        return int(caught.value.request_id, 16)

    with server.client() as client:
        ids = [given() for _ in range(40)]

    # Each of 128 bits is 0 in one and 1 in another; by chance it is not once in 2**32 runs.
    zeros, ones = 2**128 - 1, 2**128 - 1
    for one in ids:
        zeros, ones = zeros & one, ones & ~one
    assert (zeros, ones) == (0, 0)


def test_logits_that_are_not_numbers_are_a_failure_and_not_an_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    session = served_by(server).classifier.session
    run = session.run
    monkeypatch.setattr(session, "run", lambda feeds, stop=None: run(feeds, stop) * float("nan"))

    with server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("good")

    assert caught.value.code is Code.INTERNAL
    json.dumps(caught.value.message)


# A method and an empty entry of one of its lists or texts.
METHODS = [
    ("sentiment.v1.SentimentService/Classify", b"\x0a\x00"),
    ("sentiment.v1.SentimentService/ClassifyBatch", b"\x0a\x00"),
    ("sentiment.v1.SentimentService/ClassifyStream", b"\x12\x00"),
    ("sentiment.v1.SentimentService/Explain", b"\x32\x00"),
    ("inference.GRPCInferenceService/ModelInfer", b"\x3a\x00"),
]


@pytest.mark.parametrize(("method", "entry"), METHODS)
def test_a_message_that_cannot_be_parsed_is_invalid_and_counted(server: RunningServer, method: str, entry: bytes) -> None:
    """Not protobuf, invalid UTF-8, cut off, and more fields than the limit, which is found before the message is parsed."""
    labels = {"method": method.partition("/")[2], "code": "INVALID_ARGUMENT", "model": ""}
    too_many = "the message has more than 20480 fields and list entries"
    malformed = {b"\xff\xff": "", b"\x0a\x02\xff\xfe": "", b"\x0a\xff\xff\xff\xff\x0f": "", entry * 2**20: too_many}
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for number, (data, message) in enumerate(malformed.items(), 1):
            before = total(server, "requests", **labels)

            with pytest.raises(grpc.RpcError) as caught:
                list(channel.stream_stream(f"/{method}")(iter([data]), timeout=30))

            assert caught.value.code() is Code.INVALID_ARGUMENT, number
            assert message in caught.value.details()
            assert total(server, "requests", **labels) == before + 1


def limited(margin_s: float = 0.0, open_max: int = 8) -> tuple[Calls, Metrics]:
    """What all calls share, without a server."""
    metrics = Metrics(CODE_NAMES)
    return Calls(metrics, CallLimits(2**20, 5.0, 60.0, open_max, 0.5, margin_s)), metrics


class Told:
    """A model that counts only the answers that were sent."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics.model("tiny/1", [], ())
        self.told: list[tuple[int, str]] = []

    def count_told(self, texts: int, outcome: str) -> None:
        self.told.append((texts, outcome))


@pytest.mark.parametrize(
    ("left_s", "margin_s", "code", "told"),
    [(5.0, 0.002, "OK", "met"), (5.0, 10.0, "OK", "expired"), (-1.0, 0.002, "DEADLINE_EXCEEDED", "expired")],
    ids=["in time", "within the margin", "after the deadline"],
)
async def test_an_answer_is_in_time_if_it_is_ready_a_margin_before_the_deadline(
    left_s: float, margin_s: float, code: str, told: str
) -> None:
    calls, metrics = limited(margin_s)
    model: Any = Told(metrics)
    call = calls.begin("Classify", 5.0, tuple)
    call.served, call.answered = model, 3
    call.deadline_at = time.monotonic() + left_s

    async def answer() -> str:
        return "answer"

    with contextlib.suppress(Expired):
        assert await calls.settle(call, answer()) == "answer"

    metrics.observing.run_waiting()
    assert model.told == [(3, told)]
    assert metrics.registry.get_sample_value("sentiment_requests_total", {"method": "Classify", "code": code, "model": "tiny/1"}) == 1


async def test_answers_that_are_held_leave_together_but_for_those_whose_deadline_is_near() -> None:
    calls, _ = limited()

    class Context:
        def __init__(self, left_s: float) -> None:
            self.time_remaining = lambda: left_s
            self.peer, self.invocation_metadata = str, tuple

        async def read(self) -> bytes:
            return b""

    async def answer(data: bytes, _call: object, _context: object) -> bytes:
        return data + b"answer"

    handler: Any = Handlers(calls, Receiving(RequestBytes(2**24), 2**20, 10.0)).unary_bytes("Classify", answer)
    before = await handler.stream_unary(None, Context(30.0))
    with calls.holding_answers():
        held = asyncio.create_task(handler.stream_unary(None, Context(30.0)))
        near = await handler.stream_unary(None, Context(HOLD_LEFT_S_MIN / 2))
        for _ in range(10):
            await asyncio.sleep(0)
        waits = not held.done()

    assert (before, near, waits, await held) == (b"answer", b"answer", True, b"answer")


class Text:
    """What a request holds."""


@pytest.mark.parametrize(
    ("reason", "over_share", "waits"),
    [("backlog", False, False), ("backlog", True, True), ("explanations", False, True), ("calls", True, False)],
)
def test_refusals_of_a_caller_that_floods_leave_a_few_at_a_time_and_after_half_of_their_time_at_the_latest(
    reason: str, over_share: bool, waits: bool, clock: VirtualClock
) -> None:
    metrics, begun, told, texts = Metrics(CODE_NAMES), clock.now, list[float](), weakref.WeakSet[Text]()
    calls = Calls(metrics, CallLimits(2**20, 5.0, 60.0, 1000, 0.05, 0.0), clock=clock)

    async def refuse(text: Text) -> None:
        texts.add(text)
        error = Refused("full", 1.0, reason)
        error.over_share = over_share
        raise error

    async def ask() -> None:
        with pytest.raises(Refused):
            await calls.settle(calls.begin("Classify", 8 * TURN_S, dict), refuse(Text()))
        told.append(round((clock.now - begun) / TURN_S, 6))

    async def answer() -> None:
        call = calls.begin("Classify", 0.4, dict)
        call.answered = 8
        await calls.settle(call, asyncio.sleep(0))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(ask())
            await asyncio.sleep(TURN_S / 2)
            # No request is kept meanwhile.
            assert not (waits and texts)
            group.create_task(answer())
        metrics.observing.run_waiting()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(run())

    # Four more may leave for the eight answers.
    assert Counter(told) == ({0: 16, 1: 20, 2: 16, 3: 16, 4: 32} if waits else {0: 100})
    # Its wait does not make a call slow.
    assert metrics.registry.get_sample_value("sentiment_request_seconds_sum", {"method": "Classify", "model": ""}) == 0


def test_a_compressed_message_is_refused_unless_a_setting_accepts_it(server: RunningServer, start: Start) -> None:
    codes = []
    for target in (server.target, start(grpc_compression=True).target):
        with grpc.insecure_channel(target, NO_RETRIES, compression=grpc.Compression.Gzip) as channel:
            call: Any = channel.unary_unary("/sentiment.v1.SentimentService/Classify")  # bytes in and out
            codes.append(call.future(pb.ClassifyRequest(text="good " * 100).SerializeToString(), timeout=30).code())

    assert codes == [Code.UNIMPLEMENTED, Code.OK]


def test_messages_that_are_announced_and_do_not_come_are_timed_and_counted(start: Start) -> None:
    server = start(receive_s_max=1.0)
    announced = b"\0" + struct.pack(">I", 2**24 - 1)
    with raw.Peer(server.target) as peer:
        for stream in range(1, 12, 2):
            peer.call(stream)
            peer.send(raw.frame(raw.DATA, 0, stream, announced))
        ended = [peer.wait_for(raw.HEADERS, stream) for stream in range(1, 12, 2)]

    assert len(ended) == 6
    assert total(server, "requests", method="Classify", code="DEADLINE_EXCEEDED") == 6
    assert server.metric("sentiment_request_bytes") == 0


def test_health_and_reflection_take_small_messages_only(server: RunningServer) -> None:
    long = health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for method in (
            "grpc.health.v1.Health/Check",
            "grpc.health.v1.Health/Watch",
            "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ):
            call: Any = channel.stream_stream(f"/{method}")  # bytes in and out
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([long]), timeout=30))

            assert caught.value.code() is Code.INVALID_ARGUMENT, method
            assert "the limit is 4096" in caught.value.details()


def test_a_connection_too_many_is_closed_and_its_place_is_free_again_when_another_has_ended(start: Start) -> None:
    server = start(grpc_connections_max=2)

    def greets() -> bool:
        """Whether the server takes a new connection, which stays open until the end of the test."""
        peers.append(raw.Peer(server.target))
        return peers[-1].is_greeted()

    peers: list[raw.Peer] = []
    greeted = [greets() for _ in range(3)]
    peers[0].socket.close()
    until(greets, "there is a place again")
    for peer in peers:
        peer.socket.close()

    assert greeted == [True, True, False]


def test_refused_calls_keep_no_message_until_the_garbage_collector_looks(server: RunningServer) -> None:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                with pytest.raises(grpc.RpcError):
                    stub.Classify(pb.ClassifyRequest(text="good", model="nosuch"))
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kept = [found for found in gc.garbage if isinstance(found, pb.ClassifyRequest)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert kept == []
