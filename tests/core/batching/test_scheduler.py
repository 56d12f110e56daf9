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
from sentiment.batching.ticket import Batch, Priority, Ticket
from sentiment.errors import Expired, Refused
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


# Failure


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


def test_the_cheapest_rows_run_first_when_all_have_waited_equally() -> None:
    scheduler = make()
    scheduler.add(500, 0.0, 8.0, "long")
    scheduler.add(8, 0.0, 9.0, "short")

    assert names(scheduler.step(1.0, 1).batches[0]) == ["short"]


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


# Classes


def test_an_interactive_row_waits_for_no_more_than_the_bulk_batch_that_runs() -> None:
    scheduler = make()
    rows: list[Arrival] = [(0.0, 100, FAR, "bulk", BULK) for _ in range(30)]

    began = drive(scheduler, [*rows, (1.02, 20, FAR, "interactive", INTERACTIVE)], until=2.0)

    assert next(at for at, batch in began if names(batch) == ["interactive"]) == pytest.approx(1.1)


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


# Packed


def make_packed(cost: CostTable, limits: BatchLimits = WIDE, runners: int = 1) -> Scheduler[str]:
    return Scheduler(cost, limits, runners, 10_000, 512, layout=Packed())


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


def test_a_refusal_behind_rows_that_were_withdrawn_holds_no_longer() -> None:
    scheduler = make()
    own = [scheduler.add(100, 0.0, 1.0, f"{number}") for number in range(9)]
    with pytest.raises(Refused, match="of work are queued"):
        scheduler.add(100, 0.0, 1.0, "one too many")
    with pytest.raises(Refused, match="was refused just now"):
        scheduler.add(100, 0.0, 1.0, "one like it")

    for ticket in own:
        scheduler.cancel(ticket)

    scheduler.add(100, 0.0, 1.0, "room")
