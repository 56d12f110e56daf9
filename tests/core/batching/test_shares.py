"""Callers share the runners: one that floods delays the others by little. In virtual time."""

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from sentiment.batching.cost import CostTable, shapes_to_measure
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.shares import BURST_S, Shares
from sentiment.batching.ticket import Batch, Priority, Ticket
from sentiment.errors import Expired, Refused

OTHER, FLOOD = 1, 2
RUNNERS, MEAN_LENGTH, BEGINS_S, ENDS_S = 2, 32, 1.0, 5.0


def run_s(rows: int, length: int) -> float:
    return 2e-3 + rows * length * 6e-5


CAPACITY = RUNNERS / run_s(1, MEAN_LENGTH)


class Day:
    """Others ask for single texts, at 0.3 of what single texts need, beside a caller that floods."""

    def __init__(self, flood: Priority | None) -> None:
        self.flood = flood
        self.rng = random.Random(7)
        limits = BatchLimits(32, 4096, 2**40, 12)
        shapes = shapes_to_measure([(length, limits.rows_at(length)) for length in (8, 32, 128, 512)])
        self.scheduler: Scheduler[int] = Scheduler(CostTable({one: run_s(*one) for one in shapes}), limits, RUNNERS, 4096, 512)
        self.now, self.free = 0.0, RUNNERS
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.asked = 0
        self.waits_s: list[float] = []
        self.longest_s = 0.0

    def at(self, instant: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (instant, next(self.numbers), act))

    def add(self, payer: int, priority: Priority) -> None:
        length = max(3, min(512, int(self.rng.expovariate(1 / MEAN_LENGTH))))
        self.asked += payer == OTHER
        with contextlib.suppress(Refused, Expired):
            self.scheduler.add(length, self.now, self.now + 5.0, payer, priority, payer=payer)

    def ask(self) -> None:
        self.add(OTHER, Priority.INTERACTIVE)
        self.at(self.now + self.rng.expovariate(0.3 * CAPACITY), self.ask)

    def pour(self) -> None:
        assert self.flood is not None
        self.add(FLOOD, self.flood)
        self.at(self.now + self.rng.expovariate(4 * CAPACITY), self.pour)

    def end(self, batch: Batch[int], took_s: float) -> None:
        self.free += 1
        answered: list[Ticket[int]] = self.scheduler.finish(batch, self.now, took_s)
        self.waits_s += [self.now - ticket.queued_at for ticket in answered if ticket.payload == OTHER]

    def run(self) -> "Day":
        self.at(0.0, self.ask)
        if self.flood is not None:
            self.at(BEGINS_S, self.pour)
        wake_at = None
        while (now := min(self.events[0][0], wake_at or ENDS_S)) < ENDS_S:
            self.now = max(self.now, now)
            while self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            step = self.scheduler.step(self.now, self.free)
            for batch in step.batches:
                self.free -= 1
                took_s = run_s(*batch.shape)
                self.longest_s = max(self.longest_s, took_s)
                self.at(self.now + took_s, lambda batch=batch, took_s=took_s: self.end(batch, took_s))  # type: ignore[misc]  # default binds
            wake_at = step.wake_at
        return self

    @property
    def p99_s(self) -> float:
        return sorted(self.waits_s)[int(0.99 * len(self.waits_s))]


@pytest.mark.parametrize("flood", [Priority.INTERACTIVE, Priority.BULK])
def test_a_caller_that_floods_delays_the_others_by_half_and_one_longest_batch(flood: Priority) -> None:
    quiet = Day(None).run()

    flooded = Day(flood).run()

    assert len(flooded.waits_s) >= 0.98 * flooded.asked - 5  # some still wait at the end
    assert flooded.p99_s <= 1.5 * quiet.p99_s + flooded.longest_s


def test_a_caller_alone_has_all_of_the_runners_and_of_two_each_has_half() -> None:
    shares = Shares()

    def admitted_s(payers: list[int], begins_s: float) -> dict[int, float]:
        found = dict.fromkeys(payers, 0.0)
        for tick in range(1000):
            for payer in payers:
                for _ in range(4):
                    found[payer] += 0.0 if shares.over(payer, 0.01, RUNNERS, begins_s + tick / 100) else 0.01
        return found

    alone = admitted_s([OTHER], 0.0)
    both = admitted_s([OTHER, FLOOD], 100.0)

    assert alone[OTHER] == pytest.approx(10 * RUNNERS, abs=2 * BURST_S)
    assert list(both.values()) == pytest.approx([5 * RUNNERS, 5 * RUNNERS], abs=2 * BURST_S)


def test_callers_that_have_gone_are_forgotten() -> None:
    shares = Shares()
    for payer in range(1, 1000):
        shares.over(payer, 0.001, RUNNERS, 0.0)

    shares.over(1, 0.001, RUNNERS, 1000.0)

    assert shares.callers == 1
