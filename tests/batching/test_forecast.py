"""When work will be done: who is let in, who is turned away and what he is told, and which batch would make a row late."""

import pytest

from sentiment.batching.class_queue import ClassQueue
from sentiment.batching.cost import CostTable
from sentiment.batching.deadlines import Demand
from sentiment.batching.forecast import ROUNDING_S, Forecast
from sentiment.batching.layout import Padded
from sentiment.batching.plan import BatchLimits, Prices, bucket_by_length, edges
from sentiment.batching.ticket import Priority, Ticket
from sentiment.errors import Refused
from tests.batching.test_cost import fixed, proportional

BUCKET_OF = bucket_by_length(edges(512))
WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)


class Bench:
    """The queues of two classes and what is foretold of them; unless a table is given, a row of 32 tokens takes 0.1 s."""

    def __init__(self, cost: CostTable | None = None, runners: int = 1) -> None:
        self.cost = cost or proportional(0.1 / 32)
        self.prices = Prices(self.cost, WIDE)
        self.queue: ClassQueue[None] = ClassQueue(0.8, BUCKET_OF, self.prices, Padded())
        self.bulk: ClassQueue[None] = ClassQueue(0.2, BUCKET_OF, self.prices, Padded())
        self.forecast: Forecast[None] = Forecast(self.cost, [self.queue, self.bulk], runners)

    def add(self, length: int, deadline_at: float, rows: int = 1, queue: ClassQueue[None] | None = None) -> None:
        queue = queue or self.queue
        for _ in range(rows):
            alone_s, batched_s = self.cost.table_s(1, length), self.prices.batched_s(length)
            queue.add(Ticket(length, 0.0, deadline_at, None, Priority.INTERACTIVE, queue.rows, alone_s, batched_s))

    def refusal(self, alone_s: float, deadline_at: float, queue: ClassQueue[None] | None = None) -> Refused | None:
        """What a row that comes now is told, or nothing if it is let in."""
        try:
            self.forecast.check(queue or self.queue, alone_s, 0.0, deadline_at)
        except Refused as error:
            return error
        return None

    def ahead_s(self, queue: ClassQueue[None]) -> float:
        """Seconds until 10 rows of a class have started, by what one more is told that has no time."""
        self.add(32, 0.01, rows=10, queue=queue)
        refused = self.refusal(alone_s=0.1, deadline_at=0.02, queue=queue)
        assert refused is not None
        return refused.retry_after_s


def test_with_no_runner_left_no_backlog_is_foretold() -> None:
    bench = Bench(runners=0)
    bench.add(32, 9.0)

    assert bench.forecast.backlog_s(0.0) == 0.0


def test_only_work_that_is_due_no_later_is_ahead_of_a_row() -> None:
    bench = Bench()
    for deadline_at in (1.0, 1.1, 1.2, 9.0):
        bench.add(32, deadline_at)

    refused = bench.refusal(alone_s=1.0, deadline_at=1.25)

    assert refused is not None
    assert str(refused) == "0.300 s of work are queued and this text needs 1.000 s; the deadline leaves 1.250 s"
    assert (refused.retry_after_s, refused.needs_s) == pytest.approx((0.3, 1.0))
    assert bench.refusal(alone_s=1.0, deadline_at=1.35) is None


def test_who_is_turned_away_for_the_sake_of_others_is_told_when_these_will_have_started_and_how_long_he_takes_himself() -> None:
    bench = Bench()
    bench.add(128, 0.5)
    bench.add(32, 0.55)

    refused = bench.refusal(alone_s=0.2, deadline_at=0.45)

    assert refused is not None
    assert str(refused) == "this text would make 2 queued deadlines late by up to 0.150 s"
    assert (refused.retry_after_s, refused.needs_s) == pytest.approx((0.4, 0.2))


@pytest.mark.parametrize(("spare_s", "admitted"), [(ROUNDING_S / 2, False), (ROUNDING_S * 2, True)])
def test_a_row_that_would_finish_so_near_its_deadline_as_rounding_may_hide_is_refused(spare_s: float, admitted: bool) -> None:
    bench = Bench()
    bench.add(32, 0.15)

    refused = bench.refusal(alone_s=0.1, deadline_at=0.2 + spare_s)

    assert (refused is None) == admitted


@pytest.mark.parametrize("deadline_at", [0.03, 0.06], ids=["before them", "behind them"])
def test_a_row_whose_company_costs_next_to_nothing_is_let_in(deadline_at: float) -> None:
    bench = Bench(fixed(0.01, 1e-9))
    # Row by row they would take 0.1 s, and together they take 0.01 s.
    bench.add(8, 0.05, rows=10)

    assert bench.refusal(0.01, deadline_at) is None


def test_rows_that_are_too_few_for_a_batch_are_ahead_by_what_they_cost_together() -> None:
    bench = Bench(fixed(0.01, 1e-9))
    bench.add(8, 0.012, rows=10)

    refused = bench.refusal(0.01, 0.015)

    assert refused is not None
    assert refused.retry_after_s == pytest.approx(0.01, rel=1e-3)


def test_two_runners_bring_a_row_forward_by_half_of_the_work_ahead() -> None:
    bench = Bench(runners=2)
    bench.add(32, 1.1, rows=20)

    assert bench.refusal(0.1, 1.15) is None
    refused = bench.refusal(0.1, 1.1)

    assert refused is not None
    assert refused.retry_after_s == pytest.approx(1.0)


def test_no_deadline_is_looked_at_where_all_rows_could_run_alone_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(runners=2)
    bench.add(32, 0.7, rows=10)
    monkeypatch.setattr(Demand, "curve", lambda *_: pytest.fail("the deadlines were looked at"))

    # 10 rows of 0.1 s take two runners 0.5 s, and one more of 0.1 s follows.
    assert bench.refusal(0.1, 0.7) is None
    assert not bench.forecast.makes_late(bench.queue, 0.05, 0.0)


@pytest.mark.parametrize(("second_at", "late"), [(1.24, True), (1.26, False)])
def test_a_batch_makes_a_row_late_that_could_not_run_in_time_behind_it_and_the_rows_due_before(second_at: float, late: bool) -> None:
    bench = Bench()
    # The batch takes 0.05 s and each of these 0.1 s.
    bench.add(32, 1.16)
    bench.add(32, second_at)

    assert bench.forecast.makes_late(bench.queue, 0.05, 1.0) == late


@pytest.mark.parametrize("runners", [1, 4])
def test_a_batch_makes_a_row_late_that_takes_almost_all_the_time_it_has(runners: int) -> None:
    bench = Bench(proportional(1e-2), runners)
    bench.add(512, 5.17)

    assert bench.forecast.makes_late(bench.queue, 0.08, 0.0)


@pytest.mark.parametrize(
    ("left_s", "start_s"),
    [
        pytest.param([], 1.0 / 3, id="all are free"),
        pytest.param([10.0], 1.0 / 2, id="one is busy for longer than the others need for all"),
        pytest.param([10.0, 10.0], 1.0, id="one is free"),
        pytest.param([10.0, 10.0, 0.5], 1.5, id="one is free soon"),
        pytest.param([0.3, 0.2], 1.5 / 3, id="all are free before the work is done"),
        pytest.param([10.0, 10.0, -0.5], 1.5, id="one should have been free and needs as long again"),
    ],
)
def test_work_is_shared_by_the_runners_that_are_free_before_it_is_done(left_s: list[float], start_s: float) -> None:
    bench = Bench(runners=3)
    for number, seconds in enumerate(left_s):
        bench.forecast.begun(f"batch {number}", 7.0 + seconds)
    bench.add(32, 9.0, rows=10)

    assert bench.forecast.backlog_s(7.0) == pytest.approx(start_s)


def test_a_slow_moment_makes_all_work_longer() -> None:
    bench = Bench()
    bench.cost.speed = 2.0
    bench.add(32, 9.0, rows=10, queue=bench.bulk)

    assert bench.forecast.backlog_s(0.0) == pytest.approx(2.0)
    assert bench.ahead_s(bench.queue) == pytest.approx(2 * (1.0 + 0.25 + 0.1))


@pytest.mark.parametrize(
    ("rows", "claim_s"),
    [
        pytest.param(0, 0.0, id="it has nothing"),
        pytest.param(1, 0.1, id="all it has is less than its share"),
        pytest.param(50, 0.25 + 0.1, id="its share, to within a batch"),
    ],
)
def test_what_another_class_claims_meanwhile_is_its_share_and_no_more_than_it_has(rows: int, claim_s: float) -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=rows, queue=bench.bulk)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0 + claim_s)


def test_a_class_that_had_more_than_its_share_claims_nothing_until_that_is_made_good() -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=50, queue=bench.bulk)
    bench.bulk.charge(0.3, 0.0)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0)


def test_a_class_that_had_less_than_its_share_claims_what_it_is_owed() -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=50, queue=bench.bulk)
    bench.queue.charge(0.4, 0.0)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0 + (0.5 + 1.25) * 0.2 + 0.1)


@pytest.mark.parametrize("first", [True, False], ids=["the one that is served first", "the other"])
def test_of_two_classes_with_the_same_claim_only_the_one_that_is_served_first_goes_before_a_row_of_the_other(first: bool) -> None:
    bench = Bench()
    queue, other = (bench.bulk, bench.queue) if first else (bench.queue, bench.bulk)
    bench.add(32, 9.0, rows=3, queue=other)

    refused = bench.refusal(alone_s=0.1, deadline_at=0.15, queue=queue)

    assert (refused is not None) == first


def test_the_other_class_has_its_turn_before_the_second_row_of_the_one_that_is_served_first() -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=3, queue=bench.bulk)
    bench.add(32, 0.2)

    refused = bench.refusal(alone_s=0.1, deadline_at=0.3)

    assert refused is not None
    assert refused.retry_after_s == pytest.approx(0.1 + 0.1 + 0.025)


@pytest.mark.parametrize(
    ("used_s", "runners", "speed", "busy_s", "has_rows", "start_s"),
    [
        pytest.param(0.0, 1, 1.0, 0.0, 0, 1.0, id="it used nothing"),
        pytest.param(1.0, 1, 1.0, 0.0, 0, 1.0 + 1.0, id="it used half of the time and goes on to"),
        pytest.param(9.0, 1, 1.0, 0.0, 0, 1.0 + 4.0, id="it used all of the time and gets no more than its share"),
        pytest.param(2.0, 2, 1.0, 0.0, 0, (1.0 + 1.0) / 2, id="it used half of the time of two runners"),
        pytest.param(0.5, 1, 2.0, 0.0, 0, 2.0 + 2.0, id="in a slow moment what it used takes longer too"),
        pytest.param(1.0, 1, 1.0, 0.4, 0, 0.4 + 1.0 + 1.4, id="it comes while a batch runs too"),
        pytest.param(1.0, 1, 1.0, 0.0, 2, 0.2 + 1.0 + 1.2, id="and while what it has runs"),
    ],
)
def test_another_class_goes_on_to_come_as_it_did_of_late(
    used_s: float, runners: int, speed: float, busy_s: float, has_rows: int, start_s: float
) -> None:
    bench = Bench(runners=runners)
    bench.cost.speed = speed
    bench.queue.charge(used_s, 0.0)
    # Bulk had so much that it must let the others go first for long.
    bench.bulk.charge(9.0, 0.0)
    bench.add(32, 9.0, rows=has_rows)
    if busy_s:
        bench.forecast.begun("batch", busy_s)

    assert bench.ahead_s(bench.bulk) == pytest.approx(start_s)
