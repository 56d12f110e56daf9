"""The batcher with fake runners and a fake clock: which outcome each row gets, and that rows do not affect each other."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sentiment.batching.batcher import LOW_PRIORITY_FROM, Batcher
from sentiment.batching.known import Known
from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.scheduler import HOLD_ALL, HOLD_FROM, HOLD_S, HURRY, Scheduler
from sentiment.batching.text import RowTicket, Text, Waiting
from sentiment.batching.ticket import Batch, Priority
from sentiment.errors import DeviceLost, Expired, ModelFailed, OutOfMemory, Unavailable
from sentiment.model.runner import Ran, Report
from sentiment.model.tokenizer import Row
from tests.core.batching.test_cost import fixed
from tests.virtual_time import VirtualClock


@dataclass
class HandRunner:
    """A runner whose batches end when the test calls ``finish``."""

    name: str = "hand"
    ahead: bool = False
    started: list[tuple[Sequence[Row], Report]] = field(default_factory=list)
    stops: int = 0
    # Whether the batch that began last is at a lower priority than the event loop.
    low_priority: bool = False

    def start(
        self,
        classifier: object,
        rows: Sequence[Row],
        report: Report,
        ahead: bool = False,
        wide: bool = False,
        low_priority: bool = False,
    ) -> Callable[[], None]:
        self.low_priority = low_priority
        assert ahead == bool(self.started), "a batch must be given ahead exactly while another runs"
        self.started.append((rows, report))
        return self.stop

    def stop(self) -> None:
        self.stops += 1

    def finish(self, outcome: BaseException | None = None) -> None:
        rows, report = self.started.pop(0)
        # A row's answer is its first id, so that mixed-up rows show.
        report(outcome or Ran([[float(row.ids[0])] for row in rows], 0.0, 0.001))


@dataclass
class Notes:
    """A fake observer."""

    ran: int = 0
    wasted: int = 0
    lost: int = 0
    dropped: list[str] = field(default_factory=list)
    given_up: list[tuple[str, int, float]] = field(default_factory=list)
    devices_lost: list[tuple[str, int]] = field(default_factory=list)
    planned_s: list[float] = field(default_factory=list)
    # Rows answered without a run: from kept answers, and with another row.
    kept: int = 0
    shared: int = 0

    def batch_begins(self, batch: Batch[Waiting]) -> None:
        """Not recorded."""

    def batch_ran(self, batch: Batch[Waiting], runner: str, ran: Ran, wasted: int) -> None:
        self.ran += 1
        self.wasted += wasted

    def batch_failed(self, batch: Batch[Waiting], runner: str, error: BaseException, lost: int, seconds: float) -> None:
        self.lost += lost

    def batch_given_up(self, batch: Batch[Waiting], runner: str, seconds: float) -> None:
        self.given_up.append((runner, len(batch.tickets), seconds))

    def device_lost(self, batch: Batch[Waiting], runner: str, error: BaseException, seconds: float) -> None:
        self.devices_lost.append((runner, len(batch.tickets)))

    def row_dropped(self, reason: str) -> None:
        self.dropped.append(reason)

    def rows_known(self, kept: int, shared: int) -> None:
        self.kept += kept
        self.shared += shared

    def row_unanswered(self, ticket: RowTicket, error: str) -> None:
        """Not recorded."""

    def planned(self, seconds: float) -> None:
        self.planned_s.append(seconds)


class Bench:
    """A batcher, its fake runners, its clock, and the outcomes of each row. A batch is predicted to take 10 ms."""

    def __init__(
        self,
        clock: VirtualClock,
        runners: int = 1,
        run_s: float = 0.01,
        holds: bool = False,
        classifier: Any = None,
        known: Known | None = None,
    ) -> None:
        self.clock, self.notes = clock, Notes()
        # How busy the event loop says it is.
        self.busy_share = 0.0
        self.runners = [HandRunner(f"hand-{number}") for number in range(runners)]
        self.runner = self.runners[0]
        self.scheduler: Scheduler[Waiting] = Scheduler(fixed(run_s, 1e-9), BatchLimits(8, 1024, 2**26, 2), runners, 100, 512)
        self.batcher = Batcher(classifier, self.scheduler, self.runners, self.notes, lambda: self.busy_share, holds, clock, known)
        self.received: dict[int, list[TextOutcome]] = {}

    def submit(
        self, number: int, seconds: float = 60.0, length: int = 4, priority: Priority = Priority.INTERACTIVE, adaptive: bool = False
    ) -> Text:
        self.received[number] = []
        return self.send([number], self.received[number], seconds, length, priority, adaptive)

    def send(
        self,
        numbers: Sequence[int],
        received: list[TextOutcome],
        seconds: float = 60.0,
        length: int = 4,
        priority: Priority = Priority.INTERACTIVE,
        adaptive: bool = False,
        scope: int = 0,
    ) -> Text:
        """Submit a text with a row for each number; ``received`` gets its outcome."""
        rows = [Row([number] * length, None, False) for number in numbers]
        return self.batcher.submit(rows, self.clock.now + seconds, received.append, priority, None, adaptive, scope)

    def submit_raising(self, seconds: float = 60.0) -> None:
        """Submit a row whose callback raises."""

        def refuse(outcome: TextOutcome) -> None:
            raise asyncio.InvalidStateError("the callback is broken")

        self.batcher.submit([Row([7] * 4, None, False)], self.clock.now + seconds, refuse, Priority.INTERACTIVE)

    async def start(self, rows: int) -> None:
        """Submit rows 0, 1, ... and let the loop form their batch."""
        for number in range(rows):
            self.submit(number)
        await self.turn()

    async def finish(self, outcome: BaseException | None = None) -> None:
        """End the running batch and deliver its outcomes."""
        self.runner.finish(outcome)
        await self.turn()

    async def turn(self, turns: int = 4) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def wait(self, seconds: float) -> None:
        """Advance the clock and run the timers that are due."""
        self.clock.now += seconds
        await self.turn()


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    return Bench(clock)


async def test_rows_that_arrive_in_one_turn_of_the_loop_run_together(bench: Bench) -> None:
    await bench.start(5)

    assert [len(rows) for rows, _ in bench.runner.started] == [5]


async def test_a_batch_is_at_a_lower_priority_only_while_the_loop_is_busy(bench: Bench) -> None:
    low = []
    for share in (0.0, LOW_PRIORITY_FROM, 0.9, 0.1):
        bench.busy_share = share
        await bench.start(1)
        low.append(bench.runner.low_priority)
        await bench.finish()

    assert low == [False, False, True, False]


async def test_a_batch_for_the_cpu_is_not_held(clock: VirtualClock) -> None:
    bench = Bench(clock, run_s=1e-4)
    bench.busy_share = HOLD_ALL

    await bench.start(1)

    assert [len(rows) for rows, _ in bench.runner.started] == [1]


async def test_a_busy_loop_collects_the_rows_of_several_turns_for_a_fast_device(clock: VirtualClock) -> None:
    bench = Bench(clock, run_s=1e-4, holds=True)
    bench.busy_share = HOLD_ALL
    for number in range(3):
        bench.submit(number)
        await bench.wait(HOLD_S / 4)
    assert bench.runner.started == []

    await bench.wait(HOLD_S / 4)

    assert [len(rows) for rows, _ in bench.runner.started] == [3]


async def test_rows_that_came_during_a_run_are_held_as_well(clock: VirtualClock) -> None:
    bench = Bench(clock, run_s=1e-4, holds=True)
    await bench.start(1)
    bench.busy_share = HOLD_ALL
    bench.submit(1)
    await bench.finish()
    bench.submit(2)
    await bench.turn()
    assert bench.runner.started == []

    await bench.wait(HOLD_S)

    assert [len(rows) for rows, _ in bench.runner.started] == [2]


@pytest.mark.parametrize(
    ("busy_share", "run_s", "seconds"),
    [
        pytest.param(HOLD_FROM, 1e-4, 60.0, id="a loop with time to spare"),
        pytest.param(HOLD_ALL, 10 * HOLD_S, 60.0, id="a row that keeps the device busy for longer"),
        pytest.param(HOLD_ALL, 1e-4, 0.9 * HURRY * HOLD_S, id="a near deadline"),
    ],
)
async def test_a_row_is_not_held_without_benefit(clock: VirtualClock, busy_share: float, run_s: float, seconds: float) -> None:
    bench = Bench(clock, run_s=run_s, holds=True)
    bench.busy_share = busy_share

    bench.submit(0, seconds)
    await bench.turn()

    assert [len(rows) for rows, _ in bench.runner.started] == [1]


async def test_a_row_in_a_hurry_ends_the_hold_of_others(clock: VirtualClock) -> None:
    bench = Bench(clock, run_s=1e-4, holds=True)
    bench.busy_share = HOLD_ALL
    bench.submit(0)
    await bench.turn()
    bench.submit(1, HOLD_S)
    await bench.turn()

    assert [len(rows) for rows, _ in bench.runner.started] == [2]
    await bench.finish()
    await bench.wait(2 * HOLD_S)
    assert bench.runner.started == []


async def test_a_result_says_how_long_the_row_waited_for_a_runner(bench: Bench) -> None:
    await bench.start(1)
    bench.submit(1)
    await bench.wait(0.25)
    for _ in range(2):
        await bench.finish()

    (first,), (second,) = bench.received[0], bench.received[1]
    assert isinstance(first, RowsResult)
    assert isinstance(second, RowsResult)
    assert (first.queue_s, second.queue_s) == (0.0, pytest.approx(0.25))


async def test_a_busy_event_loop_does_not_make_the_model_look_slow(bench: Bench) -> None:
    for number in range(20):
        bench.submit(number)
        await bench.turn()
        _, report = bench.runner.started.pop(0)
        bench.clock.now += 5.0
        report(Ran([[1.0]], 0.002, 0.008))
        await bench.turn()

    assert bench.scheduler.cost.speed == pytest.approx(1.0)


async def test_the_next_batch_starts_before_the_last_outcomes_are_delivered(bench: Bench) -> None:
    running_at_outcome: list[int] = []
    row = Row([7] * 4, None, False)
    bench.batcher.submit([row], bench.clock.now + 60, lambda _: running_at_outcome.append(len(bench.runner.started)), Priority.INTERACTIVE)
    await bench.turn()
    bench.submit(1)

    await bench.finish()

    assert running_at_outcome == [1]


async def test_an_answer_of_the_wrong_size_is_a_failure(bench: Bench) -> None:
    await bench.start(1)
    _, report = bench.runner.started.pop(0)
    report(Ran([[1.0], [2.0]], 0.0, 0.0))
    await bench.turn()

    assert isinstance(bench.received[0][0], ModelFailed)


async def test_a_batch_out_of_memory_lowers_the_limits_and_all_its_rows_are_answered(bench: Bench) -> None:
    await bench.start(8)

    await bench.finish(OutOfMemory("no room for 8 rows"))
    sizes = []
    while bench.runner.started:
        sizes.append(len(bench.runner.started[0][0]))
        await bench.finish()

    assert sizes == [4, 4]
    assert bench.scheduler.limits.rows_at(4) == 4
    assert all(isinstance(outcomes[0], RowsResult) for outcomes in bench.received.values())


async def test_a_hopeless_row_expires_with_both_times_in_the_message(bench: Bench) -> None:
    await bench.start(1)
    bench.submit(1, seconds=0.05)

    # 5 ms are left when the runner is free, and it needs 10.
    bench.clock.now += 0.045
    await bench.finish()

    (outcomes,) = bench.received[1]
    assert isinstance(outcomes, Expired)
    need_s = bench.scheduler.cost.run_s(1, 4)
    assert str(outcomes) == f"the deadline leaves 0.005 s and this text alone needs about {need_s:.3f} s"
    assert bench.notes.dropped == ["hopeless"]
    assert bench.runner.started == []


async def test_stalled_s_is_the_time_of_the_longest_run(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    assert bench.batcher.stalled_s() == 0.0
    bench.submit(0)
    await bench.wait(0.5)
    bench.submit(1)
    await bench.wait(0.25)

    # The first batch began in the turn after the clock had advanced.
    assert bench.batcher.stalled_s() == pytest.approx(0.25)
    for runner in bench.runners:
        while runner.started:
            runner.finish()
    await bench.turn()
    assert bench.batcher.stalled_s() == 0.0


async def test_the_backlog_counts_running_and_waiting_rows(bench: Bench) -> None:
    await bench.start(1)
    for number in range(1, 17):
        bench.submit(number)

    # 16 rows make two more batches of 10 ms each.
    assert bench.batcher.backlog_s == pytest.approx(0.03, rel=1e-3)


async def test_a_row_has_the_priority_of_its_call(bench: Bench) -> None:
    interactive, bulk = bench.submit(0), bench.submit(1, priority=Priority.BULK)

    assert [ticket.priority for text in (interactive, bulk) for ticket in text.tickets] == [Priority.INTERACTIVE, Priority.BULK]
    assert bench.scheduler.queues[Priority.BULK].rows == 1


async def test_the_time_that_each_plan_took_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step = bench.scheduler.step

    def slow_step(now: float, runners_free: int) -> object:
        bench.clock.now += 0.002
        return step(now, runners_free)

    monkeypatch.setattr(bench.scheduler, "step", slow_step)
    await bench.start(1)

    assert bench.notes.planned_s == [pytest.approx(0.002)]


async def test_a_step_that_starts_nothing_is_not_counted_as_a_plan(bench: Bench) -> None:
    await bench.start(1)
    assert len(bench.notes.planned_s) == 1

    await bench.finish()

    assert len(bench.notes.planned_s) == 1


async def test_a_callback_that_raises_does_not_affect_the_other_rows(bench: Bench) -> None:
    bench.submit_raising()
    bench.submit(1)
    await bench.turn()
    await bench.finish()

    assert isinstance(bench.received[1][0], RowsResult)
    assert bench.notes.ran == 1


async def test_a_callback_that_raises_at_expiry_does_not_stop_the_timer(bench: Bench) -> None:
    await bench.start(1)
    bench.submit_raising(seconds=0.05)
    bench.submit(1, seconds=0.05)
    bench.submit(2, seconds=0.07)

    await bench.wait(0.050001)
    assert isinstance(bench.received[1][0], Expired)
    await bench.wait(0.02)

    assert isinstance(bench.received[2][0], Expired)


# Runs that do not end


async def test_a_run_that_lasts_too_long_is_asked_to_stop_once(bench: Bench) -> None:
    await bench.start(1)

    stops = []
    for _ in range(4):
        await bench.wait(1.0)
        bench.batcher.end_stalled(2.5)
        stops.append(bench.runner.stops)

    assert stops == [0, 0, 1, 1]
    assert bench.received[0] == []
    assert not bench.batcher.broken.is_set()


async def test_a_run_that_stops_on_request_fails_and_its_runner_goes_on(bench: Bench) -> None:
    bench.submit(0)
    await bench.wait(1.0)
    await bench.wait(3.0)
    bench.batcher.end_stalled(2.5)
    await bench.finish(RuntimeError("terminated"))

    bench.submit(1)
    await bench.turn()
    await bench.finish()

    assert [type(outcomes[0]) for outcomes in bench.received.values()] == [ModelFailed, RowsResult]
    assert not bench.batcher.broken.is_set()


async def stall(bench: Bench, rows: int = 2) -> None:
    """Let a batch run until it is given up."""
    for number in range(rows):
        bench.submit(number)
    await bench.turn()
    for _ in range(2):
        await bench.wait(6.0)
        bench.batcher.end_stalled(5.0)


async def test_a_run_is_asked_to_stop_before_it_is_given_up(bench: Bench) -> None:
    await bench.start(1)
    await bench.wait(50.0)

    bench.batcher.end_stalled(5.0)

    assert bench.runner.stops == 1
    assert not bench.batcher.broken.is_set()


async def test_the_report_of_a_batch_that_was_given_up_is_ignored(bench: Bench) -> None:
    await stall(bench)

    await bench.finish()

    assert [len(outcomes) for outcomes in bench.received.values()] == [1, 1]
    assert bench.notes.ran == 0
    with pytest.raises(Unavailable):
        bench.submit(9)


async def test_a_lost_runner_gets_no_more_batches_and_the_others_go_on(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    await stall(bench)
    lost = next(runner for runner in bench.runners if runner.started)
    lost.finish()
    await bench.turn()

    for number in (10, 11):
        bench.submit(number)
        await bench.turn()

    (other,) = (runner for runner in bench.runners if runner is not lost)
    assert (len(lost.started), len(other.started)) == (0, 1)
    other.finish()
    await bench.turn()
    assert isinstance(bench.received[10][0], RowsResult)


async def test_draining_ends_although_a_run_never_does(bench: Bench) -> None:
    await stall(bench)

    draining = asyncio.create_task(bench.batcher.drained())
    await bench.turn()

    assert draining.done()


async def test_when_the_last_device_is_lost_all_rows_are_unavailable(bench: Bench) -> None:
    await bench.start(1)
    bench.submit(1)

    await bench.finish(DeviceLost("cuda:0 is lost"))

    assert [type(outcomes[0]) for outcomes in bench.received.values()] == [Unavailable, Unavailable]
    assert bench.notes.devices_lost == [("hand-0", 1)]
    assert bench.batcher.broken.is_set()
    with pytest.raises(Unavailable):
        bench.submit(9)
    await asyncio.wait_for(bench.batcher.drained(), 1)


async def test_a_lost_device_gets_no_more_batches_and_the_others_answer_the_queue(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2)
    for number in range(3):
        bench.submit(number)
        await bench.turn()
    lost, other = bench.runners

    lost.finish(DeviceLost("cuda:0 is lost"))
    await bench.turn()
    while other.started:
        other.finish()
        await bench.turn()

    assert lost.started == []
    assert sorted(type(outcomes[0]).__name__ for outcomes in bench.received.values()) == ["RowsResult", "RowsResult", "Unavailable"]
