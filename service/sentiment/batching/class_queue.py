"""The waiting rows of one priority class: by length for planning, by deadline for admission. Pure."""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Generic

from sentiment.batching.cost import Shape
from sentiment.batching.deadlines import Demand
from sentiment.batching.layout import Candidates, Layout, Lengths
from sentiment.batching.plan import Prices, split
from sentiment.batching.ticket import Entry, P, Ticket

# An arrival counts for its bucket's rate for so long, and a batch for its class's.
RATE_WINDOW_S = 0.25
USE_WINDOW_S = 2.0
# Added to what rows have waited: rows that have just come are worth something too, each the same.
WORTH_S = 1e-3


@dataclass(slots=True)
class _Bucket(Generic[P]):
    """Rows of like length, the earliest deadline first, and sums over them."""

    edge: int
    layout: Layout
    entries: list[Entry[P]] = field(default_factory=list)
    queued_sum: float = 0.0
    tokens: int = 0
    squares: int = 0
    _shape: Shape | None = None
    _costs: tuple[float, float] | None = None

    def count(self, ticket: Ticket[P], times: int) -> None:
        """A row has come (1) or gone (-1)."""
        # Not worked out here: rows come many a message, and nobody asks before the last of them.
        self._costs = self._shape = None
        length = ticket.length
        self.queued_sum += times * ticket.queued_at
        self.tokens += times * length
        self.squares += times * length * length

    @property
    def shape(self) -> Shape:
        """As how many rows of what length all cost; there must be one."""
        if self._shape is None:
            self._shape = self.layout.shape(Lengths(len(self.entries), self.edge, self.tokens, self.squares))
        return self._shape

    def costs(self, prices: Prices) -> tuple[float, float]:
        """Predicted seconds of all its rows, and those in batches that are all of the best size."""
        if self._costs is None:
            rows, length = self.shape
            self._costs = prices.group_s(rows, length), rows * prices.batched_s(length)
        return self._costs

    def reprice(self) -> None:
        """Prices have changed."""
        self._costs = None


@dataclass(slots=True)
class _Rate:
    """How much comes a second: a sum that decays."""

    window_s: float
    sum: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        self.sum, self.at = self.decayed(now) + amount, now

    def decayed(self, now: float) -> float:
        return self.sum * math.exp((self.at - now) / self.window_s)


@dataclass(frozen=True, slots=True)
class Group:
    """Waiting rows that may run together: the buckets' edges, how many rows, their table seconds, and how long all have waited."""

    edges: Sequence[int]
    rows: int
    cost_s: float
    waited_s: float

    @property
    def length(self) -> int:
        """The longest length that a row of it may have."""
        return self.edges[-1]


class Lane(Generic[P]):
    """One class's queue. Its cost figures are table seconds: the speed of the moment is the caller's to multiply."""

    def __init__(self, share: float, buckets: Sequence[int], prices: Prices, layout: Layout) -> None:
        """Start empty.

        Args:
            share: part of the run time that this class keeps while others wait too.
            buckets: the edge of each length's bucket; a longer row belongs to the last.
            prices: what rows cost.
            layout: what rows cost together.
        """
        self.share = share
        self.rows = 0
        # Run time spent on this class, over its share.
        self.charged_s = 0.0
        self.demand = Demand()
        # Table seconds of all rows one by one, and of the dearest, which is not lowered before the lane is empty.
        self.alone_s = 0.0
        self.dearest_s = 0.0
        self._edges = buckets
        self._prices = prices
        self._layout = layout
        self._buckets: dict[int, _Bucket[P]] = {}
        self._rates = {edge: _Rate(RATE_WINDOW_S) for edge in set(buckets)}
        self._use = _Rate(USE_WINDOW_S)
        self._work_s: float | None = 0.0

    def add(self, ticket: Ticket[P]) -> None:
        """A row waits."""
        edge = self._edge(ticket)
        bucket = self._buckets.get(edge)
        if bucket is None:
            bucket = self._buckets[edge] = _Bucket(edge, self._layout)
        insort(bucket.entries, (ticket.deadline_at, ticket.number, ticket))
        bucket.count(ticket, 1)
        self._rates[edge].add(1, ticket.queued_at)
        self.rows += 1
        self.alone_s += ticket.alone_s
        self.dearest_s = max(self.dearest_s, ticket.alone_s)
        self.demand.add(ticket.deadline_at, ticket.batched_s, ticket.alone_s)
        self._work_s = None

    def remove(self, ticket: Ticket[P]) -> None:
        """A row that waits here waits no more."""
        edge = self._edge(ticket)
        entries = self._buckets[edge].entries
        self._remove(edge, bisect_left(entries, (ticket.deadline_at, ticket.number)))

    def earliest(self) -> Ticket[P]:
        """The row with the earliest deadline; there must be one."""
        return min(bucket.entries[0] for bucket in self._buckets.values())[2]

    def waiting(self) -> list[Ticket[P]]:
        """All rows."""
        return [entry[2] for bucket in self._buckets.values() for entry in bucket.entries]

    def hopeless(self, now: float, speed: float) -> list[Ticket[P]]:
        """Rows that could not finish in time if they started now."""
        near_at = now + speed * self.dearest_s
        if not self.rows or self.demand.first_at >= near_at:
            return []
        return [
            ticket
            for bucket in self._buckets.values()
            for _, _, ticket in takewhile(lambda entry: entry[0] < near_at, bucket.entries)
            if ticket.hopeless(now, speed)
        ]

    def work_s(self) -> float:
        """Predicted seconds of all rows, bucket by bucket."""
        if self._work_s is None:
            self._work_s = sum([bucket.costs(self._prices)[0] for bucket in self._buckets.values()])
        return self._work_s

    def overhead(self) -> float:
        """Predicted work over that of batches that are all of the best size, at least 1: what odd rows cost."""
        best_s = sum([bucket.costs(self._prices)[1] for bucket in self._buckets.values()])
        return max(1.0, self.work_s() / best_s) if self.rows else 1.0

    def batch_s(self) -> float:
        """Table seconds of the dearest batch that could be next."""
        prices, shapes = self._prices, [bucket.shape for bucket in self._buckets.values()]
        return max([prices.group_s(min(rows, prices.best_rows(length)), length) for rows, length in shapes], default=0.0)

    def use_per_s(self, now: float) -> float:
        """Table seconds of run time that this class was given a second, of late."""
        return self._use.decayed(now) / USE_WINDOW_S

    def reprice(self, prices: Prices) -> None:
        """Costs have changed."""
        self._prices = prices
        self._work_s = None
        for bucket in self._buckets.values():
            bucket.reprice()

    def plan(self, now: float) -> list[Group]:
        """All rows, cut into groups so that their predicted time is least."""
        buckets = [self._buckets[edge] for edge in sorted(self._buckets)]
        groups = []
        for span in split([bucket.shape[::-1] for bucket in buckets], self._prices):
            rows, waited_s = 0, 0.0
            own = buckets[span.first : span.last + 1]
            for bucket in own:
                rows += len(bucket.entries)
                waited_s += now * len(bucket.entries) - bucket.queued_sum
            groups.append(Group([bucket.edge for bucket in own], rows, span.cost_s, waited_s))
        return groups

    def portion(self, group: Group, within_s: float = math.inf) -> tuple[int, Shape]:
        """How many rows of a group, those with the earliest deadlines, its next batch has, and the shape it is planned to have.

        ``within_s``: predicted seconds that it may take; one row may take longer.
        """
        lengths = (entry[2].length for entry in self._in_order(group))
        return self._layout.portion(Candidates(group.rows, group.length, lengths), self._prices, within_s)

    def urgent(self, groups: Sequence[Group], now: float) -> tuple[Group, int, str]:
        """The group of the row with the earliest deadline, as many of its rows as let that one finish in time, and why no more."""
        first = self.earliest()
        group = next(group for group in groups if first.length <= group.length or group is groups[-1])
        most, _ = self.portion(group)
        rows, _ = self.portion(group, first.deadline_at - now)
        return group, rows, "tight" if rows < most else "full" if rows < group.rows else "alike"

    def arrivals_per_s(self, group: Group, now: float) -> float:
        """Measured rate of rows that the group could take along. A single arrival is no rate."""
        first, last = group.edges[0], group.length
        within = [rate.decayed(now) for edge, rate in self._rates.items() if first <= edge <= last and rate.sum]
        return max(0.0, sum(within) - 1) / RATE_WINDOW_S

    def hold_until(self, group: Group, shape: Shape, now: float) -> float | None:
        """Until when to wait for the next arrival, if it is expected so soon that rows per second rise by it; else None.

        No row waits for company longer than its batch takes, and none whose deadline is near. ``shape``: of the whole group.
        """
        (rows, length), cost = shape, self._prices.cost
        if group.rows >= self._prices.limits.rows_at(rows * length // group.rows):
            return None
        rate = self.arrivals_per_s(group, now)
        batch_s, more_s = cost.run_s(rows, length), cost.run_s(rows + 1, length)
        if not rate or (group.rows + 1) / (1 / rate + more_s) <= group.rows / batch_s:
            return None
        oldest_at = min(ticket.queued_at for edge in group.edges for _, _, ticket in self._buckets[edge].entries)
        until = min(now + 1 / rate, oldest_at + batch_s, self.earliest().deadline_at - 2 * more_s)
        return until if until > now else None

    def charge(self, seconds: float, now: float) -> None:
        """Table seconds of run time are given to this class."""
        self.charged_s += seconds / self.share
        self._use.add(seconds, now)

    def take(self, group: Group, rows: int) -> list[Ticket[P]]:
        """Remove and return the ``rows`` rows of a group that have the earliest deadlines."""
        taken = [entry[2] for entry in islice(self._in_order(group), rows)]
        for ticket in taken:
            # Buckets are in order of deadlines too: what is taken of one stands at its front.
            self._remove(self._edge(ticket), 0)
        return taken

    def _in_order(self, group: Group) -> Iterable[Entry[P]]:
        return heapq.merge(*(self._buckets[edge].entries for edge in group.edges))

    def _edge(self, ticket: Ticket[P]) -> int:
        return self._edges[min(ticket.length, len(self._edges) - 1)]

    def _remove(self, edge: int, place: int) -> None:
        bucket = self._buckets[edge]
        ticket = bucket.entries.pop(place)[2]
        bucket.count(ticket, -1)
        if not bucket.entries:
            del self._buckets[edge]
        self.rows -= 1
        self.alone_s -= ticket.alone_s
        self.demand.remove(ticket.deadline_at, ticket.batched_s)
        self._work_s = None
        if not self.rows:
            # With what rounding has left over.
            self.alone_s = self.dearest_s = 0.0


def next_group(lanes: Sequence[Lane[P]], now: float) -> tuple[Lane[P], list[Group], Group]:
    """Of classes that wait the one whose turn it is, its rows in groups, and the group that relieves most waiting a second of run time."""
    lane = min(lanes, key=lambda lane: lane.charged_s)
    groups = lane.plan(now)
    return lane, groups, max(groups, key=lambda group: (group.waited_s + WORTH_S * group.rows) / group.cost_s)
