"""The batcher with runners that the test moves by hand: who is told what, and who is left alone."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sentiment.batching.batcher import Batcher, RowOutcome, RowResult, Waiting
from sentiment.batching.cost import Cost
from sentiment.batching.scheduler import Batch, BatchLimits, Scheduler
from sentiment.errors import Expired, ModelFailed, Unavailable
from sentiment.model.runner import Ran, Report
from sentiment.model.tokenizer import Row


@dataclass
class HandRunner:
    """A runner whose batches end when the test says so."""

    name: str = "hand"
    started: list[tuple[Sequence[Row], Report]] = field(default_factory=list)

    def start(self, classifier: object, rows: Sequence[Row], report: Report) -> None:
        self.started.append((rows, report))

    def finish(self, outcome: BaseException | None = None) -> None:
        rows, report = self.started.pop(0)
        # A row's answer is its first id, so that a mix-up shows.
        report(outcome or Ran([[float(row.ids[0])] for row in rows], 0.0, 0.001))


@dataclass
class Notes:
    """What the watcher was told."""

    ran: int = 0
    wasted: int = 0
    lost: int = 0
    dropped: list[str] = field(default_factory=list)

    def batch_ran(self, batch: Batch[Waiting], runner: str, ran: Ran, wasted: int) -> None:
        self.ran += 1
        self.wasted += wasted

    def batch_failed(self, batch: Batch[Waiting], runner: str, error: BaseException, lost: int) -> None:
        self.lost += lost

    def row_dropped(self, reason: str) -> None:
        self.dropped.append(reason)


class Bench:
    """A batcher, its hand-moved runner, and what each row was told."""

    def __init__(self) -> None:
        self.runner, self.notes = HandRunner(), Notes()
        scheduler: Scheduler[Waiting] = Scheduler(BatchLimits(8, 1024, 2**26, 2), 100)
        self.batcher = Batcher(None, scheduler, [self.runner], self.notes, Cost())
        self.told: dict[int, list[RowOutcome]] = {}

    def submit(self, number: int, seconds: float = 60.0, length: int = 4):
        self.told[number] = []
        row = Row([number] * length, None, False)
        return self.batcher.submit(row, time.monotonic() + seconds, self.told[number].append)

    async def turn(self, turns: int = 4) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_rows_that_arrive_in_one_turn_of_the_loop_run_together(bench: Bench) -> None:
    for number in range(5):
        bench.submit(number)
    await bench.turn()

    assert [len(rows) for rows, _ in bench.runner.started] == [5]


async def test_each_row_is_told_its_own_answer_once(bench: Bench) -> None:
    for number in range(5):
        bench.submit(number)
    await bench.turn()
    bench.runner.finish()
    await bench.turn()

    for number, told in bench.told.items():
        assert [outcome.logits for outcome in told if isinstance(outcome, RowResult)] == [[float(number)]]
        assert isinstance(told[0], RowResult)
        assert told[0].batch_rows == 5


async def test_cancelling_a_running_row_leaves_its_mates_alone_and_tells_it_nothing(bench: Bench) -> None:
    tickets = [bench.submit(number) for number in range(3)]
    await bench.turn()

    assert bench.batcher.cancel(tickets[1])
    bench.runner.finish()
    await bench.turn()

    assert [len(bench.told[number]) for number in range(3)] == [1, 0, 1]
    assert bench.notes.wasted == 1


async def test_a_cancelled_waiting_row_is_never_run(bench: Bench) -> None:
    bench.submit(0)
    await bench.turn()
    waiting = bench.submit(1)

    bench.batcher.cancel(waiting)
    bench.runner.finish()
    await bench.turn()

    assert bench.runner.started == []
    assert bench.notes.dropped == ["cancelled"]


async def test_a_poisoned_batch_is_halved_until_only_the_culprit_fails(bench: Bench) -> None:
    for number in range(8):
        bench.submit(number)
    await bench.turn()

    while bench.runner.started:
        poisoned = any(row.ids[0] == 5 for row in bench.runner.started[0][0])
        bench.runner.finish(RuntimeError("poison") if poisoned else None)
        await bench.turn()

    assert [type(bench.told[number][0]) for number in range(8)] == [ModelFailed if number == 5 else RowResult for number in range(8)]
    assert all(len(told) == 1 for told in bench.told.values())
    assert bench.notes.lost == 1


async def test_an_answer_of_the_wrong_size_is_a_failure_and_not_a_mix_up(bench: Bench) -> None:
    bench.submit(0)
    await bench.turn()
    _, report = bench.runner.started.pop(0)
    report(Ran([[1.0], [2.0]], 0.0, 0.0))
    await bench.turn()

    assert isinstance(bench.told[0][0], ModelFailed)


async def test_a_row_whose_deadline_comes_while_it_runs_is_told_at_its_deadline(bench: Bench) -> None:
    bench.submit(0, seconds=0.02)
    bench.submit(1, seconds=60)
    await bench.turn()

    while not bench.told[0]:
        await asyncio.sleep(0.005)

    assert isinstance(bench.told[0][0], Expired)
    bench.runner.finish()
    await bench.turn()
    assert len(bench.told[0]) == 1
    assert isinstance(bench.told[1][0], RowResult)
    assert bench.notes.dropped == []


async def test_a_waiting_row_expires_without_any_other_event(bench: Bench) -> None:
    bench.submit(0)
    await bench.turn()
    bench.submit(1, seconds=0.02, length=100)

    while not bench.told[1]:
        await asyncio.sleep(0.005)

    assert isinstance(bench.told[1][0], Expired)
    assert bench.notes.dropped == ["expired"]


async def test_draining_ends_when_the_last_row_has_its_fate(bench: Bench) -> None:
    bench.submit(0)
    await bench.turn()
    draining = asyncio.create_task(bench.batcher.drained())
    await bench.turn()
    assert not draining.done()

    bench.runner.finish()
    await bench.turn()

    assert draining.done()
    bench.batcher.close()
    with pytest.raises(Unavailable):
        bench.submit(1)


async def test_it_knows_when_work_is_there_and_nothing_moves(bench: Bench) -> None:
    assert bench.batcher.stalled_s() == 0.0
    bench.submit(0)
    await bench.turn()

    while bench.batcher.stalled_s() < 0.001:
        pass
    bench.runner.finish()
    await bench.turn()
    assert bench.batcher.stalled_s() == 0.0


async def test_the_backlog_is_predicted_from_what_batches_cost(bench: Bench) -> None:
    bench.submit(0, length=10)
    await bench.turn()
    bench.runner.finish()
    await bench.turn()
    for number in range(20):
        bench.submit(number, length=10)
    # 1 ms for 10 tokens was seen.
    assert bench.batcher.backlog_s == pytest.approx(0.02)


async def test_a_mate_that_cannot_be_told_does_not_keep_the_others_from_being_told(bench: Bench) -> None:
    def refuse(outcome: RowOutcome) -> None:
        raise asyncio.InvalidStateError("nobody there")

    bench.batcher.submit(Row([7] * 4, None, False), time.monotonic() + 60, refuse)
    bench.submit(1)
    await bench.turn()
    bench.runner.finish()
    await bench.turn()

    assert isinstance(bench.told[1][0], RowResult)
    assert bench.notes.ran == 1


async def test_a_mate_that_cannot_be_told_of_its_expiry_does_not_stop_the_clock(bench: Bench) -> None:
    def refuse(outcome: RowOutcome) -> None:
        raise asyncio.InvalidStateError("nobody there")

    bench.submit(0)
    await bench.turn()
    bench.batcher.submit(Row([7] * 4, None, False), time.monotonic() + 0.01, refuse)
    bench.submit(1, seconds=0.01)
    bench.submit(2, seconds=0.03)

    while not (bench.told[1] and bench.told[2]):
        await asyncio.sleep(0.005)

    assert isinstance(bench.told[2][0], Expired)
