"""A text in the batcher's queue: its rows are admitted all or none, answered once and withdrawn together.

They are its windows, its sentences and its targets; most texts have one. To the scheduler each is an ordinary row, with the text's
deadline. The first has the text's priority, and the others are bulk: a text of hundreds of rows must not go before other people's texts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sentiment.batching.row_queue import TextOutcome
from sentiment.batching.scheduler import KEPT_FOR_INTERACTIVE, Scheduler
from sentiment.batching.ticket import P, Priority, Ticket
from sentiment.errors import Expired, Refused, shown_s
from sentiment.model.tokenizer import Row
from sentiment.observability.tracing.trace import Place, Trace


@dataclass(slots=True, eq=False)
class Text:
    """A queued text. Only the batcher writes its fields. ``tell`` is called once, unless the text is cancelled."""

    deadline_at: float
    tell: Callable[[TextOutcome], None]
    withdraw: Callable[["Text"], None]
    # The number of its rows, and of those without an answer.
    rows: int
    left: int
    # Of each row; none once ``tell`` has been called, or never will be: they refer to the text, and a cycle would be freed late.
    tickets: list["RowTicket"]

    def cancel(self) -> bool:
        """As in Pending."""
        if not self.tickets:
            return False
        self.withdraw(self)
        return True


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued row of a text. ``logits``: its answer, once its batch has run.

    ``trace`` is the request's trace, if it is sampled. ``batch`` is then the place in that trace of the last batch that took the row.
    ``adaptive``: a part of it may suffice. ``whole``: what is read next, if ``row`` is a part whose answer does not suffice. ``ran_s``:
    seconds that the part has run. ``payer``: who asks.
    """

    row: Row
    text: Text
    trace: Trace | None
    batch: Place | None = None
    adaptive: bool = False
    whole: Row | None = None
    ran_s: float = 0.0
    payer: int = 0
    logits: list[float] = field(init=False, repr=False)


RowTicket = Ticket[Waiting]


def check_together(scheduler: Scheduler[P], rows: Sequence[Row], deadline_at: float, now: float) -> bool:
    """Check what the scheduler cannot tell from the single rows of a text: that they ever fit, and their time on an idle server.

    An idle server may admit the text as a probe: see ``Scheduler.may_probe``. Returns whether their deadline has been checked.

    Raises:
        Refused: the queue can never hold this many rows.
        Expired: even on the idle server the rows need more time than is left.
    """
    if len(rows) > (most := scheduler.rows_max(Priority.BULK)):
        needs = math.ceil(len(rows) / (1 - KEPT_FOR_INTERACTIVE))
        message = (
            f"the text has {len(rows)} rows, and at most {most} may wait, so that no retry can help; ask for no windows and for fewer "
            f"sentences and targets, or let the server's setting queue_rows_max be at least {needs}"
        )
        raise Refused(message, math.inf, "queue_full")
    if scheduler.rows_waiting or not scheduler.forecast.idle or not scheduler.runners:
        return False
    left_s, together_s = deadline_at - now, needs_s(scheduler, rows)
    if left_s < together_s and not scheduler.may_probe(left_s, together_s, now):
        message = f"the deadline leaves {shown_s(left_s)} and the {len(rows)} rows of this text need up to {together_s:.3f} s"
        raise Expired(message, together_s / scheduler.cost.speed)
    return True


def needs_s(scheduler: Scheduler[P], rows: Sequence[Row]) -> float:
    """Upper bound of the predicted seconds of all rows, one at a time on each runner."""
    each_s = [scheduler.cost.run_s(1, row.tokens) for row in rows]
    return (sum(each_s) - max(each_s)) / max(1, scheduler.runners) + max(each_s)
