"""One text through the pipeline, with a caller that is cancelled at the worst moment."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentiment.batching.batcher import Batcher, Waiting
from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import HereQueue
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.telemetry import BatchTelemetry
from sentiment.errors import Unavailable
from sentiment.model.classifier import load_classifier
from sentiment.model.parts import Reading
from sentiment.model.runner import Ran
from sentiment.observability.metrics import Metrics
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.queries import Query, TextLimits
from sentiment.pipeline.served import DEADLINE_SLACK_S, INLINE_CHARACTERS_MAX, Served
from tests.core.batching.test_batcher import HandRunner
from tests.core.batching.test_cost import fixed
from tests.tiny import LABELS


@pytest.fixture
async def served(bundles: Path) -> tuple[Served, HandRunner]:
    classifier, runner = load_classifier(bundles / "tiny" / "1"), HandRunner()
    metrics = Metrics(("Classify",), ("OK",)).model("tiny/1", ["hand"], LABELS)
    scheduler: Scheduler[Waiting] = Scheduler(fixed(1e-3, 1e-9), BatchLimits(8, 1024, 2**26, 2), 1, 100, 32)
    queue = HereQueue(Batcher(classifier, scheduler, [runner], BatchTelemetry(metrics)))
    return Served(classifier, queue, metrics, TextLimits(2**20, 64, 16), 256), runner


async def test_a_caller_cancelled_in_the_turn_its_batch_ends_leaves_its_mates_alone(served: tuple[Served, HandRunner]) -> None:
    one, runner = served
    deadline_at = time.monotonic() + 60
    callers = [asyncio.create_task(one.classify(Query("good film"), time.monotonic(), deadline_at)) for _ in range(3)]
    while not runner.started:
        await asyncio.sleep(0)
    rows, report = runner.started.pop()
    assert len(rows) == 3

    # The report is queued before the cancelled caller gets its turn to withdraw.
    report(Ran([[-1.0, 1.0]] * 3, 0.0, 0.001))
    callers[0].cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), 5)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [type(outcome) for outcome in outcomes[1:]] == [Answer, Answer]


async def test_a_caller_whose_deadline_cancels_it_is_counted_as_expired(served: tuple[Served, HandRunner]) -> None:
    one, runner = served
    deadline_at = time.monotonic() + 0.5
    caller = asyncio.create_task(one.classify(Query("good film"), time.monotonic(), deadline_at))
    while not (runner.started or caller.done()):
        await asyncio.sleep(0)
    # On a busy machine the scheduler's own expiry comes first, which counts the same.
    await asyncio.sleep(deadline_at - DEADLINE_SLACK_S / 2 - time.monotonic())
    caller.cancel()
    await asyncio.wait({caller})

    assert outcomes_of(one) == {"expired": 1}


def outcomes_of(served: Served) -> dict[str, float]:
    """The outcomes of texts that were counted."""
    registry, names = served.metrics._metrics.registry, ("met", "expired", "refused", "cancelled", "failed")
    found = {name: registry.get_sample_value("sentiment_deadline_outcome_total", {"outcome": name, "model": "tiny/1"}) for name in names}
    return {name: value for name, value in found.items() if value}


async def test_an_answer_is_counted_when_its_caller_was_told_and_a_caller_that_left_before_was_not(
    served: tuple[Served, HandRunner],
) -> None:
    one, runner = served
    callers = [asyncio.create_task(one.classify(Query("good film"), time.monotonic(), time.monotonic() + 60)) for _ in range(2)]
    while not runner.started:
        await asyncio.sleep(0)
    _, report = runner.started.pop()
    report(Ran([[-1.0, 1.0]] * 2, 0.0, 0.001))
    while not all(caller._fut_waiter is not None and caller._fut_waiter.done() for caller in callers):  # type: ignore[attr-defined]  # else it could be told first
        await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait(callers)
    untold = outcomes_of(one)
    one.count_told(1, "met")

    assert (untold, outcomes_of(one)) == ({"cancelled": 1}, {"cancelled": 1, "met": 1})


async def test_a_text_is_dropped_once_it_is_tokenized_unless_somebody_needs_it(served: tuple[Served, HandRunner]) -> None:
    one, _ = served
    dropped, kept = Query("good film"), Query("good film")
    outcomes: list[Outcome] = []

    await one.begin(dropped, time.monotonic(), time.monotonic() + 60, outcomes.append)
    one.samples = [lambda *_: None]
    await one.begin(kept, time.monotonic(), time.monotonic() + 60, outcomes.append)

    assert (dropped.text, kept.text) == ("", "good film")


async def test_an_error_that_is_kept_as_an_outcome_holds_no_text(served: tuple[Served, HandRunner]) -> None:
    one, _ = served
    assert isinstance(one.queue, HereQueue)
    one.queue._batcher.close()

    (outcome,) = await one.classify_many([Query("good film")], time.monotonic(), time.monotonic() + 60)

    assert isinstance(outcome, Unavailable)
    assert (outcome.__traceback__, outcome.__cause__, outcome.__context__) == (None, None, None)


class HeldReader:
    """Holds the thread that reads long texts. ``texts``: how many it has begun to read, call by call."""

    def __init__(self, one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.gate, self.texts = threading.Event(), threading.Event(), list[int]()
        self._read = one._reader.read
        monkeypatch.setattr(one._reader, "read", self._held)

    def _held(self, queries: Sequence[Query]) -> list[Reading]:
        self.texts.append(len(queries))
        self.begun.set()
        assert self.gate.wait(60)
        return self._read(queries)


LONG = "film " * INLINE_CHARACTERS_MAX


@pytest.mark.parametrize("texts", [[LONG], ["good"] * 80 + [LONG] * 2 + ["good"]])
async def test_a_caller_that_leaves_while_its_text_is_read_is_counted_for_each_text(
    served: tuple[Served, HandRunner], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = served
    reader, now = HeldReader(one, monkeypatch), time.monotonic()
    queries = [Query(text) for text in texts]
    classify = one.classify(queries[0], now, now + 60) if len(texts) == 1 else one.classify_many(queries, now, now + 60)
    caller = asyncio.create_task(classify)  # type: ignore[arg-type]  # either kind of answer
    assert await asyncio.to_thread(reader.begun.wait, 60)

    caller.cancel()
    await asyncio.wait({caller})

    assert outcomes_of(one) == {"cancelled": len(texts)}
    reader.gate.set()


async def test_a_text_whose_caller_leaves_before_a_thread_reads_it_is_not_read(
    served: tuple[Served, HandRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = served
    reader, now = HeldReader(one, monkeypatch), time.monotonic()
    callers = [asyncio.create_task(one.classify(Query(LONG), now, now + 60)) for _ in range(3)]
    assert await asyncio.to_thread(reader.begun.wait, 60)

    callers[1].cancel()
    await asyncio.wait({callers[1]})
    reader.gate.set()
    while one.queue._batcher.scheduler.rows_waiting + one.queue._batcher.scheduler.rows_running != 2:  # type: ignore[attr-defined]  # HereQueue
        await asyncio.sleep(0)

    assert reader.texts == [1, 1]
