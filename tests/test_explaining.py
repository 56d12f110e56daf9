"""The queue of explanations: order, deadlines, readers that are slow or gone, runs that fail or hang. What it explains is scripted."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sentiment import explaining
from sentiment.errors import Expired, InvalidInput, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain.encoding import Encoding, encode
from sentiment.explain.parts import Aggregation, Asked, AttentionTile, Part, Summary
from sentiment.explaining import AHEAD_BYTES, Explaining, ExplainLimits
from sentiment.metrics import Metrics
from sentiment.model.session import Execute, Stop

SUMMARY = Summary(True, (), 0, 0, 0.0)
LONG_S = 20.0


def _tile(number: int = 0) -> AttentionTile:
    return AttentionTile(number, 0, Aggregation.MAPS, encode(np.full((512, 512), 1 / 512, np.float32), Encoding.U8))


class Scripted:
    """Explains as told: ``scripts`` by the asked text, each a function that gives parts."""

    methods = ("occlusion",)
    failure = ""

    def __init__(self) -> None:
        self.scripts: dict[str, Callable[[Callable[[], float], Stop], Iterator[Part]]] = {}
        self.begun: list[str] = []
        self.thread = self.runs_in = 0

    def explain(self, asked: Asked, left_s: Callable[[], float], stop: Stop, execute: Execute) -> Iterator[Part]:
        self.begun.append(asked.text)
        self.thread = threading.get_native_id()
        execute(lambda: setattr(self, "runs_in", threading.get_native_id()))
        yield from self.scripts.get(asked.text, lambda left_s, stop: iter([_tile(), SUMMARY]))(left_s, stop)


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def queue(scripted: Scripted) -> AsyncIterator[Explaining]:
    made = _queue(scripted)
    yield made
    made.close(5)


def _queue(scripted: Scripted, **more: Any) -> Explaining:
    metrics = Metrics(("Explain",), ("OK",)).model("tiny/1", [])
    return Explaining(scripted, metrics, ExplainLimits(calls_max=2, bytes_max=2**20), **more)


async def _all(queue: Explaining, text: str, allowed_s: float = LONG_S) -> list[Part]:
    return [part async for part in queue.explain(Asked(text), time.monotonic() + allowed_s)]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


class Gate:
    """A script that holds the thread until it is opened or its run is asked to end."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, _left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        self.entered.set()
        while not self.open.wait(0.005):
            if stop.options.terminate:
                raise RuntimeError("the run was asked to end")
        yield SUMMARY


async def test_parts_come_in_order_and_the_summary_knows_how_long_it_waited(scripted: Scripted, queue: Explaining) -> None:
    gate = scripted.scripts["first"] = Gate()
    first = asyncio.create_task(_all(queue, "first"))
    await _until(gate.entered.is_set)
    second = asyncio.create_task(_all(queue, "second"))
    await asyncio.sleep(0.05)
    gate.open.set()

    tile, summary = await second

    assert isinstance(tile, AttentionTile)
    assert isinstance(summary, Summary)
    assert summary.queue_s >= 0.05
    assert [type(part) for part in await first] == [Summary]
    assert scripted.begun == ["first", "second"]


async def test_runs_have_the_lowest_priority_and_what_holds_the_interpreter_has_not(scripted: Scripted, queue: Explaining) -> None:
    await _all(queue, "any")

    assert os.sched_getscheduler(scripted.runs_in) == os.SCHED_IDLE
    assert os.sched_getscheduler(scripted.thread) == os.SCHED_OTHER
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER


async def test_who_is_gone_costs_nothing_more(scripted: Scripted, queue: Explaining) -> None:
    gate = scripted.scripts["left"] = Gate()
    left = asyncio.create_task(_all(queue, "left"))
    await _until(gate.entered.is_set)
    waits = asyncio.create_task(_all(queue, "waits"))
    gone = asyncio.create_task(_all(queue, "gone"))
    await asyncio.sleep(0.02)

    gone.cancel()
    left.cancel()

    assert len(await waits) == 2
    assert scripted.begun == ["left", "waits"]


async def test_no_more_wait_than_the_limit_and_the_refusal_says_so(scripted: Scripted, queue: Explaining) -> None:
    gate = scripted.scripts["first"] = Gate()
    under_way = [asyncio.create_task(_all(queue, "first"))]
    await _until(gate.entered.is_set)
    under_way += [asyncio.create_task(_all(queue, "more")) for _ in range(2)]
    await asyncio.sleep(0.02)

    with pytest.raises(Refused, match="2 explanations wait; the limit is 2") as caught:
        await _all(queue, "one too many")

    assert caught.value.retry_after_s > 0
    gate.open.set()
    assert [len(parts) for parts in await asyncio.gather(*under_way)] == [1, 2, 2]


async def test_who_could_not_be_served_in_time_is_refused_at_once(scripted: Scripted, queue: Explaining) -> None:
    gate = scripted.scripts["first"] = Gate()
    first = asyncio.create_task(_all(queue, "first"))
    await _until(gate.entered.is_set)
    second = asyncio.create_task(_all(queue, "second"))
    await asyncio.sleep(0.02)

    with pytest.raises(Refused, match=r"1 explanations wait, about 1\.0 s of work; 0\.1 s are left"):
        await _all(queue, "hurried", allowed_s=0.1)

    gate.open.set()
    await asyncio.gather(first, second)


@pytest.mark.parametrize("text", ["begun", "waiting"])
async def test_at_the_deadline_it_is_over_waiting_or_under_way(scripted: Scripted, queue: Explaining, text: str) -> None:
    gate = scripted.scripts["begun"] = Gate()
    first = asyncio.create_task(_all(queue, "begun", 0.3 if text == "begun" else LONG_S))
    await _until(gate.entered.is_set)

    if text == "begun":
        with pytest.raises(Expired, match="the last run lasted too long"):
            await first
    else:
        with pytest.raises(Expired, match="1 explanations were waiting"):
            await _all(queue, "waiting", 0.1)
        gate.open.set()
        await first

    assert len(await _all(queue, "next")) == 2


async def test_time_that_is_left_is_told_and_keeps_something_for_the_answers_way(scripted: Scripted, queue: Explaining) -> None:
    told: list[float] = []

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        told.append(left_s())
        yield SUMMARY

    scripted.scripts["asks"] = script
    await _all(queue, "asks", 5)

    assert 4 < told[0] <= 5 - explaining.RESERVE_S


def _tiles(count: int) -> Callable[[Callable[[], float], Stop], Iterator[Part]]:
    return lambda left_s, stop: iter([*(_tile(number) for number in range(count)), SUMMARY])


async def test_a_slow_reader_does_not_hold_up_others_and_loses_nothing(scripted: Scripted, queue: Explaining) -> None:
    # Each tile has a quarter of a MiB.
    many = 4 * AHEAD_BYTES // 2**18
    scripted.scripts["slow"] = _tiles(many)
    slow = queue.explain(Asked("slow"), time.monotonic() + LONG_S)
    first = await anext(slow)

    assert len(await _all(queue, "quick")) == 2

    rest = [part async for part in slow]
    assert [part.layer for part in [first, *rest[:-1]]] == list(range(many))
    assert isinstance(rest[-1], Summary)


async def test_readers_who_take_nothing_lose_their_place_to_one_who_waits(
    scripted: Scripted, queue: Explaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "READ_NOTHING_S", 0.2)
    scripted.scripts["stands"] = _tiles(40)
    stands = [queue.explain(Asked("stands"), time.monotonic() + LONG_S) for _ in range(2)]
    for one in stands:
        await anext(one)

    assert len(await _all(queue, "quick")) == 2

    with pytest.raises(Refused, match="nothing was read for"):
        async for _ in stands[0]:
            pass
    assert len([part async for part in stands[1]]) == 40


@pytest.mark.parametrize(
    ("error", "told", "message"),
    [
        (InvalidInput("label", "is 'x'"), InvalidInput, "label: is 'x'"),
        (ValueError("secret"), ModelFailed, "^the explanation could not be computed$"),
        (OutOfMemory("bad_alloc"), ModelFailed, "it needs more memory than there is"),
    ],
)
async def test_what_fails_is_told_and_the_next_is_served(
    scripted: Scripted, queue: Explaining, error: Exception, told: type[RequestError], message: str
) -> None:
    def fails(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        yield _tile()
        raise error

    scripted.scripts["fails"] = fails

    with pytest.raises(told, match=message):
        await _all(queue, "fails")

    assert len(await _all(queue, "next")) == 2


async def test_a_run_that_does_not_end_ends_explanations_and_nobody_waits_for_it(scripted: Scripted) -> None:
    free = threading.Event()

    def hangs(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        free.wait(LONG_S)
        yield SUMMARY

    scripted.scripts["hangs"] = hangs
    queue = _queue(scripted)
    with pytest.raises(Expired):
        await _all(queue, "hangs", 0.1)
    waits = asyncio.create_task(_all(queue, "waits"))
    await asyncio.sleep(0.1)

    queue.watch(stall_s=0.05)

    with pytest.raises(Unavailable, match="does not end"):
        await waits
    with pytest.raises(Unavailable, match="does not end"):
        await _all(queue, "later")
    free.set()
    queue.close(5)


async def test_closing_tells_those_who_wait_and_ends_the_thread(scripted: Scripted) -> None:
    gate = scripted.scripts["first"] = Gate()
    queue = _queue(scripted)
    waiting = [asyncio.create_task(_all(queue, text)) for text in ("first", "second")]
    await _until(gate.entered.is_set)
    await asyncio.sleep(0.02)

    queue.close(5)

    for task in waiting:
        with pytest.raises(Unavailable, match="draining"):
            await task
    assert not queue._thread.is_alive()


@pytest.mark.parametrize(("under_quota", "busy", "rests"), [(True, True, True), (True, False, False), (False, True, False)])
async def test_under_a_quota_it_takes_a_small_share_while_texts_are_classified(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, under_quota: bool, busy: bool, rests: bool
) -> None:
    slept: list[float] = []

    def script(left_s: Callable[[], float], stop: Stop) -> Iterator[Part]:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        monkeypatch.setattr(time, "sleep", slept.append)
        left_s()
        yield SUMMARY

    scripted.scripts["works"] = script
    queue = _queue(scripted, busy=lambda: busy, under_quota=under_quota)
    await _all(queue, "works")
    monkeypatch.undo()
    queue.close(5)

    assert bool(slept) is rests
    if rests:
        assert 0.17 < slept[0] <= explaining.REST_S_MAX
