"""The scheduler's decisions, one behaviour per test."""

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sentiment.batching.cost import CostTable
from sentiment.batching.layout import Packed
from sentiment.batching.plan import BatchLimits, Prices, edges
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import Expired, Refused, Unavailable
from tests.core.batching.test_cost import fixed, proportional

WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)
FOUR = BatchLimits(rows=4, tokens=2**16, scores_bytes=2**30, heads=2)
FAR = 1e6
INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


def make(
    cost: CostTable | None = None, limits: BatchLimits = WIDE, runners: int = 1, queue_rows_max: int = 10_000, bulk_share: float = 0.2
) -> Scheduler[str]:
    """A scheduler. By default a row costs 1 ms per token and batching saves nothing."""
    return Scheduler(cost or proportional(1e-3), limits, runners, queue_rows_max, 512, bulk_share)


def some_saving() -> CostTable:
    """Batching saves time for rows of equal length only."""
    return fixed(1e-3, 1e-4)


def names(batch: Batch[str]) -> list[str]:
    return [ticket.payload for ticket in batch.tickets]


Arrival = tuple[float, int, float, str, Priority]


def drive(scheduler: Scheduler[str], arrivals: Sequence[Arrival], until: float = FAR) -> list[tuple[float, Batch[str]]]:
    """Run to the end in virtual time, every run as long as predicted. Returns when each batch began."""
    began: list[tuple[float, Batch[str]]] = []
    serials = itertools.count()
    events: list[tuple[float, int, Any]] = [(arrival[0], next(serials), arrival) for arrival in arrivals]
    heapq.heapify(events)
    free, now, wake_at = scheduler.runners, 0.0, None
    while (events or wake_at is not None) and now < until:
        now = min(time for time in (events[0][0] if events else None, wake_at) if time is not None)
        while events and events[0][0] <= now:
            event = heapq.heappop(events)[2]
            if isinstance(event, Batch):
                scheduler.finish(event, now, event.predicted_s)
                free += 1
            else:
                at, length, deadline_at, name, priority = event
                scheduler.add(length, at, deadline_at, name, priority)
        step = scheduler.step(now, free)
        for batch in step.batches:
            began.append((now, batch))
            heapq.heappush(events, (now + batch.predicted_s, next(serials), batch))
            free -= 1
        wake_at = step.wake_at
    return began


# Batches and fates


def test_no_batch_is_formed_before_a_runner_is_free() -> None:
    scheduler = make(some_saving())
    scheduler.add(8, 0.0, 9.0, "a")

    step = scheduler.step(0.0, runners_free=0)

    assert step.batches == []
    scheduler.add(8, 0.0, 9.0, "b")
    assert names(scheduler.step(0.0, 1).batches[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("cost", "runners", "free", "lengths", "batches", "reasons"),
    [
        pytest.param(
            some_saving(), 2, 2, {"a": 5, "long": 60, "b": 6}, [["a", "b"], ["long"]], {"alike"}, id="rows of different lengths run apart"
        ),
        pytest.param(fixed(0.01, 1e-9), 1, 1, {"a": 5, "b": 500}, [["a", "b"]], {"alike"}, id="together where the fixed cost dominates"),
        pytest.param(proportional(), 1, 1, dict.fromkeys("abc", 8), [["a"]], {"full"}, id="rows run alone where batching saves nothing"),
        pytest.param(some_saving(), 2, 2, {"a": 100, "b": 100}, [["a"], ["b"]], {"spread"}, id="two idle runners share a batch"),
        pytest.param(
            some_saving(),
            3,
            3,
            {"a": 8, "c": 100, "b": 8, "d": 100},
            [["a", "b"], ["c"], ["d"]],
            {"alike", "spread"},
            id="the more expensive batch is halved",
        ),
        pytest.param(
            some_saving(),
            3,
            3,
            {"a": 30, "long": 200, "b": 30},
            [["a"], ["b"], ["long"]],
            {"alike", "spread"},
            id="halved beside a row that costs more",
        ),
        pytest.param(fixed(0.01, 1e-7), 2, 2, {"a": 100, "b": 100}, [["a", "b"]], {"alike"}, id="not halved where a half takes as long"),
        pytest.param(some_saving(), 2, 1, {"a": 100, "b": 100}, [["a", "b"]], {"alike"}, id="not halved while the other runner is busy"),
        pytest.param(
            fixed(0.02, 1e-4),
            2,
            2,
            {"c": 120, "a": 90, "d": 120, "b": 90},
            [["a", "b"], ["c", "d"]],
            {"spread"},
            id="halved so that short rows lose the padding of long ones",
        ),
    ],
)
def test_rows_that_wait_are_divided_into_batches(
    cost: CostTable, runners: int, free: int, lengths: dict[str, int], batches: list[list[str]], reasons: set[str]
) -> None:
    scheduler = make(cost, runners=runners)
    for name, length in lengths.items():
        scheduler.add(length, 0.0, 9.0, name)

    found = scheduler.step(0.0, free).batches

    assert sorted(sorted(names(batch)) for batch in found) == batches
    assert {batch.reason for batch in found} == reasons


def test_a_batch_keeps_its_limits() -> None:
    scheduler = make(fixed(0.01, 1e-9), BatchLimits(rows=8, tokens=324, scores_bytes=2**30, heads=2))
    for _ in range(20):
        scheduler.add(108, 0.0, 99.0, "row")

    assert [len(batch.tickets) for batch in scheduler.step(0.0, 1).batches] == [3]


def test_a_closed_scheduler_admits_nothing_and_finishes_what_it_has() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")
    scheduler.close()

    with pytest.raises(Unavailable, match=r"^the server has drained$"):
        scheduler.add(8, 0.0, 9.0, "b")
    assert names(scheduler.step(0.0, 1).batches[0]) == ["a"]


def test_a_cancelled_row_never_runs_and_the_others_do() -> None:
    scheduler = make(some_saving())
    first, *_ = (scheduler.add(8, 0.0, 9.0, name) for name in "abc")

    assert scheduler.cancel(first)

    assert first.state is State.CANCELLED
    assert names(scheduler.step(0.0, 1).batches[0]) == ["b", "c"]
    assert not scheduler.cancel(first)


@pytest.mark.parametrize("runners_free", [0, 1])
def test_a_row_expires_at_its_deadline_and_never_runs(runners_free: int) -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "late")

    step = scheduler.step(1.0, runners_free)

    assert [(ticket.payload, ticket.state) for ticket in step.expired] == [("late", State.EXPIRED)]
    assert (step.batches, step.hopeless) == ([], [])
    assert step.wake_at is None


def test_a_running_row_expires_at_its_deadline_and_is_not_answered() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "slow")
    batch = scheduler.step(0.0, 1).batches[0]

    assert [ticket.payload for ticket in scheduler.step(1.5, 0).expired] == ["slow"]

    assert scheduler.finish(batch, 1.6, 1.6) == []


def test_an_answer_after_the_deadline_does_not_count_even_before_the_next_step() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "slow")
    batch = scheduler.step(0.0, 1).batches[0]

    assert scheduler.finish(batch, 1.0, 1.0) == []

    assert [ticket.payload for ticket in scheduler.step(1.0, 1).expired] == ["slow"]


def test_a_step_asks_to_be_called_at_the_next_deadline() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 5.0, "later")
    scheduler.add(8, 0.0, 3.0, "sooner")

    assert scheduler.step(0.0, 0).wake_at == 3.0


def test_a_batch_has_the_reason_why_it_is_not_larger() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for name in "abcde":
        scheduler.add(8, 0.0, 9.0, name)

    reasons = [batch.reason for batch in scheduler.step(0.0, 2).batches]

    assert reasons == ["full", "alike"]


def test_the_time_of_a_batch_is_learned() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")
    batch = scheduler.step(0.0, 1).batches[0]
    assert batch.predicted_s == pytest.approx(0.008)

    scheduler.finish(batch, 0.016, 0.016)

    assert scheduler.cost.speed > 1.01


def test_memory_does_not_grow_with_rows_that_come_and_are_cancelled() -> None:
    scheduler = make()
    # It stays in front of all others, with the earliest deadline.
    patient = scheduler.add(8, 0.0, 50.0, "patient")

    for number in range(3000):
        scheduler.cancel(scheduler.add(8, number * 1e-3, number * 1e-3 + 60, "gone"))
        scheduler.step(number * 1e-3, 0)

    assert len(scheduler._by_deadline) < 200
    assert [len(queue.demand) for queue in scheduler.queues.values()] == [1, 0]
    assert sum(len(queue._buckets) for queue in scheduler.queues.values()) == 1
    assert scheduler.step(50.0, 0).expired == [patient]


def test_ended_rows_are_removed_when_they_are_the_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, heapify, rebuilt, most = make(fixed(0.01, 1e-9)), heapq.heapify, Counter[str](), 0
    for _ in range(100):
        scheduler.add(8, 0.0, 50.0, "patient")
    scheduler.step(0.0, 1)
    assert (scheduler.rows_running, scheduler.rows_waiting) == (64, 36)
    monkeypatch.setattr(heapq, "heapify", lambda entries: rebuilt.update(["deadlines"]) or heapify(entries))

    for number in range(1000):
        scheduler.cancel(scheduler.add(8, number * 1e-3, 60.0, "gone"))
        scheduler.step(number * 1e-3, 0)
        most = max(most, len(scheduler._by_deadline))

    assert most <= 2 * 100 + 64
    assert rebuilt["deadlines"] <= 1000 / 150


def test_without_a_runner_waiting_rows_fail_and_running_ones_do_not() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for number in range(8):
        scheduler.add(8, 0.0, 9.0, f"{number}")
    scheduler.fail(scheduler.step(0.0, 2).batches[0])
    scheduler.add(8, 0.0, 9.0, "new")
    scheduler.add(500, 0.0, 9.0, "bulk", BULK)

    failed = scheduler.fail_waiting()

    assert sorted(ticket.payload for ticket in failed) == ["0", "1", "2", "3", "bulk", "new"]
    assert {ticket.state for ticket in failed} == {State.FAILED}
    assert (scheduler.rows_waiting, scheduler.rows_running) == (0, 4)


# Failure


def test_a_failed_batch_is_halved_until_only_the_bad_row_fails() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for name in "abcdefgh":
        scheduler.add(8, 0.0, 99.0, name)
    fates: dict[str, State] = {}

    while batches := scheduler.step(0.0, 1).batches:
        batch = batches[0]
        tickets: list[Ticket[str]] = scheduler.fail(batch) if "f" in names(batch) else scheduler.finish(batch, 0.0, 1.0)
        fates.update({ticket.payload: ticket.state for ticket in tickets})

    assert fates == {name: State.FAILED if name == "f" else State.ANSWERED for name in "abcdefgh"}
    assert (scheduler.rows_waiting, scheduler.rows_running, scheduler.forecast.backlog_s(0.0)) == (0, 0, 0.0)


def test_a_row_cancelled_between_failure_and_retry_neither_waits_nor_runs() -> None:
    scheduler = make(some_saving(), runners=2)
    tickets = [scheduler.add(8, 0.0, 9.0, name) for name in "ab"]
    scheduler.fail(scheduler.step(0.0, 1).batches[0])
    assert scheduler.rows_waiting == 2

    scheduler.cancel(tickets[0])

    assert scheduler.rows_waiting == 1
    assert [names(batch) for batch in scheduler.step(0.0, 2).batches] == [["b"]]


def test_the_last_row_of_a_failed_batch_is_retried_alone() -> None:
    scheduler = make(some_saving())
    poison, _ = (scheduler.add(8, 0.0, 9.0, name) for name in ("poison", "good"))
    batch = scheduler.step(0.0, 1).batches[0]
    scheduler.cancel(poison)

    assert scheduler.fail(batch) == []

    assert [names(again) for again in scheduler.step(0.0, 1).batches] == [["good"]]


def test_halves_of_a_failed_batch_are_not_divided_again() -> None:
    scheduler = make(some_saving(), runners=3)
    for name in "abcd":
        scheduler.add(100, 0.0, 9.0, name)
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    batches = scheduler.step(0.0, 3).batches

    assert [(names(batch), batch.reason) for batch in batches] == [(["a", "b"], "retry"), (["c", "d"], "retry")]


def test_rows_of_a_failed_batch_run_before_all_others() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for number in range(6):
        scheduler.add(8, 0.0, 9.0, f"{number}")

    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    batches = scheduler.step(0.0, 2).batches
    assert [(names(batch), batch.reason) for batch in batches] == [(["0", "1"], "retry"), (["2", "3"], "retry")]


def test_a_row_of_a_failed_batch_that_has_become_hopeless_is_not_retried() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    scheduler.add(8, 0.0, 0.015, "late by then")
    scheduler.add(8, 0.0, 9.0, "patient")
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    # 5 ms are left and a run takes 10.
    batches = scheduler.step(0.01, 2).batches

    assert [name for batch in batches for name in names(batch)] == ["patient"]


def test_a_batch_out_of_memory_is_halved_and_later_batches_are_smaller() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for number in range(40):
        scheduler.add(108, 0.0, 99.0, f"{number}")
    batch = scheduler.step(0.0, 1).batches[0]
    assert len(batch.tickets) == 40

    assert scheduler.fail(batch, out_of_memory=True) == []
    for number in range(40):
        scheduler.add(108, 0.0, 99.0, f"new {number}")

    sizes = []
    while batches := scheduler.step(0.0, 1).batches:
        sizes.append(len(batches[0].tickets))
        scheduler.finish(batches[0], 0.0, 0.01)
    assert scheduler.limits.rows_at(108) == 20
    assert sizes == [20, 20, 20, 20]


@pytest.mark.parametrize(
    ("rows", "out_of_memory", "rows_at", "failed"),
    [
        pytest.param(2, True, 1, 0, id="two rows out of memory: rows run alone"),
        pytest.param(4, False, WIDE.rows_at(100), 0, id="another failure leaves the limits alone"),
        pytest.param(1, True, WIDE.rows_at(100), 1, id="a single row out of memory fails and leaves the limits alone"),
    ],
)
def test_only_a_batch_of_several_rows_out_of_memory_lowers_the_limits(rows: int, out_of_memory: bool, rows_at: int, failed: int) -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for number in range(rows):
        scheduler.add(100, 0.0, 99.0, f"{number}")

    found = scheduler.fail(scheduler.step(0.0, 1).batches[0], out_of_memory)

    assert len(found) == failed
    assert scheduler.limits.rows_at(100) == rows_at
    assert (scheduler.limits == WIDE) == (rows_at > 1)


def test_giving_up_a_batch_fails_its_rows_and_loses_its_runner() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for name in "abcd":
        scheduler.add(8, 0.0, 9.0, name)
    batch = scheduler.step(0.0, 1).batches[0]

    failed = scheduler.give_up(batch)

    assert [(ticket.payload, ticket.state) for ticket in failed] == [(name, State.FAILED) for name in "abcd"]
    assert scheduler.runners == 1
    assert (scheduler.rows_running, scheduler.rows_waiting) == (0, 0)


def test_with_one_runner_of_two_lost_the_same_work_takes_almost_twice_as_long() -> None:
    scheduler = make(runners=2)
    for length in (500, 100, 100):
        scheduler.add(length, 0.0, 9.0, "row")
    batches = scheduler.step(0.0, 2).batches
    hung = next(batch for batch in batches if batch.length == 100)
    for number in range(10):
        scheduler.add(100, 0.0, 9.0, f"{number}")
    before = scheduler.forecast.backlog_s(0.2)

    scheduler.give_up(hung)

    assert scheduler.forecast.backlog_s(0.2) > 1.8 * before


def test_nothing_is_admitted_when_all_runners_are_lost() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")
    scheduler.give_up(scheduler.step(0.0, 1).batches[0])

    with pytest.raises(Unavailable, match=r"^no runner is left"):
        scheduler.add(8, 0.0, 9.0, "b")


# Admission


def test_an_idle_server_runs_a_row_that_the_table_calls_too_slow_by_less_than_two() -> None:
    scheduler = make()

    ticket = scheduler.add(100, 0.0, 0.051, "probe")

    step = scheduler.step(0.0, 1)
    assert step.hopeless == []
    assert [batch.tickets for batch in step.batches] == [[ticket]]


def test_an_idle_server_refuses_a_row_that_needs_more_than_twice_the_time_left() -> None:
    scheduler = make()
    scheduler.cancel(scheduler.add(100, 0.0, 0.049, "probe"))

    with pytest.raises(Expired, match=r"leaves 0\.049 s and this text alone needs about 0\.100 s"):
        scheduler.add(100, 0.9, 0.949, "hopeless")

    assert scheduler.rows_waiting == 0


def test_an_idle_server_probes_once_a_second() -> None:
    scheduler = make()

    for second in range(3):
        now = 10.0 + second
        assert scheduler.cancel(scheduler.add(100, now, now + 0.001, "probe"))
        with pytest.raises(Expired):
            scheduler.add(100, now, now + 0.001, "hopeless")


def test_bulk_rows_leave_a_quarter_of_the_queue_to_interactive_rows() -> None:
    scheduler = make(queue_rows_max=8)
    for number in range(6):
        scheduler.add(8, 0.0, 60.0, f"{number}", BULK)

    with pytest.raises(Refused, match=r"6 rows are waiting; the limit is 6"):
        scheduler.add(8, 0.0, 60.0, "one too many", BULK)
    for name in "ab":
        scheduler.add(8, 0.0, 60.0, name)
    with pytest.raises(Refused, match=r"8 rows are waiting; the limit is 8"):
        scheduler.add(8, 0.0, 60.0, "c")


def test_a_queue_of_one_row_accepts_a_bulk_row() -> None:
    scheduler = make(queue_rows_max=1)
    scheduler.add(8, 0.0, 60.0, "a", BULK)

    with pytest.raises(Refused, match=r"1 rows are waiting; the limit is 1"):
        scheduler.add(8, 0.0, 60.0, "b", BULK)


def test_beside_a_busy_runner_a_free_one_admits_a_row_with_just_enough_time() -> None:
    scheduler = make(runners=2)
    scheduler.add(500, 0.0, 60.0, "long")
    scheduler.step(0.0, 2)

    scheduler.add(100, 0.0, 0.11, "urgent")

    assert [names(batch) for batch in scheduler.step(0.0, 1).batches] == [["urgent"]]


def test_an_overdue_run_is_expected_to_take_as_long_again() -> None:
    scheduler = make()
    scheduler.add(100, 0.0, 60.0, "overdue")
    scheduler.step(0.0, 1)

    assert scheduler.forecast.backlog_s(0.05) == pytest.approx(0.05)
    assert scheduler.forecast.backlog_s(3.1) == pytest.approx(3.0)


def test_long_rows_among_many_short_ones_count_at_full_cost() -> None:
    scheduler = make(cost=fixed(0.02, 1e-3), limits=BatchLimits(64, 640, 2**30, 2))
    for number in range(500):
        scheduler.add(8, 0.0, 600.0, f"short {number}")
    admitted = 0

    for number in range(40):
        try:
            scheduler.add(500, 0.0, 4.0, f"long {number}")
            admitted += 1
        except Refused:
            break

    # 0.52 s each, alone in a batch.
    assert admitted == 7


@pytest.mark.parametrize("deadline_at", [4.0, 5.0])
def test_a_past_deadline_leaves_no_time_and_is_not_probed(deadline_at: float) -> None:
    with pytest.raises(Expired, match="leaves less than 1 ms and"):
        make().add(100, 5.0, deadline_at, "late")


def test_a_busy_server_does_not_probe() -> None:
    scheduler = make(runners=2)
    scheduler.add(8, 0.0, 9.0, "other")

    with pytest.raises(Expired):
        scheduler.add(100, 0.0, 0.099, "hopeless")


def test_a_batch_of_cancelled_rows_keeps_its_runner_busy() -> None:
    scheduler = make()
    ticket = scheduler.add(500, 0.0, 9.0, "gone")
    scheduler.step(0.0, 1)
    scheduler.cancel(ticket)

    assert scheduler.forecast.backlog_s(0.1) == pytest.approx(0.4)
    with pytest.raises(Expired):
        scheduler.add(100, 0.1, 0.16, "no probe")
    with pytest.raises(Refused):
        scheduler.add(100, 0.1, 0.55, "no time")


def test_the_queue_is_bounded_and_says_when_to_retry() -> None:
    scheduler = make(queue_rows_max=2)
    for name in "ab":
        scheduler.add(8, 0.0, 9.0, name)

    with pytest.raises(Refused, match=r"2 rows are waiting; the limit is 2") as caught:
        scheduler.add(8, 0.0, 9.0, "c")

    assert caught.value.reason == "queue_full"
    assert caught.value.retry_after_s == pytest.approx(0.016)


def test_a_row_without_time_behind_the_queued_work_is_refused_with_that_work() -> None:
    scheduler = make()
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")

    with pytest.raises(Refused, match=r"1\.000 s of work are queued and this text needs 0\.100 s; the deadline leaves 1\.050 s") as caught:
        scheduler.add(100, 0.05, 1.1, "no room")

    assert caught.value.reason == "backlog"
    assert caught.value.retry_after_s == pytest.approx(1.0)
    scheduler.add(100, 0.0, 1.11, "room")


def test_the_current_speed_counts_at_admission() -> None:
    scheduler = make()
    for _ in range(10):
        scheduler.cost.observe(1, 8, 1.0)
    assert 1.5 < scheduler.cost.speed < 2.2
    for number in range(3):
        scheduler.add(100, 0.0, 0.7, f"{number}")

    with pytest.raises(Refused):
        scheduler.add(100, 0.0, 0.7, "in time on a better day")


def test_a_row_with_an_earlier_deadline_is_admitted_only_if_later_ones_stay_in_time() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 0.6, "admitted")

    with pytest.raises(Refused, match=r"this text would make 1 queued deadlines late by up to 0\.100 s") as caught:
        scheduler.add(200, 0.0, 0.5, "too long")
    scheduler.add(90, 0.0, 0.5, "short enough")

    assert caught.value.reason == "backlog"
    assert names(scheduler.step(0.0, 1).batches[0]) == ["short enough"]


@pytest.mark.parametrize(("now", "vetoed"), [(0.52, True), (0.60, False)])
def test_a_queued_row_blocks_others_only_while_it_is_in_time_itself(now: float, vetoed: bool) -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 9.0, "runs longer than predicted")
    scheduler.step(0.0, 1)
    scheduler.add(500, 0.0, 1.05, "needs to start at 0.55")

    try:
        scheduler.add(20, now, 0.9, "short")
    except Refused:
        assert vetoed
    else:
        assert not vetoed


def test_a_bulk_backlog_does_not_keep_an_interactive_row_from_admission() -> None:
    scheduler = make()
    for number in range(100):
        scheduler.add(500, 0.0, 50.2, f"{number}", BULK)

    scheduler.add(100, 0.0, 0.2, "interactive")
    with pytest.raises(Refused):
        scheduler.add(400, 0.0, 50.2, "bulk", BULK)


def test_the_bulk_share_counts_at_admission_while_bulk_waits() -> None:
    scheduler = make()
    for number in range(100):
        scheduler.add(100, 0.0, FAR, f"bulk {number}", BULK)
    for number in range(10):
        scheduler.add(100, 0.0, 2.0, f"{number}")

    # 1 s of interactive work is queued; bulk may get a quarter as much meanwhile, to within a batch.
    with pytest.raises(Refused, match=r"1\.358 s of work are queued"):
        scheduler.add(100, 0.7, 2.0, "no room")
    scheduler.add(100, 0.5, 2.0, "room")


# What runs next


def test_a_hopeless_row_is_dropped_at_once_and_never_runs() -> None:
    scheduler = make()
    scheduler.add(100, 0.0, 9.0, "runs longer than predicted")
    batch = scheduler.step(0.0, 1).batches[0]
    hopeless, fine = scheduler.add(100, 0.0, 0.55, "hopeless"), scheduler.add(100, 0.0, 0.75, "fine")
    scheduler.finish(batch, 0.5, 0.1)

    step = scheduler.step(0.5, 1)

    assert step.hopeless == [hopeless]
    assert hopeless.state is State.EXPIRED
    assert [batch.tickets for batch in step.batches] == [[fine]]
    assert scheduler.step(9.0, 0).expired == [fine]


def test_no_row_is_hopeless_before_a_runner_is_free() -> None:
    scheduler = make()
    scheduler.add(100, 0.0, 9.0, "runs longer than predicted")
    scheduler.step(0.0, 1)
    scheduler.add(100, 0.0, 0.55, "hopeless")

    assert scheduler.step(0.5, 0).hopeless == []


def test_a_hopeless_row_behind_a_shorter_one_in_time_is_not_run() -> None:
    scheduler = make(runners=2)
    for name in ("long", "long too"):
        scheduler.add(500, 0.0, 9.0, name)
    batches = scheduler.step(0.0, 2).batches
    # Both in the bucket of 55 to 64 tokens: at 1.0 s the first needs 56 ms and has 56.5, the other needs 60 ms and has 59.
    scheduler.add(56, 0.0, 1.0565, "in time")
    scheduler.add(60, 0.0, 1.059, "hopeless")
    for batch in batches:
        scheduler.finish(batch, 1.0, 0.5)

    step = scheduler.step(1.0, 2)

    assert [name for batch in step.batches for name in names(batch)] == ["in time"]


def test_the_cheapest_rows_run_first_when_all_have_waited_equally() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 8.0, "long")
    scheduler.add(8, 0.0, 9.0, "short")

    assert names(scheduler.step(1.0, 1).batches[0]) == ["short"]


def test_a_row_that_came_first_runs_before_cheaper_rows_that_keep_coming() -> None:
    """Each short row takes 10 ms and the next one comes as it ends. Those that came within half of the long row's 0.4 s run first."""
    scheduler = make(limits=BatchLimits(rows=1, tokens=2**16, scores_bytes=2**30, heads=2))
    scheduler.add(400, 0.0, 9.0, "long")
    now, order = 0.0, list[str]()
    while "long" not in order:
        scheduler.add(10, now, now + 9.0, "short")
        (batch,) = scheduler.step(now, 1).batches
        order += names(batch)
        now += 0.01
        scheduler.finish(batch, now, 0.01)

    assert order == ["short"] * 20 + ["long"]


def test_a_row_that_would_otherwise_be_late_runs_first() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "short")
    scheduler.add(500, 0.0, 0.51, "long and urgent")

    assert names(scheduler.step(0.005, 1).batches[0]) == ["long and urgent"]


@pytest.mark.parametrize(("slack_s", "rows"), [(0.016, 1), (0.025, 2), (0.035, 3)])
def test_a_batch_with_an_urgent_row_is_small_enough_to_be_in_time(slack_s: float, rows: int) -> None:
    scheduler = make(some_saving())
    # One row takes 11 ms, each further one 10 ms.
    for number, deadline_at in enumerate((1 + slack_s, 1.2, 1.2, 1.2, 1.2, 1.2)):
        scheduler.add(100, 1.0, deadline_at, f"{number}")

    batch = scheduler.step(1.0, 1).batches[0]

    assert batch.reason == "tight"
    assert names(batch) == [f"{number}" for number in range(rows)]
    assert batch.predicted_s <= slack_s


@pytest.mark.parametrize(("rows", "slack_s", "ran", "reason"), [(3, 0.004, 3, "alike"), (5, 0.0045, 4, "full")])
def test_a_batch_with_an_urgent_row_is_full_where_that_is_in_time(rows: int, slack_s: float, ran: int, reason: str) -> None:
    scheduler = make(some_saving(), FOUR)
    # Three take 3.4 ms and four 4.2 ms: behind as many others the first would be late.
    for number in range(rows):
        scheduler.add(8, 0.0, 9.0 if number else slack_s, f"{number}")

    (batch,) = scheduler.step(0.0, 1).batches

    assert (len(batch.tickets), batch.reason) == (ran, reason)


def test_an_urgent_row_of_its_groups_full_length_runs_before_the_next_group() -> None:
    scheduler = make()
    scheduler.add(32, 0.0, 0.04, "urgent")
    scheduler.add(512, 0.0, 9.0, "long")

    assert names(scheduler.step(0.0, 1).batches[0]) == ["urgent"]


def test_an_urgent_row_longer_than_any_bucket_runs() -> None:
    scheduler = make()
    scheduler.add(600, 0.0, 0.7, "longer than 512")

    assert names(scheduler.step(0.0, 1).batches[0]) == ["longer than 512"]


def test_a_long_row_is_not_starved_by_a_constant_flow_of_short_ones() -> None:
    scheduler = make()
    # Some always wait: they come as fast as they run, and five at once at the start.
    short: list[Arrival] = [(max(0, number - 5) * 0.0081, 8, FAR, f"{number}", INTERACTIVE) for number in range(400)]

    began = drive(scheduler, [*short, (0.0, 400, FAR, "long", INTERACTIVE)], until=3.0)

    started_at = {name: at for at, batch in began for name in names(batch)}
    assert started_at["long"] < 2.0
    assert any(arrival[0] < started_at["long"] < started_at[arrival[3]] for arrival in short if arrival[3] in started_at)


# Classes


def run_time_of(batches: Sequence[Batch[str]]) -> Counter[Priority]:
    spent: Counter[Priority] = Counter()
    for batch in batches:
        spent[batch.tickets[0].priority] += batch.predicted_s  # type: ignore[assignment]  # seconds are counted too
    return spent


@pytest.mark.parametrize("bulk_share", [0.1, 0.2, 0.5])
def test_two_classes_that_both_wait_get_their_shares_of_the_run_time_to_within_a_batch(bulk_share: float) -> None:
    scheduler = make(bulk_share=bulk_share)
    rows: list[Arrival] = [(0.0, 20, FAR, "interactive", INTERACTIVE) for _ in range(100)]
    rows += [(0.0, 100, FAR, "bulk", BULK) for _ in range(30)]

    began = [batch for _, batch in drive(scheduler, rows, until=2.0)]

    for count in range(1, len(began)):
        spent = run_time_of(began[:count])
        # A batch of 100 tokens takes 0.1 s.
        assert abs(spent[BULK] - bulk_share * sum(spent.values())) <= 0.1 + 1e-9


def test_bulk_gets_all_runs_that_interactive_leaves() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "bulk", BULK) for _ in range(10)]

    assert [at for at, _ in drive(scheduler, rows)] == pytest.approx([number / 10 for number in range(10)])


def test_bulk_is_not_starved_by_a_full_interactive_queue() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 20, FAR, "interactive", INTERACTIVE) for _ in range(100)]

    began = drive(scheduler, [*rows, (0.0, 20, FAR, "bulk", BULK)], until=1.0)

    assert next(at for at, batch in began if names(batch) == ["bulk"]) < 0.2


def test_an_interactive_row_waits_for_no_more_than_the_bulk_batch_that_runs() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "bulk", BULK) for _ in range(30)]

    began = drive(scheduler, [*rows, (1.02, 20, FAR, "interactive", INTERACTIVE)], until=2.0)

    assert next(at for at, batch in began if names(batch) == ["interactive"]) == pytest.approx(1.1)


@pytest.mark.parametrize(("before", "after"), [(INTERACTIVE, BULK), (BULK, INTERACTIVE)])
def test_a_class_without_rows_has_no_claim_to_past_run_time(before: Priority, after: Priority) -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "first", before) for _ in range(90)]
    rows += [(5.0, 100, FAR, "second", after) for _ in range(40)]

    began = drive(scheduler, rows, until=9.0)

    both = run_time_of([batch for at, batch in began if 5.05 <= at < 8.0])
    # To within a batch, which takes 0.1 s.
    assert both[BULK] == pytest.approx(0.2 * sum(both.values()), abs=0.101)


def test_a_class_whose_rows_come_one_by_one_has_no_claim_to_past_run_time() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "interactive", INTERACTIVE) for _ in range(90)]
    # Each comes while the one before it runs, if bulk gets its runner at once.
    rows += [(5.05 + number / 10, 100, FAR, "bulk", BULK) for number in range(30)]

    began = drive(scheduler, rows, until=8.0)

    both = run_time_of([batch for at, batch in began if at >= 5.05])
    assert both[BULK] <= 0.2 * sum(both.values()) + 0.101


def test_classes_are_not_mixed_in_a_batch() -> None:
    scheduler = make(fixed(0.01, 1e-9), runners=2)
    for name, priority in (("a", INTERACTIVE), ("b", BULK), ("c", INTERACTIVE)):
        scheduler.add(8, 0.0, 99.0, name, priority)

    assert sorted(names(batch) for batch in scheduler.step(0.0, 2).batches) == [["a", "c"], ["b"]]


# Holding a row for more rows


def flowing(cost: CostTable, every_s: float, rows: int = 500, limits: BatchLimits = WIDE, runners: int = 1) -> tuple[Scheduler[str], float]:
    """A scheduler with an empty queue that has recently seen a row every ``every_s``, and the time now."""
    scheduler, now = make(cost, limits, runners), 0.0
    for number in range(rows):
        now = number * every_s
        scheduler.cancel(scheduler.add(8, now, now + 60, "past"))
    return scheduler, now


@pytest.mark.parametrize(
    ("cost", "every_s", "slack_s", "held_s"),
    [
        pytest.param(fixed(0.01, 1e-7), 0.001, 60, 0.00115, id="more rows are free and come soon"),
        # One row takes 19 ms, two take 28 ms, and in 30 ms two rows run instead of one in 19.
        pytest.param(fixed(0.01, 0.009 / 8), 0.002, 60, 0.002, id="more rows are not free but pay"),
        pytest.param(fixed(0.01, 1e-7), 0.008, 60, 0.008, id="the next row comes before the batch would be done"),
        pytest.param(fixed(0.01, 1e-7), 0.002, 0.0205, 0.0005, id="while there is time for the batch twice"),
        pytest.param(proportional(1e-3), 0.001, 60, None, id="not where batching saves nothing"),
        pytest.param(fixed(0.01, 1e-7), 0.1, 60, None, id="not where no row comes soon"),
        pytest.param(fixed(0.01, 1e-7), 0.001, 0.0195, None, id="not when the deadline is near"),
    ],
)
def test_a_row_is_held_for_more_rows_only_where_that_pays(cost: CostTable, every_s: float, slack_s: float, held_s: float | None) -> None:
    scheduler, now = flowing(cost, every_s)
    scheduler.add(8, now, now + slack_s, "a")

    step = scheduler.step(now, 1)

    if held_s is None:
        assert [names(batch) for batch in step.batches] == [["a"]]
    else:
        assert step.batches == []
        assert step.wake_at is not None and step.wake_at - now == pytest.approx(held_s, rel=0.05)


def test_two_rows_are_held_like_one() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.001)
    for number in range(2):
        scheduler.add(8, now + number / 2000, now + 60, f"{number}")

    assert scheduler.step(now + 0.0005, 1).batches == []


@pytest.mark.parametrize("limits", [WIDE, FOUR], ids=["64 rows", "4 rows"])
def test_a_full_batch_is_not_held(limits: BatchLimits) -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=1e-5, limits=limits)
    for number in range(limits.rows):
        scheduler.add(8, now, now + 60, f"{number}")

    assert [len(batch.tickets) for batch in scheduler.step(now, 1).batches] == [limits.rows]


def test_rows_left_by_a_full_batch_are_not_held() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.001, limits=FOUR, runners=2)
    for number in range(5):
        scheduler.add(8, now, now + 60, f"{number}")

    assert [len(batch.tickets) for batch in scheduler.step(now, 2).batches] == [4, 1]


def test_a_held_row_runs_when_it_has_waited_as_long_as_its_batch_takes() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.0005, rows=2000)
    scheduler.add(8, now, now + 60, "a")
    at, step = now, scheduler.step(now, 1)

    while not step.batches:
        assert step.wake_at is not None and step.wake_at > at
        at = step.wake_at
        step = scheduler.step(at, 1)

    assert at - now == pytest.approx(step.batches[0].predicted_s)


@pytest.mark.parametrize("every_s", [0.0002, 0.001, 0.002, 0.004, 0.008, 1.0])
def test_no_row_is_held_longer_than_its_batch_takes(every_s: float) -> None:
    # Rows came every 0.2 ms; from now on they come every ``every_s``.
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.0002, rows=2000)
    rows: list[Arrival] = [(now + number * every_s, 8, now + 60, f"{number}", INTERACTIVE) for number in range(60)]

    at, batch = drive(scheduler, rows, until=now + 0.5)[0]

    assert names(batch)[0] == "0"
    assert at - now <= batch.predicted_s + 1e-9


# The cost of planning


def test_a_step_looks_at_buckets_and_never_at_each_of_4096_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make(fixed(1e-3, 1e-5), runners=4)
    ladder = edges(512)
    for number in range(4096):
        scheduler.add(ladder[number % len(ladder)], number * 1e-6, FAR, "row", BULK if number % 2 else INTERACTIVE)
    calls: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: calls.update([name]) or original(*arguments))

    for owner, name in ((CostTable, "table_s"), (Prices, "group_s"), (Ticket, "hopeless")):
        count(owner, name)

    batches = scheduler.step(0.01, 4).batches

    assert len(batches) == 4
    # Hopeless rows are looked for only at the front of each bucket.
    assert calls["hopeless"] <= 2 * len(ladder)
    # Each of the four plans prices pairs of buckets, and each bucket has at most 21 batch sizes.
    assert calls["group_s"] <= 4 * len(ladder) * (len(ladder) + 1) / 2
    assert calls["table_s"] <= 21 * len(ladder) + calls["group_s"]


# Batches that use the cores of idle runners


def make_wide(runners: int = 4, width: int = 4, saves: float = 0.5, row_s: float = 1e-3) -> Scheduler[str]:
    points = {(rows, length): row_s * rows * length for rows in (1, 64) for length in (8, 512)}
    cost = CostTable(points, {shape: saves * run_s for shape, run_s in points.items()})
    return Scheduler(cost, WIDE, runners, 10_000, 512, width=width)


@pytest.mark.parametrize(
    ("scheduler", "wide"),
    [
        pytest.param(make_wide(), True, id="all runners are idle"),
        pytest.param(make_wide(width=2), True, id="more than it needs are idle"),
        pytest.param(make_wide(runners=3), False, id="too few are idle"),
        pytest.param(make_wide(saves=0.95), False, id="it saves too small a part"),
        pytest.param(make_wide(row_s=1.5e-5), False, id="it saves less than a millisecond"),
        pytest.param(make(runners=4), False, id="nothing is known of several cores"),
    ],
)
def test_a_lone_batch_uses_the_cores_of_idle_runners_where_that_saves_time(scheduler: Scheduler[str], wide: bool) -> None:
    scheduler.add(100, 0.0, 9.0, "lone")

    (batch,) = scheduler.step(0.0, scheduler.runners).batches

    assert batch.wide is wide
    assert batch.predicted_s == scheduler.cost.run_s(1, 100)


def test_no_batch_is_wide_while_others_wait_or_one_is_wide() -> None:
    scheduler = make_wide(width=2)
    scheduler.add(100, 0.0, 9.0, "first")
    (first,) = scheduler.step(0.0, 4).batches
    scheduler.add(100, 0.01, 9.0, "second")

    (second,) = scheduler.step(0.01, 3).batches

    assert (first.wide, second.wide) == (True, False)
    scheduler = make_wide(width=2)
    for number in range(4):
        scheduler.add(100, 0.02, 9.0, f"{number}")
    assert not any(batch.wide for batch in scheduler.step(0.02, 4).batches)


def test_after_a_wide_batch_the_next_one_may_be_wide() -> None:
    scheduler = make_wide()
    for name in ("first", "second"):
        scheduler.add(100, 0.0, 9.0, name)
        (batch,) = scheduler.step(0.0, 4).batches
        assert (batch.wide, batch.reason) == (True, "wide")
        scheduler.finish(batch, 0.05, 0.05)


@pytest.mark.parametrize(
    ("busy", "wide"), [pytest.param(0.5, True, id="as one caller keeps two runners"), pytest.param(0.6, False, id="busier")]
)
def test_while_runners_are_busy_for_more_than_half_of_the_time_no_batch_is_wide(busy: float, wide: bool) -> None:
    scheduler = make_wide(width=2, row_s=4e-3)
    for number in range(200):
        now = number * 0.1
        scheduler.add(100, now, now + 9.0, f"{number}")
        (batch,) = scheduler.step(now, 4).batches
        scheduler.finish(batch, now, busy * 0.1 * 4)

    assert batch.wide is wide
    # A little later the runners are idle.
    scheduler.add(100, 25.0, 34.0, "later")
    assert scheduler.step(25.0, 4).batches[0].wide


def test_probes_correct_a_table_that_is_too_slow_though_nearly_every_batch_is_wide() -> None:
    scheduler, answered, wide = make_wide(), [], []
    for number in range(400):
        now = float(number)
        # The table says 0.1 s on one core and 0.05 on four; the truth is a quarter of that.
        try:
            scheduler.add(100, now, now + 0.03, f"{number}")
        except Expired:
            continue
        (batch,) = scheduler.step(now, 4).batches
        wide.append(batch.wide)
        answered += scheduler.finish(batch, now + 0.0125, 0.0125)

    assert sum(wide) >= 0.99 * len(wide)
    assert len(answered) >= 300
    assert scheduler.cost.run_s(1, 100) < 0.06


def test_batches_are_wide_while_runs_show_that_it_saves_time() -> None:
    scheduler = make_wide(saves=0.6)

    def share_wide(saves: float) -> float:
        """Of the last 127 of 1,143 lone batches, while a wide one takes ``saves`` of a narrow one's time."""
        nonlocal now
        wide = []
        for _ in range(9 * 127):
            now += 1.0
            scheduler.add(100, now, now + 9.0, "lone")
            (batch,) = scheduler.step(now, 4).batches
            scheduler.finish(batch, now, 0.1 * (saves if batch.wide else 1.0))
            wide.append(batch.wide)
        return sum(wide[-127:]) / 127

    now = 0.0
    # One batch in 127 does the other thing, to learn.
    assert [share_wide(saves) for saves in (0.6, 1.1, 0.6)] == [126 / 127, 1 / 127, 126 / 127]
    assert scheduler.cost.run_s(1, 100) == pytest.approx(0.1, rel=0.1)


def test_width_is_tried_for_texts_of_all_lengths_that_come_in_turns() -> None:
    scheduler, tried = make_wide(saves=0.95), set()
    for number in range(16 * 127):
        length = (100, 200, 300, 400)[number % 4]
        scheduler.add(length, float(number), number + 9.0, "lone")
        (batch,) = scheduler.step(float(number), 4).batches
        scheduler.finish(batch, float(number), batch.predicted_s)
        tried |= {length} if batch.wide else set()

    assert tried == {100, 200, 300, 400}


def test_a_wide_batch_that_is_given_up_is_no_longer_in_the_way() -> None:
    scheduler = make_wide(runners=5)
    scheduler.add(100, 0.0, 9.0, "hangs")
    scheduler.give_up(scheduler.step(0.0, 5).batches[0])
    scheduler.add(100, 0.0, 9.0, "next")

    assert scheduler.step(0.0, 4).batches[0].wide


@pytest.mark.parametrize("out_of_memory", [False, True])
def test_the_rows_of_a_wide_batch_that_fails_run_again_on_one_core_and_no_batch_is_wide_any_more(out_of_memory: bool) -> None:
    scheduler = make_wide()
    limits = scheduler.limits
    scheduler.add(100, 0.0, 9.0, "again")
    (failed,) = scheduler.step(0.0, 4).batches
    assert failed.wide

    assert scheduler.fail(failed, out_of_memory) == []
    (again,) = scheduler.step(0.1, 4).batches

    assert (names(again), again.wide, again.reason) == (["again"], False, "retry")
    assert [ticket.payload for ticket in scheduler.finish(again, 0.2, 0.1)] == ["again"]
    assert scheduler.limits == limits
    scheduler.add(100, 0.3, 9.0, "next")
    assert not scheduler.step(0.3, 4).batches[0].wide


# Packed


def make_packed(cost: CostTable, limits: BatchLimits = WIDE, runners: int = 1) -> Scheduler[str]:
    return Scheduler(cost, limits, runners, 10_000, 512, layout=Packed())


def test_packed_rows_of_different_lengths_run_together() -> None:
    scheduler = make_packed(some_saving(), BatchLimits(rows=64, tokens=512, scores_bytes=2**30, heads=2))
    for name, length in (("short", 5), ("long", 400), ("short too", 6)):
        scheduler.add(length, 0.0, 9.0, name)

    (batch,) = scheduler.step(0.0, 1).batches

    assert (names(batch), batch.length) == (["short", "long", "short too"], 400)
    # 411, rounded up to 64.
    assert batch.tokens == 448


def test_a_packed_batch_has_its_first_row_and_the_earliest_deadlines_that_the_tokens_allow() -> None:
    scheduler = make_packed(fixed(0.01, 1e-9), BatchLimits(rows=64, tokens=512, scores_bytes=2**30, heads=2))
    for name, length, deadline_at in (("d", 100, 4.0), ("b", 300, 2.0), ("a", 10, 1.0), ("c", 160, 3.0)):
        scheduler.add(length, 0.0, deadline_at, name)

    (batch,) = scheduler.step(0.0, 1).batches

    assert (names(batch), batch.reason) == (["d", "a", "b"], "full")


def test_a_packed_batch_with_an_urgent_row_is_small_enough_to_be_in_time() -> None:
    scheduler = make_packed(some_saving())
    for name, length, deadline_at in (("urgent", 50, 1.0175), ("next", 100, 1.2), ("last", 100, 1.2)):
        scheduler.add(length, 1.0, deadline_at, name)

    (batch,) = scheduler.step(1.0, 1).batches

    assert (names(batch), batch.reason) == (["urgent", "next"], "tight")


def test_a_packed_batch_is_divided_between_idle_runners_by_tokens() -> None:
    scheduler = make_packed(some_saving(), runners=2)
    for length in (200, 10, 190, 20):
        scheduler.add(length, 0.0, 9.0, f"{length}")

    batches = scheduler.step(0.0, 2).batches

    assert sorted(sorted(names(batch)) for batch in batches) == [["10", "190"], ["20", "200"]]


def test_after_a_packed_batch_out_of_memory_none_has_more_than_half_of_its_tokens() -> None:
    scheduler = make_packed(fixed(0.01, 1e-9))
    for number in range(60):
        scheduler.add(10 + 5 * number, 0.0, 99.0, f"{number}")
    (batch,) = scheduler.step(0.0, 1).batches
    assert len(batch.tickets) == 60

    scheduler.fail(batch, out_of_memory=True)
    for number in range(60):
        scheduler.add(10 + 5 * number, 0.0, 99.0, f"new {number}")

    tokens = []
    while batches := scheduler.step(0.0, 1).batches:
        if batches[0].reason != "retry":
            tokens.append(batches[0].tokens)
        scheduler.finish(batches[0], 0.0, 0.01)
    assert len(tokens) > 1
    assert max(tokens) <= batch.tokens / 2


def test_packed_rows_are_admitted_by_their_tokens_and_not_by_the_longest() -> None:
    scheduler = make_packed(proportional(1e-3))
    scheduler.add(500, 0.0, 9.0, "long")
    for number in range(50):
        scheduler.add(8, 0.0, 9.0, f"{number}")

    # 0.9 s of work are queued; padded to the longest they would be 25 s.
    assert scheduler.forecast.backlog_s(0.0) == pytest.approx(0.9, rel=0.01)
    scheduler.add(100, 0.0, 1.02, "room")


def test_a_packed_row_is_held_for_more_rows_that_come_soon() -> None:
    scheduler = make_packed(fixed(0.01, 1e-7))
    for number in range(500):
        scheduler.cancel(scheduler.add(1 + number % 100, number * 1e-3, number * 1e-3 + 60, "past"))
    scheduler.add(8, 0.499, 60.0, "a")

    step = scheduler.step(0.499, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(0.5, abs=2e-4)


def test_a_full_packed_batch_is_not_held() -> None:
    scheduler = make_packed(fixed(0.01, 1e-7), FOUR)
    for number in range(500):
        scheduler.cancel(scheduler.add(8, number * 1e-5, 60.0, "past"))
    for name, length in (("a", 3), ("b", 500), ("c", 8), ("d", 80)):
        scheduler.add(length, 0.005, 60.0, name)

    assert [names(batch) for batch in scheduler.step(0.005, 1).batches] == [["a", "b", "c", "d"]]
