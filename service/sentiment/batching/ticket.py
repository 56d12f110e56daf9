"""A waiting row, a batch of rows, and a decision of the scheduler. Pure."""

import enum
import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sentiment.batching.cost import Shape

P = TypeVar("P")


class Priority(enum.Enum):
    """The class of a row: a person waits for it, or a program that scores many texts; or its caller has had its share.

    The scheduler alone makes rows OVER.
    """

    INTERACTIVE = "interactive"
    BULK = "bulk"
    OVER = "over"


class State(enum.Enum):
    """State of a ticket. WAITING and RUNNING are live; the others are final."""

    WAITING = "waiting"
    RUNNING = "running"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


# The higher class first.
CLASSES = tuple(Priority)
LIVE = (State.WAITING, State.RUNNING)
# Reasons of a batch.
RETRY, WIDE = "retry", "wide"


@dataclass(slots=True, eq=False)
class Ticket(Generic[P]):
    """One row in the scheduler. Only the scheduler writes its fields; ``payload`` belongs to the driver."""

    length: int
    queued_at: float
    deadline_at: float
    payload: P
    priority: Priority
    number: int
    # Table seconds of the row alone, and as part of a batch of the best size; with all that may follow.
    alone_s: float
    batched_s: float
    # Admitted by an idle server although the cost table says that it cannot finish in time, so that the table can be corrected.
    probe: bool = False
    state: State = State.WAITING
    started_at: float = 0.0
    # Predicted wait in seconds when the row was admitted; None where no prediction was needed.
    ahead_s: float | None = None
    retrying: bool = False
    # Who asks; 0: nobody in particular. And see ``RequestError.over_share``.
    payer: int = 0
    over_share: bool = False
    # The length of what runs after it, unless its answer suffices; 0: nothing. Those seconds of ``batched_s`` are reserved for it.
    then: int = 0
    reserved_s: float = 0.0
    # Rows with equal keys have equal answers: see sharing.py. None: computed on its own.
    key: bytes | None = None
    group: "Shared[P] | None" = None
    # Deadline and arrival by which it is planned: its own, or earlier ones of rows that follow it. Of a caller with much work in the queue
    # the arrival may be later, while others ask too: see ``ClassQueue.fair_arrival``.
    due_at: float = field(init=False)
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.due_at, self.since = self.deadline_at, self.queued_at

    @property
    def leader(self) -> "Ticket[P] | None":
        """The row that it follows."""
        return None if self.group is None or self.group.leader is self else self.group.leader

    def hopeless(self, now: float, speed: float) -> bool:
        """Whether it would miss its deadline even alone and started now. ``speed``: see CostTable.speed."""
        return not self.probe and self.deadline_at - now < speed * self.alone_s

    def precedes(self, leader: "Ticket[P]") -> bool:
        """Whether it should be computed in place of a waiting row with an equal answer, since it is more urgent."""
        if leader.state is not State.WAITING or leader.retrying:
            return False
        return self.due_at < leader.due_at or CLASSES.index(self.priority) < CLASSES.index(leader.priority)

    def replaces(self, leader: "Ticket[P]") -> None:
        """Let it be planned so that the row whose place it takes is in time too: of the higher class, by the earlier deadline."""
        self.priority = min(self.priority, leader.priority, key=CLASSES.index)
        self.due_at = min(self.due_at, leader.due_at)


@dataclass(slots=True, eq=False)
class Shared(Generic[P]):
    """Rows that share one computation: the one that waits or runs for all, and those that follow it.

    The heap has the follower with the earliest deadline first. Entries of those that left are dropped lazily; it is rebuilt when they are
    the majority.
    """

    leader: Ticket[P]
    rows: int = 0
    _heap: list[tuple[float, int, Ticket[P]]] = field(default_factory=list)

    def add(self, ticket: Ticket[P]) -> None:
        """A row follows the leader."""
        ticket.group = self
        heapq.heappush(self._heap, (ticket.deadline_at, ticket.number, ticket))
        self.rows += 1

    def remove(self, ticket: Ticket[P]) -> None:
        """A follower leaves."""
        ticket.group = None
        self.rows -= 1
        if len(self._heap) > 2 * self.rows + 64:
            self._heap = [entry for entry in self._heap if entry[-1].group is self]
            heapq.heapify(self._heap)

    def followers(self) -> list[Ticket[P]]:
        """Those that follow, in no order."""
        return [one for *_, one in self._heap if one.group is self]

    def succeed(self) -> Ticket[P] | None:
        """Let the follower with the earliest deadline lead. None if none follows."""
        while self._heap:
            *_, one = heapq.heappop(self._heap)
            if one.group is self:
                self.leader, self.rows = one, self.rows - 1
                return one
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[P]):
    """Rows to run together now.

    ``reason`` says why the batch is not larger: full (more rows would not be cheaper per row), alike (no other rows are worth adding),
    spread (the other rows run on another runner), tight (a deadline allows no more), retry (rows of a failed batch), wide (no other rows
    wait, so it uses the cores of idle runners too).
    """

    tickets: list[Ticket[P]]
    reason: str
    # The shape of equal rows with the same cost; and the tokens of its rows.
    shape: Shape
    own_tokens: int
    # Computed tokens, and the sum of squared lengths, both including padding.
    tokens: int
    squares: int
    # On one core.
    predicted_s: float

    @property
    def wide(self) -> bool:
        """Whether it uses the cores of idle runners too, as long as these stay idle."""
        return self.reason == WIDE

    @property
    def length(self) -> int:
        """The length of the longest row."""
        return max([ticket.length for ticket in self.tickets])


Entry = tuple[float, int, Ticket[P]]


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """What to do now: answer the expired and hopeless rows, start the batches, and call ``step`` again at ``wake_at``.

    ``wake_at`` is None if the next event is early enough.
    """

    expired: list[Ticket[P]] = field(default_factory=list)
    hopeless: list[Ticket[P]] = field(default_factory=list)
    batches: list[Batch[P]] = field(default_factory=list)
    wake_at: float | None = None
