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
from sentiment.batching.shares import ASKED_BURSTS_MAX, BURST_S, WITHIN_S, Shares
from sentiment.batching.ticket import Batch, Priority, Ticket
from sentiment.errors import Expired, Refused

OTHER, FLOOD = 1, 2
RUNNERS, MEAN_LENGTH, BEGINS_S, ENDS_S = 2, 32, 1.0, 5.0
# Most texts are sentences, and some are reviews, of which the longest takes as much as ten sentences.
MIXED = (8, 12, 16, 24, 30, 36, 48, 64, 160, 400, 512)
MIXED_PER_S, WAITING, MIXED_ENDS_S = 30.0, 256, 21.0


def run_s(rows: int, length: int) -> float:
    return 2e-3 + rows * length * 6e-5


CAPACITY = RUNNERS / run_s(1, MEAN_LENGTH)


class Day:
    """Others ask for single texts, at 0.3 of what single texts need, beside a caller that floods."""

    runners, others_per_s, ends_s = RUNNERS, 0.3 * CAPACITY, ENDS_S

    def __init__(self, flood: Priority | None) -> None:
        self.flood = flood
        self.rng = random.Random(7)
        limits = BatchLimits(32, 4096, 2**40, 12)
        shapes = shapes_to_measure([(length, limits.rows_at(length)) for length in (8, 32, 128, 512)])
        self.scheduler: Scheduler[int] = Scheduler(CostTable({one: run_s(*one) for one in shapes}), limits, self.runners, 4096, 512)
        self.now, self.free = 0.0, self.runners
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.numbers = itertools.count()
        self.asked = 0
        self.waits_s: list[float] = []
        self.longest_s = 0.0

    def at(self, instant: float, act: Callable[[], object]) -> None:
        heapq.heappush(self.events, (instant, next(self.numbers), act))

    def length(self) -> int:
        return max(3, min(512, int(self.rng.expovariate(1 / MEAN_LENGTH))))

    def add(self, payer: int, priority: Priority) -> bool:
        self.asked += payer == OTHER
        with contextlib.suppress(Refused, Expired):
            self.scheduler.add(self.length(), self.now, self.now + 5.0, payer, priority, payer=payer)
            return True
        return False

    def ask(self) -> None:
        self.add(OTHER, Priority.INTERACTIVE)
        self.at(self.now + self.rng.expovariate(self.others_per_s), self.ask)

    def pour(self) -> None:
        assert self.flood is not None
        self.add(FLOOD, self.flood)
        self.at(self.now + self.rng.expovariate(4 * CAPACITY), self.pour)

    def end(self, batch: Batch[int], took_s: float) -> list[Ticket[int]]:
        self.free += 1
        answered: list[Ticket[int]] = self.scheduler.finish(batch, self.now, took_s)
        self.waits_s += [self.now - ticket.queued_at for ticket in answered if ticket.payload == OTHER]
        return answered

    def run(self) -> "Day":
        self.at(0.0, self.ask)
        if self.flood is not None:
            self.at(BEGINS_S, self.pour)
        wake_at = None
        while (now := min(self.events[0][0], wake_at or self.ends_s)) < self.ends_s:
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


class MixedDay(Day):
    """As ``Day``, with sentences and reviews on one runner. The flooder has WAITING texts open, and sends another when one is answered.

    The others' texts count from a second after its first ones, since these have a burst before they are over the share.
    """

    runners, others_per_s, ends_s = 1, MIXED_PER_S, MIXED_ENDS_S

    def length(self) -> int:
        return self.rng.choice(MIXED)

    def pour(self) -> None:
        self.at(BEGINS_S + 1.0, self.count)
        for _ in range(WAITING):
            self.one_more()

    def count(self) -> None:
        self.asked, self.waits_s = 0, []

    def one_more(self) -> None:
        assert self.flood is not None
        if not self.add(FLOOD, self.flood):
            self.at(self.now + 0.05, self.one_more)

    def end(self, batch: Batch[int], took_s: float) -> list[Ticket[int]]:
        answered = super().end(batch, took_s)
        for _ in [ticket for ticket in answered if ticket.payload == FLOOD]:
            self.one_more()
        return answered


@pytest.mark.parametrize("flood", [Priority.INTERACTIVE, Priority.BULK])
def test_a_caller_that_floods_delays_the_others_by_half_and_one_longest_batch(flood: Priority) -> None:
    quiet = Day(None).run()

    flooded = Day(flood).run()

    assert len(flooded.waits_s) >= 0.98 * flooded.asked - 5  # some still wait at the end
    assert flooded.p99_s <= 1.5 * quiet.p99_s + flooded.longest_s


@pytest.mark.parametrize("flood", [Priority.INTERACTIVE, Priority.BULK])
def test_so_does_one_that_waits_for_its_answers_where_some_texts_are_long(flood: Priority) -> None:
    quiet = MixedDay(None).run()

    flooded = MixedDay(flood).run()

    assert len(flooded.waits_s) >= 0.99 * flooded.asked - 5  # some still wait at the end
    assert flooded.p99_s <= 1.5 * quiet.p99_s + flooded.longest_s


def test_the_rows_of_a_flooder_within_its_share_are_bulk() -> None:
    shares = Shares()
    shares.ask(OTHER, 0.001, RUNNERS, 0.0)

    found = [shares.ask(FLOOD, 0.01, RUNNERS, tick / 1000) for tick in range(1000)]

    first = found.index(Priority.BULK)
    assert first == pytest.approx(BURST_S / 0.01, abs=2)
    assert set(found[:first]) == {Priority.INTERACTIVE}
    assert set(found[first:]) == {Priority.BULK, Priority.OVER}
    assert shares.ask(FLOOD, 0.01, RUNNERS, 1.0 + ASKED_BURSTS_MAX * BURST_S) is Priority.INTERACTIVE


def test_a_caller_alone_has_all_of_the_runners_and_of_two_each_has_half() -> None:
    shares = Shares()

    def admitted_s(payers: list[int], begins_s: float) -> dict[int, float]:
        found = dict.fromkeys(payers, 0.0)
        for tick in range(1000):
            for payer in payers:
                for _ in range(4):
                    asked = shares.ask(payer, 0.01, RUNNERS, begins_s + tick / 100)
                    found[payer] += 0.0 if asked is Priority.OVER else 0.01
        return found

    alone = admitted_s([OTHER], 0.0)
    both = admitted_s([OTHER, FLOOD], 100.0)

    assert alone[OTHER] == pytest.approx(10 * RUNNERS, abs=3 * BURST_S)
    assert list(both.values()) == pytest.approx([5 * RUNNERS, 5 * RUNNERS], abs=3 * BURST_S)


def test_of_two_callers_that_want_more_than_there_is_each_has_its_weight() -> None:
    shares = Shares(weights={OTHER: 2.0})
    found = {OTHER: 0.0, FLOOD: 0.0}

    for tick in range(1000):
        for payer in 4 * [OTHER, FLOOD]:
            found[payer] += 0.0 if shares.ask(payer, 0.01, RUNNERS, tick / 100) is Priority.OVER else 0.01

    assert list(found.values()) == pytest.approx([20 * RUNNERS / 3, 10 * RUNNERS / 3], abs=3 * BURST_S)


def test_another_caller_is_within_its_share_for_a_minute_after_it_asked_for_no_more() -> None:
    shares = Shares()
    shares.ask(OTHER, 0.001, RUNNERS, 0.0)
    for tick in range(1000):
        shares.ask(FLOOD, 0.01, RUNNERS, tick / 1000)

    assert shares.others_within(FLOOD, 1.0)
    assert shares.others_within(FLOOD, WITHIN_S)
    assert not shares.others_within(FLOOD, WITHIN_S + 1.0)


def test_callers_that_all_want_more_than_their_shares_are_soon_none_of_them_within_it() -> None:
    shares = Shares()

    for tick in range(int(100 * WITHIN_S) + 200):
        for payer in (OTHER, FLOOD):
            shares.ask(payer, 0.05, RUNNERS, tick / 100)

    now = WITHIN_S + 2.0
    assert not shares.others_within(FLOOD, now)
    assert not shares.others_within(OTHER, now)


@pytest.mark.parametrize("others", [False, True])
def test_a_row_of_a_caller_with_few_runs_before_those_of_one_with_many_waiting_which_keep_their_order(others: bool) -> None:
    day = Day(None)

    def add(payer: int, number: int, deadline_at: float) -> Ticket[int]:
        return day.scheduler.add(8, 1.0, deadline_at, number, payer=payer)

    many = [add(FLOOD, 0, 5.0)]
    if others:
        add(OTHER, 0, 20.0)
    many += [add(FLOOD, number, 5.0) for number in range(1, 100)]
    few = add(OTHER, 1, 20.0)
    batches = day.scheduler.step(1.0, 3).batches

    assert (few in [ticket for batch in batches for ticket in batch.tickets]) is others
    assert [ticket.payload for batch in batches for ticket in batch.tickets if ticket in many] == list(range(96 - 2 * others))


def test_callers_that_have_gone_are_forgotten() -> None:
    shares = Shares()
    for payer in range(1, 1000):
        shares.ask(payer, 0.001, RUNNERS, 0.0)

    shares.ask(1, 0.001, RUNNERS, 1000.0)

    assert shares.callers == 1
