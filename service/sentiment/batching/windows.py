"""The rows of one text: its windows, its sentences and its targets. Admitted all or none, answered once, withdrawn together.

To the scheduler each is an ordinary row, with the text's deadline. The first has the text's priority, and the others are bulk: a text of
hundreds of rows must not go before other people's texts.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sentiment.batching.batcher import Batcher, RowOutcome, RowResult, RowTicket
from sentiment.batching.scheduler import KEPT_FOR_INTERACTIVE
from sentiment.batching.ticket import Priority
from sentiment.errors import Expired, Refused, RequestError, shown_s
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Trace


@dataclass(frozen=True, slots=True)
class RowsResult:
    """The raw logits of every row, in order. The other values are those of the row that was answered last."""

    logits: list[list[float]]
    queue_s: float
    run_s: float
    batch_rows: int


JointOutcome = RowsResult | RequestError


class Joint:
    """The rows of one text that has several. An answer needs all of them."""

    def __init__(
        self,
        batcher: Batcher,
        rows: Sequence[Row],
        deadline_at: float,
        tell: Callable[[JointOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> None:
        """Queue all rows. ``tell`` is called once, later and in the event loop, unless the text is cancelled first.

        When one row fails, the others are withdrawn and do not appear in ``trace``.

        Raises:
            Refused, Expired or Unavailable: as Batcher.submit, for one of the rows; then no row is queued. Refused too if the queue never
                has room for so many.
        """
        if len(rows) > (most := batcher.scheduler.rows_max(Priority.BULK)):
            needs = math.ceil(len(rows) / (1 - KEPT_FOR_INTERACTIVE))
            message = (
                f"the text has {len(rows)} rows, and at most {most} may wait, so that no retry can help; ask for no windows and for fewer "
                f"sentences and targets, or let the server's setting queue_rows_max be at least {needs}"
            )
            raise Refused(message, math.inf, "queue_full")
        self.deadline_at = deadline_at
        self._batcher = batcher
        self._tell = tell
        self._told = False
        self._logits: list[list[float]] = [[]] * len(rows)
        self._left = len(rows)
        self._tickets: list[RowTicket] = []
        idle = self._check_idle(rows)
        try:
            for number, row in enumerate(rows):
                ended, its_priority = partial(self._row_ended, number), Priority.BULK if number else priority
                self._tickets.append(batcher.submit(row, deadline_at, ended, its_priority, trace, checked=idle))
        except RequestError as error:
            # No row has started to run: that is decided in a later turn of the loop.
            self._withdraw(left=False)
            if isinstance(error, Refused):
                message = f"{error}; a text is admitted only with all its rows, this one has {len(rows)}"
                # The backlog is read after the text's own rows are withdrawn: a retry need not wait for those.
                raise Refused(message, self._batcher.backlog_s, error.reason, self._needs_s(rows)) from error
            raise

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._tickets)

    def cancel(self) -> bool:
        """Withdraw all rows, so that ``tell`` is not called. Returns False without any effect if ``tell`` already was."""
        if self._told:
            return False
        self._withdraw(left=True)
        return True

    def _withdraw(self, left: bool) -> None:
        self._told = True
        for ticket in self._tickets:
            self._batcher.cancel(ticket, left)

    def _row_ended(self, number: int, outcome: RowOutcome) -> None:
        if self._told:
            return
        if not isinstance(outcome, RowResult):
            self._withdraw(left=False)
            self._tell(outcome)
            return
        self._logits[number] = outcome.logits
        self._left -= 1
        if not self._left:
            self._told = True
            self._tell(RowsResult(self._logits, outcome.queue_s, outcome.run_s, outcome.batch_rows))

    def _check_idle(self, rows: Sequence[Row]) -> bool:
        """Whether the server is idle. Then the rows' deadline is checked together, and the text may be a probe: see ``may_probe``.

        Raises:
            Expired: even on the idle server the rows need more time than is left.
        """
        scheduler, now = self._batcher.scheduler, time.monotonic()
        if scheduler.rows_waiting or not scheduler.forecast.idle or not scheduler.runners:
            return False
        left_s, needs_s = self.deadline_at - now, self._needs_s(rows)
        if left_s < needs_s and not scheduler.may_probe(left_s, needs_s, now):
            raise Expired(f"the deadline leaves {shown_s(left_s)} and the {len(rows)} rows of this text need up to {needs_s:.3f} s")
        return True

    def _needs_s(self, rows: Sequence[Row]) -> float:
        """Upper bound of the predicted seconds of all rows, one at a time on each runner."""
        scheduler = self._batcher.scheduler
        each_s = [scheduler.cost.run_s(1, row.tokens) for row in rows]
        return (sum(each_s) - max(each_s)) / max(1, scheduler.runners) + max(each_s)
