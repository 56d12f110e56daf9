"""One text through the pipeline, with a caller that is cancelled at the worst moment."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sentiment.batching.batcher import Batcher
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.telemetry import BatchTelemetry
from sentiment.batching.text import Text, Waiting
from sentiment.errors import Refused, Unavailable
from sentiment.model.classifier import load_classifier
from sentiment.model.parts import Reading
from sentiment.model.runner import Ran
from sentiment.model.tokenizer import INLINE_CHARACTERS_MAX
from sentiment.observability.metrics import Metrics
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from sentiment.pipeline.served import DEADLINE_SLACK_S, Served
from tests.core.batching.test_batcher import HandRunner
from tests.core.batching.test_cost import fixed
from tests.tiny import LABELS
from tests.virtual_time import VirtualClock, VirtualTimeLoop


class Piped(NamedTuple):
    """A pipeline whose batches end by hand, on a clock that only the test advances."""

    served: Served
    batcher: Batcher
    runner: HandRunner
    metrics: Metrics
    clock: VirtualClock

    def classify(self, text: str, seconds: float = 60) -> asyncio.Task[Answer]:
        """A caller whose deadline is ``seconds`` from now."""
        return asyncio.create_task(self.served.classify(Query(text), self.clock.now, self.clock.now + seconds))

    async def running(self) -> None:
        """Wait until a batch runs."""
        while not self.runner.started:
            await asyncio.sleep(0)

    def outcomes(self) -> dict[str, float]:
        """The outcomes of texts that were counted."""
        sample, names = self.metrics.registry.get_sample_value, ("met", "expired", "refused", "cancelled", "failed")
        found = {name: sample("sentiment_deadline_outcome_total", {"outcome": name, "model": "tiny/1"}) for name in names}
        return {name: value for name, value in found.items() if value}


class Asked:
    """The request of a caller."""

    request_id, scope, payer = "", 0, 7


def pipe(bundles: Path, clock: VirtualClock, run_s: float = 1e-3) -> Piped:
    classifier, runner, metrics = load_classifier(bundles / "tiny" / "1"), HandRunner(), Metrics(("OK",))
    counted = metrics.model("tiny/1", ["hand"], LABELS)
    scheduler: Scheduler[Waiting] = Scheduler(fixed(run_s, 1e-9), BatchLimits(8, 1024, 2**26, 2), 1, 100, 32)
    batcher = Batcher(classifier, scheduler, [runner], BatchTelemetry(counted), clock=clock)
    return Piped(Served(classifier, batcher, counted, TextLimits(2**20, 64, 16), 256, clock=clock), batcher, runner, metrics, clock)


@pytest.fixture
async def piped(bundles: Path, clock: VirtualClock) -> Piped:
    return pipe(bundles, clock)


async def test_a_caller_cancelled_in_the_turn_its_batch_ends_leaves_its_mates_alone(piped: Piped) -> None:
    callers = [piped.classify("good film") for _ in range(3)]
    await piped.running()
    rows, report = piped.runner.started.pop()
    assert len(rows) == 3

    # The report is queued before the cancelled caller gets its turn to withdraw.
    report(Ran([[-1.0, 1.0]] * 3, 0.0, 0.001))
    callers[0].cancel()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)

    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [type(outcome) for outcome in outcomes[1:]] == [Answer, Answer]


async def test_a_caller_whose_deadline_cancels_it_is_counted_as_expired(piped: Piped) -> None:
    caller = piped.classify("good film", 0.5)
    await piped.running()

    piped.clock.now += 0.5 - DEADLINE_SLACK_S / 2
    caller.cancel()
    await asyncio.wait({caller})

    assert piped.outcomes() == {"expired": 1}


async def test_an_answer_is_counted_when_it_was_sent_and_not_if_its_caller_left_before(piped: Piped) -> None:
    callers = [piped.classify("good film") for _ in range(2)]
    await piped.running()
    _, report = piped.runner.started.pop()

    report(Ran([[-1.0, 1.0]] * 2, 0.0, 0.001))
    # In this turn the batch ends; the callers get their answers in the next.
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait(callers)
    untold = piped.outcomes()
    piped.served.count_told(1, "met")

    assert (untold, piped.outcomes()) == ({"cancelled": 1}, {"cancelled": 1, "met": 1})


async def test_a_text_is_dropped_once_it_is_tokenized_unless_somebody_needs_it(piped: Piped) -> None:
    one, now = piped.served, piped.clock.now
    dropped, kept = Query("good film"), Query("good film")
    outcomes: list[Outcome] = []

    await one.begin(dropped, now, now + 60, outcomes.append)
    one.samples = [lambda *_: None]
    await one.begin(kept, now, now + 60, outcomes.append)

    assert (dropped.text, kept.text) == ("", "good film")


async def test_an_error_that_is_kept_as_an_outcome_holds_no_text(piped: Piped) -> None:
    piped.batcher.close()

    (outcome,) = await piped.served.classify_many([Query("good film")], piped.clock.now, piped.clock.now + 60)

    assert isinstance(outcome, Unavailable)
    assert (outcome.__traceback__, outcome.__cause__, outcome.__context__) == (None, None, None)
    assert piped.outcomes() == {"refused": 1}


def test_a_batch_pauses_at_refusals_and_after_half_of_its_time_the_rest_is_refused_unread(bundles: Path, clock: VirtualClock) -> None:
    refused_at, begun, source = list[float](), clock.now, Asked()

    async def classify() -> tuple[list[Outcome], Piped]:
        piped = pipe(bundles, clock, run_s=0.01)
        # Another caller asks for little, and this one for more than its share.
        piped.batcher.scheduler._shares.ask(source.payer + 1, 1e-6, 1.0, begun)
        submit = piped.batcher.submit

        def submitted(*args: Any) -> Text:
            try:
                return submit(*args)
            except Refused:
                refused_at.append(round(clock.now - begun, 6))
                raise

        piped.batcher.submit = submitted  # type: ignore[method-assign]
        return await piped.served.classify_many([Query("good film", source=source) for _ in range(300)], begun, begun + 0.3), piped

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        outcomes, piped = runner.run(classify())

    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    # The text whose refusal is one too many waits for the next pause to end.
    admitted = len(outcomes) - len(refusals)
    # From then on some texts are within its share, and refused without a pause.
    assert [refused_at.count(at) for at in (0.0, 0.05)] == [17, 16]
    assert max(refused_at) < 0.15
    assert piped.outcomes() == {"expired": admitted, "refused": len(refusals)}
    assert 0 < sum(str(refusal).startswith("not read: ") for refusal in refusals) == len(refusals) - len(refused_at)


class HeldReader:
    """Holds the thread that reads long texts. ``texts``: how many it has begun to read, call by call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.gate, self.texts = threading.Event(), threading.Event(), list[int]()
        read = QueryReader.read

        def held(reader: QueryReader, queries: Sequence[Query]) -> list[Reading]:
            self.texts.append(len(queries))
            self.begun.set()
            assert self.gate.wait(60)
            return read(reader, queries)

        monkeypatch.setattr(QueryReader, "read", held)


LONG = "film " * INLINE_CHARACTERS_MAX


@pytest.mark.parametrize("texts", [[LONG], ["good"] * 80 + [LONG] * 2 + ["good"]])
async def test_a_caller_that_leaves_while_its_text_is_read_is_counted_for_each_text(
    piped: Piped, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, now = HeldReader(monkeypatch), piped.clock.now
    queries = [Query(text) for text in texts]
    classify = piped.served.classify(queries[0], now, now + 60) if len(texts) == 1 else piped.served.classify_many(queries, now, now + 60)
    caller = asyncio.create_task(classify)  # type: ignore[arg-type]  # either kind of answer
    assert await asyncio.to_thread(reader.begun.wait, 60)

    caller.cancel()
    await asyncio.wait({caller})

    assert piped.outcomes() == {"cancelled": len(texts)}
    reader.gate.set()


async def test_a_text_whose_caller_leaves_before_a_thread_reads_it_is_not_read(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, scheduler = HeldReader(monkeypatch), piped.batcher.scheduler
    callers = [piped.classify(LONG) for _ in range(3)]
    assert await asyncio.to_thread(reader.begun.wait, 60)

    callers[1].cancel()
    await asyncio.wait({callers[1]})
    reader.gate.set()
    while scheduler.rows_waiting + scheduler.rows_running != 2:
        await asyncio.sleep(0)

    assert reader.texts == [1, 1]
