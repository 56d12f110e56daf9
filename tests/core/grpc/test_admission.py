"""Admission control: which calls are refused at once, when they may retry, and which priority they have."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from sentiment.batching.ticket import Priority
from sentiment.call import servicer
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer
from tests.core.grpc.gate import (
    MODEL,
    FixedCost,
    Gate,
    Hold,
    Start,
    assert_nothing_left,
    batch_request,
    class_queue_of,
    every_method,
    in_loop,
    outcome_of,
    queued,
    send,
    set_cost,
    stream_requests,
    total,
    until,
)

Code = grpc.StatusCode
INTERACTIVE, BULK = pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK
# A refused call gets its answer within this time, however long its deadline is.
AT_ONCE_S = 1.0
Connect = Callable[[RunningServer], Any]


class Refusal(NamedTuple):
    """How one text was refused: in a call's status and trailers, or in an item's error."""

    code: grpc.StatusCode
    retry_after_s: float | None
    pushback_ms: int | None
    seconds: float


def request_of(
    method: str, text: str = "good", priority: pb.Priority.ValueType = pb.PRIORITY_UNSPECIFIED, timeout_s: float | None = None
) -> Any:
    """One text as a request of any method; ``timeout_s``: of a stream's item."""
    if method == "Classify":
        return pb.ClassifyRequest(text=text, priority=priority)
    return batch_request([text], priority) if method == "ClassifyBatch" else iter(stream_requests([text], priority, timeout_s))


async def refusal(stub: Any, method: str, timeout_s: float) -> Refusal:
    """Send one interactive text with a deadline, by any method, and return how it is refused."""
    begun = time.monotonic()
    limit = {} if method == "ClassifyStream" else {"timeout": timeout_s}
    outcome = await outcome_of(getattr(stub, method)(request_of(method, "good", INTERACTIVE, timeout_s), **limit))
    seconds = time.monotonic() - begun
    trailers: dict[str, Any] = {}
    if isinstance(outcome, grpc.aio.AioRpcError):
        trailers = dict(outcome.trailing_metadata() or ())
        status = Status.FromString(trailers.get("grpc-status-details-bin") or Status(code=outcome.code().value[0]).SerializeToString())
    else:
        status = outcome[0].error if method == "ClassifyStream" else outcome.results[0].error
    retry = RetryInfo()
    delays = [retry.retry_delay.ToTimedelta().total_seconds() for detail in status.details if detail.Unpack(retry)]
    pushback = trailers.get("grpc-retry-pushback-ms")
    code = next(code for code in Code if code.value[0] == status.code)
    return Refusal(code, delays[0] if delays else None, None if pushback is None else int(pushback), seconds)


def classify(stub: Any, timeout_s: float = 60, text: str = "good") -> asyncio.Task[Any]:
    return send(stub.Classify(pb.ClassifyRequest(text=text), timeout=timeout_s))


async def assert_answered(calls: list[asyncio.Task[Any]]) -> None:
    assert [type(outcome) for outcome in await asyncio.gather(*calls)] == [pb.ClassifyResponse] * len(calls)


Plugged = tuple[RunningServer, Gate, Any, list[asyncio.Task[Any]]]


@pytest.fixture
def plugged(start: Start, hold: Hold, connect: Connect) -> Callable[..., Any]:
    async def begin(row_s: float, **settings: Any) -> Plugged:
        """A server whose one runner is busy with a text. Each text is predicted to cost ``row_s``."""
        server = start(runners=1, **settings)
        set_cost(server, FixedCost(row_s))
        gate, stub = hold(server), connect(server)
        calls = [classify(stub)]
        await gate.begun()
        return server, gate, stub, calls

    return begin


@every_method
@pytest.mark.parametrize("deadline_s", [6, 11], ids=["before-what-waits", "behind-what-waits"])
async def test_a_text_whose_deadline_cannot_be_met_is_refused_at_once_and_not_asked_to_come_back(
    plugged: Any,
    method: str,
    deadline_s: float,
) -> None:
    """4 s run and 4 s wait with a deadline in 10 s: one with 6 s needs 8, one with 11 s needs 12. When the work ahead is done
    neither has its own 4 s left, so that no retry can help it.
    """
    server, gate, stub, calls = await plugged(row_s=4)
    calls.append(classify(stub, 10))
    await queued(server, 1)

    refused = await refusal(stub, method, deadline_s)

    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert refused.seconds < AT_ONCE_S
    assert refused.retry_after_s is not None
    assert refused.retry_after_s > 2
    assert total(server, "refused") == total(server, "refused", reason="backlog") == 1
    assert total(server, "items", method=method, code="RESOURCE_EXHAUSTED") == total(server, "deadline_outcome", outcome="refused") == 1
    gate.open()
    await assert_answered(calls)
    assert_nothing_left(server)
    assert refused.pushback_ms == (-1 if method == "Classify" else None)


@every_method
async def test_a_deadline_too_short_for_an_idle_server_expires_at_once(start: Start, connect: Connect, method: str) -> None:
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
async def test_a_full_queue_refuses_and_says_when_to_come_back(plugged: Any, method: str) -> None:
    server, gate, stub, calls = await plugged(row_s=0.2, queue_rows_max=2)
    for _ in range(2):
        calls.append(classify(stub))
    await queued(server, 2)

    refused = await refusal(stub, method, 30)

    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert refused.seconds < AT_ONCE_S
    assert refused.retry_after_s is not None
    # Two rows wait, and what is left of the third, which is late where the machine is busy.
    assert 0.4 <= refused.retry_after_s <= 6
    if method == "Classify":
        assert refused.pushback_ms is not None
        assert 400 <= refused.pushback_ms <= 6000
    assert total(server, "refused") == total(server, "refused", reason="queue_full") == 1
    gate.open()
    await assert_answered(calls)
    assert_nothing_left(server)


async def test_of_a_batch_that_is_too_much_the_items_that_fit_are_answered_and_the_others_refused(start: Start, connect: Connect) -> None:
    server = start(runners=1)
    # Within 5 s there is room for 50 of them, by prediction. 60 are tokenized together and queued before the first of them runs.
    set_cost(server, FixedCost(row_s=0.1))

    response = await outcome_of(connect(server).ClassifyBatch(batch_request(["good"] * 60, INTERACTIVE), timeout=5))

    answered = [result.HasField("response") for result in response.results]
    codes = {result.error.code for result in response.results if result.HasField("error")}
    assert 40 <= sum(answered) <= 50
    assert codes == {Code.RESOURCE_EXHAUSTED.value[0]}
    # Who comes first is served first.
    assert answered == sorted(answered, reverse=True)
    assert total(server, "items") == 60
    assert_nothing_left(server)


@pytest.mark.parametrize(
    ("single", "others", "interactive", "bulk"),
    [(pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_UNSPECIFIED, 1, 8), (BULK, INTERACTIVE, 8, 1)],
    ids=["default", "requested"],
)
async def test_single_texts_are_interactive_and_batches_and_streams_bulk_unless_a_request_sets_its_priority(
    plugged: Any, single: pb.Priority.ValueType, others: pb.Priority.ValueType, interactive: int, bulk: int
) -> None:
    server, gate, stub, calls = await plugged(row_s=0.001)
    calls += [
        send(stub.Classify(pb.ClassifyRequest(text="good", priority=single))),
        send(stub.ClassifyBatch(batch_request(["good"] * 3, others))),
        send(stub.ClassifyStream(iter(stream_requests(["good"] * 5, others)))),
    ]
    await queued(server, 9)

    rows = in_loop(server, lambda: {priority: class_queue_of(server, priority).rows for priority in Priority})

    assert rows == {Priority.INTERACTIVE: interactive, Priority.BULK: bulk, Priority.OVER: 0}
    gate.open()
    await asyncio.wait(calls)


@pytest.mark.parametrize("handful", [2, 0])
async def test_of_a_calls_many_texts_only_a_handful_are_interactive_whatever_it_asks_for(plugged: Any, handful: int) -> None:
    server, gate, stub, calls = await plugged(row_s=0.001, interactive_items_max=handful)
    calls += [
        send(stub.ClassifyBatch(batch_request(["good"] * 5, INTERACTIVE))),
        send(stub.ClassifyStream(iter(stream_requests(["good"] * 5, INTERACTIVE)))),
    ]
    await queued(server, 10)

    rows = in_loop(server, lambda: {priority: class_queue_of(server, priority).rows for priority in Priority})

    assert rows == {Priority.INTERACTIVE: 2 * handful, Priority.BULK: 10 - 2 * handful, Priority.OVER: 0}
    gate.open()
    await asyncio.wait(calls)


async def test_items_of_a_batch_that_do_not_fit_into_its_time_expire_early_enough_for_the_others_answers(
    plugged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 s for the items, and the rest for the answers' way.
    monkeypatch.setattr(servicer, "RESERVE_SHARE", 0.9)
    monkeypatch.setattr(servicer, "RESERVE_S_MAX", 18)
    server, gate, stub, calls = await plugged(row_s=0.001, batch_rows_max=1)
    calls.append(send(stub.ClassifyBatch(batch_request(["good"] * 4), timeout=20)))
    await queued(server, 4)

    # What runs, and the first item. The others are never let go in time.
    gate.let(2)
    response = await calls[-1]

    assert [result.WhichOneof("result") for result in response.results] == ["response", "error", "error", "error"]
    assert {result.error.code for result in response.results[1:]} == {Code.DEADLINE_EXCEEDED.value[0]}
    assert total(server, "requests", method="ClassifyBatch", code="OK") == 1
    gate.open()
    await asyncio.wait(calls)


@every_method
async def test_an_unknown_priority_is_invalid(server: RunningServer, connect: Connect, method: str) -> None:
    outcome = await outcome_of(getattr(connect(server), method)(request_of(method, "good", 3)))

    if method == "ClassifyStream":
        code, message = outcome[0].error.code, outcome[0].error.message
    else:
        code, message = outcome.code().value[0], outcome.details()
    assert code == Code.INVALID_ARGUMENT.value[0]
    assert message.endswith("priority: must be 0 to 2, got 3")


# Open calls


def opened(server: RunningServer, calls: int) -> Callable[[], bool]:
    return lambda: server.calls.open == calls


@every_method
@pytest.mark.parametrize("ending", ["answered", "cancelled"])
async def test_one_open_call_too_many_is_refused_and_its_place_is_free_again_when_another_has_ended(
    plugged: Any,
    method: str,
    ending: str,
) -> None:
    # Of one caller: it gets at most as many as stay free.
    server, gate, stub, calls = await plugged(row_s=0.001, calls_max=3)
    second = stub.ClassifyStream(_open_stream()) if method == "ClassifyStream" else getattr(stub, method)(request_of(method))
    waiting = send(second)
    await until(opened(server, 2), "two calls are open")

    error = await outcome_of(getattr(stub, method)(_silent_stream() if method == "ClassifyStream" else request_of(method)))

    assert error.code() is Code.RESOURCE_EXHAUSTED
    expected = "2 calls are open, 2 of them this caller's; the limit is 3, and a caller gets at most as many as stay free"
    assert error.details() == expected
    assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert total(server, "requests", method=method, code="RESOURCE_EXHAUSTED", model="") == 1
    assert server.calls.open == 2
    if ending == "cancelled":
        second.cancel()
        await until(opened(server, 1), "one call is open")
        again = classify(stub)
        await until(opened(server, 2), "two calls are open")
        gate.open()
    else:
        gate.open()
        await until(opened(server, 1 if method == "ClassifyStream" else 0), "the calls have ended")
        again = classify(stub)
    assert isinstance(await again, pb.ClassifyResponse)
    assert isinstance(await calls[0], pb.ClassifyResponse)
    second.cancel()
    await asyncio.wait({waiting})
    await until(opened(server, 0), "no call is open")
    await until(lambda: not server.streams.open, "no stream is open")
    assert_nothing_left(server)


async def _open_stream() -> AsyncIterator[pb.ClassifyStreamRequest]:
    yield stream_requests(["good"])[0]
    await asyncio.Event().wait()


async def _silent_stream() -> AsyncIterator[pb.ClassifyStreamRequest]:
    """Sends nothing: grpc.aio's client takes an end that meets its own write for an internal error."""
    await asyncio.Event().wait()
    yield pb.ClassifyStreamRequest()


async def test_a_health_check_is_answered_however_many_calls_are_open(plugged: Any) -> None:
    """A probe that fails under load would have the server replaced just then."""
    server, gate, _, _ = await plugged(row_s=0.001, calls_max=1)

    async with grpc.aio.insecure_channel(server.target) as channel:
        status = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)

    assert status == b"\x08\x01"
    assert server.metric("sentiment_requests_total", method="Classify", code="RESOURCE_EXHAUSTED", model=MODEL) == 0
    gate.open()
