"""The batcher with equal rows: they are computed once, and each text keeps an outcome, a deadline and times of its own."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from sentiment.batching.known import ENTRY_BYTES, Known
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.text import Text
from sentiment.batching.ticket import Priority, Ticket
from sentiment.errors import Expired, ModelFailed, Unavailable
from sentiment.model.runner import Ran
from sentiment.model.tokenizer import Row
from tests.core.batching.test_batcher import Bench
from tests.core.batching.test_effort import CLEAR, PART, UNCLEAR, WHOLE, Parting, lengths
from tests.virtual_time import VirtualClock

ME, YOU = 1, 2


@dataclass
class Sent:
    """A text and its outcomes."""

    text: Text
    received: list[TextOutcome] = field(default_factory=list)

    @property
    def result(self) -> RowsResult:
        (outcome,) = self.received
        assert isinstance(outcome, RowsResult)
        return outcome


def send(bench: Bench, *numbers: int, scope: int = ME, **options: Any) -> Sent:
    received: list[TextOutcome] = []
    return Sent(bench.send(numbers, received, scope=scope, **options), received)


def running(bench: Bench) -> list[list[int]]:
    """The first ids of the rows of each batch that runs."""
    return [[row.ids[0] for row in rows] for rows, _ in bench.runner.started]


async def run_all(bench: Bench) -> None:
    await bench.turn()
    while bench.runner.started:
        await bench.finish()


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    return Bench(clock, classifier=Parting(), known=Known(2**16))


async def test_equal_rows_run_once_and_each_text_has_its_own_times(bench: Bench) -> None:
    first = send(bench, 7)
    await bench.turn()
    busy = send(bench, 3)
    equal = send(bench, 3)
    await bench.wait(0.25)
    await bench.finish()
    assert running(bench) == [[3]]

    bench.clock.now += 0.005
    late = send(bench, 3)
    await bench.finish()

    assert [one.result.logits for one in (first, busy, equal, late)] == [[[7.0]], [[3.0]], [[3.0]], [[3.0]]]
    # Who came while it ran did not wait for a runner.
    assert [one.result.queue_s for one in (busy, equal, late)] == [pytest.approx(0.25), pytest.approx(0.25), 0.0]
    assert (bench.batcher.idle, bench.notes.ran, bench.notes.wasted) == (True, 2, 0)
    assert (bench.notes.kept, bench.notes.shared) == (0, 2)


@pytest.mark.parametrize("runs", [False, True], ids=["while it waits", "while it runs"])
async def test_who_leaves_takes_nobodys_answer_along(bench: Bench, runs: bool) -> None:
    if not runs:
        send(bench, 7)
        await bench.turn()
    first, second = send(bench, 3), send(bench, 3)
    await bench.turn()

    assert first.text.cancel()
    await run_all(bench)

    assert first.received == []
    assert second.result.logits == [[3.0]]
    assert (bench.batcher.idle, bench.notes.wasted, bench.notes.ran) == (True, 0, 1 if runs else 2)


@pytest.mark.parametrize("runs", [False, True], ids=["while it waits", "while it runs"])
async def test_who_expires_takes_nobodys_answer_along(bench: Bench, runs: bool) -> None:
    if not runs:
        send(bench, 7)
        await bench.turn()
    first, second = send(bench, 3, seconds=0.1), send(bench, 3)
    await bench.turn()

    await bench.wait(0.2)
    await run_all(bench)

    assert [type(outcome) for outcome in first.received] == [Expired]
    assert second.result.logits == [[3.0]]


async def test_who_follows_expires_at_its_own_deadline(bench: Bench) -> None:
    first = send(bench, 3)
    await bench.turn()
    second = send(bench, 3, seconds=0.001)

    await bench.wait(0.002)

    assert ([type(outcome) for outcome in second.received], first.received) == ([Expired], [])
    await run_all(bench)
    assert first.result.logits == [[3.0]]


async def test_an_interactive_row_takes_an_equal_bulk_row_along(bench: Bench) -> None:
    send(bench, 7)
    await bench.turn()
    bulk = [send(bench, number, priority=Priority.BULK) for number in range(10, 30)]
    urgent = send(bench, 29)

    # One batch of either class has been due.
    while not urgent.received:
        await bench.finish()

    assert bulk[-1].result.logits == urgent.result.logits == [[29.0]]
    assert not all(one.received for one in bulk[:-1])


async def test_the_earliest_deadline_takes_the_place_of_an_equal_row_that_leaves(bench: Bench) -> None:
    send(bench, 7)
    await bench.turn()
    first = send(bench, 3, seconds=20)
    for seconds, priority in ((25, Priority.BULK), (40, Priority.INTERACTIVE), (30, Priority.INTERACTIVE)):
        send(bench, 3, seconds=seconds, priority=priority)

    first.text.cancel()

    assert {
        priority: [ticket.deadline_at - bench.clock.now for ticket in queue.waiting()] for priority, queue in bench.scheduler.queues.items()
    } == {
        Priority.INTERACTIVE: [25],
        Priority.BULK: [],
        Priority.OVER: [],
    }


async def test_equal_rows_that_come_and_go_are_not_remembered(bench: Bench) -> None:
    send(bench, 3)
    await bench.turn()
    for _ in range(1000):
        send(bench, 3).text.cancel()
    ticket = send(bench, 3).text.tickets[0]

    assert ticket.group is not None
    assert len(ticket.group._heap) < 100
    assert bench.scheduler.rows_waiting == 1


async def test_a_failure_ends_all_equal_rows_and_is_not_kept(bench: Bench) -> None:
    both = send(bench, 3), send(bench, 3)
    await bench.turn()
    await bench.finish(RuntimeError("poison"))
    assert [type(outcome) for one in both for outcome in one.received] == [ModelFailed, ModelFailed]

    again = send(bench, 3)
    await run_all(bench)

    assert (again.result.logits, again.result.batch_rows, bench.notes.kept) == ([[3.0]], 1, 0)


async def test_a_kept_answer_has_the_same_logits_and_is_in_no_batch(bench: Bench) -> None:
    first = send(bench, 3)
    await run_all(bench)

    second = send(bench, 3)
    assert second.received == []
    await bench.turn()

    assert second.result == RowsResult(first.result.logits, 0.0, 0.0, 0, False)
    assert (bench.notes.ran, bench.notes.kept, bench.batcher.idle) == (1, 1, True)


async def test_a_text_withdrawn_before_its_kept_answer_comes_gets_none(bench: Bench) -> None:
    send(bench, 3)
    await run_all(bench)

    second = send(bench, 3)
    assert second.text.cancel()
    await bench.turn()

    assert second.received == []
    assert not second.text.cancel()


async def test_kept_answers_are_given_neither_past_a_deadline_nor_after_the_drain(bench: Bench) -> None:
    send(bench, 3)
    await run_all(bench)

    with pytest.raises(Expired):
        send(bench, 3, seconds=0.0)
    bench.batcher.close()
    with pytest.raises(Unavailable):
        send(bench, 3)


async def test_a_kept_part_that_suffices_is_the_answer(bench: Bench) -> None:
    send(bench, CLEAR, length=WHOLE, adaptive=True)
    await run_all(bench)

    early = send(bench, CLEAR, length=WHOLE, adaptive=True)
    await bench.turn()

    assert (early.result.early, early.result.batch_rows, bench.notes.ran) == (True, 0, 1)


async def test_after_a_kept_part_that_does_not_suffice_the_whole_is_read(clock: VirtualClock) -> None:
    # There is room for one answer.
    bench = Bench(clock, classifier=Parting(), known=Known(ENTRY_BYTES + 32))
    send(bench, UNCLEAR, length=WHOLE, adaptive=True)
    await bench.turn()
    await bench.finish()
    left = send(bench, UNCLEAR, length=WHOLE, adaptive=True)
    assert lengths(bench) == [WHOLE]

    await bench.finish()

    # It shared the whole that was under way, and did not begin with a part.
    assert (left.result.early, left.result.logits, bench.notes.ran, bench.notes.shared) == (False, [[float(UNCLEAR)]], 2, 1)


async def test_rows_that_share_a_part_share_the_whole(bench: Bench) -> None:
    both = [send(bench, UNCLEAR, length=WHOLE, adaptive=True) for _ in range(2)]
    await bench.turn()
    assert lengths(bench) == [PART]
    await bench.finish()
    # Who asks for the whole joins.
    both.append(send(bench, UNCLEAR, length=WHOLE))
    assert lengths(bench) == [WHOLE]

    assert both[0].text.cancel()
    await bench.finish()

    assert [(one.result.early, one.result.run_s) for one in both[1:]] == [(False, 0.002), (False, 0.001)]
    assert (bench.batcher.idle, bench.notes.ran, bench.notes.wasted) == (True, 2, 0)


async def test_a_kept_whole_never_stands_for_a_part(bench: Bench) -> None:
    send(bench, CLEAR, length=WHOLE)
    await run_all(bench)

    early = send(bench, CLEAR, length=WHOLE, adaptive=True)
    await bench.turn()

    assert lengths(bench) == [PART]
    await bench.finish()
    assert early.result.early


async def test_a_text_of_several_rows_runs_only_those_that_are_not_known(bench: Bench) -> None:
    send(bench, 3)
    await run_all(bench)

    text = send(bench, 3, 4, 4, 5)
    await bench.turn()
    assert running(bench) == [[4, 5]]
    await bench.finish()
    known = send(bench, 5, 4, 3)
    await bench.turn()

    assert text.result.logits == [[3.0], [4.0], [4.0], [5.0]]
    assert (known.result.logits, known.result.batch_rows) == ([[5.0], [4.0], [3.0]], 0)
    assert (bench.notes.kept, bench.notes.shared) == (4, 1)


@pytest.mark.parametrize(("one", "other"), [(0, 0), (ME, YOU), (ME, 0)], ids=["nobody's", "two callers'", "no_cache"])
async def test_rows_of_different_scopes_share_nothing(bench: Bench, one: int, other: int) -> None:
    send(bench, 3, scope=one)
    send(bench, 3, scope=other)
    await bench.turn()
    assert running(bench) == [[3, 3]]
    await bench.finish()
    send(bench, 4, scope=one)
    await run_all(bench)

    send(bench, 4, scope=other)
    await bench.turn()

    assert running(bench) == [[4]]
    assert (bench.notes.kept, bench.notes.shared) == (0, 0)


async def test_without_known_answers_every_row_runs(clock: VirtualClock) -> None:
    bench = Bench(clock)
    for _ in range(2):
        send(bench, 3)
    await bench.turn()

    assert running(bench) == [[3, 3]]


def test_the_answers_that_nobody_asked_for_longest_make_room() -> None:
    size = ENTRY_BYTES + 2 * 32
    known = Known(3 * size)
    keys = [bytes([number]) for number in range(4)]
    for key in keys[:3]:
        known.put(key, False, [0.0, float(key[0])])
    assert known.get(keys[0], False) == [0.0, 0.0]

    known.put(keys[3], False, [0.0, 3.0])

    assert [known.get(key, False) is not None for key in keys] == [True, False, True, True]
    assert known.bytes == 3 * size
    # Twice the same takes no more room.
    known.put(keys[3], False, [0.0, 3.0])
    assert known.bytes == 3 * size


def test_what_does_not_fit_is_not_kept() -> None:
    known = Known(1)

    known.put(b"key", False, [0.0, 1.0])

    assert (known.bytes, known.get(b"key", False)) == (0, None)


def test_keys_differ_where_bits_or_callers_may_differ_and_between_servers() -> None:
    known = Known(2**16)
    rows = [Row([1, 2, 3], types, False) for types in (None, [0, 0, 0], [0, 0, 1])] + [
        Row([1, 2], None, False),
        Row([1, 2, 3, 0], None, False),
    ]

    keys = [known.key(row, scope) for row in rows for scope in (ME, YOU)] + [Known(2**16).key(rows[0], ME)]

    assert len(set(keys)) == len(keys)
    # What was left out of the text does not matter.
    assert known.key(Row([1, 2, 3], None, True), ME) == known.key(rows[0], ME)


async def test_a_bulk_row_keeps_its_deadline_when_an_interactive_one_with_a_later_takes_its_place(bench: Bench) -> None:
    send(bench, 7)
    await bench.turn()
    send(bench, 3, seconds=10, priority=Priority.BULK)
    send(bench, 3, seconds=40)

    (leader,) = bench.scheduler.queues[Priority.INTERACTIVE].waiting()

    assert (leader.deadline_at, leader.due_at) == (bench.clock.now + 40, bench.clock.now + 10)
    assert not bench.scheduler.queues[Priority.BULK].rows


async def test_equal_rows_that_become_hopeless_are_looked_at_once_each(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = [send(bench, 3, seconds=seconds) for seconds in (50, *[60] * 80)]
    assert first.text.cancel()
    looked = []
    hopeless = Ticket.hopeless
    monkeypatch.setattr(Ticket, "hopeless", lambda ticket, now, speed: looked.append(ticket) or hopeless(ticket, now, speed))

    step = bench.scheduler.step(bench.clock.now + 59.995, 1)

    assert len(step.hopeless) == len(others)
    assert len(looked) <= 2 * len(others)


async def test_nan_is_not_kept(bench: Bench) -> None:
    send(bench, 3)
    await bench.turn()
    _, report = bench.runner.started.pop()
    report(Ran([[math.nan]], 0.0, 0.001))
    await bench.turn()

    send(bench, 3)
    await bench.turn()

    assert running(bench) == [[3]]
