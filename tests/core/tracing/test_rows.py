"""Spans of rows, on a virtual clock: each row of a sampled request has one queue and one run span at most, however it ends."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from sentiment.batching.batcher import Batcher
from sentiment.batching.row_queue import TextOutcome
from sentiment.batching.telemetry import BatchTelemetry
from sentiment.batching.text import Text
from sentiment.batching.ticket import Priority, State
from sentiment.errors import DeviceLost, Expired, ModelFailed
from sentiment.model.tokenizer import Row
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import CANCELLED, ROWS_MAX, Begin, Place, Span, Trace, Tracer
from sentiment.pipeline.queries import Query
from tests.core.batching.test_ahead import LOOK_S, run_and_fill
from tests.core.batching.test_batcher import Bench
from tests.core.pipeline.test_pipeline import Piped, piped  # noqa: F401  # a fixture
from tests.core.tracing.kept import Kept
from tests.virtual_time import VirtualClock

REQUEST = Place(1, 2)
PATIENCE_S = 60


class TracedBench(Bench):
    """A batcher whose batches and rows of one request are recorded in ``kept``."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.kept = Kept()
        self.trace = Trace(self.kept, Begin(REQUEST, 0, None))
        metrics = Metrics(()).model("tiny/1", ["hand-0"], ())
        self.batcher = Batcher(None, self.scheduler, self.runners, BatchTelemetry(metrics, Tracer(self.kept), clock), clock=clock)
        self.outcomes: list[TextOutcome] = []

    def traced(self, seconds: float = 60.0) -> Text:
        row = Row([7] * 4, None, False)
        return self.batcher.submit([row], self.clock.now + seconds, self.outcomes.append, Priority.INTERACTIVE, self.trace)

    async def finish(self, outcome: BaseException | None = None) -> None:
        self.runner.finish(outcome)
        await self.turn()


@pytest.fixture
async def bench(clock: VirtualClock) -> TracedBench:
    return TracedBench(clock)


def linked(run: Span, batch: Span) -> bool:
    """Whether a row's run and its batch link to each other."""
    return (run.name, batch.name, list(run.links), list(batch.links)) == ("run", "batch", [batch.place], [REQUEST])


async def test_a_row_cancelled_while_it_waits_has_only_a_queue_span(bench: TracedBench) -> None:
    bench.submit(1)
    await bench.turn()
    text = bench.traced()
    await bench.wait(2.0)

    assert text.cancel()
    assert not text.cancel()
    await bench.finish()

    (queue,) = bench.kept.spans
    assert (queue.name, queue.error, queue.attributes) == ("queue", "", {"sentiment.tokens": 4, "sentiment.cancelled": True})
    assert queue.ended_ns - queue.begun_ns == pytest.approx(2e9, abs=10)


async def test_a_row_cancelled_while_it_runs_has_one_run_span_linked_by_its_batch(bench: TracedBench) -> None:
    text = bench.traced()
    await bench.turn()

    text.cancel()
    await bench.finish()

    assert bench.kept.named == [("queue", ""), ("run", ""), ("batch", "")]
    queue, run, batch = bench.kept.spans
    assert (CANCELLED in queue.attributes, CANCELLED in run.attributes) == (False, True)
    assert linked(run, batch)


async def test_a_row_withdrawn_because_another_failed_has_no_span(bench: TracedBench) -> None:
    rows = [Row([7] * 4, None, False)] * 2
    bench.batcher.submit(rows, bench.clock.now + 60, bench.outcomes.append, Priority.BULK, bench.trace)
    await bench.turn()

    # The batch of both is halved, and the first fails alone.
    for _ in range(2):
        await bench.finish(RuntimeError("kernel failed"))

    assert [type(outcome) for outcome in bench.outcomes] == [ModelFailed]
    assert [named for named in bench.kept.named if named[0] != "batch"] == [("queue", ""), ("run", "ModelFailed")]


async def test_a_row_of_a_batch_that_has_not_begun_is_not_traced_as_run(bench: TracedBench) -> None:
    bench.runner.ahead = True
    await run_and_fill(bench, waiting=20)
    text = bench.traced(50.0)
    await bench.wait(LOOK_S)
    decided = text.tickets[0].state

    text.cancel()

    assert decided is State.RUNNING
    assert bench.kept.named == [("queue", "")]


async def test_a_row_that_expires_before_it_runs_has_only_a_queue_span(bench: TracedBench) -> None:
    bench.submit(1)
    await bench.turn()
    bench.traced(seconds=1.0)

    await bench.wait(1.001)
    await bench.finish()

    assert [type(outcome) for outcome in bench.outcomes] == [Expired]
    assert bench.kept.named == [("queue", "Expired")]


async def test_a_row_that_expires_while_it_runs_has_one_run_span(bench: TracedBench) -> None:
    bench.traced(seconds=1.0)
    await bench.turn()

    await bench.wait(1.001)
    await bench.finish()

    # The batch completed.
    assert bench.kept.named == [("queue", ""), ("run", "Expired"), ("batch", "")]
    assert linked(*bench.kept.spans[1:])


async def test_a_batch_that_is_given_up_has_a_span(bench: TracedBench) -> None:
    bench.traced()
    await bench.turn()

    for _ in range(2):
        await bench.wait(6.0)
        bench.batcher.end_stalled(5.0)

    assert bench.kept.named == [("queue", ""), ("run", "ModelFailed"), ("batch", "Stalled")]
    _, run, batch = bench.kept.spans
    assert linked(run, batch)
    assert batch.ended_ns - batch.begun_ns == pytest.approx(12e9, abs=10)


async def test_the_batch_of_a_lost_device_has_a_span(bench: TracedBench) -> None:
    bench.traced()
    await bench.turn()
    await bench.wait(3.0)

    await bench.finish(DeviceLost("cuda:0 is lost"))

    assert bench.kept.named == [("queue", ""), ("run", "Unavailable"), ("batch", "DeviceLost")]
    _, run, batch = bench.kept.spans
    assert linked(run, batch)
    assert batch.ended_ns - batch.begun_ns == pytest.approx(3e9, abs=10)


async def test_each_retry_has_a_batch_span_and_the_row_one_run_span(bench: TracedBench) -> None:
    for _ in range(2):
        bench.traced()
    await bench.turn()

    await bench.finish(RuntimeError("kernel failed"))
    for _ in range(2):
        await bench.finish()

    assert bench.kept.named == [("batch", "RuntimeError"), *[("queue", ""), ("run", ""), ("batch", "")] * 2]
    assert all(linked(*bench.kept.spans[last - 1 : last + 1]) for last in (3, 6))
    assert len({batch.place for batch in bench.kept.spans if batch.name == "batch"}) == 3


async def test_a_row_that_fails_is_linked_to_the_last_batch_that_took_it(bench: TracedBench) -> None:
    for _ in range(2):
        bench.traced()
    await bench.turn()

    for _ in range(3):
        await bench.finish(RuntimeError("kernel failed"))

    spans = bench.kept.spans
    assert bench.kept.named == [("batch", "RuntimeError"), *[("batch", "RuntimeError"), ("queue", ""), ("run", "ModelFailed")] * 2]
    assert linked(spans[3], spans[1])
    assert linked(spans[6], spans[4])


async def test_a_row_that_leaves_between_two_tries_is_linked_to_the_first(bench: TracedBench) -> None:
    texts = [bench.traced() for _ in range(2)]
    await bench.turn()
    await bench.finish(RuntimeError("kernel failed"))

    # One half is tried again; the other waits.
    for text in texts:
        text.cancel()
    await bench.finish()

    spans = bench.kept.spans
    assert bench.kept.named == [("batch", "RuntimeError"), *[("queue", ""), ("run", "")] * 2, ("batch", "")]
    assert {run.links[0] for run in (spans[2], spans[4])} == {spans[0].place, spans[5].place}


async def test_the_rows_of_a_request_with_spans_are_limited(bench: TracedBench) -> None:
    for rows in (20, 20):
        reading = [Row([7] * 4, None, False)] * rows
        bench.batcher.submit(reading, bench.clock.now + 60, lambda _: None, Priority.INTERACTIVE, bench.trace)
    await bench.turn()

    while bench.runner.started:
        await bench.finish()

    names = [name for name, _ in bench.kept.named]
    assert (names.count("queue"), names.count("run")) == (ROWS_MAX, ROWS_MAX)


@pytest.fixture
def held(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:  # noqa: F811
    """Tokenizing blocks until the end of the test. The event is set once it does."""
    tokenizer, entered, let_go = piped.served.classifier.tokenizer, threading.Event(), threading.Event()
    encode_many = tokenizer.encode_many

    def hold(texts: Sequence[str]) -> list[Row]:
        entered.set()
        let_go.wait(PATIENCE_S)
        return encode_many(texts)

    monkeypatch.setattr(tokenizer, "encode_many", hold)
    yield entered
    let_go.set()


async def test_a_text_cancelled_while_it_is_tokenized_has_a_tokenize_span(piped: Piped, held: threading.Event) -> None:  # noqa: F811
    kept, now = Kept(), piped.clock.now
    query = Query("good film " * 1000, trace=Trace(kept, Begin(REQUEST, 0, None)))
    caller = asyncio.create_task(piped.served.classify(query, now, now + PATIENCE_S))
    assert await asyncio.to_thread(held.wait, PATIENCE_S)

    caller.cancel()
    await asyncio.wait({caller})

    assert [(span.name, span.error, span.attributes) for span in kept.spans] == [("tokenize", "", {CANCELLED: True})]


async def test_texts_that_expire_while_they_are_tokenized_have_a_tokenize_span(piped: Piped, held: threading.Event) -> None:  # noqa: F811
    kept, now = Kept(), piped.clock.now
    query = Query("good film " * 1000, trace=Trace(kept, Begin(REQUEST, 0, None)))
    caller = asyncio.create_task(piped.served.classify_many([query], now, now + 1.0))
    assert await asyncio.to_thread(held.wait, PATIENCE_S)

    piped.clock.now += 1.0
    (outcome,) = await caller

    assert isinstance(outcome, Expired)
    assert [(span.name, span.error, span.attributes) for span in kept.spans] == [("tokenize", "Expired", {"sentiment.texts": 1})]
