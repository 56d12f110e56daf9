"""The rows of one text: admitted all or none, answered once, withdrawn together. A batch takes a second of a virtual clock."""

import asyncio
import math

import pytest

from sentiment.batching.batcher import Batcher
from sentiment.batching.cost import CostTable
from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.text import Text
from sentiment.batching.ticket import Priority
from sentiment.call.status import pushback_ms, status_of
from sentiment.errors import Expired, Refused
from sentiment.model.tokenizer import Row
from tests.core.batching.test_batcher import HandRunner, Notes
from tests.virtual_time import VirtualClock


class Bench:
    """A batcher of batches of at most two rows, predicted to take ``batch_s`` each, with one fake runner."""

    def __init__(self, clock: VirtualClock, queue_rows_max: int = 100, batch_s: float = 1.0) -> None:
        self.clock, self.runner, self.notes = clock, HandRunner(), Notes()
        cost = CostTable({(rows, 32): batch_s for rows in (1, 2)})
        self.scheduler = Scheduler(cost, BatchLimits(2, 1024, 2**26, 2), 1, queue_rows_max, 32)
        self.batcher = Batcher(None, self.scheduler, [self.runner], self.notes, clock=clock)
        self.outcomes: list[TextOutcome] = []

    def submit(self, rows: int, seconds: float = 60.0, first: int = 0, priority: Priority = Priority.BULK) -> Text:
        numbered = [Row([number] * 4, None, False) for number in range(first, first + rows)]
        return self.batcher.submit(numbered, self.clock.now + seconds, self.outcomes.append, priority)

    async def turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def finish(self, outcome: BaseException | None = None) -> None:
        self.runner.finish(outcome)
        await self.turn()

    def assert_empty(self) -> None:
        assert (self.scheduler.rows_waiting, self.scheduler.rows_running) == (0, 0)
        assert self.batcher.idle


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    return Bench(clock)


async def test_only_the_first_window_of_an_interactive_text_is_interactive(bench: Bench) -> None:
    bench.submit(3, priority=Priority.INTERACTIVE)

    waiting = {priority: [ticket.payload.row.ids[0] for ticket in queue.waiting()] for priority, queue in bench.scheduler.queues.items()}
    assert waiting == {Priority.INTERACTIVE: [0], Priority.BULK: [1, 2], Priority.OVER: []}
    await bench.turn()
    while bench.runner.started:
        await bench.finish()
    (outcome,) = bench.outcomes
    assert isinstance(outcome, RowsResult)
    assert outcome.logits == [[0.0], [1.0], [2.0]]


async def test_a_text_that_does_not_fit_in_the_queue_leaves_no_row_in_it(clock: VirtualClock) -> None:
    # A quarter of the queue is kept for interactive rows.
    bench = Bench(clock, queue_rows_max=5)
    bench.submit(2)
    await bench.turn()
    bench.submit(2, first=10)

    with pytest.raises(Refused, match="the limit is 4; a text is admitted only with all its rows, this one has 3") as caught:
        bench.submit(3, first=20)

    assert caught.value.reason == "queue_full"
    # The backlog is that of the others: at most the two rows that run and the two that wait.
    assert 1 <= caught.value.retry_after_s <= 2
    assert caught.value.needs_s == pytest.approx(3)
    assert bench.scheduler.rows_waiting == 2
    for _ in range(2):
        await bench.finish()
    assert [len(outcome.logits) for outcome in bench.outcomes if isinstance(outcome, RowsResult)] == [2, 2]
    bench.assert_empty()


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize(("queue_rows_max", "most", "needs"), [(5, 4, 7), (64, 48, 66), (2, 2, 4), (7, 6, 10)])
async def test_a_text_with_more_rows_than_the_queue_holds_is_refused_with_a_remedy(
    clock: VirtualClock, priority: Priority, queue_rows_max: int, most: int, needs: int
) -> None:
    bench = Bench(clock, queue_rows_max)

    with pytest.raises(Refused, match=rf"has {most + 1} rows, and at most {most} may wait.*queue_rows_max be at least {needs}$") as caught:
        bench.submit(most + 1, priority=priority)

    assert (caught.value.reason, pushback_ms(caught.value, math.inf)) == ("queue_full", -1)
    assert not status_of(caught.value).details
    for rows_max, rows in ((queue_rows_max, most), (needs, most + 1)):
        Bench(clock, rows_max).submit(rows, priority=priority)


async def test_a_text_that_is_too_slow_for_an_idle_server_is_probed_once_a_second(bench: Bench) -> None:
    # A table that is wrong corrects itself only by running.
    assert bench.submit(10, seconds=4).cancel()

    with pytest.raises(Expired, match=r"the deadline leaves [34]\.\d+ s and the 10 rows of this text need up to 10\.000 s"):
        bench.submit(10, seconds=4)
    # Too slow by less than two, they are probed whenever the server is idle.
    assert bench.submit(10, seconds=6).cancel()

    await bench.turn()
    assert bench.runner.started == []
    bench.assert_empty()
