"""Rows of batches that failed, or were not begun: they run again before all others, together as they come here. Pure."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic

from sentiment.batching.ticket import P, State, Ticket


class Retries(Generic[P]):
    """Sets of rows, first come first served. ``rows``: how many of them wait."""

    def __init__(self) -> None:
        self.rows = 0
        self._sets: deque[list[Ticket[P]]] = deque()

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, tickets: Sequence[Ticket[P]], began: bool = True) -> None:
        """Rows wait again; they are to run together, if there are any. ``began``: their batch did, else they have never run."""
        for ticket in tickets:
            ticket.state, ticket.retrying = State.WAITING, True
            if not began:
                ticket.started_at = 0.0
        self.rows += len(tickets)
        if tickets:
            self._sets.append(list(tickets))

    def take(self) -> tuple[list[Ticket[P]], str] | None:
        """The rows of the first set of which any still wait, and why they run together; None where none wait."""
        while self._sets:
            waiting = [ticket for ticket in self._sets.popleft() if ticket.state is State.WAITING]
            if waiting:
                self.rows -= len(waiting)
                return waiting, "retry"
        return None

    def left(self) -> None:
        """One of them has a fate."""
        self.rows -= 1

    def waiting(self) -> Iterator[Ticket[P]]:
        """All of them."""
        return (ticket for tickets in self._sets for ticket in tickets if ticket.state is State.WAITING)
