"""The queue as a text sees it: in as one row or as the rows of its windows, all or none, and out with one outcome.

``HereQueue`` is the one of this process; a front end's leads to the process that has the model (front_ends.executor_client).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sentiment.batching.batcher import Batcher, RowOutcome
from sentiment.batching.ticket import Priority, Ticket
from sentiment.batching.windows import Joint, JointOutcome
from sentiment.errors import Expired, Refused, Unavailable
from sentiment.model.tokenizer import Row, Windows
from sentiment.observability.tracing.trace import Trace

Reading = Row | Windows


@dataclass(frozen=True, slots=True)
class NotLetIn:
    """The text was refused at the door, where that is known only after a while: in another process."""

    error: Refused | Expired | Unavailable


TextOutcome = RowOutcome | JointOutcome | NotLetIn


class Pending(Protocol):
    """A text in the queue."""

    @property
    def deadline_at(self) -> float:
        """Instant of ``time.monotonic`` at which its answer is worth nothing."""

    @property
    def rows(self) -> int:
        """How many rows it is."""


class RowQueue(Protocol):
    """Where texts wait for their batch."""

    def submit(
        self,
        reading: Reading,
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> Pending:
        """Queue a text. ``tell`` is called once, later and in the event loop, unless it is cancelled before. ``trace``: of its request.

        Raises:
            Refused, Expired, Unavailable: it is not let in; ``tell`` will not be called.
        """

    def cancel(self, pending: Pending) -> bool:
        """Forget a text; its ``tell`` will not be called. False, and nothing happens, if it already was."""


class HereQueue:
    """The queue before this process's batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def submit(
        self,
        reading: Reading,
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> Pending:
        """Queue a text; see RowQueue. Its outcome is never NotLetIn."""
        if isinstance(reading, Windows):
            return Joint(self._batcher, reading.rows, deadline_at, tell, priority, trace)
        return self._batcher.submit(reading, deadline_at, tell, priority, trace)

    def cancel(self, pending: Pending) -> bool:
        """Forget a text; see RowQueue."""
        if isinstance(pending, Joint):
            return pending.cancel()
        assert isinstance(pending, Ticket)
        return self._batcher.cancel(pending)
