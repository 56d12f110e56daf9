"""The queue of explanations: order, deadlines, slow or absent readers, runs that fail or hang. The explainer is scripted."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sentiment.errors import Expired, InvalidInput, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain import queue as explaining
from sentiment.explain import thread as explain_thread
from sentiment.explain.encoding import Encoding, encode
from sentiment.explain.parts import Aggregation, AttentionTile, ExplanationRequest, Part, Summary
from sentiment.explain.queue import CUT, Explaining, ExplainLimits
from sentiment.explain.thread import AHEAD_BYTES, RESERVE_S
from sentiment.model.execute import Execute
from sentiment.model.session import Stop
from sentiment.observability.metrics import Metrics

SUMMARY = Summary(True, (), 0, 0, 0.0)
LONG_S = 20.0


def _tile(number: int = 0) -> AttentionTile:
    return AttentionTile(number, 0, Aggregation.MAPS, encode(np.full((512, 512), 1 / 512, np.float32), Encoding.U8))


class Scripted:
    """A fake explainer: ``scripts`` by text, each a function that returns the parts."""

    methods = ("occlusion",)
    failure = ""

    def __init__(self) -> None:
        self.scripts: dict[str, Callable[[Callable[[], float], Stop], Iterator[Part]]] = {}
        self.started: list[str] = []
        self.thread = self.runs_in = 0

    def explain(self, request: ExplanationRequest, left_s: Callable[[], float], stop: Stop, execute: Execute) -> Iterator[Part]:
        self.started.append(request.text)
        self.thread = threading.get_native_id()
        execute(lambda: setattr(self, "runs_in", threading.get_native_id()))
        yield from self.scripts.get(request.text, lambda left_s, stop: iter([_tile(), SUMMARY]))(left_s, stop)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def queue(scripted: Scripted) -> AsyncIterator[Explaining]:
    made = _queue(scripted)
    yield made
    made.close(5)


def _queue(scripted: Scripted, **more: Any) -> Explaining:
    metrics = Metrics(("Explain",), ("OK",)).model("tiny/1", [], ())
    return Explaining(scripted, metrics, ExplainLimits(calls_max=2, bytes_max=2**20), **more)


async def _all(queue: Explaining, text: str, allowed_s: float = LONG_S) -> list[Part]:
    return [part async for part in queue.explain(ExplanationRequest(text), time.monotonic() + allowed_s)]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


class Gate:
    """A script that holds the thread until it is opened or its run is told to stop."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, _left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        self.entered.set()
        while not self.open.wait(0.005):
            if stop.options.terminate:
                raise RuntimeError("the run was told to stop")
        yield SUMMARY


async def _held(
    scripted: Scripted, queue: Explaining, text: str = "first", allowed_s: float = LONG_S
) -> tuple[Gate, asyncio.Task[list[Part]]]:
    """An explanation that holds the thread."""
    gate = scripted.scripts[text] = Gate()
    task = asyncio.create_task(_all(queue, text, allowed_s))
    await _until(gate.entered.is_set)
    return gate, task


async def _waiting(queue: Explaining, *texts: str) -> list[asyncio.Task[list[Part]]]:
    """Explanations that wait in the queue, one after the other."""
    tasks = []
    for text in texts:
        before = len(queue._waiting)
        tasks.append(asyncio.create_task(_all(queue, text)))
        await _until(lambda before=before: len(queue._waiting) > before)
    return tasks


async def test_parts_come_in_order_and_the_summary_has_the_waiting_time(scripted: Scripted, queue: Explaining) -> None:
    gate, first = await _held(scripted, queue)
    (second,) = await _waiting(queue, "second")
    await asyncio.sleep(0.05)
    gate.open.set()

    tile, summary = await second

    assert isinstance(tile, AttentionTile)
    assert isinstance(summary, Summary)
    assert summary.queue_s >= 0.05
    assert [type(part) for part in await first] == [Summary]
    assert scripted.started == ["first", "second"]


async def test_only_graph_runs_have_the_lowest_priority(scripted: Scripted, queue: Explaining) -> None:
    await _all(queue, "any")

    assert os.sched_getscheduler(scripted.runs_in) == os.SCHED_IDLE
    assert os.sched_getscheduler(scripted.thread) == os.SCHED_OTHER
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER


async def test_an_explanation_without_a_caller_is_stopped_or_never_started(scripted: Scripted, queue: Explaining) -> None:
    _, left = await _held(scripted, queue, "left")
    waits, gone = await _waiting(queue, "waits", "gone")

    gone.cancel()
    left.cancel()

    assert len(await waits) == 2
    assert scripted.started == ["left", "waits"]


async def test_a_full_queue_refuses_with_the_limit(scripted: Scripted, queue: Explaining) -> None:
    gate, first = await _held(scripted, queue)
    more = await _waiting(queue, "more", "more")

    with pytest.raises(Refused, match="2 explanations are waiting; the limit is 2") as caught:
        await _all(queue, "one too many")

    assert caught.value.retry_after_s > 0
    gate.open.set()
    assert [len(parts) for parts in await asyncio.gather(first, *more)] == [1, 2, 2]


async def test_a_request_that_cannot_start_in_time_is_refused_at_once(scripted: Scripted, queue: Explaining) -> None:
    gate, first = await _held(scripted, queue)
    (second,) = await _waiting(queue, "second")

    with pytest.raises(Refused, match=r"1 explanations are waiting, about 1\.0 s of work; the deadline of this one is in 0\.[01] s"):
        await _all(queue, "hurried", allowed_s=0.1)

    gate.open.set()
    await asyncio.gather(first, second)


async def test_an_explanation_expires_at_its_deadline_waiting_or_started(scripted: Scripted, queue: Explaining) -> None:
    _, first = await _held(scripted, queue, "started", 0.4)

    with pytest.raises(Expired, match=r"it waited \d+\.[1-9]\d s in the queue"):
        await _all(queue, "waiting", 0.1)
    with pytest.raises(Expired, match=r"it started after \d+\.\d\d s and was not finished \d+\.\d\d s later"):
        await first

    assert len(await _all(queue, "next")) == 2


async def test_a_started_stream_ends_with_a_summary_at_the_deadline(scripted: Scripted, queue: Explaining) -> None:
    gate = Gate()

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        yield _tile()
        yield from gate(left_s, stop)

    scripted.scripts["long"] = script
    tile, summary = await _all(queue, "long", 0.2)

    assert isinstance(tile, AttentionTile)
    assert isinstance(summary, Summary)
    assert (summary.complete, summary.notes) == (False, (CUT,))
    assert summary.run_s > 0
    assert len(await _all(queue, "next")) == 2


async def test_the_engine_gets_the_time_left_minus_a_reserve(scripted: Scripted, queue: Explaining) -> None:
    told: list[float] = []

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        told.append(left_s())
        yield SUMMARY

    scripted.scripts["asks"] = script
    await _all(queue, "asks", 5)

    assert 4 < told[0] <= 5 - RESERVE_S


def _tiles(count: int) -> Callable[[Callable[[], float], Stop], Iterator[Part]]:
    return lambda left_s, stop: iter([*(_tile(number) for number in range(count)), SUMMARY])


async def test_a_slow_reader_does_not_delay_others_and_loses_nothing(scripted: Scripted, queue: Explaining) -> None:
    # Each tile has a quarter of a MiB.
    many = 4 * AHEAD_BYTES // 2**18
    scripted.scripts["slow"] = _tiles(many)
    slow = queue.explain(ExplanationRequest("slow"), time.monotonic() + LONG_S)
    first = await anext(slow)

    assert len(await _all(queue, "quick")) == 2

    rest = [part async for part in slow]
    assert [part.layer for part in [first, *rest[:-1]]] == list(range(many))
    assert isinstance(rest[-1], Summary)


async def test_a_reader_that_is_too_slow_loses_its_place_if_another_waits(
    scripted: Scripted, queue: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "READ_S", 0.1)
    scripted.scripts["stands"] = _tiles(40)
    stands = [queue.explain(ExplanationRequest("stands"), time.monotonic() + LONG_S) for _ in range(2)]
    for one in stands:
        await anext(one)

    assert len(await _all(queue, "quick")) == 2

    with pytest.raises(Refused, match="read less than 65536 bytes/s for"):
        async for _ in stands[0]:
            pass
    assert len([part async for part in stands[1]]) == 40
    assert queue._metrics._metrics.registry.get_sample_value("sentiment_refused_total", {"reason": "explanations", "model": "tiny/1"}) == 1


async def test_readers_above_the_minimum_speed_keep_their_places(
    scripted: Scripted, queue: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "READ_S", 0.1)
    scripted.scripts["slow"] = _tiles(12)
    got: list[int] = []

    async def read_slowly() -> None:
        count = 0
        # Each tile has a quarter of a MiB: far more than the least.
        async for _ in queue.explain(ExplanationRequest("slow"), time.monotonic() + LONG_S):
            count += 1
            await asyncio.sleep(0.05)
        got.append(count)

    readers = [asyncio.create_task(read_slowly()) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert len(await _all(queue, "quick")) == 2
    await asyncio.gather(*readers)

    assert got == [13, 13]


async def test_checking_for_slow_readers_uses_one_timer(scripted: Scripted, queue: Explaining) -> None:
    scripted.scripts["stands"] = _tiles(40)
    stands = [queue.explain(ExplanationRequest("stands"), time.monotonic() + LONG_S) for _ in range(2)]
    for one in stands:
        await anext(one)
    await _until(lambda: all(call.job.behind and not call.job.working for call in queue._started) and len(queue._started) == 2)
    (waits,) = await _waiting(queue, "waits")
    before = len(asyncio.get_running_loop()._scheduled)

    for _ in range(50):
        leaves = asyncio.create_task(_all(queue, "leaves"))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait({leaves})

    handles = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]
    assert len(handles) <= before + 1
    for one in stands:
        await one.aclose()
    assert len(await waits) == 2


async def test_a_paused_explanation_continues_before_the_other_finishes(scripted: Scripted, queue: Explaining) -> None:
    scripted.scripts["stood"] = _tiles(8)
    stood = queue.explain(ExplanationRequest("stood"), time.monotonic() + LONG_S)
    await anext(stood)
    await _until(lambda: any(call.job.behind and not call.job.working for call in queue._started))
    going = threading.Event()

    def small_parts(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        while not going.is_set():
            time.sleep(0.005)
            yield Summary(False, (), 0, 0, 0.0)
        yield SUMMARY

    scripted.scripts["endless"] = small_parts
    endless = asyncio.create_task(_all(queue, "endless"))
    await _until(lambda: "endless" in scripted.started)

    assert len([part async for part in stood]) == 8
    going.set()
    await endless


@pytest.mark.parametrize(
    ("error", "told", "message"),
    [
        (InvalidInput("label", "is 'x'"), InvalidInput, "label: is 'x'"),
        (ValueError("secret"), ModelFailed, "^the explanation could not be computed$"),
        (OutOfMemory("bad_alloc"), ModelFailed, "not enough memory"),
    ],
)
async def test_a_failed_explanation_reports_its_error_and_the_next_one_runs(
    scripted: Scripted, queue: Explaining, error: Exception, told: type[RequestError], message: str
) -> None:
    def fails(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        yield _tile()
        raise error

    scripted.scripts["fails"] = fails

    with pytest.raises(told, match=message):
        await _all(queue, "fails")

    assert len(await _all(queue, "next")) == 2


async def test_a_hung_run_fails_all_callers_until_it_ends(scripted: Scripted) -> None:
    free = threading.Event()

    def hangs(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        free.wait(LONG_S)
        yield SUMMARY

    scripted.scripts["hangs"] = hangs
    queue = _queue(scripted)
    with pytest.raises(Expired):
        await _all(queue, "hangs", 0.1)
    (waits,) = await _waiting(queue, "waits")

    queue.watch(stall_s=0)

    with pytest.raises(Unavailable, match="does not stop"):
        await waits
    with pytest.raises(Unavailable, match="does not stop"):
        await _all(queue, "later")
    free.set()
    await _until(lambda: queue._current is None)
    assert len(await _all(queue, "afterwards")) == 2
    queue.close(5)


async def test_closing_fails_waiting_callers_and_ends_the_thread(scripted: Scripted) -> None:
    queue = _queue(scripted)
    _, first = await _held(scripted, queue)
    waiting = [first, *await _waiting(queue, "second")]

    queue.close(5)

    for task in waiting:
        with pytest.raises(Unavailable, match="draining"):
            await task
    assert not queue._thread.thread.is_alive()
    # Who waited was not begun to be withdrawn.
    assert scripted.started == ["first"]


async def test_the_thread_works_for_its_share_and_rests_otherwise(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = time.monotonic()
    clock = [now]
    told: list[float] = []

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        clock[0] += 0.3
        told.append(left_s())
        yield SUMMARY

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    scripted.scripts["works"] = script
    queue = _queue(scripted, share=lambda: 0.1)
    monkeypatch.setattr(explain_thread, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    parts = [part async for part in queue.explain(ExplanationRequest("works"), now + LONG_S)]
    monkeypatch.undo()
    queue.close(5)

    assert len(parts) == 1
    assert sum(slept) == pytest.approx(0.3 * 9)
    assert max(slept) <= explain_thread.REST_S
    # Of what is left it will rest nine tenths.
    assert told[0] == pytest.approx((LONG_S - 3.0 - RESERVE_S) / 10, rel=0.05)


async def test_a_share_of_1_means_no_rest(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(explain_thread, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    scripted.scripts["works"] = lambda left_s, stop: iter([SUMMARY] if left_s() > 0 else [])
    queue = _queue(scripted)

    await _all(queue, "works")
    queue.close(5)

    assert slept == []
