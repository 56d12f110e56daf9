"""ClassifyStream through a real server."""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from sentiment.call.call import Call
from sentiment.call.request_bytes import RequestBytes
from sentiment.client import AsyncClient, CallFailed, Classification
from sentiment.doors.grpc.receiving import Receiving
from sentiment.doors.grpc.stream import Streams, _Stream
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import PLAIN, RunningServer
from tests.core.grpc.gate import FixedCost, Hold, Start, bounded, positive, served_by, set_cost, stream_requests, total, until
from tests.virtual_time import VirtualClock, VirtualTimeLoop

Code = grpc.StatusCode


def weight_of(number: int) -> int:
    return number % 65 - 32


async def items(texts: Iterable[str]) -> AsyncIterator[tuple[str, str]]:
    """Texts whose ids are their numbers."""
    for number, text in enumerate(texts):
        yield str(number), text


def many(count: int) -> Iterable[str]:
    return (f"w{weight_of(number)} " + "film " * (number % 25) for number in range(count))


async def endless(text: str = "good") -> AsyncIterator[pb.ClassifyStreamRequest]:
    """Requests with large ids, which fill the transport's windows soon."""
    while True:
        yield pb.ClassifyStreamRequest(id="x" * 256, item=pb.Item(text=text))


def unread_stream(channel: grpc.aio.Channel, text: str = "good") -> Any:
    """An endless stream whose client does not read."""
    return pb_grpc.SentimentServiceStub(channel).ClassifyStream(endless(text))


# A fixed window: an estimated one grows to megabytes.
FIXED_WINDOW = [("grpc.http2.bdp_probe", 0)]


def answered(server: RunningServer, code: str = "OK") -> float:
    return server.metric("sentiment_items_total", method="ClassifyStream", code=code, model="tiny/1")


async def stands_still(number: Callable[[], float]) -> float:
    """The number, once it is above 0 and has not changed for a while."""
    before = 0.0
    while (now := number()) != before or not now:
        before = now
        await asyncio.sleep(0.1)
    return now


async def test_every_item_is_answered_once_under_its_own_id(server: RunningServer) -> None:
    seen: dict[str, Classification] = {}

    async with AsyncClient(server.target) as client:
        async for item_id, result in client.classify_stream(items(many(1000))):
            assert isinstance(result, Classification)
            assert item_id not in seen
            seen[item_id] = result

    found = [seen[str(number)].scores["positive"] for number in range(1000)]
    assert found == pytest.approx([positive(weight_of(number)) for number in range(1000)], abs=1e-6)


async def test_a_bad_item_has_an_error_of_its_own(server: RunningServer) -> None:
    async def mixed() -> AsyncIterator[tuple[str, str]]:
        for item in (("a", "good"), ("b", ""), ("c" * 300, "good"), ("d", "bad")):
            yield item

    async with AsyncClient(server.target) as client:
        results = [pair async for pair in client.classify_stream(mixed())]

    found = {item_id: result.code.name if isinstance(result, CallFailed) else result.label for item_id, result in results}
    assert found == {"a": "positive", "b": "INVALID_ARGUMENT", "c" * 64: "INVALID_ARGUMENT", "d": "negative"}


async def test_options_and_timeout_belong_to_each_item(server: RunningServer) -> None:
    def request(item_id: str, timeout_ns: int = 10**10, **options: Any) -> pb.ClassifyStreamRequest:
        made = pb.ClassifyStreamRequest(id=item_id, item=pb.Item(text="good"), options=options)
        made.timeout.FromNanoseconds(timeout_ns)
        return made

    requests = [
        request("good", model="tiny/1"),
        request("unknown", model="nosuch"),
        request("explained", explain={}),
        request("short", timeout_ns=1),
        request("negative", timeout_ns=-(10**9)),
    ]
    async with grpc.aio.insecure_channel(server.target) as channel:
        responses = {response.id: response async for response in pb_grpc.SentimentServiceStub(channel).ClassifyStream(iter(requests))}

    assert responses.pop("good").response.prediction.label == "positive"
    assert {item_id: response.error.code for item_id, response in responses.items()} == {
        "unknown": Code.NOT_FOUND.value[0],
        "explained": Code.UNIMPLEMENTED.value[0],
        "short": Code.DEADLINE_EXCEEDED.value[0],
        "negative": Code.INVALID_ARGUMENT.value[0],
    }


async def test_a_client_that_does_not_read_is_not_read_from(start: Start) -> None:
    server = start(call_rows_max=8)

    async with grpc.aio.insecure_channel(server.target, FIXED_WINDOW) as channel:
        call = unread_stream(channel, "good " + "film " * 2000)
        count = await stands_still(lambda: answered(server))
        call.cancel()

    # What is answered and unread lies in the transport's windows and among the 8 places, not in our memory.
    assert 0 < count < 2000
    assert server.metric("sentiment_queue_rows", model="tiny/1") == 0


async def test_a_drain_answers_every_item_it_accepted_and_ends_the_stream_with_ok(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(drain_grace_s=20.0)
    session = server.models.find("").classifier.session
    run = session.run
    monkeypatch.setattr(session, "run", lambda feeds, stop=None: time.sleep(0.02) or run(feeds, stop))
    received, all_sent = 0, asyncio.Event()

    async def many_and_then_none() -> AsyncIterator[pb.ClassifyStreamRequest]:
        for number in range(200):
            yield pb.ClassifyStreamRequest(item=pb.Item(text="good " + "film " * (number % 20)))
        all_sent.set()
        # Open and silent: grpc.aio's client takes an end that meets its own write for an internal error.
        await asyncio.Event().wait()

    async with grpc.aio.insecure_channel(server.target) as channel:
        call = pb_grpc.SentimentServiceStub(channel).ClassifyStream(many_and_then_none())
        async for response in call:
            assert response.response.prediction.label == "positive"
            received += 1
            if received == 21:
                await all_sent.wait()
                server.loop.call_soon_threadsafe(server.app.stop)
        code = await call.code()
    await asyncio.to_thread(server.stop)

    assert code is grpc.StatusCode.OK
    assert received == answered(server) > 20
    assert answered(server, "CANCELLED") == 0


async def test_a_bug_in_one_item_is_that_items_error_and_the_stream_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    tokenizer = server.models.find("").classifier.tokenizer
    encode = tokenizer.encode_short

    def fail_on_awful(text: str) -> object:
        if text == "awful":
            raise RuntimeError("a bug")
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode_short", fail_on_awful)

    async with AsyncClient(server.target) as client:
        found = {item_id: result async for item_id, result in client.classify_stream(items(["good", "awful", "great"]))}

    failed = found.pop("1")
    assert isinstance(failed, CallFailed)
    assert failed.code is Code.INTERNAL
    assert "a bug" not in failed.message
    assert [type(result) for result in found.values()] == [Classification] * 2


async def test_a_caller_learns_that_the_server_ended_its_stream_early(start: Start) -> None:
    server = start(drain_grace_s=20.0)

    with pytest.raises(CallFailed) as caught:
        async with AsyncClient(server.target) as client:
            async for _ in client.classify_stream(items(itertools.repeat("good"))):
                server.loop.call_soon_threadsafe(server.app.stop)

    assert caught.value.code is Code.UNAVAILABLE
    await asyncio.to_thread(server.stop)


async def test_a_stream_that_is_not_read_costs_no_other_call_its_answer_in_a_drain(start: Start, hold: Hold) -> None:
    """The stream has half of the grace. A call that is still running then has the rest."""
    server = start(drain_grace_s=2.0, call_rows_max=4)
    async with grpc.aio.insecure_channel(server.target, FIXED_WINDOW) as channel:
        stream = unread_stream(channel)
        await stands_still(lambda: answered(server))
        gate = hold(server)
        async with AsyncClient(server.target, options=PLAIN) as client:
            early = asyncio.create_task(client.classify("good"))
            await gate.begun()
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            await until(lambda: server.streams._ending, "the streams are ending")
            late = asyncio.create_task(client.classify("bad"))
            await gate.begun()
            await until(lambda: server.grpc.health._ended, "the time of the streams is over")
            gate.open()

            assert (await early).label == "positive"
            assert (await late).label == "negative"
        stream.cancel()
        await stopping


async def test_a_stream_that_is_cancelled_again_while_it_ends_is_closed_all_the_same() -> None:
    nothing: Any = None
    service: Any = SimpleNamespace(limits=SimpleNamespace(call_rows_max=4))
    receiving = Receiving(RequestBytes(2**20), 2**20, 1.0)
    streams = Streams(service, nothing, receiving)
    call = Call("ClassifyStream", 0.0, math.inf, lambda: ())
    stream = _Stream(service, nothing, receiving, LoopTurns(1), call)
    silent: Any = SimpleNamespace(read=asyncio.Event().wait)

    conversation = asyncio.create_task(streams._converse(stream, silent))
    while not streams.open:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    conversation.cancel()
    await asyncio.sleep(0)
    conversation.cancel()

    with pytest.raises(asyncio.CancelledError):
        await conversation
    assert not streams.open
    assert stream.closed.is_set()


async def test_tasks_go_on_a_few_a_turn_of_the_event_loop_in_order_and_one_that_left_takes_no_place() -> None:
    turns, went, left = LoopTurns(2), [], []

    async def go(number: int) -> None:
        await turns.wait()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(9)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    while not all(task.done() for task in tasks):
        left.append(len(went))
        await asyncio.sleep(0)

    assert went == [0, 1, 2, 4, 5, 6, 7, 8]
    assert max(after - before for before, after in itertools.pairwise([*left, len(went)])) <= 2


def test_turns_may_be_apart_and_the_next_may_have_more_room() -> None:
    turns, clock, went = LoopTurns(2, apart_s=1.0), VirtualClock(), list[float]()

    async def go() -> None:
        await turns.wait()
        went.append(clock.now)

    async def run() -> None:
        # Forgotten: no turn is to come yet.
        turns.allow(9)
        tasks = [asyncio.create_task(go()) for _ in range(7)]
        await asyncio.sleep(0.5)
        turns.allow(1.5)
        await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(run())

    assert went == pytest.approx([0, 0, 1, 1, 1, 2, 2])


async def test_a_stream_accepts_nothing_for_a_while_after_a_refusal(
    start: Start, hold: Hold, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentiment.doors.grpc.stream.PAUSE_S_MAX", 3600.0)
    server = start(runners=1, queue_rows_max=2)
    set_cost(server, FixedCost(row_s=10))
    gate, stub = hold(server), connect(server)

    # One item runs, two wait, and the fourth is refused.
    call = stub.ClassifyStream(iter(stream_requests(["good"] * 9, timeout_s=50)))
    refused = await bounded(call.read())
    accepted = await stands_still(lambda: served_by(server).batcher.scheduler.rows_waiting)

    assert refused.error.code == Code.RESOURCE_EXHAUSTED.value[0]
    assert (accepted, total(server, "items", method="ClassifyStream")) == (2, 1)
    call.cancel()
    gate.open()
