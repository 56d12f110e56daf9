"""The queue of texts. A text enters as one row or more, all or none, and leaves with one outcome.

``HereQueue`` is the queue of this process. A front-end process has another, which leads to the process with the model
(``sentiment_front_ends.executor_client``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sentiment.batching.batcher import Batcher, RowOutcome
from sentiment.batching.ticket import Priority, Ticket
from sentiment.batching.windows import Joint, JointOutcome
from sentiment.errors import Expired, Refused, Unavailable
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Trace


@dataclass(frozen=True, slots=True)
class NotLetIn:
    """The text was not admitted. This outcome exists where another process decides, so that ``submit`` cannot raise."""

    error: Refused | Expired | Unavailable


TextOutcome = RowOutcome | JointOutcome | NotLetIn


class Pending(Protocol):
    """A text in the queue."""

    @property
    def deadline_at(self) -> float:
        """Instant of ``time.monotonic`` after which the answer has no use."""

    @property
    def rows(self) -> int:
        """The number of its rows."""


class RowQueue(Protocol):
    """A queue in which texts wait for their batch."""

    def submit(
        self,
        rows: Sequence[Row],
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> Pending:
        """Queue a text. ``tell`` is called once, later and in the event loop, unless the text is cancelled first.

        Args:
            rows: of the text, at least one. The outcome of one is a RowResult, that of several a RowsResult.
            deadline_at: instant of ``time.monotonic`` after which the answer has no use.
            tell: gets the outcome.
            priority: of the first row; the others are bulk.
            trace: the request's trace, if it is sampled.

        Raises:
            Refused, Expired, Unavailable: the text is not admitted; ``tell`` will not be called.
        """

    def cancel(self, pending: Pending) -> bool:
        """Withdraw a text, so that ``tell`` is not called. Returns False without any effect if ``tell`` already was."""


class HereQueue:
    """The queue of this process's batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def submit(
        self,
        rows: Sequence[Row],
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> Pending:
        """As in RowQueue. The outcome is never NotLetIn."""
        if len(rows) == 1:
            return self._batcher.submit(rows[0], deadline_at, tell, priority, trace)
        return Joint(self._batcher, rows, deadline_at, tell, priority, trace)

    def cancel(self, pending: Pending) -> bool:
        """As in RowQueue."""
        if isinstance(pending, Joint):
            return pending.cancel()
        assert isinstance(pending, Ticket)
        return self._batcher.cancel(pending)
