"""Deciding a device's next batch while one runs: when it happens, and that no row is lost or late by it."""

import asyncio

import pytest

from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, State
from sentiment.errors import DeviceLost, Unavailable
from tests.core.batching.test_batcher import Bench
from tests.core.batching.test_cost import fixed
from tests.virtual_time import VirtualClock

# A batch has at most 8 rows and takes 10 ms; the next is decided 1 ms before its end: see Bench and runs.TICK_S.
FULL, RUN_S = 8, 0.01
LOOK_S = RUN_S - 0.0005


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    bench = Bench(clock)
    bench.runner.ahead = True
    return bench


async def run_and_fill(bench: Bench, waiting: int, runners: int = 1) -> None:
    """Run a full batch on each runner, and queue ``waiting`` rows behind them."""
    for number in range(runners * FULL):
        bench.submit(number)
        if number % FULL == FULL - 1:
            await bench.turn()
    for number in range(waiting):
        bench.submit(100 + number)
    await bench.turn()


async def test_a_full_batch_is_decided_shortly_before_the_running_one_ends(bench: Bench) -> None:
    await run_and_fill(bench, waiting=20)

    await bench.wait(RUN_S - 0.002)
    early = len(bench.runner.started)
    await bench.wait(0.0015)

    assert early == 1
    assert [len(rows) for rows, _ in bench.runner.started] == [FULL, FULL]


async def test_a_runner_that_does_not_prepare_ahead_gets_no_batch_ahead(bench: Bench) -> None:
    bench.runner.ahead = False
    await run_and_fill(bench, waiting=20)

    await bench.wait(LOOK_S)

    assert len(bench.runner.started) == 1


async def test_one_batch_is_decided_ahead_and_each_row_gets_its_own_answer_once(bench: Bench) -> None:
    await run_and_fill(bench, waiting=40)

    most = 0
    for _ in range(10):
        await bench.wait(LOOK_S)
        most = max(most, len(bench.runner.started))
        if bench.runner.started:
            await bench.finish()

    assert most == 2
    assert all(isinstance(outcomes[0], RowsResult) and len(outcomes) == 1 for outcomes in bench.received.values())
    answers = [outcomes[0].logits for outcomes in bench.received.values() if isinstance(outcomes[0], RowsResult)]
    assert answers == [[[float(number)]] for number in bench.received]
    await asyncio.wait_for(bench.batcher.drained(), 1)


async def test_queue_time_ends_when_the_run_before_ends(bench: Bench) -> None:
    await run_and_fill(bench, waiting=20)
    await bench.wait(LOOK_S)
    bench.clock.now += 0.005
    await bench.finish()

    await bench.finish()

    (outcome,) = bench.received[100]
    assert isinstance(outcome, RowsResult)
    assert outcome.queue_s == pytest.approx(LOOK_S + 0.005)


async def test_a_run_that_lasts_too_long_is_asked_to_stop_but_not_the_one_behind_it(bench: Bench) -> None:
    stopped: list[int] = []
    start = bench.runner.start

    def note(*arguments: object) -> object:
        start(*arguments)  # type: ignore[arg-type]  # as they came
        number = len(bench.runner.started)
        return lambda: stopped.append(number)

    bench.runner.start = note  # type: ignore[method-assign, assignment]
    await run_and_fill(bench, waiting=20)
    await bench.wait(LOOK_S)

    bench.clock.now += 6.0
    bench.batcher.end_stalled(5.0)

    assert stopped == [1]


async def test_the_batch_behind_a_hanging_run_moves_to_another_device(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    for runner in bench.runners:
        runner.ahead = True
    for number in range(FULL):
        bench.submit(number)
    await bench.turn()
    hung, other = sorted(bench.runners, key=lambda runner: -len(runner.started))
    for number in range(2 * FULL + 1):
        bench.submit(100 + number)
    await bench.turn()
    await bench.wait(LOOK_S)
    other.finish()
    await bench.turn()
    while other.started:
        other.finish()
        await bench.turn()
    unanswered = [number for number, outcomes in bench.received.items() if not outcomes]

    bench.clock.now += 6.0
    bench.batcher.end_stalled(5.0)
    await bench.turn()
    (again,) = other.started
    other.finish()
    await bench.turn()

    assert len(unanswered) == 2 * FULL
    assert hung.stops == 2
    assert [row.ids[0] for row in again[0]] == unanswered[FULL:]
    assert [number for number, outcomes in bench.received.items() if not outcomes] == unanswered[:FULL]
    # The device stops at last: the rows of its run are retried, and its report of the other batch is ignored.
    assert not bench.scheduler.forecast.idle
    hung.finish(ValueError("terminated"))
    hung.finish(ValueError("terminated"))
    await bench.turn()
    while hung.started or other.started:
        for runner in bench.runners:
            if runner.started:
                runner.finish()
                await bench.turn()
    assert all(len(outcomes) == 1 and isinstance(outcomes[0], RowsResult) for outcomes in bench.received.values())
    assert bench.scheduler.forecast.idle


async def test_the_only_device_keeps_the_batch_behind_a_hanging_run(bench: Bench) -> None:
    await run_and_fill(bench, waiting=20)
    await bench.wait(LOOK_S)

    bench.clock.now += 6.0
    bench.batcher.end_stalled(5.0)

    assert bench.runner.stops == 1
    assert bench.scheduler.rows_running == 2 * FULL


async def test_a_device_that_does_not_hang_keeps_its_next_batch(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    for runner in bench.runners:
        runner.ahead = True
    await run_and_fill(bench, waiting=40, runners=2)
    await bench.wait(LOOK_S)

    bench.batcher.end_stalled(5.0)

    assert [runner.stops for runner in bench.runners] == [0, 0]
    assert bench.scheduler.rows_running == 4 * FULL


async def test_a_run_that_was_asked_to_stop_gets_no_next_batch(bench: Bench) -> None:
    await run_and_fill(bench, waiting=20)
    bench.clock.now += RUN_S / 2
    bench.batcher.end_stalled(RUN_S / 4)

    await bench.wait(RUN_S / 2)

    assert [len(rows) for rows, _ in bench.runner.started] == [FULL]


async def test_the_next_batch_of_a_lost_device_is_answered_by_another(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    for runner in bench.runners:
        runner.ahead = True
    await run_and_fill(bench, waiting=40, runners=2)
    await bench.wait(LOOK_S)
    lost, other = bench.runners

    lost.finish(DeviceLost("cuda:0 is lost"))
    await bench.turn()
    assert lost.stops == 1
    # Its report of the batch behind is ignored.
    lost.finish(DeviceLost("cuda:0 is lost"))
    await bench.turn()
    while other.started:
        other.finish()
        await bench.turn()

    fates = [type(outcomes[0]) for outcomes in bench.received.values()]
    assert (fates.count(Unavailable), fates.count(RowsResult)) == (FULL, FULL + 40)
    assert all(len(outcomes) == 1 for outcomes in bench.received.values())
    assert bench.notes.devices_lost == [(lost.name, FULL)]


async def test_the_next_batch_of_the_last_device_is_unavailable_when_its_run_never_ends(bench: Bench) -> None:
    await run_and_fill(bench, waiting=12)
    await bench.wait(LOOK_S)
    for _ in range(2):
        bench.clock.now += 6.0
        bench.batcher.end_stalled(5.0)
    await bench.turn()

    assert [type(bench.received[number][0]) for number in range(100, 112)] == [Unavailable] * 12
    await asyncio.wait_for(bench.batcher.drained(), 1)


def begun(rows: int, deadline_at: float = 1e6) -> tuple[Scheduler[int], Batch[int]]:
    """A scheduler with a batch of 10 ms that began at 0, and ``rows`` rows behind it."""
    scheduler: Scheduler[int] = Scheduler(fixed(RUN_S, 1e-9), BatchLimits(FULL, 1024, 2**26, 2), 1, 1000, 512)
    for number in range(FULL):
        scheduler.add(4, 0.0, 1e6, number)
    (batch,) = scheduler.step(0.0, 1).batches
    for number in range(rows):
        scheduler.add(4, 0.0, deadline_at, 100 + number)
    return scheduler, batch


def test_the_backlog_counts_the_next_batch_before_and_after_it_begins() -> None:
    scheduler, batch = begun(FULL + 1)
    following = scheduler.ahead(batch, 0.009, RUN_S)
    assert following is not None

    before = scheduler.forecast.backlog_s(0.009)
    scheduler.finish(batch, RUN_S, RUN_S)
    scheduler.begin(following, RUN_S)

    assert before == pytest.approx(0.001 + RUN_S + RUN_S, rel=0.01)
    assert scheduler.forecast.backlog_s(RUN_S) == pytest.approx(RUN_S + RUN_S, rel=0.01)
    scheduler.finish(following, 2 * RUN_S, RUN_S)
    assert scheduler.forecast.idle


def test_a_late_run_delays_its_next_batch_by_as_much() -> None:
    scheduler, batch = begun(FULL + 1)
    assert scheduler.ahead(batch, 0.009, RUN_S) is not None

    backlogs = [scheduler.forecast.backlog_s(RUN_S + late_s) for late_s in (0.0, RUN_S / 2, RUN_S)]

    # The next batch and that of the last row; an overdue run is expected to take as long again.
    assert backlogs == pytest.approx([2 * RUN_S, 2.5 * RUN_S, 3 * RUN_S], rel=0.01)


def test_a_run_still_counts_when_its_next_batch_is_given_back() -> None:
    scheduler, batch = begun(FULL + 1)
    before = scheduler.forecast.backlog_s(0.009)
    following = scheduler.ahead(batch, 0.009, RUN_S)
    assert following is not None

    scheduler.give_back(following, batch)
    busy_s = scheduler.forecast._busy_s(0.009)
    again = scheduler.step(0.009, 1).batches[0]
    scheduler.finish(again, 0.009, RUN_S)

    assert before > busy_s == pytest.approx(0.001)
    assert not scheduler.forecast.idle
    scheduler.finish(batch, 0.01, RUN_S)
    assert scheduler.forecast.idle


def test_rows_that_another_runner_answers_in_time_do_not_wait_for_this_one() -> None:
    scheduler: Scheduler[int] = Scheduler(fixed(0.0, 1e-3), BatchLimits(FULL, 1024, 2**26, 2), 2, 1000, 512)
    for length in (400, 50):
        scheduler.add(length, 0.0, 1e6, length)
    short, long = sorted(scheduler.step(0.0, 2).batches, key=lambda batch: batch.predicted_s)
    for number in range(3):
        scheduler.add(4, 0.0, 0.3 if number == 0 else 1e6, number)

    assert scheduler.ahead(long, 0.0, 0.4) is None
    assert scheduler.ahead(short, 0.0, 0.05) is not None


def test_new_costs_are_used_although_the_runner_is_never_free() -> None:
    scheduler, batch = begun(30)
    for _ in range(20):
        scheduler.cost.observe(*batch.shape, 2 * RUN_S)
    assert scheduler._prices.stale()

    scheduler.ahead(batch, 0.009, RUN_S)

    assert not scheduler._prices.stale()


def test_rows_that_were_given_back_wait_again_and_run_first() -> None:
    scheduler, batch = begun(30)
    following = scheduler.ahead(batch, 0.009, RUN_S)
    assert following is not None
    left, *others = following.tickets
    scheduler.cancel(left)

    scheduler.give_back(following)
    started = {ticket.started_at for ticket in others}
    again = scheduler.step(0.009, 1).batches[0]

    # One that expires now is counted as a row that never ran.
    assert started == {0.0}
    assert again.tickets == others
    assert left.state is State.CANCELLED
    assert scheduler.rows_running == FULL + len(others)
