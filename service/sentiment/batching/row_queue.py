"""The queue as a text sees it. A text enters as one row or more, all or none, and leaves with one outcome.

The queue of this process is its batcher. A front-end process has another, which leads to the process with the model
(``sentiment_front_ends.executor_client``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sentiment.batching.ticket import Priority
from sentiment.errors import RequestError
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Trace


@dataclass(slots=True)
class RowsResult:
    """The raw logits of every row of a text, in order.

    The other values are those of the row that was answered last: how long it waited and ran, and the size of its batch, 0 if its answer
    was known. ``early``: the logits are those of the row's part, which suffice.
    """

    logits: list[list[float]]
    queue_s: float
    run_s: float
    batch_rows: int
    early: bool = False


TextOutcome = RowsResult | RequestError


class Pending(Protocol):
    """A text in the queue."""

    @property
    def deadline_at(self) -> float:
        """Instant of ``time.monotonic`` after which the answer has no use."""

    @property
    def rows(self) -> int:
        """The number of its rows."""

    def cancel(self) -> bool:
        """Withdraw the text, so that ``tell`` is not called. Returns False without any effect if ``tell`` already was."""


class RowQueue(Protocol):
    """A queue in which texts wait for their batch."""

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
    ) -> Pending:
        """Queue a text. ``tell`` is called once, later and in the event loop, unless the text is cancelled first.

        Args:
            rows: of the text, at least one.
            deadline_at: instant of ``time.monotonic`` after which the answer has no use.
            tell: gets the outcome. An error that is not ``admitted`` is the refusal of a queue in another process.
            priority: of the first row; the others are bulk.
            trace: the request's trace, if it is sampled. It takes a limited number of rows.
            adaptive: of a text in one row, its part is read first, and the whole only if that does not suffice (``Classifier.part_of``).
            scope: whose known answers may be given, and who may get this one: below 2**64; 0: nobody's.
            payer: who asks, below 2**64; 0: nobody in particular.

        Raises:
            Refused: the queue is full, or the queued work leaves too little time for the text.
            Expired: even an idle server could not meet the deadline.
            Unavailable: the queue is closed.
        """
