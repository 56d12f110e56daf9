"""The batcher drives the scheduler. It owns the clock, one timer and the runners, and leaves all decisions to the scheduler.

It belongs to one event loop; other threads call only ``_report``, and read ``idle_s``.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from sentiment.batching.known import Known
from sentiment.batching.offered import OfferedLoad
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.runs import BatchRunner, LookAhead, RunningBatch
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.text import RowTicket, Text, Waiting, check_together, needs_s
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import DeviceLost, Expired, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable, shown_s
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Outcome, Ran
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import Trace

# Batches have a low priority while the event loop is busy for more than this share of the time. Otherwise, where cores are scarce, calls
# would wait unseen before they are admitted. Not always: a loop with time to spare gains nothing, and other threads would take the runners'
# time.
LOW_PRIORITY_FROM = 0.5


class BatchObserver(Protocol):
    """Receives the batcher's events, for metrics and logs. Never raises: rows wait behind it."""

    def batch_begins(self, batch: Batch[Waiting]) -> None:
        """A batch is about to run; ``Waiting.batch`` of its rows may be set."""

    def batch_ran(self, batch: Batch[Waiting], runner: str, ran: Ran, wasted: int) -> None:
        """A batch ran; ``wasted`` of its rows had no caller any more when it ended."""

    def batch_failed(self, batch: Batch[Waiting], runner: str, error: BaseException, lost: int, seconds: float) -> None:
        """A batch failed after ``seconds``. ``lost`` of its rows failed; the others are retried."""

    def batch_given_up(self, batch: Batch[Waiting], runner: str, seconds: float) -> None:
        """A batch still runs after ``seconds``, although it was asked to stop; its rows have failed."""

    def device_lost(self, batch: Batch[Waiting], runner: str, error: BaseException, seconds: float) -> None:
        """A runner's device is lost. The rows of its batch have no answer after ``seconds``."""

    def row_dropped(self, reason: str) -> None:
        """A row left the queue without running; ``reason`` is cancelled, expired or hopeless."""

    def rows_known(self, kept: int, shared: int) -> None:
        """Rows got answers that were known, or those of other rows; they are in no batch."""

    def row_unanswered(self, ticket: RowTicket, error: str) -> None:
        """A row gets no answer; ``error`` is the name of an error class, empty if the caller left. Not called where another row failed."""

    def planned(self, seconds: float) -> None:
        """The scheduler took ``seconds`` to decide what to run."""


class Batcher:
    """Runs rows of one classifier on its runners."""

    def __init__(
        self,
        classifier: Classifier,
        scheduler: Scheduler[Waiting],
        runners: Sequence[BatchRunner],
        observer: BatchObserver,
        busy_share: Callable[[], float] = lambda: 0.0,
        holds: bool = False,
        clock: Callable[[], float] = time.monotonic,
        known: Known | None = None,
        offered: OfferedLoad | None = None,
    ) -> None:
        """Take ownership of ``runners``. Must be called in the event loop that will use the batcher.

        Args:
            classifier: runs the batches.
            scheduler: decides.
            runners: all free.
            observer: receives the events.
            busy_share: how busy the event loop is, 0 to 1.
            holds: the runners compute on devices: while the loop is busy, batches are held for its sake (``Scheduler.hold_s``).
            clock: the event loop's, in seconds. Runners call it too, from their threads.
            known: answers to rows of before; without it, each row is computed.
            offered: the load of the process, which its models share; without it, of this model alone.
        """
        self.classifier = classifier
        self.scheduler = scheduler
        self._clock = clock
        self._known = known
        self.offered = offered or OfferedLoad()
        self.offered.runners = len(runners)
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
        self._runs: dict[Batch[Waiting], RunningBatch[Waiting]] = {}
        self._look_ahead_timing = LookAhead()
        self._begun_at = float("-inf")
        # Whether every text is read in full, whatever is asked for. And what gets each text that was answered with adaptive effort: its
        # row, and the logits of its part, if these sufficed.
        self.in_full = False
        self.audit: Callable[[Row, Sequence[float] | None], None] = lambda *_: None
        # Set when a runner is lost, because a run never returns or its device is lost. The process should then be replaced.
        self.broken = asyncio.Event()

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until a row that arrives now would start, behind all others."""
        return self.scheduler.forecast.backlog_s(self._clock())

    @property
    def idle(self) -> bool:
        """Whether no row waits or runs, and ``drained`` returns at once."""
        return self._idle.is_set()

    @property
    def idle_s(self) -> float:
        """Seconds since the last batch began; infinite before the first. From any thread."""
        return self._clock() - self._begun_at

    def stalled_s(self) -> float:
        """Seconds that the longest-running batch has run; 0 when none runs."""
        return self._clock() - min(run.started_at for run in self._runs.values()) if self._runs else 0.0

    def end_stalled(self, stall_s: float) -> None:
        """Ask runs that have lasted ``stall_s`` to stop. Fail the rows of a run that has not stopped ``stall_s`` after that.

        The batch that was to follow a stalled run goes to another runner, if there is one. A thread in a kernel that never returns
        cannot be stopped: its runner is lost and ``broken`` is set.
        """
        now = self._clock()
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

    def _lose_runner(self, run: RunningBatch[Waiting], outcome: RequestError) -> None:
        """Give up a batch's runner. Its rows get ``outcome``; if no runner is left, all waiting rows get Unavailable."""
        lost = self.scheduler.give_up(run.batch)
        if run.next is not None:
            self._give_back(run.next)
        self.broken.set()
        for ticket in lost:
            self._fail(ticket, outcome)
        if not self.scheduler.runners:
            for ticket in self.scheduler.fail_waiting():
                self._fail(ticket, Unavailable("no runner is left; the server is about to be replaced"))
        self._pump()

    def _give_back(self, following: RunningBatch[Waiting], before: Batch[Waiting] | None = None) -> None:
        """Return a batch that has not begun to the queue and ignore its runner's report. ``before`` is as in the scheduler."""
        following.request_stop()
        self.scheduler.give_back(following.batch, before)

    def submit(
        self,
        rows: Sequence[Row],
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
        adaptive: bool = False,
        scope: int = 0,
        payer: int = 0,
    ) -> Text:
        """As in RowQueue. When one row fails, the others are withdrawn and do not appear in ``trace``."""
        now = self._clock()
        text = Text(deadline_at, tell, self._leave, len(rows), len(rows), [])
        waiting = [self._waiting(row, text, trace, adaptive, payer) for row in rows]
        work_s = [self.scheduler.work_s(one.row.tokens, 0 if one.whole is None else one.whole.tokens) for one in waiting]
        # Before anything refuses it.
        self.offered.ask(sum(work_s), now)
        checked = len(rows) > 1 and check_together(self.scheduler, rows, deadline_at, now)
        try:
            for row, one, one_s in zip(rows, waiting, work_s, strict=True):
                key = self._known.key(row, scope) if self._known is not None and scope else None
                if key is not None and deadline_at > now and self.scheduler.open and self._recall(one, key):
                    ticket = Ticket(row.tokens, now, deadline_at, one, priority, 0, 0.0, 0.0, state=State.ANSWERED)
                    text.left -= 1
                else:
                    then = 0 if one.whole is None else row.tokens
                    ticket = self.scheduler.add(one.row.tokens, now, deadline_at, one, priority, checked, then, key, payer)
                if ticket.state is State.ANSWERED or ticket.group is not None:
                    # It takes no run, or the one of an equal row.
                    self.offered.ask(-one_s, now)
                text.tickets.append(ticket)
                priority = Priority.BULK
        except RequestError as error:
            # No row has started to run: that is decided in a later turn of the loop.
            self._withdraw(text)
            if isinstance(error, Refused) and len(rows) > 1:
                message = f"{error}; a text is admitted only with all its rows, this one has {len(rows)}"
                # The backlog is read after the text's own rows are withdrawn: a retry need not wait for those.
                of_text = Refused(message, self.backlog_s, error.reason, needs_s(self.scheduler, rows))
                of_text.over_share, of_text.rows = error.over_share, len(rows)
                raise of_text from error
            raise
        if text.left < len(rows):
            self._observer.rows_known(len(rows) - text.left, 0)
        if not text.left:
            self._loop.call_soon(self._answer_text, text, text.tickets[-1], 0.0, 0)
            return text
        self._idle.clear()
        if not self._free:
            # There is nothing to decide before a runner is free; only the timer may have to fire earlier.
            if self._timer is None or deadline_at < self._timer.when():
                self._set_timer(deadline_at)
        elif not self._pump_soon and not self._hold():
            # Deferred, so that texts that arrive in the same turn of the loop may run together.
            self._pump_soon = True
            self._loop.call_soon(self._pump)
        return text

    def _waiting(self, row: Row, text: Text, trace: Trace | None, adaptive: bool, payer: int) -> Waiting:
        """A row of a text, or the part of it that is read first."""
        waiting = Waiting(row, text, trace if trace is not None and trace.take(1) else None, payer=payer)
        waiting.adaptive = adaptive and not self.in_full
        if waiting.adaptive and (part := self.classifier.part_of(row)) is not None:
            waiting.row, waiting.whole = part, row
        return waiting

    def _recall(self, waiting: Waiting, key: bytes) -> bool:
        """Answer a row from what is known: first from its part, if it has one, as its batches would."""
        assert self._known is not None
        if waiting.whole is not None:
            logits = self._known.get(key, part=True)
            if logits is None:
                return False
            if self.classifier.suffices(logits):
                waiting.logits = logits
                return True
            waiting.row, waiting.whole = waiting.whole, None
        logits = self._known.get(key, part=False)
        if logits is not None:
            waiting.logits = logits
        return logits is not None

    def _hold(self) -> bool:
        """Hold the next batch if the scheduler says so. Returns whether it is held."""
        if not self._holds:
            return False
        hold_s = self.scheduler.hold_s(self._busy_share(), self._clock())
        if hold_s and self._held is None:
            self._held = self._loop.call_later(hold_s, self._pump)
        return hold_s > 0

    def _leave(self, text: Text) -> None:
        """Withdraw a text whose caller has gone."""
        for _ in [ticket for ticket in text.tickets if ticket.state is State.WAITING]:
            self._observer.row_dropped("cancelled")
        for ticket in self._withdraw(text):
            self._observer.row_unanswered(ticket, "")

    def _withdraw(self, text: Text) -> list[RowTicket]:
        """Withdraw the rows of a text that have no fate yet, and return them."""
        tickets, text.tickets = text.tickets, []
        withdrawn = [ticket for ticket in tickets if self.scheduler.cancel(ticket)]
        self._note_idle()
        return withdrawn

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
        now = self._clock()
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
            self._observer.planned(self._clock() - now)
        for ticket in step.expired:
            if not ticket.started_at:
                self._observer.row_dropped("expired")
            self._fail(ticket, Expired(f"the deadline passed after {shown_s(ticket.deadline_at - ticket.queued_at)} of waiting"))
        for ticket in step.hopeless:
            self._observer.row_dropped("hopeless")
            left_s, need_s = ticket.deadline_at - now, self.scheduler.cost.speed * ticket.alone_s
            self._fail(ticket, Expired(f"the deadline leaves {shown_s(left_s)} and this text alone needs about {need_s:.3f} s"))

    def _start(self, batch: Batch[Waiting], runner: BatchRunner, now: float, ahead: bool = False) -> RunningBatch[Waiting]:
        rows, low = [ticket.payload.row for ticket in batch.tickets], self._busy_share() > LOW_PRIORITY_FROM
        return RunningBatch(batch, runner, runner.start(self.classifier, rows, partial(self._report, batch), ahead, batch.wide, low), now)

    def _go(self, run: RunningBatch[Waiting], now: float) -> None:
        """Record that a batch starts to run now."""
        run.started_at = self._begun_at = now
        self._runs[run.batch] = run
        self._observer.batch_begins(run.batch)

    def _look_ahead(self, run: RunningBatch[Waiting], now: float) -> None:
        """Give a runner its next batch early, if the scheduler can already decide it."""
        run.looked = True
        batch = self.scheduler.ahead(run.batch, now, max(now, run.ends_at))
        if batch is not None:
            run.next = self._start(batch, run.runner, now, ahead=True)

    def _fail(self, ticket: RowTicket, error: RequestError) -> None:
        """Tell the caller of a row's text that it fails, and withdraw its other rows; only for the first row that fails."""
        text = ticket.payload.text
        error.over_share = isinstance(error, Expired) and ticket.over_share
        if text.tickets:
            self._withdraw(text)
            self._tell(text, error)
        self._observer.row_unanswered(ticket, type(error).__name__)

    def _tell(self, text: Text, outcome: TextOutcome) -> None:
        try:
            text.tell(outcome)
        except Exception:  # the callers of other texts still wait for their outcome
            logger().exception("tell_failed", rows=text.rows)

    def _audit(self, row: Waiting) -> None:
        try:
            self.audit(row.whole or row.row, row.logits if row.whole is not None else None)
        except Exception:  # as in ``_tell``
            logger().exception("audit_failed")

    def _set_timer(self, wake_at: float | None) -> None:
        if self._timer is not None:
            if wake_at == self._timer.when():
                return
            self._timer.cancel()
        # ``_clock`` and loop.time are the same: time.monotonic in every asyncio loop of the standard library.
        self._timer = None if wake_at is None else self._loop.call_at(wake_at, self._wake)

    def _wake(self) -> None:
        # A timer may fire one clock tick early. It is cleared first, so that it is set again if its deadline has not come yet.
        self._timer = None
        self._pump()

    def _report(self, batch: Batch[Waiting], outcome: Outcome) -> None:
        # Where the loop is closed, the process is exiting and no caller waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended, batch, outcome, self._clock())

    def _ended(self, batch: Batch[Waiting], outcome: Outcome, ended_at: float) -> None:
        run = self._runs.pop(batch, None)
        if run is None:
            # The run was given up before it returned.
            return
        if isinstance(outcome, DeviceLost):
            self._lose_runner(run, Unavailable("the device of this batch is lost; the server is about to be replaced"))
            self._observer.device_lost(batch, run.runner.name, outcome, self._clock() - run.started_at)
            return
        if run.next is None:
            self._free.append(run.runner)
        else:
            # The next batch has already begun in the runner's thread, however late the event loop notices.
            begun_at = max(ended_at, run.next.started_at)
            self.scheduler.begin(run.next.batch, begun_at)
            self._go(run.next, begun_at)
        now, rows = self._clock(), len(batch.tickets)
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
                self._fail(ticket, ModelFailed("the model could not compute this text"))

    def _answer(self, run: RunningBatch[Waiting], batch: Batch[Waiting], ran: Ran, now: float) -> None:
        # A wide batch takes other cores too.
        self.offered.ran(ran.total_s, ran.total_s if batch.wide else batch.predicted_s, now)
        unsettled, together = [], [(ticket, *self.scheduler.sharing.followers(ticket)) for ticket in batch.tickets]
        for alike, logits in zip(together, ran.logits, strict=True):
            ticket = alike[0]
            if self._known is not None and ticket.key is not None and all(map(math.isfinite, logits)):
                self._known.put(ticket.key, ticket.then > 0, logits)
            goes_on = ticket.then > 0 and not self.classifier.suffices(logits)
            if goes_on:
                unsettled.append(ticket)
            for one in alike:
                waiting = one.payload
                waiting.logits = logits
                if goes_on and waiting.whole is not None:
                    # Without what ran before a row came that follows.
                    waiting.ran_s = max(0.0, ran.run_s - max(0.0, one.queued_at - ticket.started_at))
                    waiting.row, waiting.whole = waiting.whole, None
        # ``ran.total_s``, not the time until the loop noticed: a loop that is busy with admitting a thousand rows would make the model
        # look slow, and later rows would be refused.
        answered = self.scheduler.finish(batch, now, ran.total_s, unsettled)
        used = (State.ANSWERED, State.WAITING)
        wasted = sum(all(one.state not in used for one in alike) for alike in together)
        if shared := len(answered) - sum(ticket.state is State.ANSWERED for ticket in batch.tickets):
            self._observer.rows_known(0, shared)
        if unsettled:
            # Before its rows are in another batch.
            self._observer.batch_ran(batch, run.runner.name, ran, wasted)
        if run.next is not None or (self.scheduler.rows_waiting and not self._hold()):
            # Before the outcomes are delivered: a runner may wait for its next batch, or the timer for deciding one ahead must be set.
            self._pump()
        rows = len(batch.tickets)
        for ticket in answered:
            text = ticket.payload.text
            text.left -= 1
            if not text.left:
                self._answer_text(text, ticket, ran.run_s, rows)
            # Not what is known: a caller could have the same text audited again and again, at no cost.
            if ticket.payload.adaptive and ticket in batch.tickets:
                self._audit(ticket.payload)
        self._note_idle()
        if not unsettled:
            self._observer.batch_ran(batch, run.runner.name, ran, wasted)

    def _answer_text(self, text: Text, last: RowTicket, run_s: float, rows: int) -> None:
        """Tell the caller of a text, unless it has gone, the answers to its rows. ``last`` was answered last, by a batch of ``rows``."""
        if not text.tickets:
            return
        of_rows, row = [one.payload.logits for one in text.tickets], last.payload
        text.tickets.clear()
        # A row that follows another has not waited longer than it is here.
        queue_s = max(0.0, last.started_at - last.queued_at - row.ran_s) if rows else 0.0
        self._tell(text, RowsResult(of_rows, queue_s, row.ran_s + run_s, rows, row.whole is not None))

    def _note_idle(self) -> None:
        if not self.scheduler.rows_waiting and not self.scheduler.rows_running:
            self._idle.set()
