"""Who is refused at the door, at once, and what is told of coming back; who goes first."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from sentiment.batching.ticket import Priority
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.rpc.gate import (
    MODEL,
    FixedCost,
    Gate,
    assert_nothing_left,
    batch_request,
    bounded,
    class_queue_of,
    id_of,
    in_loop,
    outcome_of,
    queued,
    served_by,
    set_cost,
    stream_requests,
    total,
    until,
)

Code = grpc.StatusCode
INTERACTIVE, BULK = pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK
METHODS = ("Classify", "ClassifyBatch", "ClassifyStream")
# What is refused at the door is told so in less, however long its deadline is.
AT_ONCE_S = 1.0
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[RunningServer], Any]]:
    channels: list[grpc.aio.Channel] = []

    def begin(server: RunningServer) -> Any:
        channels.append(grpc.aio.insecure_channel(server.target, NO_RETRIES))
        return pb_grpc.SentimentServiceStub(channels[-1])

    yield begin
    for channel in channels:
        await channel.close()


class Refusal:
    """How one text was refused: in a call's status and trailers, or in an item's error."""

    def __init__(self, status: Status, pushback_ms: int | None, seconds: float) -> None:
        self.code = next(code for code in Code if code.value[0] == status.code)
        self.pushback_ms = pushback_ms
        self.seconds = seconds
        self.retry_after_s: float | None = None
        for detail in status.details:
            retry = RetryInfo()
            if detail.Unpack(retry):
                self.retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()


async def refusal(stub: Any, method: str, timeout_s: float, text: str = "good") -> Refusal:
    """Send one interactive text with a deadline, by any method, and return how it is refused."""
    begun = time.monotonic()
    if method == "Classify":
        error = await outcome_of(stub.Classify(pb.ClassifyRequest(text=text, priority=INTERACTIVE), timeout=timeout_s))
        assert isinstance(error, grpc.aio.AioRpcError), error
        pushbacks = [int(value) for key, value in error.trailing_metadata() if key == "grpc-retry-pushback-ms"]
        status = rpc_status.from_call(_Sync(error)) or Status(code=error.code().value[0])
        return Refusal(status, pushbacks[0] if pushbacks else None, time.monotonic() - begun)
    if method == "ClassifyBatch":
        response = await bounded(_awaited(stub.ClassifyBatch(batch_request([text], INTERACTIVE), timeout=timeout_s)))
        return Refusal(response.results[0].error, None, time.monotonic() - begun)
    requests = stream_requests([text], INTERACTIVE, timeout_s)
    responses = await bounded(_all(stub.ClassifyStream(iter(requests))))
    return Refusal(responses[0].error, None, time.monotonic() - begun)


class _Sync:
    """An asyncio call's error as grpc_status reads errors."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details, self.trailing_metadata = error.code, error.details, lambda: tuple(error.trailing_metadata())


async def _awaited(call: Any) -> Any:
    return await call


async def _all(call: Any) -> list[Any]:
    return [response async for response in call]


async def plugged(
    start: Callable[..., RunningServer],
    hold: Callable[[RunningServer], Gate],
    connect: Callable[[RunningServer], Any],
    row_s: float,
    **settings: Any,
) -> tuple[RunningServer, Gate, Any, list[asyncio.Task[Any]]]:
    """A server whose one runner is busy with a text, predicted to cost ``row_s`` as each text is."""
    server = start(runners=1, **settings)
    set_cost(server, FixedCost(row_s))
    gate, stub = hold(server), connect(server)
    calls = [asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="good"), timeout=60)))]
    await gate.begun()
    return server, gate, stub, calls


@every_method
@pytest.mark.parametrize("deadline_s", [6, 11], ids=["before-what-waits", "behind-what-waits"])
async def test_a_text_whose_deadline_cannot_be_met_is_refused_at_once_and_not_asked_to_come_back(
    start: Callable[..., RunningServer],
    hold: Callable[[RunningServer], Gate],
    connect: Callable[[RunningServer], Any],
    method: str,
    deadline_s: float,
) -> None:
    """4 s run and 4 s wait with a deadline in 10 s: one with 6 s needs 8, one with 11 s needs 12. When the work ahead is done
    neither has its own 4 s left, so that no retry can help it.
    """
    server, gate, stub, calls = await plugged(start, hold, connect, row_s=4)
    calls.append(asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="good"), timeout=10))))
    await queued(server, 1)

    refused = await refusal(stub, method, deadline_s)

    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert refused.seconds < AT_ONCE_S
    assert refused.retry_after_s is not None
    assert refused.retry_after_s > 2
    assert total(server, "refused") == total(server, "refused", reason="backlog") == 1
    assert total(server, "items", method=method, code="RESOURCE_EXHAUSTED") == total(server, "deadline_outcome", outcome="refused") == 1
    gate.open()
    assert [type(outcome) for outcome in await asyncio.gather(*calls)] == [pb.ClassifyResponse] * 2
    assert_nothing_left(server)
    assert refused.pushback_ms == (-1 if method == "Classify" else None)


async def test_a_text_that_would_make_others_late_is_refused_and_not_asked_to_come_back_while_those_wait(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any]
) -> None:
    """Nothing is ahead of it, for its deadline is the earliest; what it lacks is a place among rows that have no time to spare."""
    server, gate, stub, calls = await plugged(start, hold, connect, row_s=0.5)
    # What runs and 4 rows that wait are 2.5 s.
    for _ in range(4):
        calls.append(asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="good"), timeout=2.8))))
    await queued(server, 4)
    # What runs should end any moment.
    scheduler = served_by(server).batcher.scheduler
    await until(lambda: in_loop(server, lambda: scheduler.forecast._busy_s(time.monotonic())) < 0.1, "the run is predicted to end")

    refused = await refusal(stub, "Classify", 1.5)

    gate.open()
    assert [type(outcome) for outcome in await asyncio.gather(*calls)] == [pb.ClassifyResponse] * 5
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert refused.seconds < AT_ONCE_S
    # The first of those that wait is done after 0.5 s; sooner there is certainly no place.
    assert refused.pushback_ms is not None
    assert refused.pushback_ms == -1 or refused.pushback_ms >= 400


@every_method
async def test_a_deadline_too_short_for_an_idle_server_is_told_at_once(
    start: Callable[..., RunningServer], connect: Callable[[RunningServer], Any], method: str
) -> None:
    server = start(runners=1)
    set_cost(server, FixedCost(row_s=20))
    # Once a second an idle server tries whatever its table denies.
    await connect(server).Classify(pb.ClassifyRequest(text="probe"), timeout=5)

    refused = await refusal(connect(server), method, 5)

    assert refused.code is Code.DEADLINE_EXCEEDED
    assert refused.seconds < AT_ONCE_S
    assert (refused.retry_after_s, refused.pushback_ms) == (None, None)
    assert total(server, "refused") == total(server, "refused", reason="deadline") == 1
    assert total(server, "items", method=method, code="DEADLINE_EXCEEDED") == total(server, "deadline_outcome", outcome="refused") == 1
    assert_nothing_left(server)


@every_method
async def test_a_full_queue_refuses_and_says_when_to_come_back(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any], method: str
) -> None:
    server, gate, stub, calls = await plugged(start, hold, connect, row_s=0.2, queue_rows_max=2)
    for _ in range(2):
        calls.append(asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="good"), timeout=60))))
    await queued(server, 2)

    refused = await refusal(stub, method, 30)

    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert refused.seconds < AT_ONCE_S
    assert refused.retry_after_s is not None
    # Two rows wait, and what runs of the third.
    assert 0.4 <= refused.retry_after_s <= 0.6
    if method == "Classify":
        assert refused.pushback_ms is not None
        assert 400 <= refused.pushback_ms <= 600
    assert total(server, "refused") == total(server, "refused", reason="queue_full") == 1
    gate.open()
    assert [type(outcome) for outcome in await asyncio.gather(*calls)] == [pb.ClassifyResponse] * 3
    assert_nothing_left(server)


async def test_of_a_batch_that_is_too_much_the_items_that_fit_are_answered_and_the_others_refused(
    start: Callable[..., RunningServer], connect: Callable[[RunningServer], Any]
) -> None:
    server = start(runners=1)
    # Within 5 s there is room for 50 of them, by prediction. 60 are tokenized together and queued before the first of them runs.
    set_cost(server, FixedCost(row_s=0.1))

    response = await bounded(_awaited(connect(server).ClassifyBatch(batch_request(["good"] * 60, INTERACTIVE), timeout=5)))

    answered = [result.HasField("response") for result in response.results]
    codes = {result.error.code for result in response.results if result.HasField("error")}
    assert 40 <= sum(answered) <= 50
    assert codes == {Code.RESOURCE_EXHAUSTED.value[0]}
    # Who comes first is served first.
    assert answered == sorted(answered, reverse=True)
    assert total(server, "items") == 60
    assert_nothing_left(server)


async def test_a_later_interactive_text_goes_before_most_of_the_bulk_rows_that_wait(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any]
) -> None:
    server, gate, stub, _ = await plugged(start, hold, connect, row_s=0.001)
    bulk = asyncio.create_task(_awaited(stub.ClassifyBatch(batch_request(["bad film"] * 50), timeout=60)))
    await queued(server, 50)
    interactive = asyncio.create_task(_awaited(stub.Classify(pb.ClassifyRequest(text="great film"), timeout=60)))
    await queued(server, 51)

    gate.open()

    assert (await bounded(interactive)).prediction.label == "positive"
    assert {result.response.prediction.label for result in (await bounded(bulk)).results} == {"negative"}
    runs = [row[1] for batch in gate.batches[1:] for row in batch]
    assert sorted(runs) == sorted([id_of("great")] + [id_of("bad")] * 50)
    # A batch of bulk rows may have gone first; the class has its share.
    assert runs.index(id_of("great")) <= 16


async def test_unless_they_say_otherwise_single_texts_are_interactive_and_batches_and_streams_bulk(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any]
) -> None:
    server, gate, stub, _ = await plugged(start, hold, connect, row_s=0.001)
    calls = [
        asyncio.create_task(_awaited(stub.Classify(pb.ClassifyRequest(text="good")))),
        asyncio.create_task(_awaited(stub.ClassifyBatch(batch_request(["good"] * 3)))),
        asyncio.create_task(_all(stub.ClassifyStream(iter(stream_requests(["good"] * 5))))),
    ]
    await queued(server, 9)

    rows = in_loop(server, lambda: {priority: class_queue_of(server, priority).rows for priority in Priority})

    assert rows == {Priority.INTERACTIVE: 1, Priority.BULK: 8}
    gate.open()
    await bounded(_gathered(calls))


async def test_a_request_gets_the_priority_that_it_names(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any]
) -> None:
    server, gate, stub, _ = await plugged(start, hold, connect, row_s=0.001)
    calls = [
        asyncio.create_task(_awaited(stub.Classify(pb.ClassifyRequest(text="good", priority=BULK)))),
        asyncio.create_task(_awaited(stub.ClassifyBatch(batch_request(["good"] * 3, INTERACTIVE)))),
        asyncio.create_task(_all(stub.ClassifyStream(iter(stream_requests(["good"] * 5, INTERACTIVE))))),
    ]
    await queued(server, 9)

    rows = in_loop(server, lambda: {priority: class_queue_of(server, priority).rows for priority in Priority})

    assert rows == {Priority.INTERACTIVE: 8, Priority.BULK: 1}
    gate.open()
    await bounded(_gathered(calls))


async def _gathered(calls: list[asyncio.Task[Any]]) -> Any:
    return await asyncio.gather(*calls)


@every_method
async def test_an_unknown_priority_is_invalid(server: RunningServer, connect: Callable[[RunningServer], Any], method: str) -> None:
    stub = connect(server)

    if method == "ClassifyStream":
        responses = await bounded(_all(stub.ClassifyStream(iter(stream_requests(["good"], 3)))))
        code, message = responses[0].error.code, responses[0].error.message
    else:
        request = batch_request(["good"], 3) if method == "ClassifyBatch" else pb.ClassifyRequest(text="good", priority=3)
        error = await outcome_of(getattr(stub, method)(request))
        code, message = error.code().value[0], error.details()

    assert code == Code.INVALID_ARGUMENT.value[0]
    assert message.endswith("priority: is 3; known are 0 to 2")


# Open calls


def opened(server: RunningServer, calls: int) -> Callable[[], bool]:
    return lambda: server.app._grpc.calls._open == calls


@every_method
@pytest.mark.parametrize("ending", ["answered", "cancelled"])
async def test_one_open_call_too_many_is_refused_and_its_place_is_free_again_when_another_has_ended(
    start: Callable[..., RunningServer],
    hold: Callable[[RunningServer], Gate],
    connect: Callable[[RunningServer], Any],
    method: str,
    ending: str,
) -> None:
    server, gate, stub, calls = await plugged(start, hold, connect, row_s=0.001, calls_max=2)
    second = stub.ClassifyStream(_open_stream()) if method == "ClassifyStream" else _single(stub, method)
    waiting = asyncio.create_task(_ended(second))
    await until(opened(server, 2), "two calls are open")

    error = await _ended(_single(stub, method) if method != "ClassifyStream" else stub.ClassifyStream(_silent_stream()))

    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert error.details() == "2 calls are open; the limit is 2"
    assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert total(server, "requests", method=method, code="RESOURCE_EXHAUSTED", model="") == 1
    assert server.app._grpc.calls._open == 2
    if ending == "cancelled":
        second.cancel()
        await until(opened(server, 1), "one call is open")
        again = asyncio.create_task(_ended(_single(stub, "Classify")))
        await until(opened(server, 2), "two calls are open")
        gate.open()
    else:
        gate.open()
        await until(opened(server, 1 if method == "ClassifyStream" else 0), "the calls have ended")
        again = asyncio.create_task(_ended(_single(stub, "Classify")))
    assert isinstance(await again, pb.ClassifyResponse)
    assert isinstance(await calls[0], pb.ClassifyResponse)
    second.cancel()
    await asyncio.wait({waiting})
    await until(opened(server, 0), "no call is open")
    await until(lambda: not server.app._grpc.streams._open, "no stream is open")
    assert_nothing_left(server)


def _single(stub: Any, method: str) -> Any:
    return stub.ClassifyBatch(batch_request(["good"])) if method == "ClassifyBatch" else stub.Classify(pb.ClassifyRequest(text="good"))


async def _open_stream() -> AsyncIterator[pb.ClassifyStreamRequest]:
    yield stream_requests(["good"])[0]
    await asyncio.Event().wait()


async def _silent_stream() -> AsyncIterator[pb.ClassifyStreamRequest]:
    """Sends nothing: grpc.aio's client takes an end that meets its own write for an internal error."""
    await asyncio.Event().wait()
    yield pb.ClassifyStreamRequest()


async def _ended(call: Any) -> Any:
    """The response, the responses or the error of a call of any kind."""
    try:
        async with asyncio.timeout(10):
            return [response async for response in call] if hasattr(call, "__aiter__") else await call
    except grpc.aio.AioRpcError as error:
        return error


async def test_what_asks_for_health_is_not_refused_for_open_calls(
    start: Callable[..., RunningServer], hold: Callable[[RunningServer], Gate], connect: Callable[[RunningServer], Any]
) -> None:
    """A probe that fails under load would have the server replaced just then."""
    server, gate, _, _ = await plugged(start, hold, connect, row_s=0.001, calls_max=1)

    async with grpc.aio.insecure_channel(server.target) as channel:
        status = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)

    assert status == b"\x08\x01"
    assert server.metric("sentiment_requests_total", method="Classify", code="RESOURCE_EXHAUSTED", model=MODEL) == 0
    gate.open()
