"""Counts, logs and traces batches."""

import time
from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec

from sentiment.batching.text import RowTicket, Waiting
from sentiment.batching.ticket import Batch, State
from sentiment.model.runner import Ran
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics
from sentiment.observability.tracing.trace import Attributes, Place, Trace, Tracer, exemplar_of

P = ParamSpec("P")


def _never_raises(event: "Callable[Concatenate[BatchTelemetry, P], None]") -> "Callable[Concatenate[BatchTelemetry, P], None]":
    """The event of a batcher, whose rows wait behind it."""

    def observed(self: "BatchTelemetry", /, *arguments: P.args, **named: P.kwargs) -> None:
        self._metrics.observing.run("batch", partial(event, self, *arguments, **named))

    return observed


class BatchTelemetry:
    """Counts and logs batches; with a tracer, also traces those that hold rows of sampled requests."""

    def __init__(self, metrics: ModelMetrics, tracer: Tracer | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._clock = clock

    @_never_raises
    def batch_begins(self, batch: Batch[Waiting]) -> None:
        """Choose the span ids of a batch with sampled rows before it runs, so that rows without an answer can link to it too."""
        if self._tracer is not None and (traced := _traced(batch)):
            place = self._tracer.new_place()
            for ticket, _ in traced:
                ticket.payload.batch = place

    @_never_raises
    def batch_ran(self, batch: Batch[Waiting], runner: str, ran: Ran, wasted: int) -> None:
        """Count a batch that ran; ``wasted`` is how many of its rows had no caller left when it ended."""
        metrics = self._metrics
        traced = _traced(batch) if self._tracer is not None else []
        if self._tracer is not None and traced:
            self._trace_ran(self._tracer, batch, traced, runner, ran)
        rows, real = len(batch.tickets), batch.own_tokens
        metrics.batch_rows(rows)
        metrics.batch_tokens(ran.tokens)
        metrics.real_tokens(real)
        metrics.padded_tokens(ran.tokens - real)
        metrics.batches[batch.reason]()
        metrics.stage["pad"](ran.pad_s)
        metrics.stage["copy"](ran.copy_s)
        metrics.stage["run"](ran.run_s, exemplar_of(traced[0][1]) if traced else None)
        metrics.runner_busy(runner, ran.total_s)
        for ticket in batch.tickets:
            metrics.worked(ticket.payload.payer, ran.total_s * ticket.length / real)
        if wasted:
            metrics.wasted["abandoned"](wasted)

    @_never_raises
    def batch_failed(self, batch: Batch[Waiting], runner: str, error: BaseException, lost: int, seconds: float) -> None:
        """Log a batch that failed after ``seconds``; ``lost`` of its rows failed for good."""
        rows = self._failed(batch, runner, type(error).__name__, seconds)
        logger().error(
            "batch_failed", model=self._metrics.model, runner=runner, rows=rows, length=batch.length, lost=lost, error=repr(error)
        )

    @_never_raises
    def batch_given_up(self, batch: Batch[Waiting], runner: str, seconds: float) -> None:
        """Log a batch that has not ended after ``seconds`` and is given up."""
        rows = self._failed(batch, runner, "Stalled", seconds)
        logger().critical("batch_given_up", model=self._metrics.model, runner=runner, rows=rows, seconds=round(seconds, 1))

    @_never_raises
    def device_lost(self, batch: Batch[Waiting], runner: str, error: BaseException, seconds: float) -> None:
        """Log a device that stopped working ``seconds`` after this batch began."""
        rows = self._failed(batch, runner, type(error).__name__, seconds)
        logger().critical("device_lost", model=self._metrics.model, runner=runner, rows=rows, error=repr(error))

    @_never_raises
    def row_dropped(self, reason: str) -> None:
        """Count a row that left the queue before it ran."""
        self._metrics.dropped[reason]()

    @_never_raises
    def rows_known(self, kept: int, shared: int) -> None:
        """Count rows that were answered without a batch of their own."""
        self._metrics.known["kept"](kept)
        self._metrics.known["shared"](shared)

    @_never_raises
    def row_unanswered(self, ticket: RowTicket, error: str) -> None:
        """Trace a row that gets no answer, if its request is sampled; ``error`` is empty if it was cancelled."""
        row = ticket.payload
        if row.trace is not None:
            # A batch that was decided ahead already has a start time, but gets its place in the trace only when it begins.
            begun_at = ticket.started_at if row.batch is not None else 0.0
            row.trace.unanswered(ticket.queued_at, begun_at, self._clock(), ticket.length, error, row.batch)

    @_never_raises
    def planned(self, seconds: float) -> None:
        """Count the time that planning a batch took."""
        self._metrics.stage["plan"](seconds)

    def _trace_ran(self, tracer: Tracer, batch: Batch[Waiting], traced: list[tuple[RowTicket, Trace]], runner: str, ran: Ran) -> None:
        """Record a span of the batch, linked to its sampled requests, and a queue and a run span of each answered row."""
        now, place = self._clock(), _place(traced)
        for ticket, trace in traced:
            if ticket.state is State.ANSWERED:
                attributes: Attributes = {"sentiment.tokens": ticket.length}
                trace.stage("queue", ticket.queued_at, ticket.started_at, attributes)
                trace.stage("run", ticket.started_at, now, attributes, links=[place])
        facts: Attributes = self._facts(batch, runner) | {
            "sentiment.batch.computed_tokens": ran.tokens,
            "sentiment.batch.pad_s": ran.pad_s,
            "sentiment.batch.copy_s": ran.copy_s,
            "sentiment.batch.run_s": ran.run_s,
        }
        tracer.alone("batch", place, batch.tickets[0].started_at, now, facts, _requests(traced))

    def _failed(self, batch: Batch[Waiting], runner: str, error: str, seconds: float) -> int:
        """Record a span of a batch without an answer, and count its rows, whose number is returned.

        The rows have their spans already, or are tried again.
        """
        if self._tracer is not None and (traced := _traced(batch)):
            now, facts = self._clock(), self._facts(batch, runner)
            self._tracer.alone("batch", _place(traced), now - seconds, now, facts, _requests(traced), error)
        self._metrics.wasted["failed"](len(batch.tickets))
        return len(batch.tickets)

    def _facts(self, batch: Batch[Waiting], runner: str) -> Attributes:
        return {
            "sentiment.model": self._metrics.model,
            "sentiment.runner": runner,
            "sentiment.batch.rows": len(batch.tickets),
            "sentiment.batch.tokens": batch.own_tokens,
            "sentiment.batch.reason": batch.reason,
        }


def _traced(batch: Batch[Waiting]) -> list[tuple[RowTicket, Trace]]:
    """The batch's rows that belong to sampled requests."""
    return [(ticket, ticket.payload.trace) for ticket in batch.tickets if ticket.payload.trace is not None]


def _place(traced: list[tuple[RowTicket, Trace]]) -> Place:
    place = traced[0][0].payload.batch
    assert place is not None, "batch_begins was not called"
    return place


def _requests(traced: list[tuple[RowTicket, Trace]]) -> list[Place]:
    """The requests without duplicates: one request may have several rows (windows of a text, texts of a batch call)."""
    return list(dict.fromkeys(trace.place for _, trace in traced))
