"""Rows that are worth something only together: let in all or none, told once, withdrawn together."""

import asyncio
import time

import pytest

from sentiment.batching.batcher import Batcher
from sentiment.batching.cost import CostTable
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Priority
from sentiment.batching.windows import Joint, JointOutcome, RowsResult
from sentiment.errors import Expired, ModelFailed, Refused, Unavailable
from sentiment.model.tokenizer import Row
from tests.batching.test_batcher import HandRunner, Notes


class Bench:
    """A batcher of batches of at most two rows, predicted to take ``batch_s`` each, with one runner that the test moves."""

    def __init__(self, queue_rows_max: int = 100, batch_s: float = 1.0) -> None:
        self.runner, self.notes = HandRunner(), Notes()
        cost = CostTable({(rows, 32): batch_s for rows in (1, 2)})
        self.scheduler = Scheduler(cost, BatchLimits(2, 1024, 2**26, 2), 1, queue_rows_max, 32)
        self.batcher = Batcher(None, self.scheduler, [self.runner], self.notes)
        self.told: list[JointOutcome] = []

    def submit(self, rows: int, seconds: float = 60.0, first: int = 0) -> Joint:
        numbered = [Row([number] * 4, None, False) for number in range(first, first + rows)]
        return Joint(self.batcher, numbered, time.monotonic() + seconds, self.told.append, Priority.INTERACTIVE)

    async def turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def finish(self, outcome: BaseException | None = None) -> None:
        self.runner.finish(outcome)
        await self.turn()

    def assert_empty(self) -> None:
        assert (self.scheduler.rows_waiting, self.scheduler.rows_running) == (0, 0)
        assert self.batcher._idle.is_set()


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_all_rows_are_told_at_once_in_their_order(bench: Bench) -> None:
    joint = bench.submit(4)
    await bench.turn()
    await bench.finish()
    assert bench.told == []

    await bench.finish()

    (outcome,) = bench.told
    assert isinstance(outcome, RowsResult)
    assert outcome.logits == [[0.0], [1.0], [2.0], [3.0]]
    assert outcome.batch_rows == 2
    assert not joint.cancel()
    bench.assert_empty()


async def test_cancelling_withdraws_all_and_tells_nothing(bench: Bench) -> None:
    joint = bench.submit(5)
    await bench.turn()

    assert joint.cancel()
    await bench.finish()

    assert not joint.cancel()
    assert bench.told == []
    assert (bench.notes.dropped, bench.notes.wasted) == (["cancelled"] * 3, 2)
    bench.assert_empty()


async def test_one_row_that_fails_fails_all_and_the_others_are_withdrawn(bench: Bench) -> None:
    bench.submit(5)
    await bench.turn()
    # The batch of two is halved; its first row then fails alone.
    await bench.finish(RuntimeError("poison"))
    await bench.finish(RuntimeError("poison"))

    assert [type(outcome) for outcome in bench.told] == [ModelFailed]
    while bench.runner.started:
        await bench.finish()
    assert len(bench.told) == 1
    bench.assert_empty()


async def test_a_deadline_is_told_once() -> None:
    bench = Bench(batch_s=1e-4)
    bench.submit(3, seconds=0.3)
    await bench.turn()
    async with asyncio.timeout(10):
        while not bench.told:
            await asyncio.sleep(0.01)

    assert [type(outcome) for outcome in bench.told] == [Expired]
    await bench.finish()
    assert len(bench.told) == 1
    bench.assert_empty()


async def test_rows_that_do_not_all_fit_into_the_queue_are_refused_and_none_is_left() -> None:
    bench = Bench(queue_rows_max=4)
    bench.submit(2)
    await bench.turn()
    bench.submit(2, first=10)

    with pytest.raises(Refused, match="the limit is 4; a text is admitted only with all its windows, this one has 3") as caught:
        bench.submit(3, first=20)

    assert caught.value.reason == "queue_full"
    # The work ahead is that of the others: at most the two that run and the two that wait.
    assert 1 <= caught.value.retry_after_s <= 2
    assert caught.value.needs_s == pytest.approx(3)
    assert bench.scheduler.rows_waiting == 2
    for _ in range(2):
        await bench.finish()
    assert [len(outcome.logits) for outcome in bench.told if isinstance(outcome, RowsResult)] == [2, 2]
    bench.assert_empty()


async def test_rows_whose_sum_has_no_time_behind_others_are_refused(bench: Bench) -> None:
    for first in (0, 10):
        bench.submit(10, first=first)
    await bench.turn()

    with pytest.raises(Refused) as caught:
        bench.submit(5, seconds=2.5, first=20)

    assert caught.value.reason == "backlog"
    assert bench.scheduler.rows_waiting == 18


async def test_rows_whose_sum_has_no_time_on_an_idle_server_are_tried_once_a_second_and_else_expired(bench: Bench) -> None:
    # A table that is wrong corrects itself only by running.
    assert bench.submit(10, seconds=4).cancel()

    with pytest.raises(Expired, match=r"the deadline leaves [34]\.\d+ s and the 10 windows of this text need up to 10\.000 s"):
        bench.submit(10, seconds=4)
    # Within a factor of two they are tried whenever nothing else is there.
    assert bench.submit(10, seconds=6).cancel()

    await bench.turn()
    assert bench.runner.started == []
    bench.assert_empty()


async def test_a_closed_batcher_takes_none(bench: Bench) -> None:
    bench.batcher.close()

    with pytest.raises(Unavailable):
        bench.submit(3)

    bench.assert_empty()
