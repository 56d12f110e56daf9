"""What the scheduler decides, one behaviour at a time."""

import pytest

from sentiment.batching.scheduler import Batch, BatchLimits, Scheduler, State, Ticket, bucket
from sentiment.errors import Refused, Unavailable

LIMITS = BatchLimits(rows=4, tokens=64, scores_bytes=2**20, heads=2)


def make(limits: BatchLimits = LIMITS, queue_rows_max: int = 100) -> Scheduler[str]:
    return Scheduler(limits, queue_rows_max)


def names(batch: Batch[str]) -> list[str]:
    return [ticket.payload for ticket in batch.tickets]


def test_nothing_is_bound_to_a_batch_before_a_runner_is_free() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")

    step = scheduler.step(0.0, runners_free=0)

    assert step.batches == []
    scheduler.add(8, 0.0, 9.0, "b")
    assert names(scheduler.step(0.0, 1).batches[0]) == ["a", "b"]


def test_rows_of_unlike_length_run_apart() -> None:
    scheduler = make()
    for name, length in (("short", 5), ("long", 60), ("short too", 6)):
        scheduler.add(length, 0.0, 9.0, name)

    batches = scheduler.step(0.0, 2).batches

    assert [names(batch) for batch in batches] == [["short", "short too"], ["long"]]


def test_the_earliest_deadline_runs_first() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "patient")
    scheduler.add(40, 0.0, 1.0, "urgent")

    assert names(scheduler.step(0.0, 1).batches[0]) == ["urgent"]


def test_a_batch_keeps_the_limits_of_rows_tokens_and_scores() -> None:
    assert LIMITS.rows_at(8) == 4
    assert LIMITS.rows_at(32) == 2
    assert LIMITS.rows_at(64) == 1
    assert LIMITS.rows_at(1000) == 1
    assert BatchLimits(99, 10**6, 4 * 2 * 100 * 100, 2).rows_at(100) == 1
    assert BatchLimits(99, 10**6, 3 * 4 * 2 * 100 * 100, 2).rows_at(100) == 3


def test_padding_within_a_bucket_stays_under_an_eighth_beyond_32_tokens() -> None:
    for length in range(33, 2000):
        edge = bucket(length)
        assert length <= edge
        assert bucket(edge) == edge
        assert (edge - length) / edge < 0.125


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    scheduler = make(queue_rows_max=1)
    scheduler.add(8, 0.0, 9.0, "a")

    with pytest.raises(Refused, match=r"1 rows are waiting; the limit is 1") as caught:
        scheduler.add(8, 0.0, 9.0, "b", retry_after_s=0.25)

    assert caught.value.retry_after_s == 0.25


def test_a_closed_scheduler_admits_nothing_and_finishes_what_it_has() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 9.0, "a")
    scheduler.close()

    with pytest.raises(Unavailable):
        scheduler.add(8, 0.0, 9.0, "b")
    assert names(scheduler.step(0.0, 1).batches[0]) == ["a"]


def test_a_cancelled_row_is_never_run_and_its_mates_are() -> None:
    scheduler = make()
    first, *_ = (scheduler.add(8, 0.0, 9.0, name) for name in "abc")

    assert scheduler.cancel(first)

    assert names(scheduler.step(0.0, 1).batches[0]) == ["b", "c"]
    assert not scheduler.cancel(first)


def test_a_row_past_its_deadline_is_never_run() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "late")

    step = scheduler.step(1.0, 1)

    assert [ticket.payload for ticket in step.expired] == ["late"]
    assert step.batches == []
    assert step.wake_at is None


def test_a_running_row_expires_at_its_deadline_and_is_not_answered() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 1.0, "slow")
    batch = scheduler.step(0.0, 1).batches[0]

    assert [ticket.payload for ticket in scheduler.step(1.5, 0).expired] == ["slow"]

    assert scheduler.finish(batch) == []


def test_it_asks_to_be_woken_at_the_next_deadline() -> None:
    scheduler = make()
    scheduler.add(8, 0.0, 5.0, "later")
    scheduler.add(8, 0.0, 3.0, "sooner")

    assert scheduler.step(0.0, 0).wake_at == 3.0


def test_a_failed_batch_is_halved_until_only_the_culprit_fails() -> None:
    scheduler = make(BatchLimits(rows=8, tokens=64, scores_bytes=2**20, heads=2))
    for name in "abcdefgh":
        scheduler.add(8, 0.0, 9.0, name)
    fates: dict[str, State] = {}

    while batches := scheduler.step(0.0, 1).batches:
        batch = batches[0]
        tickets: list[Ticket[str]] = scheduler.fail(batch) if "f" in names(batch) else scheduler.finish(batch)
        fates.update({ticket.payload: ticket.state for ticket in tickets})

    assert fates == {name: State.FAILED if name == "f" else State.ANSWERED for name in "abcdefgh"}
    assert (scheduler.rows_waiting, scheduler.rows_running, scheduler.tokens_waiting) == (0, 0, 0)


def test_a_row_cancelled_between_failure_and_retry_is_not_run_again() -> None:
    scheduler = make()
    tickets = [scheduler.add(8, 0.0, 9.0, name) for name in "ab"]
    scheduler.fail(scheduler.step(0.0, 1).batches[0])

    scheduler.cancel(tickets[0])

    assert [names(batch) for batch in scheduler.step(0.0, 2).batches] == [["b"]]


def test_memory_does_not_grow_with_rows_that_come_and_are_cancelled() -> None:
    scheduler = make()

    for number in range(10_000):
        scheduler.cancel(scheduler.add(8, number * 1e-3, number * 1e-3 + 60, "gone"))
        scheduler.step(number * 1e-3, 0)

    assert len(scheduler._by_deadline) < 200
    assert len(scheduler._order) < 200
    assert not scheduler._buckets


def test_why_a_batch_is_not_larger_is_said() -> None:
    scheduler = make()
    for name in "abcde":
        scheduler.add(8, 0.0, 9.0, name)

    reasons = [batch.reason for batch in scheduler.step(0.0, 2).batches]

    assert reasons == ["full", "alike"]


def test_a_row_whose_only_mate_has_left_is_tried_alone_before_it_fails() -> None:
    scheduler = make()
    poison, _ = (scheduler.add(8, 0.0, 9.0, name) for name in ("poison", "good"))
    batch = scheduler.step(0.0, 1).batches[0]
    scheduler.cancel(poison)

    assert scheduler.fail(batch) == []

    assert [names(again) for again in scheduler.step(0.0, 1).batches] == [["good"]]
