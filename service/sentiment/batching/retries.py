"""Rows to run before all others, each set as one batch: halves of failed batches, and batches that never began. Pure."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic

from sentiment.batching.ticket import RETRY, P, State, Ticket


class Retries(Generic[P]):
    """Sets of rows in the order of arrival. ``rows`` is the number of waiting rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._sets: deque[list[Ticket[P]]] = deque()

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, tickets: Sequence[Ticket[P]], began: bool = True) -> None:
        """Add rows that are to run together; there may be none. ``began``: whether their batch has started to run."""
        for ticket in tickets:
            ticket.state, ticket.retrying = State.WAITING, True
            if not began:
                ticket.started_at = 0.0
        self.rows += len(tickets)
        if tickets:
            self._sets.append(list(tickets))

    def take(self) -> tuple[list[Ticket[P]], str] | None:
        """Take the waiting rows of the first set that has any, and the batch's reason; None if no row waits."""
        while self._sets:
            waiting = [ticket for ticket in self._sets.popleft() if ticket.state is State.WAITING]
            if waiting:
                self.rows -= len(waiting)
                return waiting, RETRY
        return None

    def left(self) -> None:
        """Count one row less: it expired, failed or was cancelled."""
        self.rows -= 1

    def waiting(self) -> Iterator[Ticket[P]]:
        """All waiting rows."""
        return (ticket for tickets in self._sets for ticket in tickets if ticket.state is State.WAITING)
