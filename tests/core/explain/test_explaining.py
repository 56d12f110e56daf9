"""The queue of explanations: order, deadlines, slow or absent readers, runs that fail or hang. The explainer is scripted."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sentiment.errors import Expired, InvalidInput, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain import queue as explaining
from sentiment.explain.encoding import Encoding, encode
from sentiment.explain.engine.prediction import Prediction
from sentiment.explain.parts import Aggregation, AttentionTile, ExplanationRequest, Part, Summary
from sentiment.explain.queue import CUT, Explaining, ExplainLimits
from sentiment.explain.thread import AHEAD_BYTES, RESERVE_S
from sentiment.model.execute import Execute
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.session import Stop
from sentiment.model.tokenizer import INLINE_CHARACTERS_MAX
from sentiment.observability.metrics import Metrics
from tests.virtual_time import VirtualClock

SUMMARY = Summary(True, (), 0, 0, 0.0)
LONG_S = 20.0
SHORT = Prediction(work_s=1.0, least_s=0.5, short=True, heavy=False)
LONG = replace(SHORT, work_s=100.0, short=False)
HEAVY = replace(SHORT, short=False, heavy=True)
Script = Callable[[Callable[[], float], Stop], Iterator[Part]]


def _tile(number: int = 0) -> AttentionTile:
    return AttentionTile(number, 0, Aggregation.MAPS, encode(np.full((512, 512), 1 / 512, np.float32), Encoding.U8))


class Scripted:
    """A fake explainer: ``scripts`` by text, each a function that returns the parts."""

    methods = ("occlusion",)
    failure = ""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.predictions: dict[str, Prediction] = {}
        self.started: list[str] = []
        # Scheduling policies of the thread of the code, and of that of the runs.
        self.policies: list[int] = []
        self.turns: dict[str, Callable[[], None]] = {}

    def predict(self, request: ExplanationRequest) -> Prediction:
        return self.predictions.get(request.text, SHORT)

    def explain(
        self, request: ExplanationRequest, left_s: Callable[[], float], stop: Stop, execute: Execute, turn: Callable[[], None]
    ) -> Iterator[Part]:
        self.started.append(request.text)
        self.turns[request.text] = turn
        self.policies = [os.sched_getscheduler(0)]
        execute(lambda: self.policies.append(os.sched_getscheduler(0)))
        yield from self.scripts.get(request.text, lambda left_s, stop: iter([_tile(), SUMMARY]))(left_s, stop)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(("OK",))


@pytest.fixture
async def queue(scripted: Scripted, metrics: Metrics) -> AsyncIterator[Explaining]:
    made = _queue(scripted, metrics)
    yield made
    made.close(5)


@pytest.fixture
async def timed(scripted: Scripted, clock: VirtualClock) -> AsyncIterator[Explaining]:
    """A queue on the clock of the test."""
    made = _queue(scripted, clock=clock)
    yield made
    made.close(5)


def _queue(scripted: Scripted, metrics: Metrics | None = None, **more: Any) -> Explaining:
    counted = (metrics or Metrics(("OK",))).model("tiny/1", [], ())
    return Explaining(scripted, counted, ExplainLimits(calls_max=2, bytes_max=2**20), **more)


async def _all(queue: Explaining, text: str, allowed_s: float = LONG_S, caller: str = "") -> list[Part]:
    return [part async for part in queue.explain(ExplanationRequest(text), asyncio.get_running_loop().time() + allowed_s, caller)]


async def _until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < ends_at
        # Not in the loop, whose clock may stand still.
        await asyncio.to_thread(time.sleep, 0.002)


class Gate:
    """A script that holds the thread until it is opened or its run is stopped."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, _left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        self.entered.set()
        while not self.open.wait(0.005):
            if stop.options.terminate:
                raise RuntimeError("the run was stopped")
        yield SUMMARY


async def _held(
    scripted: Scripted, queue: Explaining, text: str = "first", allowed_s: float = LONG_S, caller: str = ""
) -> tuple[Gate, asyncio.Task[list[Part]]]:
    """An explanation that holds its lane, as in a run."""
    gate = scripted.scripts[text] = Gate()
    task = asyncio.create_task(_all(queue, text, allowed_s, caller))
    await _until(gate.entered.is_set)
    return gate, task


async def _waiting(queue: Explaining, *texts: str, caller: str = "") -> list[asyncio.Task[list[Part]]]:
    """Explanations that wait in the queue, one after the other."""
    tasks = []
    for text in texts:
        before = len(queue.threads)
        tasks.append(asyncio.create_task(_all(queue, text, caller=caller)))
        await _until(lambda before=before: len(queue.threads) > before)
    return tasks


class Clock(VirtualClock):
    """The clock of a queue, which scripts advance, and by which its threads rest."""

    def __init__(self) -> None:
        super().__init__(time.monotonic())
        self.rests: list[float] = []

    def rest(self, _changed: threading.Condition, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


async def test_parts_come_in_order_and_the_summary_has_the_waiting_time(scripted: Scripted, timed: Explaining, clock: VirtualClock) -> None:
    gate, first = await _held(scripted, timed)
    (second,) = await _waiting(timed, "second")
    clock.now += 0.05
    gate.open.set()

    tile, summary = await second

    assert isinstance(tile, AttentionTile)
    assert isinstance(summary, Summary)
    assert summary.queue_s == pytest.approx(0.05)
    assert [type(part) for part in await first] == [Summary]
    assert scripted.started == ["first", "second"]


async def test_only_graph_runs_have_the_lowest_priority(idle: int, scripted: Scripted, queue: Explaining) -> None:
    await _all(queue, "any")

    assert scripted.policies == [os.SCHED_OTHER, idle]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


async def test_the_code_of_a_paused_explanation_ends_when_its_caller_leaves(scripted: Scripted, queue: Explaining) -> None:
    ended = threading.Event()

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        try:
            yield from _tiles(40)(left_s, stop)
        finally:
            ended.set()

    scripted.scripts["stands"] = script
    stands = queue.explain(ExplanationRequest("stands"), time.monotonic() + LONG_S)
    await anext(stands)
    await _until(lambda: any(task.behind and task not in queue.threads.running for task in queue._tasks))
    await stands.aclose()

    assert await asyncio.to_thread(ended.wait, LONG_S)
    assert len(queue.threads) == 0


async def test_an_explanation_without_a_caller_is_stopped_or_never_started(scripted: Scripted, queue: Explaining) -> None:
    _, left = await _held(scripted, queue, "left")
    waits, gone = await _waiting(queue, "waits", "gone")

    gone.cancel()
    left.cancel()

    assert len(await waits) == 2
    assert scripted.started == ["left", "waits"]


async def test_a_caller_has_no_more_longer_texts_tokenized_than_it_has_places(
    scripted: Scripted, queue: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, tokenized = threading.Event(), []

    def predict(request: ExplanationRequest) -> Prediction:
        assert free.wait(LONG_S)
        tokenized.append(request.text[0])
        return HEAVY

    monkeypatch.setattr(scripted, "predict", predict)
    texts = {name: name * (INLINE_CHARACTERS_MAX + 1) for name in "abc"}
    flood = [asyncio.create_task(_all(queue, texts[name], caller="flood")) for name in "ab"]
    await asyncio.sleep(0)

    with pytest.raises(Refused, match="2 explanations of this caller are waiting; the limit is 2") as caught:
        await _all(queue, texts["c"], caller="flood")

    assert caught.value.retry_after_s > 0
    other = asyncio.create_task(_all(queue, texts["c"], caller="other"))
    free.set()
    assert len(await other) == 2
    # One of them may have given way to the other caller.
    await asyncio.gather(*flood, return_exceptions=True)
    assert tokenized == ["a", "b", "c"]
    assert not queue._longer


async def test_a_refused_caller_is_over_its_share_if_it_has_twice_what_the_others_have(scripted: Scripted, queue: Explaining) -> None:
    gate, first = await _held(scripted, queue, caller="other")
    waiting = await _waiting(queue, "b", "c", caller="flood")

    with pytest.raises(Refused) as caught:
        await _all(queue, "d", caller="flood")
    assert caught.value.over_share

    gate.open.set()
    await asyncio.gather(first, *waiting)


async def test_a_refused_caller_alone_is_not_over_its_share(scripted: Scripted, queue: Explaining) -> None:
    gate, first = await _held(scripted, queue, caller="flood")
    waiting = await _waiting(queue, "b", "c", caller="flood")

    with pytest.raises(Refused) as caught:
        await _all(queue, "d", caller="flood")
    assert not caught.value.over_share

    gate.open.set()
    await asyncio.gather(first, *waiting)


async def test_an_explanation_expires_at_its_deadline_waiting_or_started(
    scripted: Scripted, timed: Explaining, clock: VirtualClock
) -> None:
    _, first = await _held(scripted, timed, "started", 0.4)
    waiting = asyncio.create_task(_all(timed, "waiting", 0.1))
    await _until(lambda: len(timed.threads) == 2)

    clock.now += 0.15
    with pytest.raises(Expired, match=r"it waited 0\.15 s in the queue"):
        await waiting
    clock.now += 0.3
    with pytest.raises(Expired, match=r"it started after 0\.00 s and was not finished 0\.45 s later"):
        await first

    assert len(await _all(timed, "next")) == 2


async def test_a_started_stream_ends_with_a_summary_at_the_deadline(scripted: Scripted, timed: Explaining, clock: VirtualClock) -> None:
    gate = Gate()

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        clock.now += 0.05
        yield _tile()
        yield from gate(left_s, stop)

    scripted.scripts["long"] = script
    parts = timed.explain(ExplanationRequest("long"), clock.now + 0.2)
    tile = await anext(parts)
    await _until(gate.entered.is_set)
    clock.now += 0.15
    summary = await anext(parts)

    assert isinstance(tile, AttentionTile)
    assert isinstance(summary, Summary)
    assert (summary.complete, summary.notes) == (False, (CUT,))
    assert (summary.run_s, summary.queue_s) == pytest.approx((0.05, 0.15))
    await parts.aclose()
    assert len(await _all(timed, "next")) == 2


async def test_the_engine_gets_the_time_left_minus_a_reserve(scripted: Scripted, timed: Explaining) -> None:
    told: list[float] = []

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        told.append(left_s())
        yield SUMMARY

    scripted.scripts["asks"] = script
    await _all(timed, "asks", 5)

    assert told == [pytest.approx(5 - RESERVE_S)]


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


async def _two_stand(scripted: Scripted, queue: Explaining) -> list[AsyncGenerator[Part, None]]:
    """Two explanations that hold large maps, whose readers have read one part and are behind; and a third would be "quick"."""
    scripted.predictions |= {"stands": HEAVY, "quick": HEAVY}
    stands = [queue.explain(ExplanationRequest("stands"), time.monotonic() + LONG_S, caller) for caller in "ab"]
    for one in stands:
        await anext(one)
    await _until(lambda: sum(task.behind and task not in queue.threads.running for task in queue._tasks) == 2)
    return stands


async def test_a_reader_that_is_too_slow_loses_its_place_if_another_waits(
    scripted: Scripted, queue: Explaining, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "READ_S", 0.1)
    scripted.scripts["stands"] = _tiles(40)
    stands = await _two_stand(scripted, queue)

    assert len(await _all(queue, "quick", caller="c")) == 2

    with pytest.raises(Refused, match="read less than 65536 bytes/s for"):
        async for _ in stands[0]:
            pass
    assert len([part async for part in stands[1]]) == 40
    assert metrics.registry.get_sample_value("sentiment_refused_total", {"reason": "explanations", "model": "tiny/1"}) == 1


async def test_readers_of_the_minimum_speed_keep_their_places(
    scripted: Scripted, queue: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "_read_bytes_per_s", lambda *_: explaining.READ_BYTES_PER_S)
    scripted.scripts["stands"] = _tiles(12)
    stands = await _two_stand(scripted, queue)
    quick = asyncio.create_task(_all(queue, "quick", caller="c"))
    await _until(lambda: queue._retry_timer is not None)

    # One part of each was read before.
    assert [len([part async for part in one]) for one in stands] == [12, 12]
    assert len(await quick) == 2


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


@pytest.mark.parametrize("prediction", [SHORT, LONG])
async def test_a_thread_that_cannot_be_started_fails_its_explanation_and_the_next_one_runs(
    scripted: Scripted, queue: Explaining, prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.predictions |= dict.fromkeys(("fails", "next"), prediction)

    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full, pytest.raises(ModelFailed, match="could not be computed"):
        full.setattr(threading.Thread, "start", no_more)
        await _all(queue, "fails")

    assert len(await _all(queue, "next")) == 2
    assert scripted.started == ["next"]


async def _stopped_in_vain(scripted: Scripted) -> tuple[Explaining, asyncio.Task[list[Part]], threading.Event]:
    """Explanations with a run that goes on after its deadline until the event, and a caller that waits behind it."""
    free = threading.Event()

    def goes_on(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        free.wait(LONG_S)
        yield SUMMARY

    scripted.scripts["goes on"] = goes_on
    queue = _queue(scripted)
    with pytest.raises(Expired):
        await _all(queue, "goes on", 0.1)
    (waits,) = await _waiting(queue, "waits")
    return queue, waits, free


async def test_a_hung_run_fails_all_callers_until_it_ends(scripted: Scripted) -> None:
    queue, waits, free = await _stopped_in_vain(scripted)

    queue.watch(stall_s=0)

    with pytest.raises(Unavailable, match="does not stop"):
        await waits
    with pytest.raises(Unavailable, match="does not stop"):
        await _all(queue, "later")
    free.set()
    await _until(lambda: not queue.threads.running)
    assert len(await _all(queue, "afterwards")) == 2
    queue.close(5)


async def test_a_run_that_gets_no_core_does_not_hang(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = [1.0]
    monkeypatch.setattr(LowestPriority, "cpu_s", lambda self: cpu_s[0])
    queue, waits, free = await _stopped_in_vain(scripted)

    queue.watch(stall_s=0)
    done, _ = await asyncio.wait({waits}, timeout=0.05)
    assert not done
    # With a core of its own it would have ended.
    cpu_s[0] = 1e9
    queue.watch(stall_s=0)

    with pytest.raises(Unavailable, match="does not stop"):
        await waits
    free.set()
    queue.close(5)


async def test_closing_fails_waiting_callers_and_ends_the_thread(scripted: Scripted) -> None:
    queue = _queue(scripted)
    _, first = await _held(scripted, queue)
    waiting = [first, *await _waiting(queue, "second")]

    queue.close(5)

    for task in waiting:
        with pytest.raises(Unavailable, match="draining"):
            await task
    assert not any(thread.is_alive() for thread in queue.threads.threads)
    # Who waited was not begun to be withdrawn.
    assert scripted.started == ["first"]
