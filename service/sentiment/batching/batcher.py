"""The batcher: the scheduler's driver. Owns the clock, one timer and the runners; decides nothing.

Lives on one event loop; only ``_report`` is called from other threads.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sentiment.batching.cost import Cost
from sentiment.batching.scheduler import Batch, Scheduler, State, Ticket
from sentiment.errors import Expired, ModelFailed, RequestError
from sentiment.logs import logger
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Outcome, Ran, Report
from sentiment.model.tokenizer import Row


class Runs(Protocol):
    """What the batcher needs of a runner."""

    name: str

    def start(self, classifier: Classifier, rows: Sequence[Row], report: Report) -> None:
        """Run rows as one batch and report the outcome, from any thread."""


class Watches(Protocol):
    """Who is told what happens, for metrics and logs."""

    def batch_ran(self, batch: Batch["Waiting"], runner: str, ran: Ran, wasted: int) -> None:
        """A batch ran; ``wasted`` of its rows were expected by nobody when it ended."""

    def batch_failed(self, batch: Batch["Waiting"], runner: str, error: BaseException, lost: int) -> None:
        """A batch failed; ``lost`` rows failed with it, the others are tried again."""

    def row_dropped(self, reason: str) -> None:
        """A row left the queue unrun: expired or cancelled."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row's raw logits and how it was run."""

    logits: list[float]
    queue_s: float
    run_s: float
    batch_rows: int


RowOutcome = RowResult | RequestError
RowTicket = Ticket["Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row, and whom to tell how it ended; told once, unless its ticket is cancelled."""

    row: Row
    tell: Callable[[RowOutcome], None]


class Batcher:
    """Runs rows of one classifier on its runners."""

    def __init__(
        self, classifier: Classifier, scheduler: Scheduler[Waiting], runners: Sequence[Runs], watcher: Watches, cost: Cost
    ) -> None:
        """Take over ``runners``; must be called in the event loop that will use the batcher."""
        self.classifier = classifier
        self.scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._free = list(runners)
        self._runners = len(runners)
        self._watcher = watcher
        self._cost = cost
        self._timer: asyncio.TimerHandle | None = None
        self._pump_soon = False
        self._idle = asyncio.Event()
        self._idle.set()
        # When each busy runner was given its batch.
        self._started_at: dict[str, float] = {}

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until a row that comes now would start."""
        return self._cost.predict_s(self.scheduler.tokens_waiting) / self._runners

    def stalled_s(self) -> float:
        """Seconds that the longest-running batch has run; 0 when none runs."""
        return time.monotonic() - min(self._started_at.values()) if self._started_at else 0.0

    def submit(self, row: Row, deadline_at: float, tell: Callable[[RowOutcome], None]) -> RowTicket:
        """Queue a row. ``tell`` is called once, later and in the event loop, unless the ticket is cancelled before.

        Args:
            row: what to run.
            deadline_at: instant of ``time.monotonic`` at which the answer is worth nothing.
            tell: gets a RowResult, Expired or ModelFailed.

        Raises:
            Refused: the queue is full.
            Unavailable: the batcher is closed.
        """
        ticket = self.scheduler.add(row.tokens, time.monotonic(), deadline_at, Waiting(row, tell), self.backlog_s)
        self._idle.clear()
        if not self._free:
            # Nothing to decide before a runner is free; only the clock may have to ring earlier.
            if self._timer is None or deadline_at < self._timer.when():
                self._set_timer(deadline_at)
        elif not self._pump_soon:
            # Not at once: rows that arrive in the same turn of the loop may run together.
            self._pump_soon = True
            self._loop.call_soon(self._pump)
        return ticket

    def cancel(self, ticket: RowTicket) -> bool:
        """Forget a row; its ``tell`` will not be called. False, and nothing happens, if it already was."""
        waiting = ticket.state is State.WAITING
        if not self.scheduler.cancel(ticket):
            return False
        if waiting:
            self._watcher.row_dropped("cancelled")
        self._note_idle()
        return True

    def close(self) -> None:
        """Admit nothing more."""
        self.scheduler.close()

    async def drained(self) -> None:
        """Wait until no row waits or runs. Bounded, because every row has a deadline."""
        await self._idle.wait()

    def _pump(self) -> None:
        self._pump_soon = False
        now = time.monotonic()
        step = self.scheduler.step(now, len(self._free))
        for batch in step.batches:
            runner = self._free.pop()
            self._started_at[runner.name] = now
            rows = [ticket.payload.row for ticket in batch.tickets]
            runner.start(self.classifier, rows, partial(self._report, runner, batch))
        self._set_timer(step.wake_at)
        self._note_idle()
        for ticket in step.expired:
            if not ticket.started_at:
                self._watcher.row_dropped("expired")
            self._tell(ticket, Expired(f"no answer within {ticket.deadline_at - ticket.queued_at:.3f} s of waiting"))

    def _tell(self, ticket: RowTicket, outcome: RowOutcome) -> None:
        try:
            ticket.payload.tell(outcome)
        except Exception:  # the others of its batch wait to be told too
            logger().exception("tell_failed", tokens=ticket.length)

    def _set_timer(self, wake_at: float | None) -> None:
        if self._timer is not None:
            if wake_at == self._timer.when():
                return
            self._timer.cancel()
        # loop.time is time.monotonic in every asyncio loop of the standard library.
        self._timer = None if wake_at is None else self._loop.call_at(wake_at, self._wake)

    def _wake(self) -> None:
        # A timer may fire a clock tick early: forgotten first, it is set again if its deadline has not come yet.
        self._timer = None
        self._pump()

    def _report(self, runner: Runs, batch: Batch[Waiting], outcome: Outcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, runner, batch, outcome)
        except RuntimeError:
            # The loop is closed: the process is leaving and nobody waits any more.
            return

    def _ended(self, runner: Runs, batch: Batch[Waiting], outcome: Outcome) -> None:
        self._free.append(runner)
        del self._started_at[runner.name]
        now = time.monotonic()
        if isinstance(outcome, Ran) and len(outcome.logits) == len(batch.tickets):
            self._answer(runner, batch, outcome, now)
        else:
            error = (
                outcome
                if isinstance(outcome, BaseException)
                else ValueError(f"{len(outcome.logits)} answers for {len(batch.tickets)} rows")
            )
            lost = self.scheduler.fail(batch)
            self._pump()
            for ticket in lost:
                self._tell(ticket, ModelFailed("the model could not compute this text"))
            self._watcher.batch_failed(batch, runner.name, error, len(lost))

    def _answer(self, runner: Runs, batch: Batch[Waiting], ran: Ran, now: float) -> None:
        self._cost.observe(batch.tokens, ran.run_s)
        # A deadline that came while the batch ran counts, even if its timer has not fired yet.
        in_time = {ticket.number: logits for ticket, logits in zip(batch.tickets, ran.logits, strict=True) if ticket.deadline_at > now}
        answered = self.scheduler.finish(Batch([ticket for ticket in batch.tickets if ticket.number in in_time], batch.reason))
        # The next batch first: a runner waits for it.
        self._pump()
        for ticket in answered:
            logits, rows = in_time[ticket.number], len(batch.tickets)
            self._tell(ticket, RowResult(logits, ticket.started_at - ticket.queued_at, ran.run_s, rows))
        self._watcher.batch_ran(batch, runner.name, ran, len(batch.tickets) - len(answered))

    def _note_idle(self) -> None:
        if not self.scheduler.rows_waiting and not self.scheduler.rows_running:
            self._idle.set()
