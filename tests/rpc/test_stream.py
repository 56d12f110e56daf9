"""ClassifyStream through a real server."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from sentiment.api.grpc.call import Call
from sentiment.api.grpc.stream import Streams, _Stream
from sentiment.client import AsyncClient, CallFailed, Classification
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import PLAIN, RunningServer

Code = grpc.StatusCode


async def items(count: int) -> AsyncIterator[tuple[str, str]]:
    for number in range(count):
        yield str(number), f"w{number % 65 - 32} " + "film " * (number % 25)


async def test_every_item_is_answered_once_under_its_own_id(server: RunningServer) -> None:
    seen: dict[str, Classification] = {}

    async with AsyncClient(server.target) as client:
        async for item_id, result in client.classify_stream(items(1000)):
            assert isinstance(result, Classification)
            assert item_id not in seen
            seen[item_id] = result

    assert len(seen) == 1000
    for item_id, result in seen.items():
        weight = (int(item_id) % 65 - 32) / 64
        assert result.scores["positive"] == pytest.approx(1 / (1 + math.exp(-2 * weight)), abs=1e-6)


async def test_a_bad_item_has_an_error_of_its_own(server: RunningServer) -> None:
    async def mixed() -> AsyncIterator[tuple[str, str]]:
        for item in (("a", "good"), ("b", ""), ("c" * 300, "good"), ("d", "bad")):
            yield item

    async with AsyncClient(server.target) as client:
        results = [pair async for pair in client.classify_stream(mixed())]

    found = {item_id: result.code.name if isinstance(result, CallFailed) else result.label for item_id, result in results}
    assert found == {"a": "positive", "b": "INVALID_ARGUMENT", "c" * 64: "INVALID_ARGUMENT", "d": "negative"}


async def raw_stream(server: RunningServer, *requests: pb.ClassifyStreamRequest) -> list[pb.ClassifyStreamResponse]:
    async with grpc.aio.insecure_channel(server.target) as channel:
        call = pb_grpc.SentimentServiceStub(channel).ClassifyStream(iter(requests))
        return [response async for response in call]


async def test_an_items_own_timeout_is_kept_and_must_be_positive(server: RunningServer) -> None:
    short, wrong = (
        pb.ClassifyStreamRequest(id="short", item=pb.Item(text="good")),
        pb.ClassifyStreamRequest(id="wrong", item=pb.Item(text="good")),
    )
    short.timeout.nanos = 1
    wrong.timeout.seconds = -1

    responses = {response.id: response for response in await raw_stream(server, short, wrong)}

    assert responses["short"].error.code == Code.DEADLINE_EXCEEDED.value[0]
    assert responses["wrong"].error.code == Code.INVALID_ARGUMENT.value[0]


async def test_options_belong_to_each_item(server: RunningServer) -> None:
    good = pb.ClassifyStreamRequest(id="good", item=pb.Item(text="good"), options=pb.StreamOptions(model="tiny/1"))
    lost = pb.ClassifyStreamRequest(id="lost", item=pb.Item(text="good"), options=pb.StreamOptions(model="nosuch"))
    explained = pb.ClassifyStreamRequest(id="explained", item=pb.Item(text="good"), options=pb.StreamOptions(explain=pb.ExplainOptions()))

    responses = {response.id: response for response in await raw_stream(server, good, lost, explained)}

    assert responses["good"].response.prediction.label == "positive"
    assert responses["lost"].error.code == Code.NOT_FOUND.value[0]
    assert responses["explained"].error.code == Code.UNIMPLEMENTED.value[0]


async def test_a_malformed_message_ends_the_stream_as_invalid(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.target) as channel:
        call = channel.stream_stream("/sentiment.v1.SentimentService/ClassifyStream")(iter([b"\xff\xff"]))

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in call]

    assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_a_client_that_does_not_read_is_not_read_from(start: Callable[..., RunningServer]) -> None:
    server = start(call_rows_max=8)
    sent = 0

    async def endless() -> AsyncIterator[pb.ClassifyStreamRequest]:
        nonlocal sent
        while True:
            # Large ids fill the transport's own windows soon.
            yield pb.ClassifyStreamRequest(id="x" * 256, item=pb.Item(text="good " + "film " * 2000))
            sent += 1

    # A fixed window: an estimated one grows to megabytes.
    async with grpc.aio.insecure_channel(server.target, [("grpc.http2.bdp_probe", 0)]) as channel:
        call = pb_grpc.SentimentServiceStub(channel).ClassifyStream(endless())
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        answered = server.metric("sentiment_items_total", method="ClassifyStream", code="OK", model="tiny/1")
        call.cancel()

    # What is answered and unread lies in the transport's windows and among the 8 places, not in our memory.
    assert answered < 2000
    assert server.metric("sentiment_queue_rows", model="tiny/1") == 0


async def test_leaving_a_stream_withdraws_what_is_queued(start: Callable[..., RunningServer]) -> None:
    server = start()
    async with AsyncClient(server.target) as client:
        async for _ in client.classify_stream(items(500)):
            break

    async with AsyncClient(server.target) as client:
        assert (await client.classify("good")).label == "positive"
    while server.metric("sentiment_requests_total", method="ClassifyStream", code="CANCELLED", model="tiny/1") == 0:
        await asyncio.sleep(0.01)
    assert server.metric("sentiment_queue_rows", model="tiny/1") == 0


async def test_a_drain_answers_every_item_it_accepted_and_ends_the_stream_with_ok(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(drain_grace_s=20.0)
    session = server.app._models.find("").classifier.session
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
            if received == 1:
                await all_sent.wait()
                server.loop.call_soon_threadsafe(server.app.stop)
        code = await call.code()
    await asyncio.to_thread(server.stop)

    assert code is grpc.StatusCode.OK
    assert received == server.metric("sentiment_items_total", method="ClassifyStream", code="OK", model="tiny/1") > 20
    assert server.metric("sentiment_items_total", method="ClassifyStream", code="CANCELLED", model="tiny/1") == 0


async def test_a_bug_in_one_item_is_that_items_error_and_the_stream_goes_on(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    tokenizer = server.app._models.find("").classifier.tokenizer
    encode = tokenizer.encode

    def fail_on_awful(text: str, pair: str | None = None):
        if text == "awful":
            raise RuntimeError("a bug")
        return encode(text, pair)

    monkeypatch.setattr(tokenizer, "encode", fail_on_awful)

    async def three() -> AsyncIterator[tuple[str, str]]:
        for text in ("good", "awful", "great"):
            yield text, text

    async with AsyncClient(server.target) as client:
        found = {item_id: result async for item_id, result in client.classify_stream(three())}

    assert isinstance(found["awful"], CallFailed)
    assert found["awful"].code is Code.INTERNAL
    assert "a bug" not in found["awful"].message
    assert isinstance(found["good"], Classification)
    assert isinstance(found["great"], Classification)


async def test_a_stream_that_the_server_ends_early_is_told_to_its_caller(start: Callable[..., RunningServer]) -> None:
    server = start(drain_grace_s=20.0)

    async def endless() -> AsyncIterator[tuple[str, str]]:
        while True:
            yield "x", "good"

    with pytest.raises(CallFailed) as caught:
        async with AsyncClient(server.target) as client:
            async for _ in client.classify_stream(endless()):
                server.loop.call_soon_threadsafe(server.app.stop)

    assert caught.value.code is Code.UNAVAILABLE
    await asyncio.to_thread(server.stop)


async def test_a_stream_that_is_not_read_costs_no_other_call_its_answer_in_a_drain(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(drain_grace_s=2.0, call_rows_max=4)
    session = server.app._models.find("").classifier.session
    run = session.run

    async def endless() -> AsyncIterator[pb.ClassifyStreamRequest]:
        while True:
            yield pb.ClassifyStreamRequest(id="x" * 256, item=pb.Item(text="good"))

    async with grpc.aio.insecure_channel(server.target, [("grpc.http2.bdp_probe", 0)]) as channel:
        stream = pb_grpc.SentimentServiceStub(channel).ClassifyStream(endless())
        # Its windows fill; nobody reads.
        before = -1.0
        while (now := server.metric("sentiment_items_total", method="ClassifyStream", code="OK", model="tiny/1")) != before:
            before = now
            await asyncio.sleep(0.2)
        monkeypatch.setattr(session, "run", lambda feeds, stop=None: time.sleep(0.3) or run(feeds, stop))
        async with AsyncClient(server.target, options=PLAIN) as client:
            call = asyncio.create_task(client.classify("good"))
            await asyncio.sleep(0.05)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            await asyncio.sleep(0.9)
            late = asyncio.create_task(client.classify("bad"))

            assert (await call).label == "positive"
            assert (await late).label == "negative"
        stream.cancel()
        await stopping


async def test_a_stream_that_is_cancelled_again_while_it_ends_is_closed_all_the_same() -> None:
    nothing: Any = None
    streams = Streams(nothing, nothing, rows_max=4, deadline_default_s=1.0)
    call = Call("ClassifyStream", 0.0, math.inf, lambda: (), lambda: "id")
    stream = _Stream(nothing, nothing, call, 4, 1.0)

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    conversation = asyncio.create_task(streams._converse(stream, silent(), nothing))
    while not streams._open:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    conversation.cancel()
    await asyncio.sleep(0)
    conversation.cancel()

    with pytest.raises(asyncio.CancelledError):
        await conversation
    assert not streams._open
    assert stream.closed.is_set()
