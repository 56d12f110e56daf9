"""Admission control: which rows are admitted or refused, with which message, and which batch would make a row late."""

import pytest

from sentiment.batching.class_queue import ClassQueue
from sentiment.batching.cost import CostTable
from sentiment.batching.deadlines import Demand
from sentiment.batching.forecast import REFUSED_S, ROUNDING_S, Forecast
from sentiment.batching.layout import Padded
from sentiment.batching.plan import BatchLimits, Prices, bucket_by_length, edges
from sentiment.batching.ticket import Priority, Ticket
from sentiment.errors import Refused
from tests.core.batching.test_cost import fixed, proportional

BUCKET_OF = bucket_by_length(edges(512))
WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)


class Bench:
    """The queues of two classes and their forecast. By default a row of 32 tokens takes 0.1 s."""

    def __init__(self, cost: CostTable | None = None, runners: int = 1) -> None:
        self.cost = cost or proportional(0.1 / 32)
        self.prices = Prices(self.cost, WIDE)
        self.queue: ClassQueue[None] = ClassQueue(0.8, BUCKET_OF, self.prices, Padded(), 0.5)
        self.bulk: ClassQueue[None] = ClassQueue(0.2, BUCKET_OF, self.prices, Padded(), 0.5)
        self.forecast: Forecast[None] = Forecast(self.cost, [self.queue, self.bulk], runners)

    def add(self, length: int, deadline_at: float, rows: int = 1, queue: ClassQueue[None] | None = None) -> None:
        queue = queue or self.queue
        for _ in range(rows):
            alone_s, batched_s = self.cost.table_s(1, length), self.prices.batched_s(length)
            queue.add(Ticket(length, 0.0, deadline_at, None, Priority.INTERACTIVE, queue.rows, alone_s, batched_s), 0.0)

    def refusal(self, alone_s: float, deadline_at: float, queue: ClassQueue[None] | None = None) -> Refused | None:
        """The refusal of a row that arrives now; None if it is admitted."""
        try:
            self.forecast.check(queue or self.queue, alone_s, 0.0, deadline_at)
        except Refused as error:
            return error
        return None

    def ahead_s(self, queue: ClassQueue[None]) -> float:
        """Seconds until 10 rows of a class have started, from the refusal of one more row."""
        self.add(32, 0.01, rows=10, queue=queue)
        refused = self.refusal(alone_s=0.1, deadline_at=0.02, queue=queue)
        assert refused is not None
        return refused.retry_after_s


def test_without_a_runner_the_backlog_is_zero() -> None:
    bench = Bench(runners=0)
    bench.add(32, 9.0)

    assert bench.forecast.backlog_s(0.0) == 0.0


def test_only_work_with_earlier_deadlines_runs_before_a_row() -> None:
    bench = Bench()
    for deadline_at in (1.0, 1.1, 1.2, 9.0):
        bench.add(32, deadline_at)

    refused = bench.refusal(alone_s=1.0, deadline_at=1.25)

    assert refused is not None
    assert str(refused) == "0.300 s of work are queued and this text needs 1.000 s; the deadline leaves 1.250 s"
    assert (refused.retry_after_s, refused.needs_s) == pytest.approx((0.3, 1.0))
    assert bench.refusal(alone_s=1.0, deadline_at=1.35) is None


def test_a_refusal_for_later_deadlines_says_when_to_retry_and_what_the_row_needs() -> None:
    bench = Bench()
    bench.add(128, 0.5)
    bench.add(32, 0.55)

    refused = bench.refusal(alone_s=0.2, deadline_at=0.45)

    assert refused is not None
    assert str(refused) == "this text would make 2 queued deadlines late by up to 0.150 s"
    assert (refused.retry_after_s, refused.needs_s) == pytest.approx((0.4, 0.2))


@pytest.mark.parametrize(("spare_s", "admitted"), [(ROUNDING_S / 2, False), (ROUNDING_S * 2, True)])
def test_a_row_within_rounding_of_its_deadline_is_refused(spare_s: float, admitted: bool) -> None:
    bench = Bench()
    bench.add(32, 0.15)

    refused = bench.refusal(alone_s=0.1, deadline_at=0.2 + spare_s)

    assert (refused is None) == admitted


@pytest.mark.parametrize("deadline_at", [0.03, 0.06], ids=["before them", "behind them"])
def test_rows_that_cost_next_to_nothing_together_do_not_block_admission(deadline_at: float) -> None:
    bench = Bench(fixed(0.01, 1e-9))
    # Row by row they would take 0.1 s, and together they take 0.01 s.
    bench.add(8, 0.05, rows=10)

    assert bench.refusal(0.01, deadline_at) is None


def test_a_partial_batch_counts_with_its_cost_together() -> None:
    bench = Bench(fixed(0.01, 1e-9))
    bench.add(8, 0.012, rows=10)

    refused = bench.refusal(0.01, 0.015)

    assert refused is not None
    assert refused.retry_after_s == pytest.approx(0.01, rel=1e-3)


def test_two_runners_halve_the_wait() -> None:
    bench = Bench(runners=2)
    bench.add(32, 1.1, rows=20)

    assert bench.refusal(0.1, 1.15) is None
    refused = bench.refusal(0.1, 1.1)

    assert refused is not None
    assert refused.retry_after_s == pytest.approx(1.0)


def test_deadlines_are_not_read_where_all_rows_could_run_alone_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(runners=2)
    bench.add(32, 0.7, rows=10)
    monkeypatch.setattr(Demand, "curve", lambda *_: pytest.fail("the deadlines were looked at"))

    # 10 rows of 0.1 s take two runners 0.5 s, and one more of 0.1 s follows.
    assert bench.refusal(0.1, 0.7) is None
    assert not bench.forecast.makes_late(bench.queue, 0.05, 0.0)


@pytest.mark.parametrize(("second_at", "late"), [(1.24, True), (1.26, False)])
def test_a_batch_makes_rows_late_that_have_no_time_behind_it(second_at: float, late: bool) -> None:
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
        pytest.param([10.0], 1.0 / 2, id="one is busy for long"),
        pytest.param([10.0, 10.0], 1.0, id="one is free"),
        pytest.param([10.0, 10.0, 0.5], 1.5, id="one is free soon"),
        pytest.param([0.3, 0.2], 1.5 / 3, id="all are free before the work is done"),
        pytest.param([10.0, 10.0, -0.5], 1.5, id="one is overdue"),
    ],
)
def test_work_is_shared_by_the_runners_that_are_free_before_it_is_done(left_s: list[float], start_s: float) -> None:
    bench = Bench(runners=3)
    for number, seconds in enumerate(left_s):
        bench.forecast.begun(f"batch {number}", 7.0 + seconds)
    bench.add(32, 9.0, rows=10)

    assert bench.forecast.backlog_s(7.0) == pytest.approx(start_s)


def test_the_current_speed_multiplies_all_work() -> None:
    bench = Bench()
    bench.cost.speed = 2.0
    bench.add(32, 9.0, rows=10, queue=bench.bulk)

    assert bench.forecast.backlog_s(0.0) == pytest.approx(2.0)
    assert bench.ahead_s(bench.queue) == pytest.approx(2 * (1.0 + 0.25 + 0.1))


@pytest.mark.parametrize(
    ("rows", "claim_s"),
    [
        pytest.param(0, 0.0, id="it has no rows"),
        pytest.param(1, 0.1, id="its rows are less than its share"),
        pytest.param(50, 0.25 + 0.1, id="its share, to within a batch"),
    ],
)
def test_another_class_gets_its_share_but_no_more_than_it_has(rows: int, claim_s: float) -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=rows, queue=bench.bulk)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0 + claim_s)


def test_a_class_that_had_more_than_its_share_gets_nothing_until_the_others_have_caught_up() -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=50, queue=bench.bulk)
    bench.bulk.charge(0.3, 0.0)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0)


def test_a_class_that_had_less_than_its_share_gets_the_difference() -> None:
    bench = Bench()
    bench.add(32, 9.0, rows=50, queue=bench.bulk)
    bench.queue.charge(0.4, 0.0)

    assert bench.ahead_s(bench.queue) == pytest.approx(1.0 + (0.5 + 1.25) * 0.2 + 0.1)


@pytest.mark.parametrize("first", [True, False], ids=["the first class", "the other"])
def test_of_two_classes_with_equal_charges_the_first_runs_first(first: bool) -> None:
    bench = Bench()
    queue, other = (bench.bulk, bench.queue) if first else (bench.queue, bench.bulk)
    bench.add(32, 9.0, rows=3, queue=other)

    refused = bench.refusal(alone_s=0.1, deadline_at=0.15, queue=queue)

    assert (refused is not None) == first


def test_the_other_class_runs_before_the_second_row_of_the_first_class() -> None:
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
        pytest.param(1.0, 1, 1.0, 0.0, 0, 1.0 + 1.0, id="it used half of the time"),
        pytest.param(9.0, 1, 1.0, 0.0, 0, 1.0 + 4.0, id="it used all of the time and gets its share"),
        pytest.param(2.0, 2, 1.0, 0.0, 0, (1.0 + 1.0) / 2, id="it used half of the time of two runners"),
        pytest.param(0.5, 1, 2.0, 0.0, 0, 2.0 + 2.0, id="the machine is slower now"),
        pytest.param(1.0, 1, 1.0, 0.4, 0, 0.4 + 1.0 + 1.4, id="a batch runs"),
        pytest.param(1.0, 1, 1.0, 0.0, 2, 0.2 + 1.0 + 1.2, id="it has rows already"),
    ],
)
def test_another_class_is_expected_to_keep_its_recent_rate(
    used_s: float, runners: int, speed: float, busy_s: float, has_rows: int, start_s: float
) -> None:
    bench = Bench(runners=runners)
    bench.cost.speed = speed
    bench.queue.charge(used_s, 0.0)
    # Bulk had so much run time that interactive rows run first for long.
    bench.bulk.charge(9.0, 0.0)
    bench.add(32, 9.0, rows=has_rows)
    if busy_s:
        bench.forecast.begun("batch", busy_s)

    assert bench.ahead_s(bench.bulk) == pytest.approx(start_s)


def test_a_refusal_holds_for_a_moment_for_rows_of_its_class_and_deadline_that_take_no_less() -> None:
    bench = Bench()
    bench.add(32, deadline_at=0.2, rows=10)

    def refused(alone_s: float, now: float = 0.0, deadline_at: float = 0.5, queue: ClassQueue[None] | None = None) -> str:
        try:
            bench.forecast.check(queue or bench.queue, alone_s, now, deadline_at)
        except Refused as error:
            return "again" if "refused just now" in str(error) else "checked"
        return ""

    assert refused(0.1) == "checked"
    found = [refused(0.1), refused(0.3), refused(0.1, now=REFUSED_S / 2)]
    others = [refused(0.1, deadline_at=0.4), refused(0.05, deadline_at=0.4), refused(0.2, REFUSED_S, 0.4), refused(0.1, queue=bench.bulk)]

    assert found == ["again"] * 3
    assert others == ["checked"] * 3 + [""]
