"""A row that waits, a batch of them, and what a step of the scheduler decides. Pure."""

import enum
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sentiment.batching.cost import Shape

P = TypeVar("P")


class Priority(enum.Enum):
    """Who waits for the row: somebody, or a program that scores many."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class State(enum.Enum):
    """Where a ticket stands. WAITING and RUNNING are live; the others are fates."""

    WAITING = "waiting"
    RUNNING = "running"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


LIVE = (State.WAITING, State.RUNNING)


@dataclass(slots=True, eq=False)
class Ticket(Generic[P]):
    """One waiting row. The scheduler alone writes its fields; ``payload`` is the driver's."""

    length: int
    queued_at: float
    deadline_at: float
    payload: P
    priority: Priority
    number: int
    # Table seconds that it costs alone, and in a batch of the best size.
    alone_s: float
    batched_s: float
    # Admitted to an idle server although the table denies that it can finish: tried, so that the table can be corrected.
    probe: bool = False
    state: State = State.WAITING
    started_at: float = 0.0
    # Seconds that it was predicted to wait when it was let in; None where no prediction was needed.
    ahead_s: float | None = None
    retrying: bool = False

    @property
    def rows(self) -> int:
        """How many rows it is, as of a text that is read in windows."""
        return 1

    def hopeless(self, now: float, speed: float) -> bool:
        """Whether it could not finish in time alone if it started now, when everything takes ``speed`` times its table seconds."""
        return not self.probe and self.deadline_at - now < speed * self.alone_s


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[P]):
    """Rows to run together now.

    ``reason`` says why it is not larger: full (larger ones are no cheaper a row), alike (no more rows worth running together),
    spread (the others run on another runner), tight (a deadline allows no more), retry (half of one that failed).
    """

    tickets: list[Ticket[P]]
    reason: str
    # As how many rows of what length it costs.
    shape: Shape
    # Computed tokens and squared lengths of its rows in sum, with what is padded.
    tokens: int
    squares: int
    predicted_s: float

    @property
    def length(self) -> int:
        """The longest row's."""
        return max([ticket.length for ticket in self.tickets])


Entry = tuple[float, int, Ticket[P]]


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """What to do now: tell the expired and the hopeless, start the batches, ask again at ``wake_at`` (None: at the next event)."""

    expired: list[Ticket[P]] = field(default_factory=list)
    hopeless: list[Ticket[P]] = field(default_factory=list)
    batches: list[Batch[P]] = field(default_factory=list)
    wake_at: float | None = None
