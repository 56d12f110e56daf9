"""The rows of one text that is read in windows: let in all or none, told once, withdrawn together.

Each is a row like any other to the scheduler, with the text's deadline and priority.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sentiment.batching.batcher import Batcher, RowOutcome, RowResult, RowTicket
from sentiment.batching.ticket import Priority
from sentiment.errors import Expired, Refused, RequestError
from sentiment.model.tokenizer import Row


@dataclass(frozen=True, slots=True)
class RowsResult:
    """Every row's raw logits, in order. The other figures are those of the row that was answered last."""

    logits: list[list[float]]
    queue_s: float
    run_s: float
    batch_rows: int


JointOutcome = RowsResult | RequestError


class Joint:
    """Rows that are worth something only together."""

    def __init__(
        self, batcher: Batcher, rows: Sequence[Row], deadline_at: float, tell: Callable[[JointOutcome], None], priority: Priority
    ) -> None:
        """Queue all rows. ``tell`` is called once, later and in the event loop, unless they are cancelled before; when one row
        fails the others are withdrawn.

        Raises:
            Refused, Expired or Unavailable: as Batcher.submit, for one of them; none is queued.
        """
        self.deadline_at = deadline_at
        self._batcher = batcher
        self._tell = tell
        self._told = False
        self._logits: list[list[float]] = [[]] * len(rows)
        self._left = len(rows)
        self._tickets: list[RowTicket] = []
        scheduler = batcher.scheduler
        idle = scheduler.forecast.idle and not scheduler.rows_waiting
        try:
            for number, row in enumerate(rows):
                self._tickets.append(batcher.submit(row, deadline_at, partial(self._row_ended, number), priority))
        except RequestError as error:
            # None of them has begun: that is decided in a later turn of the loop.
            self.cancel()
            if isinstance(error, Refused):
                raise self._refusal(error, rows, idle) from error
            raise

    @property
    def rows(self) -> int:
        """How many they are."""
        return len(self._tickets)

    def cancel(self) -> bool:
        """Forget all; ``tell`` will not be called. False, and nothing happens, if it already was."""
        if self._told:
            return False
        self._told = True
        for ticket in self._tickets:
            self._batcher.cancel(ticket)
        return True

    def _row_ended(self, number: int, outcome: RowOutcome) -> None:
        if self._told:
            return
        if not isinstance(outcome, RowResult):
            self.cancel()
            self._tell(outcome)
            return
        self._logits[number] = outcome.logits
        self._left -= 1
        if not self._left:
            self._told = True
            self._tell(RowsResult(self._logits, outcome.queue_s, outcome.run_s, outcome.batch_rows))

    def _refusal(self, error: Refused, rows: Sequence[Row], idle: bool) -> RequestError:
        """What one row's refusal means for the text: its own rows are no work that a retry could wait for."""
        scheduler = self._batcher.scheduler
        needs_s = sum(scheduler.cost.run_s(1, row.tokens) for row in rows) / scheduler.runners
        if idle and error.reason == "backlog":
            left_s = self.deadline_at - time.monotonic()
            return Expired(f"the deadline leaves {left_s:.3f} s and the {len(rows)} windows of this text need up to {needs_s:.3f} s")
        message = f"{error}; all {len(rows)} windows of this text are let in or none"
        return Refused(message, self._batcher.backlog_s, error.reason, needs_s)
