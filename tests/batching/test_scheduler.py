"""What the scheduler decides, one behaviour at a time."""

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
from tests.batching.test_cost import fixed, proportional

WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)
FOUR = BatchLimits(rows=4, tokens=2**16, scores_bytes=2**30, heads=2)
FAR = 1e6
INTERACTIVE, BULK = Priority.INTERACTIVE, Priority.BULK


def make(
    cost: CostTable | None = None, limits: BatchLimits = WIDE, runners: int = 1, queue_rows_max: int = 10_000, bulk_share: float = 0.2
) -> Scheduler[str]:
    """A scheduler; unless a table is given, a row costs a millisecond a token and batching saves nothing."""
    return Scheduler(cost or proportional(1e-3), limits, runners, queue_rows_max, 512, bulk_share)


def some_saving() -> CostTable:
    """Alike rows gain from company, unlike ones do not."""
    return fixed(1e-3, 1e-4)


def names(batch: Batch[str]) -> list[str]:
    return [ticket.payload for ticket in batch.tickets]


Arrival = tuple[float, int, float, str, Priority]


def drive(scheduler: Scheduler[str], arrivals: Sequence[Arrival], until: float = FAR) -> list[tuple[float, Batch[str]]]:
    """Run to the end on virtual time, every run as long as predicted; returns when each batch began."""
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


def test_nothing_is_bound_to_a_batch_before_a_runner_is_free() -> None:
    scheduler = make(some_saving())
    scheduler.add(8, 0.0, 9.0, "a")

    step = scheduler.step(0.0, runners_free=0)

    assert step.batches == []
    scheduler.add(8, 0.0, 9.0, "b")
    assert names(scheduler.step(0.0, 1).batches[0]) == ["a", "b"]


def test_rows_of_unlike_length_run_apart() -> None:
    scheduler = make(some_saving(), runners=2)
    for name, length in (("short", 5), ("long", 60), ("short too", 6)):
        scheduler.add(length, 0.0, 9.0, name)

    batches = scheduler.step(0.0, 2).batches

    assert [names(batch) for batch in batches] == [["short", "short too"], ["long"]]


def test_rows_of_unlike_length_run_together_where_the_fixed_cost_dominates() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for name, length in (("short", 5), ("long", 500)):
        scheduler.add(length, 0.0, 9.0, name)

    assert [names(batch) for batch in scheduler.step(0.0, 1).batches] == [["short", "long"]]


def test_a_batch_is_no_larger_than_pays() -> None:
    scheduler = make(proportional())
    for name in "abc":
        scheduler.add(8, 0.0, 9.0, name)

    assert [names(batch) for batch in scheduler.step(0.0, 1).batches] == [["a"]]


def test_a_batch_keeps_the_limits() -> None:
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


def test_a_cancelled_row_is_never_run_and_its_mates_are() -> None:
    scheduler = make(some_saving())
    first, *_ = (scheduler.add(8, 0.0, 9.0, name) for name in "abc")

    assert scheduler.cancel(first)

    assert first.state is State.CANCELLED
    assert names(scheduler.step(0.0, 1).batches[0]) == ["b", "c"]
    assert not scheduler.cancel(first)


def test_a_row_past_its_deadline_is_never_run() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "late")

    step = scheduler.step(1.0, 1)

    assert [(ticket.payload, ticket.state) for ticket in step.expired] == [("late", State.EXPIRED)]
    assert (step.batches, step.hopeless) == ([], [])
    assert step.wake_at is None


def test_a_row_expires_at_its_deadline_though_no_runner_is_free() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "late")

    assert [ticket.payload for ticket in scheduler.step(1.0, 0).expired] == ["late"]


def test_a_running_row_expires_at_its_deadline_and_is_not_answered() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "slow")
    batch = scheduler.step(0.0, 1).batches[0]

    assert [ticket.payload for ticket in scheduler.step(1.5, 0).expired] == ["slow"]

    assert scheduler.finish(batch, 1.6, 1.6) == []


def test_an_answer_that_comes_after_the_deadline_is_none_even_if_nobody_has_noticed_yet() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "slow")
    batch = scheduler.step(0.0, 1).batches[0]

    assert scheduler.finish(batch, 1.0, 1.0) == []

    assert [ticket.payload for ticket in scheduler.step(1.0, 1).expired] == ["slow"]


def test_it_asks_to_be_woken_at_the_next_deadline() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 5.0, "later")
    scheduler.add(8, 0.0, 3.0, "sooner")

    assert scheduler.step(0.0, 0).wake_at == 3.0


def test_why_a_batch_is_not_larger_is_said() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for name in "abcde":
        scheduler.add(8, 0.0, 9.0, name)

    reasons = [batch.reason for batch in scheduler.step(0.0, 2).batches]

    assert reasons == ["full", "alike"]


def test_what_a_batch_took_is_learned() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")
    batch = scheduler.step(0.0, 1).batches[0]
    assert batch.predicted_s == pytest.approx(0.008)

    scheduler.finish(batch, 0.016, 0.016)

    assert scheduler.cost.speed > 1.01


def test_memory_does_not_grow_with_rows_that_come_and_are_cancelled() -> None:
    scheduler = make()
    # It stays, with the earliest deadline, before all others.
    patient = scheduler.add(8, 0.0, 50.0, "patient")

    for number in range(3000):
        scheduler.cancel(scheduler.add(8, number * 1e-3, number * 1e-3 + 60, "gone"))
        scheduler.step(number * 1e-3, 0)

    assert len(scheduler._by_deadline) < 200
    assert [len(queue.demand) for queue in scheduler.queues.values()] == [1, 0]
    assert sum(len(queue._buckets) for queue in scheduler.queues.values()) == 1
    assert scheduler.step(50.0, 0).expired == [patient]


def test_rows_that_are_gone_are_cleared_away_when_they_are_the_majority_and_not_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_when_nothing_can_run_any_more_all_that_wait_fail_and_none_that_run() -> None:
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


def test_a_failed_batch_is_halved_until_only_the_culprit_fails() -> None:
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


def test_a_row_cancelled_between_failure_and_retry_is_not_run_again() -> None:
    scheduler = make(some_saving(), runners=2)
    tickets = [scheduler.add(8, 0.0, 9.0, name) for name in "ab"]
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    scheduler.cancel(tickets[0])

    assert [names(batch) for batch in scheduler.step(0.0, 2).batches] == [["b"]]


def test_a_row_whose_only_mate_has_left_is_tried_alone_before_it_fails() -> None:
    scheduler = make(some_saving())
    poison, _ = (scheduler.add(8, 0.0, 9.0, name) for name in ("poison", "good"))
    batch = scheduler.step(0.0, 1).batches[0]
    scheduler.cancel(poison)

    assert scheduler.fail(batch) == []

    assert [names(again) for again in scheduler.step(0.0, 1).batches] == [["good"]]


def test_a_row_cancelled_between_failure_and_retry_waits_no_more() -> None:
    scheduler = make(some_saving())
    tickets = [scheduler.add(8, 0.0, 9.0, name) for name in "abcd"]
    scheduler.fail(scheduler.step(0.0, 1).batches[0])
    assert scheduler.rows_waiting == 4

    scheduler.cancel(tickets[0])

    assert scheduler.rows_waiting == 3


def test_halves_of_a_failed_batch_are_not_spread() -> None:
    scheduler = make(some_saving(), runners=3)
    for name in "abcd":
        scheduler.add(100, 0.0, 9.0, name)
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    batches = scheduler.step(0.0, 3).batches

    assert [(names(batch), batch.reason) for batch in batches] == [(["a", "b"], "retry"), (["c", "d"], "retry")]


def test_rows_of_a_failed_batch_go_before_all_others() -> None:
    scheduler = make(some_saving(), FOUR, runners=2)
    for number in range(6):
        scheduler.add(8, 0.0, 9.0, f"{number}")

    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    batches = scheduler.step(0.0, 2).batches
    assert [(names(batch), batch.reason) for batch in batches] == [(["0", "1"], "retry"), (["2", "3"], "retry")]


def test_a_row_that_came_back_from_a_failed_batch_and_can_no_longer_finish_is_not_run() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    scheduler.add(8, 0.0, 0.015, "late by then")
    scheduler.add(8, 0.0, 9.0, "patient")
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    # 5 ms are left and a run takes 10.
    batches = scheduler.step(0.01, 2).batches

    assert [name for batch in batches for name in names(batch)] == ["patient"]


def test_a_batch_too_large_for_the_memory_comes_back_in_halves_and_none_is_as_large_again() -> None:
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


def test_where_two_rows_are_too_large_for_the_memory_rows_run_alone() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for name in "ab":
        scheduler.add(100, 0.0, 99.0, name)

    scheduler.fail(scheduler.step(0.0, 1).batches[0], out_of_memory=True)

    assert scheduler.limits.rows_at(100) == 1


def test_a_batch_that_fails_for_another_reason_leaves_the_limits_alone() -> None:
    scheduler = make(fixed(0.01, 1e-9))
    for number in range(4):
        scheduler.add(100, 0.0, 99.0, f"{number}")

    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    assert scheduler.limits == WIDE


def test_a_single_row_too_large_for_the_memory_fails_and_leaves_the_limits_alone() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 9.0, "huge")

    failed = scheduler.fail(scheduler.step(0.0, 1).batches[0], out_of_memory=True)

    assert [ticket.payload for ticket in failed] == ["huge"]
    assert scheduler.limits == WIDE


def test_a_batch_that_is_given_up_fails_its_rows_and_takes_its_runner_along() -> None:
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


def test_an_idle_server_tries_what_the_table_denies_by_less_than_half() -> None:
    scheduler = make()

    ticket = scheduler.add(100, 0.0, 0.051, "probe")

    step = scheduler.step(0.0, 1)
    assert step.hopeless == []
    assert [batch.tickets for batch in step.batches] == [[ticket]]


def test_an_idle_server_refuses_what_needs_more_than_twice_the_time_that_is_left_and_names_both() -> None:
    scheduler = make()
    scheduler.cancel(scheduler.add(100, 0.0, 0.049, "probe"))

    with pytest.raises(Expired, match=r"leaves 0\.049 s and this text alone needs about 0\.100 s"):
        scheduler.add(100, 0.9, 0.949, "hopeless")

    assert scheduler.rows_waiting == 0


def test_an_idle_server_tries_once_a_second_whatever_its_table_denies() -> None:
    scheduler = make()

    for second in range(3):
        now = 10.0 + second
        assert scheduler.cancel(scheduler.add(100, now, now + 0.001, "probe"))
        with pytest.raises(Expired):
            scheduler.add(100, now, now + 0.001, "hopeless")


def test_bulk_rows_leave_a_quarter_of_the_queue_to_interactive_ones() -> None:
    scheduler = make(queue_rows_max=8)
    for number in range(6):
        scheduler.add(8, 0.0, 60.0, f"{number}", BULK)

    with pytest.raises(Refused, match=r"6 rows are waiting; the limit is 6"):
        scheduler.add(8, 0.0, 60.0, "one too many", BULK)
    for name in "ab":
        scheduler.add(8, 0.0, 60.0, name)
    with pytest.raises(Refused, match=r"8 rows are waiting; the limit is 8"):
        scheduler.add(8, 0.0, 60.0, "c")


def test_a_queue_of_a_single_row_takes_one_of_bulk() -> None:
    scheduler = make(queue_rows_max=1)
    scheduler.add(8, 0.0, 60.0, "a", BULK)

    with pytest.raises(Refused, match=r"1 rows are waiting; the limit is 1"):
        scheduler.add(8, 0.0, 60.0, "b", BULK)


def test_a_free_runner_beside_a_busy_one_lets_a_row_in_that_has_just_the_time_it_needs() -> None:
    scheduler = make(runners=2)
    scheduler.add(500, 0.0, 60.0, "long")
    scheduler.step(0.0, 2)

    scheduler.add(100, 0.0, 0.11, "urgent")

    assert [names(batch) for batch in scheduler.step(0.0, 1).batches] == [["urgent"]]


def test_a_run_that_should_have_ended_is_expected_to_need_as_long_again() -> None:
    scheduler = make()
    scheduler.add(100, 0.0, 60.0, "overdue")
    scheduler.step(0.0, 1)

    assert scheduler.forecast.backlog_s(0.05) == pytest.approx(0.05)
    assert scheduler.forecast.backlog_s(3.1) == pytest.approx(3.0)


def test_long_rows_among_many_short_ones_are_not_counted_as_cheap() -> None:
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
def test_a_deadline_that_has_come_leaves_no_time_and_not_less_and_is_not_tried(deadline_at: float) -> None:
    with pytest.raises(Expired, match=r"leaves 0\.000 s"):
        make().add(100, 5.0, deadline_at, "late")


def test_a_busy_server_tries_nothing_that_the_table_denies() -> None:
    scheduler = make(runners=2)
    scheduler.add(8, 0.0, 9.0, "other")

    with pytest.raises(Expired):
        scheduler.add(100, 0.0, 0.099, "hopeless")


def test_a_batch_whose_rows_have_all_left_still_keeps_its_runner_busy() -> None:
    scheduler = make()
    ticket = scheduler.add(500, 0.0, 9.0, "gone")
    scheduler.step(0.0, 1)
    scheduler.cancel(ticket)

    assert scheduler.forecast.backlog_s(0.1) == pytest.approx(0.4)
    with pytest.raises(Expired):
        scheduler.add(100, 0.1, 0.16, "no probe")
    with pytest.raises(Refused):
        scheduler.add(100, 0.1, 0.55, "no time")


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    scheduler = make(queue_rows_max=2)
    for name in "ab":
        scheduler.add(8, 0.0, 9.0, name)

    with pytest.raises(Refused, match=r"2 rows are waiting; the limit is 2") as caught:
        scheduler.add(8, 0.0, 9.0, "c")

    assert caught.value.reason == "queue_full"
    assert caught.value.retry_after_s == pytest.approx(0.016)


def test_a_row_that_the_work_ahead_leaves_no_time_is_refused_and_told_how_much_that_is() -> None:
    scheduler = make()
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")

    with pytest.raises(Refused, match=r"1\.000 s of work are queued and this text needs 0\.100 s; the deadline leaves 1\.050 s") as caught:
        scheduler.add(100, 0.05, 1.1, "no room")

    assert caught.value.reason == "backlog"
    assert caught.value.retry_after_s == pytest.approx(1.0)


def test_a_row_with_time_enough_behind_the_work_ahead_is_admitted() -> None:
    scheduler = make()
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")

    scheduler.add(100, 0.0, 1.11, "room")

    assert scheduler.rows_waiting == 11


def test_two_runners_do_twice_the_work_before_a_deadline() -> None:
    scheduler = make(runners=2)
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")

    for number in range(8):
        scheduler.add(100, 0.0, 1.1, f"more {number}")

    with pytest.raises(Refused):
        for _ in range(5):
            scheduler.add(100, 0.0, 1.1, "too many")


def test_a_slow_moment_of_the_machine_counts_at_the_door() -> None:
    scheduler = make()
    for _ in range(10):
        scheduler.cost.observe(1, 8, 1.0)
    assert 1.5 < scheduler.cost.speed < 2.2
    for number in range(3):
        scheduler.add(100, 0.0, 0.7, f"{number}")

    with pytest.raises(Refused):
        scheduler.add(100, 0.0, 0.7, "in time on a better day")


def test_a_row_that_would_make_one_with_a_later_deadline_late_is_refused() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 0.6, "admitted")

    with pytest.raises(Refused, match=r"this text would make 1 queued deadlines late by up to 0\.100 s") as caught:
        scheduler.add(200, 0.0, 0.5, "pushing in")

    assert caught.value.reason == "backlog"
    assert scheduler.rows_waiting == 1


def test_a_row_that_leaves_those_with_later_deadlines_in_time_may_go_before_them() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 0.6, "admitted")

    scheduler.add(90, 0.0, 0.5, "first")

    assert names(scheduler.step(0.0, 1).batches[0]) == ["first"]


@pytest.mark.parametrize(("now", "vetoed"), [(0.52, True), (0.60, False)])
def test_a_row_has_a_veto_while_it_is_in_time_and_not_when_it_is_late_anyway(now: float, vetoed: bool) -> None:
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


def test_a_bulk_backlog_does_not_keep_an_interactive_row_out() -> None:
    scheduler = make()
    for number in range(100):
        scheduler.add(500, 0.0, 50.2, f"{number}", BULK)

    scheduler.add(100, 0.0, 0.2, "somebody waits")
    with pytest.raises(Refused):
        scheduler.add(400, 0.0, 50.2, "nobody does", BULK)


def test_the_bulk_share_counts_at_the_door_while_bulk_waits() -> None:
    scheduler = make()
    for number in range(100):
        scheduler.add(100, 0.0, FAR, f"bulk {number}", BULK)
    for number in range(10):
        scheduler.add(100, 0.0, 2.0, f"{number}")

    # 1 s of their own is ahead, and while it is done bulk may claim a quarter as much, to within a batch.
    with pytest.raises(Refused, match=r"1\.358 s of work are queued"):
        scheduler.add(100, 0.7, 2.0, "no room")
    scheduler.add(100, 0.5, 2.0, "room")


# What runs next


def test_a_row_that_can_no_longer_finish_in_time_is_given_up_at_once_and_never_runs() -> None:
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


def test_hope_is_not_given_up_before_a_runner_is_free() -> None:
    scheduler = make()
    scheduler.add(100, 0.0, 9.0, "runs longer than predicted")
    scheduler.step(0.0, 1)
    scheduler.add(100, 0.0, 0.55, "hopeless")

    assert scheduler.step(0.5, 0).hopeless == []


def test_a_hopeless_row_behind_a_shorter_one_that_has_hope_is_not_run() -> None:
    scheduler = make(runners=2)
    for name in ("long", "long too"):
        scheduler.add(500, 0.0, 9.0, name)
    batches = scheduler.step(0.0, 2).batches
    # Of one bucket, 55 to 64 tokens: at 1.0 s the first needs 56 ms and has 56.5, the other needs 60 ms and has 59.
    scheduler.add(56, 0.0, 1.0565, "in time")
    scheduler.add(60, 0.0, 1.059, "hopeless")
    for batch in batches:
        scheduler.finish(batch, 1.0, 0.5)

    step = scheduler.step(1.0, 2)

    assert [name for batch in step.batches for name in names(batch)] == ["in time"]


def test_the_rows_that_cost_least_run_first_when_all_have_waited_alike() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 8.0, "long")
    scheduler.add(8, 0.0, 9.0, "short")

    assert names(scheduler.step(1.0, 1).batches[0]) == ["short"]


def test_of_rows_that_have_just_come_those_run_first_that_are_most_a_second() -> None:
    cost = fixed(0.01, 1e-5)
    scheduler = make(cost)
    full = Prices(cost, WIDE).best_rows(431)
    scheduler.add(100, 0.0, 9.0, "short")
    for _ in range(full):
        scheduler.add(431, 0.0, 9.0, "long")

    assert names(scheduler.step(0.0, 1).batches[0]) == ["long"] * full


def test_a_row_that_would_otherwise_be_late_runs_first() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "short")
    scheduler.add(500, 0.0, 0.51, "long and urgent")

    assert names(scheduler.step(0.005, 1).batches[0]) == ["long and urgent"]


@pytest.mark.parametrize(("slack_s", "rows"), [(0.016, 1), (0.025, 2), (0.035, 3)])
def test_an_urgent_row_takes_only_so_many_along_as_let_it_finish_in_time(slack_s: float, rows: int) -> None:
    scheduler = make(some_saving())
    # One takes 11 ms, each more 10 ms.
    for number, deadline_at in enumerate((1 + slack_s, 1.2, 1.2, 1.2, 1.2, 1.2)):
        scheduler.add(100, 1.0, deadline_at, f"{number}")

    batch = scheduler.step(1.0, 1).batches[0]

    assert batch.reason == "tight"
    assert names(batch) == [f"{number}" for number in range(rows)]
    assert batch.predicted_s <= slack_s


@pytest.mark.parametrize(("rows", "slack_s", "ran", "reason"), [(3, 0.004, 3, "alike"), (5, 0.0045, 4, "full")])
def test_an_urgent_row_takes_as_many_along_as_any_where_that_leaves_it_in_time(rows: int, slack_s: float, ran: int, reason: str) -> None:
    scheduler = make(some_saving(), FOUR)
    # Three take 3.4 ms and four 4.2 ms: behind as many others the first would be late.
    for number in range(rows):
        scheduler.add(8, 0.0, 9.0 if number else slack_s, f"{number}")

    (batch,) = scheduler.step(0.0, 1).batches

    assert (len(batch.tickets), batch.reason) == (ran, reason)


def test_an_urgent_row_of_its_groups_full_length_runs_and_not_one_of_the_next_group() -> None:
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
    # Some always wait: they come as fast as they can be run, and five at once at the beginning.
    short: list[Arrival] = [(max(0, number - 5) * 0.0081, 8, FAR, f"{number}", INTERACTIVE) for number in range(400)]

    began = drive(scheduler, [*short, (0.0, 400, FAR, "long", INTERACTIVE)], until=3.0)

    started_at = {name: at for at, batch in began for name in names(batch)}
    assert started_at["long"] < 2.0
    assert any(arrival[0] < started_at["long"] < started_at[arrival[3]] for arrival in short if arrival[3] in started_at)


def test_two_runners_that_are_idle_share_rows_that_would_run_together() -> None:
    scheduler = make(some_saving(), runners=2)
    for name in "ab":
        scheduler.add(100, 0.0, 9.0, name)

    batches = scheduler.step(0.0, 2).batches

    assert sorted(names(batch) for batch in batches) == [["a"], ["b"]]
    assert {batch.reason for batch in batches} == {"spread"}


def test_of_two_batches_the_dearer_one_is_spread() -> None:
    scheduler = make(some_saving(), runners=3)
    for name, length in (("short", 8), ("long", 100), ("short too", 8), ("long too", 100)):
        scheduler.add(length, 0.0, 9.0, name)

    batches = scheduler.step(0.0, 3).batches

    assert [names(batch) for batch in batches] == [["short", "short too"], ["long"], ["long too"]]


def test_rows_are_not_spread_where_half_a_batch_takes_as_long_as_all_of_it() -> None:
    scheduler = make(fixed(0.01, 1e-7), runners=2)
    for name in "ab":
        scheduler.add(100, 0.0, 9.0, name)

    assert [names(batch) for batch in scheduler.step(0.0, 2).batches] == [["a", "b"]]


def test_rows_are_not_spread_while_the_other_runner_is_busy() -> None:
    scheduler = make(some_saving(), runners=2)
    for name in "ab":
        scheduler.add(100, 0.0, 9.0, name)

    assert [names(batch) for batch in scheduler.step(0.0, 1).batches] == [["a", "b"]]


def test_spreading_leaves_short_rows_without_the_padding_of_long_ones() -> None:
    scheduler = make(fixed(0.02, 1e-4), runners=2)
    for name, length in (("long", 120), ("short", 90), ("long too", 120), ("short too", 90)):
        scheduler.add(length, 0.0, 9.0, name)

    batches = scheduler.step(0.0, 2).batches

    assert [sorted(names(batch)) for batch in batches] == [["short", "short too"], ["long", "long too"]]


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


def test_bulk_gets_all_that_interactive_leaves() -> None:
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
def test_a_class_that_was_away_has_no_claim_to_what_the_other_got_meanwhile(before: Priority, after: Priority) -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "first", before) for _ in range(90)]
    rows += [(5.0, 100, FAR, "second", after) for _ in range(40)]

    began = drive(scheduler, rows, until=9.0)

    both = run_time_of([batch for at, batch in began if 5.05 <= at < 8.0])
    # To within a batch, which takes 0.1 s.
    assert both[BULK] == pytest.approx(0.2 * sum(both.values()), abs=0.101)


def test_a_class_whose_rows_come_one_by_one_has_no_claim_to_what_the_other_got_meanwhile() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "interactive", INTERACTIVE) for _ in range(90)]
    # Each comes while the one before it runs, as long as bulk gets whatever it asks for.
    rows += [(5.05 + number / 10, 100, FAR, "bulk", BULK) for number in range(30)]

    began = drive(scheduler, rows, until=8.0)

    both = run_time_of([batch for at, batch in began if at >= 5.05])
    assert both[BULK] <= 0.2 * sum(both.values()) + 0.101


def test_classes_are_not_mixed_in_a_batch() -> None:
    scheduler = make(fixed(0.01, 1e-9), runners=2)
    for name, priority in (("a", INTERACTIVE), ("b", BULK), ("c", INTERACTIVE)):
        scheduler.add(8, 0.0, 99.0, name, priority)

    assert sorted(names(batch) for batch in scheduler.step(0.0, 2).batches) == [["a", "c"], ["b"]]


# Waiting for company


def flowing(cost: CostTable, every_s: float, rows: int = 500, limits: BatchLimits = WIDE, runners: int = 1) -> tuple[Scheduler[str], float]:
    """A scheduler whose queue is empty and that has lately seen a row every ``every_s``; and the time now."""
    scheduler, now = make(cost, limits, runners), 0.0
    for number in range(rows):
        now = number * every_s
        scheduler.cancel(scheduler.add(8, now, now + 60, "past"))
    return scheduler, now


def test_a_row_waits_for_company_where_it_costs_nothing_and_more_come_soon() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.001)
    scheduler.add(8, now, now + 60, "a")

    step = scheduler.step(now, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(now + 0.001, abs=2e-4)
    scheduler.add(8, now + 0.0005, now + 60, "b")
    assert scheduler.step(now + 0.0005, 1).batches == []


@pytest.mark.parametrize(
    ("cost", "every_s"),
    [
        pytest.param(proportional(1e-3), 0.001, id="company saves nothing"),
        pytest.param(fixed(0.01, 1e-7), 0.1, id="nobody comes soon"),
    ],
)
def test_a_row_does_not_wait_for_company_that_does_not_pay(cost: CostTable, every_s: float) -> None:
    scheduler, now = flowing(cost, every_s)
    scheduler.add(8, now, now + 60, "a")

    assert [names(batch) for batch in scheduler.step(now, 1).batches] == [["a"]]


def test_a_row_does_not_wait_for_company_when_its_deadline_is_near() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.001)
    scheduler.add(8, now, now + 0.0195, "a")

    assert [names(batch) for batch in scheduler.step(now, 1).batches] == [["a"]]


@pytest.mark.parametrize("limits", [WIDE, FOUR], ids=["64 rows", "4 rows"])
def test_a_full_batch_does_not_wait_for_company(limits: BatchLimits) -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=1e-5, limits=limits)
    for number in range(limits.rows):
        scheduler.add(8, now, now + 60, f"{number}")

    assert [len(batch.tickets) for batch in scheduler.step(now, 1).batches] == [limits.rows]


def test_what_a_full_batch_leaves_over_does_not_wait_for_company() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.001, limits=FOUR, runners=2)
    for number in range(5):
        scheduler.add(8, now, now + 60, f"{number}")

    assert [len(batch.tickets) for batch in scheduler.step(now, 2).batches] == [4, 1]


def test_a_row_waits_for_company_that_is_not_free_but_pays() -> None:
    # One row takes 19 ms, two take 28 ms, and in 30 ms two rows run instead of one in 19.
    scheduler, now = flowing(fixed(0.01, 0.009 / 8), every_s=0.002)
    scheduler.add(8, now, now + 60, "a")

    step = scheduler.step(now, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(now + 0.002, abs=1e-4)


def test_a_row_waits_for_company_that_comes_before_its_batch_would_be_done() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.008)
    scheduler.add(8, now, now + 60, "a")

    step = scheduler.step(now, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(now + 0.008, abs=4e-4)


def test_a_row_waits_for_company_only_while_there_is_time_for_its_batch_twice() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.002)
    scheduler.add(8, now, now + 0.0205, "a")

    step = scheduler.step(now, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(now + 0.0005, abs=2e-5)


def test_a_row_that_nobody_joins_runs_when_it_has_waited_as_long_as_its_batch_takes() -> None:
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.0005, rows=2000)
    scheduler.add(8, now, now + 60, "a")
    at, step = now, scheduler.step(now, 1)

    while not step.batches:
        assert step.wake_at is not None and step.wake_at > at
        at = step.wake_at
        step = scheduler.step(at, 1)

    assert at - now == pytest.approx(step.batches[0].predicted_s)


@pytest.mark.parametrize("every_s", [0.0002, 0.001, 0.002, 0.004, 0.008, 1.0])
def test_no_row_waits_for_company_longer_than_its_batch_takes(every_s: float) -> None:
    # Rows came every 0.2 ms; from now on they come every ``every_s``.
    scheduler, now = flowing(fixed(0.01, 1e-7), every_s=0.0002, rows=2000)
    rows: list[Arrival] = [(now + number * every_s, 8, now + 60, f"{number}", INTERACTIVE) for number in range(60)]

    at, batch = drive(scheduler, rows, until=now + 0.5)[0]

    assert names(batch)[0] == "0"
    assert at - now <= batch.predicted_s + 1e-9


# The price of a plan


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
    # Hopeless ones are looked for at the front of each class's buckets alone.
    assert calls["hopeless"] <= 2 * len(ladder)
    # Each of the four plans prices pairs of buckets, and each bucket has at most 21 sizes of batch to choose from.
    assert calls["group_s"] <= 4 * len(ladder) * (len(ladder) + 1) / 2
    assert calls["table_s"] <= 21 * len(ladder) + calls["group_s"]


# Packed


def make_packed(cost: CostTable, limits: BatchLimits = WIDE, runners: int = 1) -> Scheduler[str]:
    return Scheduler(cost, limits, runners, 10_000, 512, layout=Packed())


def test_packed_rows_of_unlike_length_run_together() -> None:
    scheduler = make_packed(some_saving(), BatchLimits(rows=64, tokens=512, scores_bytes=2**30, heads=2))
    for name, length in (("short", 5), ("long", 400), ("short too", 6)):
        scheduler.add(length, 0.0, 9.0, name)

    (batch,) = scheduler.step(0.0, 1).batches

    assert (names(batch), batch.length) == (["short", "long", "short too"], 400)
    # 411, rounded up to 64.
    assert batch.tokens == 448


def test_a_packed_batch_has_the_earliest_deadlines_that_the_tokens_allow() -> None:
    scheduler = make_packed(fixed(0.01, 1e-9), BatchLimits(rows=64, tokens=512, scores_bytes=2**30, heads=2))
    for name, length, deadline_at in (("d", 100, 4.0), ("b", 300, 2.0), ("a", 10, 1.0), ("c", 150, 3.0)):
        scheduler.add(length, 0.0, deadline_at, name)

    (batch,) = scheduler.step(0.0, 1).batches

    assert (names(batch), batch.reason) == (["a", "b", "c"], "full")


def test_a_packed_row_that_would_be_late_takes_only_so_many_tokens_along_as_let_it_finish_in_time() -> None:
    scheduler = make_packed(some_saving())
    for name, length, deadline_at in (("urgent", 50, 1.0175), ("next", 100, 1.2), ("last", 100, 1.2)):
        scheduler.add(length, 1.0, deadline_at, name)

    (batch,) = scheduler.step(1.0, 1).batches

    assert (names(batch), batch.reason) == (["urgent", "next"], "tight")


def test_a_packed_batch_is_spread_on_idle_runners_by_tokens() -> None:
    scheduler = make_packed(some_saving(), runners=2)
    for length in (200, 10, 190, 20):
        scheduler.add(length, 0.0, 9.0, f"{length}")

    batches = scheduler.step(0.0, 2).batches

    assert sorted(sorted(names(batch)) for batch in batches) == [["10", "190"], ["20", "200"]]


def test_after_a_packed_batch_too_large_for_the_memory_none_has_more_than_half_of_its_tokens() -> None:
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


def test_packed_rows_are_let_in_by_their_tokens_and_not_by_the_longest_among_them() -> None:
    scheduler = make_packed(proportional(1e-3))
    scheduler.add(500, 0.0, 9.0, "long")
    for number in range(50):
        scheduler.add(8, 0.0, 9.0, f"{number}")

    # 0.9 s of work are ahead; padded to the longest they would be 25 s.
    assert scheduler.forecast.backlog_s(0.0) == pytest.approx(0.9, rel=0.01)
    scheduler.add(100, 0.0, 1.02, "room")


def test_a_packed_row_waits_for_company_where_it_costs_nothing_and_more_come_soon() -> None:
    scheduler = make_packed(fixed(0.01, 1e-7))
    for number in range(500):
        scheduler.cancel(scheduler.add(1 + number % 100, number * 1e-3, number * 1e-3 + 60, "past"))
    scheduler.add(8, 0.499, 60.0, "a")

    step = scheduler.step(0.499, 1)

    assert step.batches == []
    assert step.wake_at == pytest.approx(0.5, abs=2e-4)


def test_a_packed_batch_that_is_full_does_not_wait_for_company() -> None:
    scheduler = make_packed(fixed(0.01, 1e-7), FOUR)
    for number in range(500):
        scheduler.cancel(scheduler.add(8, number * 1e-5, 60.0, "past"))
    for name, length in (("a", 3), ("b", 500), ("c", 8), ("d", 80)):
        scheduler.add(length, 0.005, 60.0, name)

    assert [names(batch) for batch in scheduler.step(0.005, 1).batches] == [["a", "b", "c", "d"]]
