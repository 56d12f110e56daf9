"""How the door learns that rows come too late which it let in."""

import heapq
import itertools
import random
from typing import Any

import pytest

from sentiment.batching.forecast import CAUTION_MAX, MISSED, Forecast
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import Refused
from tests.batching.test_cost import proportional
from tests.batching.test_forecast import Bench
from tests.batching.test_scheduler import make


def fare(forecast: Forecast[Any], in_time: bool, ahead_s: float | None = 0.5) -> None:
    forecast.record_outcome(Ticket(8, 0.0, 9.0, None, Priority.INTERACTIVE, 1, 0.1, 0.1, ahead_s=ahead_s), in_time)


def behind(deadline_at: float = 5.0) -> tuple[Scheduler[str], Ticket[str]]:
    """A row that was foretold to wait 0.2 s, behind ten others of 0.1 s."""
    scheduler = make()
    for number in range(10):
        scheduler.add(100, 0.0, 1.1, f"{number}")
    last = scheduler.add(100, 0.0, deadline_at, "last")
    last.ahead_s = 0.2
    return scheduler, last


def test_answers_in_time_leave_it_at_one() -> None:
    forecast = Bench().forecast

    for _ in range(100):
        fare(forecast, in_time=True)

    assert forecast.caution == 1.0


def test_where_waits_vary_one_in_fifty_misses() -> None:
    forecast, rng = Bench().forecast, random.Random(1)
    missed = 0
    for number in range(60_000):
        # The row was let in because ``caution`` times what was foretold is just in time.
        in_time = rng.lognormvariate(0.0, 0.3) <= forecast.caution
        missed += number >= 20_000 and not in_time
        fare(forecast, in_time)

    assert missed / 40_000 == pytest.approx(MISSED, rel=0.1)
    # The 98 % quantile, exp(2.054 * 0.3).
    assert forecast.caution == pytest.approx(1.85, abs=0.25)


def test_it_has_an_end_and_comes_back() -> None:
    forecast = Bench().forecast

    for _ in range(1000):
        fare(forecast, in_time=False)
    assert forecast.caution == CAUTION_MAX
    for _ in range(4000):
        fare(forecast, in_time=True)
    assert forecast.caution == 1.0


@pytest.mark.parametrize("ahead_s", [None, 0.0])
def test_a_row_that_nobody_waited_before_says_nothing(ahead_s: float | None) -> None:
    forecast = Bench().forecast

    fare(forecast, in_time=False, ahead_s=ahead_s)

    assert forecast.caution == 1.0


@pytest.mark.parametrize(("caution", "admitted"), [(1.0, True), (1.3, False)])
def test_at_the_door_a_wait_counts_so_many_times(caution: float, admitted: bool) -> None:
    bench = Bench()
    bench.add(32, 1.2, rows=10)
    bench.forecast.caution = caution

    refused = bench.refusal(alone_s=0.1, deadline_at=1.2)

    assert (refused is None) == admitted
    if refused is not None:
        assert str(refused) == "1.300 s of work are queued and this text needs 0.100 s; the deadline leaves 1.200 s"
        assert refused.retry_after_s == pytest.approx(1.3)


def test_the_rows_that_wait_are_protected_with_the_same_margin() -> None:
    bench = Bench()
    bench.add(32, 1.5, rows=10)
    assert bench.refusal(alone_s=0.1, deadline_at=1.4) is None

    bench.forecast.caution = 1.4

    refused = bench.refusal(alone_s=0.1, deadline_at=1.4)
    assert refused is not None and "queued deadlines late" in str(refused)


def test_a_row_that_is_overtaken_and_still_in_time_says_that_all_is_well() -> None:
    scheduler, last = behind()
    scheduler.forecast.caution = 1.5

    while last.state is State.WAITING:
        (batch,) = scheduler.step(1.0, 1).batches
        scheduler.finish(batch, 1.1, batch.predicted_s)

    assert last.state is State.ANSWERED
    assert scheduler.forecast.caution < 1.5


def test_a_row_that_expires_while_it_runs_counts() -> None:
    scheduler, last = behind(deadline_at=1.2)
    while last.state is State.WAITING:
        scheduler.step(1.0, 1)

    scheduler.step(1.2, 0)

    assert last.state is State.EXPIRED
    assert scheduler.forecast.caution > 1.0


def test_a_row_that_expires_unrun_counts() -> None:
    scheduler, last = behind(deadline_at=1.2)

    step = scheduler.step(1.2, 0)

    assert last in step.expired
    assert scheduler.forecast.caution > 1.0


def test_a_row_that_is_given_up_counts() -> None:
    scheduler, last = behind(deadline_at=1.2)

    step = scheduler.step(1.15, 1)

    assert last in step.hopeless
    assert scheduler.forecast.caution > 1.0


def test_a_row_whose_caller_leaves_says_nothing() -> None:
    scheduler, last = behind()

    scheduler.cancel(last)

    assert scheduler.forecast.caution == 1.0


def overload(pause: float, seed: int = 1) -> tuple[int, int]:
    """Twice what one runner can hold, deadlines of 0.5 s, and pauses between batches that runs do not show: rows answered, expired."""
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


def test_under_overload_nearly_all_that_is_let_in_is_answered_though_the_server_is_slower_than_it_knows() -> None:
    answered, expired = overload(pause=1.0)

    assert expired < 0.07 * answered
