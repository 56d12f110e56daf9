"""The queue of one class: rows are planned by length and taken by deadline, and sums are kept."""

import math
import random
from collections import Counter

import pytest

from sentiment.batching.class_queue import RATE_WINDOW_S, USE_WINDOW_S, ClassQueue, Group, next_group
from sentiment.batching.cost import CostTable
from sentiment.batching.layout import Layout, Packed, Padded
from sentiment.batching.plan import BatchLimits, Prices, bucket_by_length, edges
from sentiment.batching.ticket import Priority, Ticket
from tests.core.batching.test_cost import fixed, proportional

LADDER = edges(512)
BUCKET_OF = bucket_by_length(LADDER)
OBJECTIVE_S = 0.5
WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)


class Bench:
    """A queue and the tickets that went in."""

    def __init__(self, cost: CostTable | None = None, limits: BatchLimits = WIDE, layout: Layout | None = None) -> None:
        self.cost = cost or proportional()
        self.prices = Prices(self.cost, limits)
        layout = layout or Padded()
        self.queue: ClassQueue[str] = ClassQueue(1.0, bucket_by_length(layout.edges(512)), self.prices, layout, OBJECTIVE_S)
        self.number = 0

    def add(self, length: int, deadline_at: float = 9.0, queued_at: float = 0.0, probe: bool = False) -> Ticket[str]:
        self.number += 1
        alone_s = self.cost.table_s(1, length)
        batched_s = self.prices.batched_s(length)
        ticket = Ticket(length, queued_at, deadline_at, f"row {self.number}", Priority.BULK, self.number, alone_s, batched_s, probe)
        self.queue.add(ticket, ticket.queued_at)
        return ticket


def group_of(queue: ClassQueue[str], length: int) -> Group[str]:
    """The planned group that rows of this length belong to."""
    return next(group for group in queue.plan() if length <= group.length)


@pytest.mark.parametrize(
    ("queued_at", "turn_at"),
    [
        pytest.param(0.05 - 1e-9, 0.054 - 1e-9, id="within half of the time that the long row takes"),
        pytest.param(0.05 + 1e-9, 0.054, id="after it"),
    ],
)
def test_a_row_is_overtaken_by_cheaper_rows_that_come_soon_after_it(queued_at: float, turn_at: float) -> None:
    bench = Bench(proportional(1e-3))
    long = bench.add(108, queued_at=0.0)
    short = bench.add(8, queued_at=queued_at)

    _, _, group = next_group([bench.queue])

    assert group.first is (short if queued_at < 0.05 else long)
    assert bench.queue.turn_at(group.first) == pytest.approx(turn_at, abs=1e-12)


def test_a_slower_machine_gives_cheaper_rows_more_time_to_overtake() -> None:
    bench = Bench(proportional(1e-3))
    row = bench.add(100, queued_at=1.0)
    bench.cost.speed = 2.0

    assert bench.queue.turn_at(row) == pytest.approx(1.1)


def test_the_row_whose_turn_it_is_runs_with_the_earliest_deadlines_of_its_group() -> None:
    bench = Bench(fixed())
    rows = [bench.add(8, deadline_at, queued_at) for queued_at, deadline_at in ((0.0, 9.0), (0.1, 8.0), (0.2, 3.0), (0.3, 4.0))]
    (group,) = bench.queue.plan()

    assert bench.queue.take(group, 3) == [rows[0], rows[2], rows[3]]


def test_a_row_longer_than_any_bucket_waits_in_the_last() -> None:
    bench = Bench()
    longest = bench.add(10_000)

    (group,) = bench.queue.plan()

    assert bench.queue.take(group, 1) == [longest]
    assert group.length == 512


def test_the_longest_row_waits_in_the_last_bucket_though_that_is_for_it_alone() -> None:
    bench = Bench()
    queue: ClassQueue[str] = ClassQueue(1.0, bucket_by_length(edges(33)), bench.prices, Padded(), OBJECTIVE_S)

    queue.add(bench.add(33), 0.0)

    assert [group.length for group in queue.plan()] == [33]


def test_a_probe_is_never_hopeless_before_its_deadline() -> None:
    bench = Bench(proportional(1e-3))
    bench.add(100, deadline_at=1.0, probe=True)

    assert bench.queue.hopeless(1.0 - 1e-9, speed=1.0) == []


def test_only_rows_with_near_deadlines_are_checked_for_being_hopeless() -> None:
    bench = Bench(proportional(1e-3))
    for number in range(1000):
        bench.add(100, deadline_at=0.09951 + number * 1e-4)
    looked_at = Counter[str]()
    hopeless = Ticket.hopeless
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ticket, "hopeless", lambda self, *rest: looked_at.update(["row"]) or hopeless(self, *rest))

        found = bench.queue.hopeless(0.0, 1.0)

    assert len(found) == 5
    assert looked_at["row"] <= 6


def test_no_row_is_checked_when_the_first_deadline_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(proportional(1e-3))
    for length in LADDER:
        bench.add(length, deadline_at=9.0)
    monkeypatch.setattr(Ticket, "hopeless", lambda *_: pytest.fail("a row was looked at"))

    assert bench.queue.hopeless(9.0 - 0.512 - 1e-9, 1.0) == []


def test_arrivals_decay_within_some_windows() -> None:
    bench = Bench()
    for number in range(100):
        bench.add(8, queued_at=number * 1e-4)
    group = group_of(bench.queue, 8)

    rate = bench.queue.arrivals_per_s(group, 0.01)

    assert rate == pytest.approx(99 / RATE_WINDOW_S, rel=0.05)
    assert bench.queue.arrivals_per_s(group, 0.01 + RATE_WINDOW_S) == pytest.approx(rate / 2.718, rel=0.03)
    assert bench.queue.arrivals_per_s(group, 0.01 + 10 * RATE_WINDOW_S) < 0.1


def test_a_steady_flow_has_its_rate() -> None:
    bench = Bench()
    for number in range(1000):
        bench.add(8, queued_at=number / 500)

    assert bench.queue.arrivals_per_s(group_of(bench.queue, 8), 999 / 500) == pytest.approx(500, rel=0.01)


def test_a_single_arrival_gives_no_rate() -> None:
    bench = Bench()
    bench.add(8)

    assert bench.queue.arrivals_per_s(group_of(bench.queue, 8), 0.0) == 0.0


def test_arrivals_of_other_lengths_do_not_count() -> None:
    bench = Bench()
    bench.add(8)
    bench.add(8)
    for _ in range(50):
        bench.add(400)

    assert bench.queue.arrivals_per_s(group_of(bench.queue, 8), 0.0) == pytest.approx(1 / RATE_WINDOW_S)


def test_overhead_is_1_where_cost_is_proportional_and_high_where_it_is_fixed() -> None:
    slow, fast = Bench(proportional()), Bench(fixed(1.0, 1e-9))
    for bench in (slow, fast):
        assert bench.queue.overhead() == 1.0
        bench.add(8)

    assert slow.queue.overhead() == pytest.approx(1.0)
    assert fast.queue.overhead() == pytest.approx(fast.prices.best_rows(8), rel=0.01)


def test_run_time_of_a_class_decays_within_some_windows() -> None:
    queue = Bench().queue
    queue.charge(0.5, 1.0)
    queue.charge(1.5, 1.0)

    assert queue.use_per_s(1.0) == pytest.approx(2.0 / USE_WINDOW_S)
    assert queue.use_per_s(1.0 + USE_WINDOW_S) == pytest.approx(2.0 / USE_WINDOW_S / math.e)


def test_a_class_is_charged_its_run_time_over_its_share() -> None:
    queue: ClassQueue[str] = ClassQueue(0.2, BUCKET_OF, Bench().prices, Padded(), OBJECTIVE_S)

    queue.charge(0.5, 0.0)
    queue.charge(0.1, 0.0)

    assert queue.charged_s == pytest.approx(3.0)


def test_the_most_expensive_next_batch_has_the_best_size_at_most() -> None:
    bench = Bench(fixed(1.0, 1e-3), BatchLimits(4, 2**16, 2**30, 2))
    assert bench.queue.batch_s() == 0.0
    for _ in range(9):
        bench.add(4)
    assert bench.queue.batch_s() == pytest.approx(1.016)

    bench.add(64)

    assert bench.queue.batch_s() == pytest.approx(1.064)


def test_an_empty_queue_has_no_most_expensive_row() -> None:
    bench = Bench(proportional(1e-3))
    rows = [bench.add(length) for length in (8, 512, 100)]
    assert bench.queue.dearest_s == pytest.approx(0.512)

    for row in rows:
        bench.queue.remove(row)

    assert bench.queue.dearest_s == 0.0
    bench.add(8)
    assert bench.queue.dearest_s == pytest.approx(8e-3)


def test_new_prices_apply_to_waiting_rows() -> None:
    bench = Bench(proportional(1e-3))
    rows = [bench.add(8) for _ in range(10)]
    assert bench.queue.work_s() == pytest.approx(0.08)

    bench.queue.reprice(Prices(proportional(2e-3), WIDE))

    assert bench.queue.work_s() == pytest.approx(0.16)
    for row in rows[:9]:
        bench.queue.remove(row)
    assert bench.queue.work_s() == pytest.approx(0.016)


def test_random_changes_agree_with_a_plain_list() -> None:
    seed = 6
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(fixed(1e-3, 1e-5), BatchLimits(8, 1024, 2**26, 2))
    queue, naive = bench.queue, list[Ticket[str]]()
    for turn in range(250):
        now = turn * 0.01
        match rng.choice(["add", "add", "add", "remove", "take"]):
            case "add":
                naive.append(bench.add(rng.randint(1, 512), rng.randint(1, 20) / 4, now))
            case "remove" if naive:
                queue.remove(naive.pop(rng.randrange(len(naive))))
            case "take" if naive:
                group, rows = rng.choice(queue.plan()), rng.randint(1, 10)
                own = [row for row in naive if BUCKET_OF[row.length] in group.edges]
                first = min(own, key=lambda row: (row.queued_at, row.number))
                assert queue.turn_at(group.first) <= queue.turn_at(first)
                expected = sorted(own, key=lambda row: (row is not group.first, row.deadline_at, row.number))[:rows]
                assert queue.take(group, rows) == expected
                naive = [row for row in naive if row not in expected]

        buckets = Counter(BUCKET_OF[row.length] for row in naive)
        assert queue.rows == len(naive)
        assert queue.work_s() == pytest.approx(sum(bench.prices.group_s(rows, edge) for edge, rows in buckets.items()))
        assert queue.alone_s == pytest.approx(sum(row.alone_s for row in naive))
        assert queue.demand.total_s == pytest.approx(sum(row.batched_s for row in naive))
        assert queue.dearest_s >= max((row.alone_s for row in naive), default=0.0)
        if naive:
            assert queue.earliest() is min(naive, key=lambda row: (row.deadline_at, row.number))
            groups = queue.plan()
            assert sum(group.rows for group in groups) == len(naive)


# Packed


def test_packed_rows_are_one_group_and_cost_their_tokens() -> None:
    bench = Bench(proportional(1e-3), layout=Packed())
    for length in (3, 500, 40, 7):
        bench.add(length)

    (group,) = bench.queue.plan()

    assert group.rows == 4
    assert bench.queue.work_s() == pytest.approx(0.550)


def test_packed_rows_run_in_the_order_of_deadlines_after_the_row_whose_turn_it_is() -> None:
    bench = Bench(fixed(), BatchLimits(3, 2**16, 2**30, 2), Packed())
    for length, deadline_at in ((500, 7.0), (3, 3.0), (200, 1.0), (40, 5.0)):
        bench.add(length, deadline_at)
    (group,) = bench.queue.plan()

    rows, _ = bench.queue.portion(group)

    assert [ticket.length for ticket in bench.queue.take(group, rows)] == [500, 200, 3]
