"""The batcher drives the scheduler. It owns the clock, one timer and the runners, and leaves all decisions to the scheduler.

It belongs to one event loop; only ``_report`` is called from other threads.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sentiment.batching.runs import LookAhead, Run, Runs
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import DeviceLost, Expired, ModelFailed, OutOfMemory, RequestError, Unavailable, shown_s
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Outcome, Ran
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import Place, Trace

# Batches are ``nice`` while the event loop is busy for more than this share of the time. Otherwise, where cores are scarce, calls would
# wait unseen before they are admitted. Not always: a loop with time to spare gains nothing, and other threads would take the runners' time.
NICE_FROM = 0.5


class BatchObserver(Protocol):
    """Receives the batcher's events, for metrics and logs. Never raises: rows wait behind it."""

    def batch_begins(self, batch: Batch["Waiting"]) -> None:
        """A batch is about to run; ``Waiting.batch`` of its rows may be set."""

    def batch_ran(self, batch: Batch["Waiting"], runner: str, ran: Ran, wasted: int) -> None:
        """A batch ran; ``wasted`` of its rows had no caller any more when it ended."""

    def batch_failed(self, batch: Batch["Waiting"], runner: str, error: BaseException, lost: int, seconds: float) -> None:
        """A batch failed after ``seconds``. ``lost`` of its rows failed; the others are retried."""

    def batch_given_up(self, batch: Batch["Waiting"], runner: str, seconds: float) -> None:
        """A batch still runs after ``seconds``, although it was asked to stop; its rows have failed."""

    def device_lost(self, batch: Batch["Waiting"], runner: str, error: BaseException, seconds: float) -> None:
        """A runner's device is lost. The rows of its batch have no answer after ``seconds``."""

    def row_dropped(self, reason: str) -> None:
        """A row left the queue without running; ``reason`` is cancelled, expired or hopeless."""

    def planned(self, seconds: float) -> None:
        """The scheduler took ``seconds`` to decide what to run."""


@dataclass(slots=True)
class RowResult:
    """A row's raw logits, how long it waited and ran, and the size of its batch."""

    logits: list[float]
    queue_s: float
    run_s: float
    batch_rows: int


RowOutcome = RowResult | RequestError
RowTicket = Ticket["Waiting"]


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued row and its callback. ``tell`` is called once, unless the ticket is cancelled.

    ``trace`` is the request's trace, if it is sampled. ``batch`` is then the place in that trace of the last batch that took the row.
    """

    row: Row
    tell: Callable[[RowOutcome], None]
    trace: Trace | None = None
    batch: Place | None = None

    def unanswered(self, ticket: "RowTicket", error: str) -> None:
        """Record in the trace, if there is one, that the row gets no answer; ``error`` is empty if it was cancelled."""
        if self.trace is not None:
            # A batch that was decided ahead already has a start time, but gets its place in the trace only when it begins.
            begun_at = ticket.started_at if self.batch is not None else 0.0
            self.trace.unanswered(ticket.queued_at, begun_at, ticket.length, error, self.batch)


class Batcher:
    """Runs rows of one classifier on its runners."""

    def __init__(
        self,
        classifier: Classifier,
        scheduler: Scheduler[Waiting],
        runners: Sequence[Runs],
        observer: BatchObserver,
        busy_share: Callable[[], float] = lambda: 0.0,
        holds: bool = False,
    ) -> None:
        """Take ownership of ``runners``. Must be called in the event loop that will use the batcher.

        Args:
            classifier: runs the batches.
            scheduler: decides.
            runners: all free.
            observer: receives the events.
            busy_share: how busy the event loop is, 0 to 1.
            holds: the runners compute on devices: while the loop is busy, batches are held for its sake (``Scheduler.hold_s``).
        """
        self.classifier = classifier
        self.scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._free = list(runners)
        self._observer = observer
        self._timer: asyncio.TimerHandle | None = None
        self._pump_soon = False
        self._busy_share = busy_share
        self._holds = holds
        # Ends the time for which a batch is held.
        self._held: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        # The batch that each busy runner runs.
        self._runs: dict[Batch[Waiting], Run[Waiting]] = {}
        self._look_ahead_timing = LookAhead()
        self._begun_at = float("-inf")
        # Set when a runner is lost, because a run never returns or its device is lost. The process should then be replaced.
        self.broken = asyncio.Event()

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until a row that arrives now would start, behind all others."""
        return self.scheduler.forecast.backlog_s(time.monotonic())

    @property
    def idle_s(self) -> float:
        """Seconds since the last batch began; infinite before the first. From any thread."""
        return time.monotonic() - self._begun_at

    def stalled_s(self) -> float:
        """Seconds that the longest-running batch has run; 0 when none runs."""
        return time.monotonic() - min(run.started_at for run in self._runs.values()) if self._runs else 0.0

    def end_stalled(self, stall_s: float) -> None:
        """Ask runs that have lasted ``stall_s`` to stop. Fail the rows of a run that has not stopped ``stall_s`` after that.

        The batch that was to follow a stalled run goes to another runner, if there is one. A thread in a kernel that never returns
        cannot be stopped: its runner is lost and ``broken`` is set.
        """
        now = time.monotonic()
        for batch, run in list(self._runs.items()):
            if run.stop_requested_at is None:
                if now - run.started_at > stall_s:
                    run.stop_requested_at = now
                    run.request_stop()
                    if run.next is not None and self.scheduler.runners > 1:
                        self._give_back(run.next, batch)
                        run.next = None
                        self._pump()
            elif now - run.stop_requested_at > stall_s:
                del self._runs[batch]
                self._lose_runner(run, ModelFailed("the model could not compute this text"))
                self._observer.batch_given_up(batch, run.runner.name, now - run.started_at)

    def _lose_runner(self, run: Run[Waiting], outcome: RequestError) -> None:
        """Give up a batch's runner. Its rows get ``outcome``; if no runner is left, all waiting rows get Unavailable."""
        lost = self.scheduler.give_up(run.batch)
        if run.next is not None:
            self._give_back(run.next)
        self.broken.set()
        for ticket in lost:
            self._tell(ticket, outcome)
        if not self.scheduler.runners:
            for ticket in self.scheduler.fail_waiting():
                self._tell(ticket, Unavailable("no runner is left; the server is about to be replaced"))
        self._pump()

    def _give_back(self, following: Run[Waiting], before: Batch[Waiting] | None = None) -> None:
        """Return a batch that has not begun to the queue and ignore its runner's report. ``before`` is as in the scheduler."""
        following.request_stop()
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
        """Queue a row. ``tell`` is called once, later and in the event loop, unless the ticket is cancelled first.

        Args:
            row: the tokenized text.
            deadline_at: instant of ``time.monotonic`` after which the answer has no use.
            tell: gets a RowResult, Expired, ModelFailed, or Unavailable when the last runner is lost.
            priority: the row's class.
            trace: the request's trace, if it is sampled. It takes a limited number of rows.
            checked: the caller has already checked the deadline; only the room in the queue is checked here.

        Raises:
            Refused: the queue is full, or the queued work leaves too little time for the row.
            Expired: even an idle server could not meet the deadline.
            Unavailable: the batcher is closed.
        """
        waiting = Waiting(row, tell, trace if trace is not None and trace.take(1) else None)
        ticket = self.scheduler.add(row.tokens, time.monotonic(), deadline_at, waiting, priority, checked)
        self._idle.clear()
        if not self._free:
            # There is nothing to decide before a runner is free; only the timer may have to fire earlier.
            if self._timer is None or deadline_at < self._timer.when():
                self._set_timer(deadline_at)
        elif not self._pump_soon and not self._hold():
            # Deferred, so that rows that arrive in the same turn of the loop may run together.
            self._pump_soon = True
            self._loop.call_soon(self._pump)
        return ticket

    def _hold(self) -> bool:
        """Hold the next batch if the scheduler says so. Returns whether it is held."""
        if not self._holds:
            return False
        hold_s = self.scheduler.hold_s(self._busy_share(), time.monotonic())
        if hold_s and self._held is None:
            self._held = self._loop.call_later(hold_s, self._pump)
        return hold_s > 0

    def cancel(self, ticket: RowTicket, left: bool = True) -> bool:
        """Withdraw a row, so that ``tell`` is not called. Returns False without any effect if ``tell`` already was.

        ``left``: the row's caller has gone. False where the row is withdrawn because another row of its text failed.
        """
        waiting = ticket.state is State.WAITING
        if not self.scheduler.cancel(ticket):
            return False
        if waiting and left:
            self._observer.row_dropped("cancelled")
        if left:
            ticket.payload.unanswered(ticket, "")
        self._note_idle()
        return True

    def close(self) -> None:
        """Admit no more rows."""
        self.scheduler.close()

    async def drained(self) -> None:
        """Wait until no row waits or runs. Bounded, because every row has a deadline."""
        await self._idle.wait()

    def _pump(self) -> None:
        self._pump_soon = False
        if self._held is not None:
            self._held.cancel()
            self._held = None
        now = time.monotonic()
        step = self.scheduler.step(now, len(self._free))
        for batch in step.batches:
            self._go(self._start(batch, self._free.pop(), now), now)
        looked = [run for run in self._runs.values() if (at := self._look_ahead_timing.decide_at(run)) is not None and at <= now]
        for run in looked:
            self._look_ahead(run, now)
        looks_at = [self._look_ahead_timing.decide_at(run) for run in self._runs.values()]
        self._set_timer(min(filter(None, (step.wake_at, *looks_at)), default=None))
        self._note_idle()
        if step.batches or any(run.next for run in looked):
            self._observer.planned(time.monotonic() - now)
        for ticket in step.expired:
            if not ticket.started_at:
                self._observer.row_dropped("expired")
            self._tell(ticket, Expired(f"the deadline passed after {shown_s(ticket.deadline_at - ticket.queued_at)} of waiting"))
        for ticket in step.hopeless:
            self._observer.row_dropped("hopeless")
            left_s, need_s = ticket.deadline_at - now, self.scheduler.cost.speed * ticket.alone_s
            self._tell(ticket, Expired(f"the deadline leaves {shown_s(left_s)} and this text alone needs about {need_s:.3f} s"))

    def _start(self, batch: Batch[Waiting], runner: Runs, now: float, ahead: bool = False) -> Run[Waiting]:
        rows, nice = [ticket.payload.row for ticket in batch.tickets], self._busy_share() > NICE_FROM
        return Run(batch, runner, runner.start(self.classifier, rows, partial(self._report, batch), ahead, batch.wide, nice), now)

    def _go(self, run: Run[Waiting], now: float) -> None:
        """Record that a batch starts to run now."""
        run.started_at = self._begun_at = now
        self._runs[run.batch] = run
        self._observer.batch_begins(run.batch)

    def _look_ahead(self, run: Run[Waiting], now: float) -> None:
        """Give a runner its next batch early, if the scheduler can already decide it."""
        run.looked = True
        batch = self.scheduler.ahead(run.batch, now, max(now, run.ends_at))
        if batch is not None:
            run.next = self._start(batch, run.runner, now, ahead=True)

    def _tell(self, ticket: RowTicket, outcome: RowOutcome) -> None:
        try:
            ticket.payload.tell(outcome)
            if isinstance(outcome, RequestError):
                ticket.payload.unanswered(ticket, type(outcome).__name__)
        except Exception:  # the other callers of its batch still wait for their outcome
            logger().exception("tell_failed", tokens=ticket.length)

    def _set_timer(self, wake_at: float | None) -> None:
        if self._timer is not None:
            if wake_at == self._timer.when():
                return
            self._timer.cancel()
        # loop.time is time.monotonic in every asyncio loop of the standard library.
        self._timer = None if wake_at is None else self._loop.call_at(wake_at, self._wake)

    def _wake(self) -> None:
        # A timer may fire one clock tick early. It is cleared first, so that it is set again if its deadline has not come yet.
        self._timer = None
        self._pump()

    def _report(self, batch: Batch[Waiting], outcome: Outcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, batch, outcome, time.monotonic())
        except RuntimeError:
            # The loop is closed: the process is exiting and no caller waits.
            return

    def _ended(self, batch: Batch[Waiting], outcome: Outcome, ended_at: float) -> None:
        run = self._runs.pop(batch, None)
        if run is None:
            # The run was given up before it returned.
            return
        if isinstance(outcome, DeviceLost):
            self._lose_runner(run, Unavailable("the device of this batch is lost; the server is about to be replaced"))
            self._observer.device_lost(batch, run.runner.name, outcome, time.monotonic() - run.started_at)
            return
        if run.next is None:
            self._free.append(run.runner)
        else:
            # The next batch has already begun in the runner's thread, however late the event loop notices.
            begun_at = max(ended_at, run.next.started_at)
            self.scheduler.begin(run.next.batch, begun_at)
            self._go(run.next, begun_at)
        now, rows = time.monotonic(), len(batch.tickets)
        if isinstance(outcome, Ran) and len(outcome.logits) == rows:
            self._look_ahead_timing.ran(outcome, now - ended_at)
            self._answer(run, batch, outcome, now)
        else:
            error = outcome if isinstance(outcome, BaseException) else ValueError(f"{len(outcome.logits)} answers for {rows} rows")
            lost = self.scheduler.fail(batch, isinstance(error, (OutOfMemory, MemoryError)))
            # Reported before its rows are in another batch.
            self._observer.batch_failed(batch, run.runner.name, error, len(lost), now - run.started_at)
            self._pump()
            for ticket in lost:
                self._tell(ticket, ModelFailed("the model could not compute this text"))

    def _answer(self, run: Run[Waiting], batch: Batch[Waiting], ran: Ran, now: float) -> None:
        logits = dict(zip(batch.tickets, ran.logits, strict=True))
        # ``ran.total_s``, not the time until the loop noticed: a loop that is busy with admitting a thousand rows would make the model
        # look slow, and later rows would be refused.
        answered = self.scheduler.finish(batch, now, ran.total_s)
        if run.next is not None or (self.scheduler.rows_waiting and not self._hold()):
            # Before the outcomes are delivered: a runner may wait for its next batch, or the timer for deciding one ahead must be set.
            self._pump()
        rows = len(batch.tickets)
        for ticket in answered:
            self._tell(ticket, RowResult(logits[ticket], ticket.started_at - ticket.queued_at, ran.run_s, rows))
        self._note_idle()
        self._observer.batch_ran(batch, run.runner.name, ran, rows - len(answered))

    def _note_idle(self) -> None:
        if not self.scheduler.rows_waiting and not self.scheduler.rows_running:
            self._idle.set()
