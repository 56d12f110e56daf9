"""The batcher: the scheduler's driver. Owns the clock, one timer and the runners; decides nothing.

Lives on one event loop; only ``_report`` is called from other threads.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sentiment.batching.runs import Lead, Run, Runs
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import DeviceLost, Expired, ModelFailed, OutOfMemory, RequestError, Unavailable
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Outcome, Ran
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import Place, Trace


class Watches(Protocol):
    """Who is told what happens, for metrics and logs."""

    def batch_begins(self, batch: Batch["Waiting"]) -> None:
        """A batch is about to run; ``Waiting.batch`` of its rows may be set."""

    def batch_ran(self, batch: Batch["Waiting"], runner: str, ran: Ran, wasted: int) -> None:
        """A batch ran; ``wasted`` of its rows were expected by nobody when it ended."""

    def batch_failed(self, batch: Batch["Waiting"], runner: str, error: BaseException, lost: int, seconds: float) -> None:
        """A batch failed after ``seconds``; ``lost`` rows failed with it, the others are tried again."""

    def batch_given_up(self, batch: Batch["Waiting"], runner: str, seconds: float) -> None:
        """A batch did not end after ``seconds``, though asked to, and its rows have failed."""

    def device_lost(self, batch: Batch["Waiting"], runner: str, error: BaseException, seconds: float) -> None:
        """A runner's device runs nothing any more, and the rows of its batch have no answer after ``seconds``."""

    def row_dropped(self, reason: str) -> None:
        """A row left the queue unrun: cancelled, expired or hopeless."""

    def planned(self, seconds: float) -> None:
        """Deciding what to run took so long."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row's raw logits and how it was run."""

    logits: list[float]
    queue_s: float
    run_s: float
    batch_rows: int


RowOutcome = RowResult | RequestError
RowTicket = Ticket["Waiting"]


@dataclass(slots=True, eq=False)
class Waiting:
    """A row, and whom to tell how it ended; told once, unless its ticket is cancelled.

    ``trace`` is of the request, if it is sampled; ``batch`` then where the last batch that took the row will be told of.
    """

    row: Row
    tell: Callable[[RowOutcome], None]
    trace: Trace | None = None
    batch: Place | None = None

    def unanswered(self, ticket: "RowTicket", error: str) -> None:
        """Tell its trace, if it has one, that there will be no answer; ``error`` is empty if it was cancelled."""
        if self.trace is not None:
            # A batch that was decided ahead has a start already, and its place only when it begins.
            begun_at = ticket.started_at if self.batch is not None else 0.0
            self.trace.unanswered(ticket.queued_at, begun_at, ticket.length, error, self.batch)


class Batcher:
    """Runs rows of one classifier on its runners."""

    def __init__(self, classifier: Classifier, scheduler: Scheduler[Waiting], runners: Sequence[Runs], watcher: Watches) -> None:
        """Take over ``runners``; must be called in the event loop that will use the batcher."""
        self.classifier = classifier
        self.scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._free = list(runners)
        self._watcher = watcher
        self._timer: asyncio.TimerHandle | None = None
        self._pump_soon = False
        self._idle = asyncio.Event()
        self._idle.set()
        # Of each busy runner the batch that runs.
        self._runs: dict[Batch[Waiting], Run[Waiting]] = {}
        self._lead = Lead()
        self._begun_at = float("-inf")
        # Set when a runner is lost, by a run that does not come back or with its device: the process should be replaced.
        self.broken = asyncio.Event()

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until a row that comes now would start if it went last."""
        return self.scheduler.forecast.backlog_s(time.monotonic())

    @property
    def idle_s(self) -> float:
        """Seconds since the last batch began; infinite before the first. From any thread."""
        return time.monotonic() - self._begun_at

    def stalled_s(self) -> float:
        """Seconds that the longest-running batch has run; 0 when none runs."""
        return time.monotonic() - min(run.started_at for run in self._runs.values()) if self._runs else 0.0

    def end_stalled(self, stall_s: float) -> None:
        """Ask runs to end that have lasted ``stall_s``; fail the rows of those that have not ended as long after they were asked.

        What was to follow one goes elsewhere, if there is another runner. A thread in a kernel that never returns cannot be ended: its
        runner is lost and ``broken`` is set.
        """
        now = time.monotonic()
        for batch, run in list(self._runs.items()):
            if run.asked_at is None:
                if now - run.started_at > stall_s:
                    run.asked_at = now
                    run.ask_to_end()
                    if run.next is not None and self.scheduler.runners > 1:
                        self._give_back(run.next, batch)
                        run.next = None
                        self._pump()
            elif now - run.asked_at > stall_s:
                del self._runs[batch]
                self._lose_runner(run, ModelFailed("the model could not compute this text"))
                self._watcher.batch_given_up(batch, run.runner.name, now - run.started_at)

    def _lose_runner(self, run: Run[Waiting], outcome: RequestError) -> None:
        """A batch's runner runs nothing any more: its rows get ``outcome``, and if no other is left, all that wait are told so."""
        lost = self.scheduler.give_up(run.batch)
        if run.next is not None:
            self._give_back(run.next)
        self.broken.set()
        for ticket in lost:
            self._tell(ticket, outcome)
        if not self.scheduler.runners:
            for ticket in self.scheduler.abandon():
                self._tell(ticket, Unavailable("no runner is left; the server is about to be replaced"))
        self._pump()

    def _give_back(self, following: Run[Waiting], before: Batch[Waiting] | None = None) -> None:
        """A batch that has not begun waits again; what becomes of it on its runner is heard no more. ``before``: see the scheduler's."""
        following.ask_to_end()
        self.scheduler.give_back(following.batch, before)

    def submit(
        self,
        row: Row,
        deadline_at: float,
        tell: Callable[[RowOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
        checked: bool = False,
    ) -> RowTicket:
        """Queue a row. ``tell`` is called once, later and in the event loop, unless the ticket is cancelled before.

        Args:
            row: what to run.
            deadline_at: instant of ``time.monotonic`` at which the answer is worth nothing.
            tell: gets a RowResult, Expired, ModelFailed, or Unavailable when the last runner is lost.
            priority: who waits.
            trace: where it is told how it went, if the request is sampled and not yet told of enough rows.
            checked: the caller has seen to the deadline; only the queue's room counts.

        Raises:
            Refused: the queue is full, or the work ahead leaves the row no time.
            Expired: the deadline is too near even for an idle server.
            Unavailable: the batcher is closed.
        """
        waiting = Waiting(row, tell, trace if trace is not None and trace.take(1) else None)
        ticket = self.scheduler.add(row.tokens, time.monotonic(), deadline_at, waiting, priority, checked)
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

    def cancel(self, ticket: RowTicket, left: bool = True) -> bool:
        """Forget a row; its ``tell`` will not be called. False, and nothing happens, if it already was.

        ``left``: somebody who waited for it has left; else it is of no use without another one.
        """
        waiting = ticket.state is State.WAITING
        if not self.scheduler.cancel(ticket):
            return False
        if waiting and left:
            self._watcher.row_dropped("cancelled")
        if left:
            ticket.payload.unanswered(ticket, "")
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
            self._go(self._start(batch, self._free.pop(), now), now)
        looked = [run for run in self._runs.values() if (at := self._lead.look_at(run)) is not None and at <= now]
        for run in looked:
            self._look_ahead(run, now)
        looks_at = [self._lead.look_at(run) for run in self._runs.values()]
        self._set_timer(min(filter(None, (step.wake_at, *looks_at)), default=None))
        self._note_idle()
        if step.batches or any(run.next for run in looked):
            self._watcher.planned(time.monotonic() - now)
        for ticket in step.expired:
            if not ticket.started_at:
                self._watcher.row_dropped("expired")
            self._tell(ticket, Expired(f"no answer within {ticket.deadline_at - ticket.queued_at:.3f} s of waiting"))
        for ticket in step.hopeless:
            self._watcher.row_dropped("hopeless")
            left_s, need_s = ticket.deadline_at - now, self.scheduler.cost.speed * ticket.alone_s
            self._tell(ticket, Expired(f"the deadline leaves {left_s:.3f} s and this text alone needs about {need_s:.3f} s"))

    def _start(self, batch: Batch[Waiting], runner: Runs, now: float, ahead: bool = False) -> Run[Waiting]:
        rows = [ticket.payload.row for ticket in batch.tickets]
        return Run(batch, runner, runner.start(self.classifier, rows, partial(self._report, batch), ahead), now)

    def _go(self, run: Run[Waiting], now: float) -> None:
        """A batch runs from now on."""
        run.started_at = self._begun_at = now
        self._runs[run.batch] = run
        self._watcher.batch_begins(run.batch)

    def _look_ahead(self, run: Run[Waiting], now: float) -> None:
        """Give a runner the batch that follows the one that it runs, if it is known already what that will be."""
        run.looked = True
        batch = self.scheduler.ahead(run.batch, now, max(now, run.ends_at))
        if batch is not None:
            run.next = self._start(batch, run.runner, now, ahead=True)

    def _tell(self, ticket: RowTicket, outcome: RowOutcome) -> None:
        if isinstance(outcome, RequestError):
            ticket.payload.unanswered(ticket, type(outcome).__name__)
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

    def _report(self, batch: Batch[Waiting], outcome: Outcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, batch, outcome, time.monotonic())
        except RuntimeError:
            # The loop is closed: the process is leaving and nobody waits any more.
            return

    def _ended(self, batch: Batch[Waiting], outcome: Outcome, ended_at: float) -> None:
        run = self._runs.pop(batch, None)
        if run is None:
            # Given up before it came back.
            return
        if isinstance(outcome, DeviceLost):
            self._lose_runner(run, Unavailable("the device of this batch is lost; the server is about to be replaced"))
            self._watcher.device_lost(batch, run.runner.name, outcome, time.monotonic() - run.started_at)
            return
        if run.next is None:
            self._free.append(run.runner)
        else:
            # It has begun in the runner's thread, however late this is noticed.
            begun_at = max(ended_at, run.next.started_at)
            self.scheduler.begin(run.next.batch, begun_at)
            self._go(run.next, begun_at)
        now, rows = time.monotonic(), len(batch.tickets)
        if isinstance(outcome, Ran) and len(outcome.logits) == rows:
            self._lead.ran(outcome, now - ended_at)
            self._answer(run, batch, outcome, now)
        else:
            error = outcome if isinstance(outcome, BaseException) else ValueError(f"{len(outcome.logits)} answers for {rows} rows")
            lost = self.scheduler.fail(batch, isinstance(error, (OutOfMemory, MemoryError)))
            # Before its rows are in another batch.
            self._watcher.batch_failed(batch, run.runner.name, error, len(lost), now - run.started_at)
            self._pump()
            for ticket in lost:
                self._tell(ticket, ModelFailed("the model could not compute this text"))

    def _answer(self, run: Run[Waiting], batch: Batch[Waiting], ran: Ran, now: float) -> None:
        logits = dict(zip(batch.tickets, ran.logits, strict=True))
        # Not until it was noticed: a loop that is busy admitting a thousand rows would make the model look slow, and refuse the rest.
        answered = self.scheduler.finish(batch, now, ran.total_s)
        if self.scheduler.rows_waiting or run.next is not None:
            # The next batch first: a runner waits for it, or the time to look for the one after it is to be set.
            self._pump()
        rows = len(batch.tickets)
        for ticket in answered:
            self._tell(ticket, RowResult(logits[ticket], ticket.started_at - ticket.queued_at, ran.run_s, rows))
        self._note_idle()
        self._watcher.batch_ran(batch, run.runner.name, ran, rows - len(answered))

    def _note_idle(self) -> None:
        if not self.scheduler.rows_waiting and not self.scheduler.rows_running:
            self._idle.set()
