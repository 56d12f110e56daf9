"""The batcher with texts of which a part may suffice: one outcome, whatever happens before, between and after its runs."""

import pytest

from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Priority
from sentiment.errors import DeviceLost, Expired, ModelFailed, Refused, Unavailable
from sentiment.model.tokenizer import Row
from tests.core.batching.test_batcher import Bench
from tests.core.batching.test_class_queue import proportional
from tests.virtual_time import VirtualClock

# Texts whose part suffices, and ones whose part does not.
CLEAR, UNCLEAR = 100, 1
PART, WHOLE = 2, 6


class Parting:
    """A bundle's rule: the first tokens of a text suffice if its logit is high."""

    def part_of(self, row: Row) -> Row | None:
        return Row(row.ids[:PART], None, False) if row.tokens == WHOLE else None

    def suffices(self, logits: list[float]) -> bool:
        return logits[0] >= CLEAR


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    return Bench(clock, classifier=Parting())


async def read(bench: Bench, number: int, seconds: float = 60.0) -> None:
    bench.submit(number, seconds, WHOLE, adaptive=True)
    await bench.turn()


def lengths(bench: Bench) -> list[int]:
    """The tokens of the rows that run now."""
    return [row.tokens for rows, _ in bench.runner.started for row in rows]


async def test_a_part_that_suffices_answers_its_text(bench: Bench) -> None:
    await read(bench, CLEAR)
    assert lengths(bench) == [PART]

    await bench.finish()

    assert bench.received[CLEAR] == [RowsResult([[float(CLEAR)]], 0.0, 0.001, 1, early=True)]
    assert (bench.batcher.idle, bench.notes.ran, bench.notes.wasted) == (True, 1, 0)


async def test_the_whole_is_read_after_a_part_that_does_not_suffice(bench: Bench) -> None:
    await read(bench, UNCLEAR)
    bench.clock.now += 0.001
    await bench.finish()
    assert (lengths(bench), bench.received[UNCLEAR]) == ([WHOLE], [])

    await bench.finish()

    (outcome,) = bench.received[UNCLEAR]
    assert isinstance(outcome, RowsResult)
    assert (outcome.logits, outcome.early) == ([[float(UNCLEAR)]], False)
    # The times of both runs, of which none is waiting.
    assert (outcome.queue_s, outcome.run_s) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.002))
    assert (bench.batcher.idle, bench.notes.ran, bench.notes.wasted) == (True, 2, 0)


async def test_a_text_that_is_not_asked_for_in_parts_is_read_whole(bench: Bench) -> None:
    bench.submit(CLEAR, length=WHOLE)
    await bench.turn()

    assert lengths(bench) == [WHOLE]


@pytest.mark.parametrize("between", [False, True], ids=["in its part", "in its whole"])
async def test_a_text_that_is_withdrawn_has_no_outcome(bench: Bench, between: bool) -> None:
    text = bench.submit(UNCLEAR, length=WHOLE, adaptive=True)
    await bench.turn()
    if between:
        await bench.finish()

    assert text.cancel()
    await bench.finish()

    assert (bench.received[UNCLEAR], bench.batcher.idle, bench.notes.wasted, bench.runner.started) == ([], True, 1, [])


async def test_a_deadline_between_part_and_whole_ends_the_text_once(bench: Bench) -> None:
    await read(bench, UNCLEAR, 0.1)
    bench.clock.now += 0.095

    await bench.finish()

    # What is left does not suffice for the whole.
    assert outcomes(bench) == [Expired]
    assert bench.batcher.idle
    assert bench.runner.started == []


async def test_a_drain_waits_for_the_whole(bench: Bench) -> None:
    await read(bench, UNCLEAR)
    bench.batcher.close()

    await bench.finish()
    assert not bench.batcher.idle
    await bench.finish()

    assert outcomes(bench) == [RowsResult]
    await bench.batcher.drained()


@pytest.mark.parametrize("whole", [False, True], ids=["its part", "its whole"])
@pytest.mark.parametrize(("error", "outcome"), [(RuntimeError("poison"), ModelFailed), (DeviceLost("gone"), Unavailable)])
async def test_what_fails_fails_its_text_once(bench: Bench, whole: bool, error: BaseException, outcome: type[TextOutcome]) -> None:
    await read(bench, UNCLEAR)
    if whole:
        await bench.finish()

    await bench.finish(error)

    assert outcomes(bench) == [outcome]
    assert bench.batcher.idle


async def test_the_time_of_the_whole_is_reserved_until_it_is_known(bench: Bench) -> None:
    await read(bench, CLEAR)
    # A batch takes 10 ms.
    assert bench.batcher.backlog_s == pytest.approx(0.02, rel=0.01)

    await bench.finish()

    assert bench.batcher.backlog_s == 0.0


def test_what_is_reserved_for_bulk_texts_refuses_no_interactive_one() -> None:
    # 0.1 ms a token.
    scheduler: Scheduler[str] = Scheduler(proportional(1e-4), BatchLimits(3, 1024, 2**30, 2), 1, 100, 512)
    for _ in range(3):
        scheduler.add(96, 0.0, 60.0, "bulk", Priority.BULK, then=400)
    (batch,) = scheduler.step(0.0, 1).batches

    # It runs right after the parts, before the wholes.
    scheduler.add(32, 0.0, 0.05, "interactive")
    scheduler.finish(batch, 0.0288, 0.0288, batch.tickets)

    assert [ticket.payload for ticket in scheduler.step(0.0288, 1).batches[0].tickets] == ["interactive"]


def test_the_whole_of_a_part_that_runs_is_due_by_its_own_deadline() -> None:
    # 0.1 ms a token: the part takes 5 ms, the whole 40 ms.
    scheduler: Scheduler[str] = Scheduler(proportional(1e-4), BatchLimits(3, 1024, 2**30, 2), 1, 100, 512)
    scheduler.add(50, 0.0, 0.05, "read in parts", then=400)
    (batch,) = scheduler.step(0.0, 1).batches

    # There are 5 ms to spare.
    with pytest.raises(Refused, match="would make 1 queued deadlines late"):
        scheduler.add(100, 0.0, 0.045, "too long")
    scheduler.add(10, 0.0, 0.03, "urgent")
    scheduler.finish(batch, 0.005, 0.005, batch.tickets)
    order = []
    for now in (0.005, 0.006):
        (batch,) = scheduler.step(now, 1).batches
        order += [ticket.payload for ticket in batch.tickets]
        scheduler.finish(batch, now + 0.001, 0.001)

    assert order == ["urgent", "read in parts"]


def outcomes(bench: Bench) -> list[type[TextOutcome]]:
    return [type(outcome) for outcome in bench.received[UNCLEAR]]
