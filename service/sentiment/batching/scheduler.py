"""The scheduler: which rows run together, and which never run.

Pure: no clock, thread, task or socket; ``now`` is an argument. Its driver calls ``add``, ``cancel``, ``finish`` and ``fail`` as
things happen and ``step`` whenever a runner is free or a deadline comes; ``step`` answers what to do now and when to ask again.

Promises, checked by a seeded simulation in tests/batching/test_simulation.py:

- Every ticket has exactly one fate: answered, expired, cancelled or failed. One that ``add`` refuses never becomes a ticket.
- A batch is formed only for a runner that is free, and keeps every limit.
- No ticket starts after its deadline; no ticket waits or runs past it without being expired.
- Rows run in the order of their deadlines, but for rows of like length that ride along in an earlier batch. Deadlines are
  bounded, so nothing starves.
- A batch that fails is halved until only the culprit fails.
"""

import enum
import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sentiment.errors import Refused, Unavailable

P = TypeVar("P")


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
    number: int = 0
    state: State = State.WAITING
    started_at: float = 0.0
    retrying: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch may be. A single row that breaks a limit by itself runs alone.

    Args:
        rows: rows in a batch.
        tokens: rows x longest length.
        scores_bytes: rows x heads x length^2 x 4, the size of one layer's attention scores in fp32.
        heads: attention heads of the model.
    """

    rows: int
    tokens: int
    scores_bytes: int
    heads: int

    def rows_at(self, length: int) -> int:
        """How many rows of this length fit one batch, at least 1."""
        by_scores = self.scores_bytes // (4 * self.heads * length * length)
        return max(1, min(self.rows, self.tokens // length, by_scores))


@dataclass(frozen=True, slots=True)
class Batch(Generic[P]):
    """Rows to run together now. ``reason`` says why it is not larger: full, alike (no more rows of like length), retry."""

    tickets: list[Ticket[P]]
    reason: str

    @property
    def length(self) -> int:
        """Length that every row is padded to."""
        return max(ticket.length for ticket in self.tickets)

    @property
    def tokens(self) -> int:
        """Padded tokens."""
        return self.length * len(self.tickets)


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """What to do now: answer the expired, start the batches, call ``step`` again at ``wake_at`` (None: at the next event)."""

    expired: list[Ticket[P]] = field(default_factory=list)
    batches: list[Batch[P]] = field(default_factory=list)
    wake_at: float | None = None


def bucket(length: int) -> int:
    """The longest length that is batched with ``length``.

    Steps of an eighth from 32 tokens on: padding within a bucket stays under 12.5 %, less than batching saves on a CPU.
    Shorter rows cost little beside the fixed cost of a run, so there steps are 4 tokens.
    """
    step = 4 if length <= 32 else 1 << ((length - 1).bit_length() - 4)
    return -(-length // step) * step


class Scheduler(Generic[P]):
    """The queue of one model on one device. Not thread-safe: one owner calls it."""

    def __init__(self, limits: BatchLimits, queue_rows_max: int) -> None:
        """Start empty.

        Args:
            limits: what one batch may be.
            queue_rows_max: rows that may wait; one more is refused.
        """
        self.limits = limits
        self.queue_rows_max = queue_rows_max
        self.rows_waiting = 0
        self.rows_running = 0
        self.tokens_waiting = 0
        self._closed = False
        self._numbers = 0
        # Both heaps drop dead entries lazily and are rebuilt when those are the majority.
        self._by_deadline: list[tuple[float, int, Ticket[P]]] = []
        self._order: list[tuple[float, int, Ticket[P]]] = []
        # Waiting tickets by bucket, each in order of arrival.
        self._buckets: dict[int, dict[int, Ticket[P]]] = {}
        self._retries: deque[list[Ticket[P]]] = deque()

    def add(self, length: int, now: float, deadline_at: float, payload: P, retry_after_s: float = 0.0) -> Ticket[P]:
        """Admit a row of ``length`` tokens.

        Raises:
            Refused: the queue is full; carries ``retry_after_s``.
            Unavailable: the scheduler is closed.
        """
        if self._closed:
            raise Unavailable("the server has drained")
        if self.rows_waiting >= self.queue_rows_max:
            raise Refused(f"{self.rows_waiting} rows are waiting; the limit is {self.queue_rows_max}", retry_after_s)
        self._numbers += 1
        ticket = Ticket(length, now, deadline_at, payload, self._numbers)
        entry = (deadline_at, ticket.number, ticket)
        heapq.heappush(self._by_deadline, entry)
        heapq.heappush(self._order, entry)
        self._buckets.setdefault(bucket(length), {})[ticket.number] = ticket
        self.rows_waiting += 1
        self.tokens_waiting += length
        return ticket

    def close(self) -> None:
        """Admit nothing from now on; what was admitted goes on."""
        self._closed = True

    def cancel(self, ticket: Ticket[P]) -> bool:
        """Nobody waits for this row any more. A waiting one will not run. False if it already has a fate."""
        return self._end(ticket, State.CANCELLED)

    def finish(self, batch: Batch[P]) -> list[Ticket[P]]:
        """A batch has run. Returns the tickets that are answered by it; the others got another fate meanwhile."""
        return [ticket for ticket in batch.tickets if self._end(ticket, State.ANSWERED)]

    def fail(self, batch: Batch[P]) -> list[Ticket[P]]:
        """A batch could not run. Returns the ticket that fails by it: one that ran alone. Several rows are retried in halves."""
        alive = [ticket for ticket in batch.tickets if ticket.state is State.RUNNING]
        if len(batch.tickets) == 1:
            return [ticket for ticket in alive if self._end(ticket, State.FAILED)]
        middle = len(alive) // 2
        for half in filter(None, (alive[:middle], alive[middle:])):
            for ticket in half:
                ticket.state, ticket.retrying = State.WAITING, True
                self.rows_running -= 1
                self.rows_waiting += 1
                self.tokens_waiting += ticket.length
            self._retries.append(half)
        return []

    def step(self, now: float, runners_free: int) -> Step[P]:
        """Decide. Every batch of the answer must be started; the next ``step`` counts its runner as busy."""
        expired = self._expire(now)
        batches: list[Batch[P]] = []
        while len(batches) < runners_free and (batch := self._next_batch(now)):
            batches.append(batch)
        self._compact()
        return Step(expired, batches, self._by_deadline[0][0] if self._by_deadline else None)

    def _expire(self, now: float) -> list[Ticket[P]]:
        expired = []
        while self._by_deadline:
            deadline_at, _, ticket = self._by_deadline[0]
            if ticket.state in LIVE and deadline_at > now:
                break
            heapq.heappop(self._by_deadline)
            if self._end(ticket, State.EXPIRED):
                expired.append(ticket)
        return expired

    def _next_batch(self, now: float) -> Batch[P] | None:
        while self._retries:
            half = [ticket for ticket in self._retries.popleft() if ticket.state is State.WAITING]
            if half:
                return self._begin(half, "retry", now)
        while self._order:
            anchor = heapq.heappop(self._order)[2]
            if anchor.state is State.WAITING and not anchor.retrying:
                return self._batch_around(anchor, now)
        return None

    def _batch_around(self, anchor: Ticket[P], now: float) -> Batch[P]:
        """The anchor and rows of like length, in order of arrival."""
        edge = bucket(anchor.length)
        alike = self._buckets[edge]
        room = self.limits.rows_at(edge)
        tickets = [anchor]
        for ticket in alike.values():
            if len(tickets) == room:
                break
            if ticket is not anchor:
                tickets.append(ticket)
        reason = "full" if len(tickets) == room and len(alike) > room else "alike"
        return self._begin(tickets, reason, now)

    def _begin(self, tickets: list[Ticket[P]], reason: str, now: float) -> Batch[P]:
        for ticket in tickets:
            self._leave_queue(ticket)
            ticket.state, ticket.started_at = State.RUNNING, now
            self.rows_running += 1
        return Batch(tickets, reason)

    def _end(self, ticket: Ticket[P], fate: State) -> bool:
        if ticket.state is State.WAITING:
            self._leave_queue(ticket)
        elif ticket.state is State.RUNNING:
            self.rows_running -= 1
        else:
            return False
        ticket.state = fate
        return True

    def _leave_queue(self, ticket: Ticket[P]) -> None:
        self.rows_waiting -= 1
        self.tokens_waiting -= ticket.length
        if not ticket.retrying:
            edge = bucket(ticket.length)
            alike = self._buckets[edge]
            del alike[ticket.number]
            if not alike:
                del self._buckets[edge]

    def _compact(self) -> None:
        live = self.rows_waiting + self.rows_running
        if len(self._by_deadline) > 2 * live + 64:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].state in LIVE]
            heapq.heapify(self._by_deadline)
        if len(self._order) > 2 * self.rows_waiting + 64:
            self._order = [entry for entry in self._order if entry[2].state is State.WAITING]
            heapq.heapify(self._order)
