"""How ``caution`` learns from admitted rows that miss their deadlines."""

import heapq
import itertools
import random
from typing import Any

import pytest

from sentiment.batching.forecast import CAUTION_MAX, MISSED
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import Refused
from tests.core.batching.test_cost import proportional
from tests.core.batching.test_forecast import Bench
from tests.core.batching.test_scheduler import make


def record(bench: Bench, in_time: bool, ahead_s: float | None = 0.5) -> None:
    ticket: Ticket[Any] = Ticket(8, 0.0, 9.0, None, Priority.INTERACTIVE, 1, 0.1, 0.1, ahead_s=ahead_s)
    bench.forecast.record_outcome(bench.queue, ticket, in_time)


def behind(deadline_at: float = 5.0) -> tuple[Scheduler[str], Ticket[str]]:
    """A row with a predicted wait of 0.2 s, behind ten others of 0.1 s."""
    scheduler = make()
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")
    last = scheduler.add(100, 0.0, deadline_at, "last")
    last.ahead_s = 0.2
    return scheduler, last


def test_answers_in_time_leave_caution_at_one() -> None:
    bench = Bench()

    for _ in range(100):
        record(bench, in_time=True)

    assert bench.queue.caution == 1.0


def test_caution_rises_until_one_row_in_fifty_misses() -> None:
    bench, rng = Bench(), random.Random(1)
    missed = 0
    for number in range(60_000):
        # The row was admitted because ``caution`` times the prediction is just in time.
        in_time = rng.lognormvariate(0.0, 0.3) <= bench.queue.caution
        missed += number >= 20_000 and not in_time
        record(bench, in_time)

    assert missed / 40_000 == pytest.approx(MISSED, rel=0.1)
    # The 98 % quantile, exp(2.054 * 0.3).
    assert bench.queue.caution == pytest.approx(1.85, abs=0.25)


def test_the_caution_of_a_class_is_its_own() -> None:
    bench = Bench()

    record(bench, in_time=False)

    assert bench.queue.caution > 1.0 == bench.bulk.caution


def test_caution_is_bounded_and_falls_again() -> None:
    bench = Bench()

    for _ in range(1000):
        record(bench, in_time=False)
    assert bench.queue.caution == CAUTION_MAX
    for _ in range(4000):
        record(bench, in_time=True)
    assert bench.queue.caution == 1.0


@pytest.mark.parametrize("ahead_s", [None, 0.0])
def test_a_row_without_a_predicted_wait_does_not_change_caution(ahead_s: float | None) -> None:
    bench = Bench()

    record(bench, in_time=False, ahead_s=ahead_s)

    assert bench.queue.caution == 1.0


@pytest.mark.parametrize(("caution", "admitted"), [(1.0, True), (1.3, False)])
def test_caution_multiplies_predicted_waits_at_admission(caution: float, admitted: bool) -> None:
    bench = Bench()
    bench.add(32, 1.2, rows=10)
    bench.queue.caution = caution

    refused = bench.refusal(alone_s=0.1, deadline_at=1.2)

    assert (refused is None) == admitted
    if refused is not None:
        assert str(refused) == "1.300 s of work are queued and this text needs 0.100 s; the deadline leaves 1.200 s"
        assert refused.retry_after_s == pytest.approx(1.3)


def test_caution_also_protects_queued_rows() -> None:
    bench = Bench()
    bench.add(32, 1.5, rows=10)
    assert bench.refusal(alone_s=0.1, deadline_at=1.4) is None

    bench.queue.caution = 1.4

    refused = bench.refusal(alone_s=0.1, deadline_at=1.4)
    assert refused is not None and "queued deadlines late" in str(refused)


def test_a_row_that_is_answered_in_time_lowers_caution() -> None:
    scheduler, last = behind()
    scheduler.queues[Priority.INTERACTIVE].caution = 1.5

    while last.state is State.WAITING:
        (batch,) = scheduler.step(1.0, 1).batches
        scheduler.finish(batch, 1.1, batch.predicted_s)

    assert last.state is State.ANSWERED
    assert scheduler.queues[Priority.INTERACTIVE].caution < 1.5


def test_a_row_that_expires_while_it_runs_raises_caution() -> None:
    scheduler, last = behind(deadline_at=1.2)
    while last.state is State.WAITING:
        scheduler.step(1.0, 1)

    scheduler.step(1.2, 0)

    assert last.state is State.EXPIRED
    assert scheduler.queues[Priority.INTERACTIVE].caution > 1.0


@pytest.mark.parametrize(("now", "runners_free", "how"), [(1.2, 0, "expired"), (1.15, 1, "hopeless")])
def test_a_row_that_is_dropped_raises_caution(now: float, runners_free: int, how: str) -> None:
    scheduler, last = behind(deadline_at=1.2)

    step = scheduler.step(now, runners_free)

    assert last in getattr(step, how)
    assert scheduler.queues[Priority.INTERACTIVE].caution > 1.0


def test_a_cancelled_row_does_not_change_caution() -> None:
    scheduler, last = behind()

    scheduler.cancel(last)

    assert scheduler.queues[Priority.INTERACTIVE].caution == 1.0


def overload(pause: float, seed: int = 1) -> tuple[int, int]:
    """Twice a runner's capacity, deadlines of 0.5 s, and pauses between batches that run times do not show; rows answered and expired."""
    scheduler, rng = Scheduler[None](proportional(1e-4), make().limits, 1, 10_000, 512), random.Random(seed)
    arrivals = list(itertools.accumulate(rng.expovariate(200 / (1 + pause)) for _ in range(4000)))
    serials, free, fates = itertools.count(), 1, {State.ANSWERED: 0, State.EXPIRED: 0}
    events: list[tuple[float, int, Batch[None] | None]] = [(at, next(serials), None) for at in arrivals]
    while events:
        now, _, batch = heapq.heappop(events)
        if batch is None:
            try:
                scheduler.add(100, now, now + 0.5, None)
            except Refused:
                continue
        else:
            free += 1
            fates[State.ANSWERED] += len(scheduler.finish(batch, now, batch.predicted_s * rng.uniform(0.7, 1.3)))
        step = scheduler.step(now, free)
        fates[State.EXPIRED] += len(step.expired) + len(step.hopeless)
        for started in step.batches:
            free -= 1
            heapq.heappush(events, (now + (1 + pause) * started.predicted_s, next(serials), started))
    return fates[State.ANSWERED], fates[State.EXPIRED]


def test_in_overload_nearly_every_admitted_row_is_answered_by_a_server_slower_than_predicted() -> None:
    answered, expired = overload(pause=1.0)

    assert expired < 0.07 * answered
