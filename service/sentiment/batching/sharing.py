"""Rows with equal keys share one computation: one of them leads, and the others follow it and get its answer. Pure.

A follower takes no place in a queue and no run time. It keeps its own deadline, class and fate: when its leader has another fate than an
answer, one of its followers leads on.
"""

from typing import Generic

from sentiment.batching.ticket import P, Shared, Ticket

# A key, and whether the row is a part, after which more may run.
_Name = tuple[bytes, bool]


class Sharing(Generic[P]):
    """The leaders by key. ``rows`` is the number of followers."""

    def __init__(self) -> None:
        self.rows = 0
        self._leaders: dict[_Name, Ticket[P]] = {}

    def leader(self, ticket: Ticket[P]) -> Ticket[P] | None:
        """Whom a row could follow."""
        return None if ticket.key is None else self._leaders.get((ticket.key, ticket.then > 0))

    def lead(self, ticket: Ticket[P]) -> None:
        """A row waits or runs that others may follow."""
        if ticket.key is not None:
            self._leaders[ticket.key, ticket.then > 0] = ticket

    def follow(self, ticket: Ticket[P], leader: Ticket[P]) -> None:
        """A row follows another, and so do its own followers. The smaller group joins the larger, so that few rows ever move."""
        group, joins = leader.group or Shared(leader), ticket.group or Shared(ticket)
        if joins.rows > group.rows:
            group, joins = joins, group
        for one in joins.followers():
            group.add(one)
        group.leader, leader.group = leader, group
        group.add(ticket)
        self.rows += 1

    def left(self, ticket: Ticket[P]) -> None:
        """A follower gets its fate."""
        assert ticket.group is not None
        ticket.group.remove(ticket)
        self.rows -= 1

    def followers(self, ticket: Ticket[P]) -> list[Ticket[P]]:
        """The followers of a row."""
        return ticket.group.followers() if ticket.group is not None and ticket.group.leader is ticket else []

    def end(self, ticket: Ticket[P]) -> None:
        """A row leads no more; who follows it already still does."""
        if self.leader(ticket) is ticket:
            assert ticket.key is not None
            del self._leaders[ticket.key, ticket.then > 0]

    def heir(self, ticket: Ticket[P]) -> Ticket[P] | None:
        """The row that takes the place of one that has ended, in its class: of the earliest deadline. None if none follows.

        The others follow the heir. The caller puts it where the row was. It is planned no earlier than that one, so it makes nobody late.
        """
        self.end(ticket)
        group, ticket.group = ticket.group, None
        heir = None if group is None else group.succeed()
        if heir is None:
            return None
        self.rows -= 1
        heir.length, heir.alone_s, heir.batched_s = ticket.length, ticket.alone_s, ticket.batched_s
        heir.then, heir.reserved_s, heir.key = ticket.then, ticket.reserved_s, ticket.key
        heir.priority, heir.due_at, heir.since = ticket.priority, heir.deadline_at, ticket.since
        self.lead(heir)
        return heir
