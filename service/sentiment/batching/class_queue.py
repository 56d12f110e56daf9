"""The waiting rows of one priority class: by length for planning, by deadline for admission control. Pure."""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Generic

from sentiment.batching.cost import Shape
from sentiment.batching.deadlines import Demand
from sentiment.batching.layout import Candidates, Layout, Lengths
from sentiment.batching.plan import Prices, split
from sentiment.batching.rate import Rate
from sentiment.batching.ticket import Entry, P, Ticket

# Time constants of two decaying averages: a bucket's arrivals, and the run time that a class gets.
RATE_WINDOW_S = 0.25
USE_WINDOW_S = 2.0
# How much later than a row, in its own run times, cheaper rows may arrive and still go first. With 0.5 the 99th percentile is at most 3 %
# above that of running one row at a time in order of arrival, with 1 up to 11 % (docs/internals/performance.md, "Who may overtake whom").
HEAD_START = 0.5
# Less work than any row needs.
WORK_S_MIN = 1e-9


@dataclass(slots=True)
class _Bucket(Generic[P]):
    """Rows of similar length, the earliest deadline first and in order of arrival, and sums over them."""

    edge: int
    layout: Layout
    entries: list[Entry[P]] = field(default_factory=list)
    arrivals: list[Entry[P]] = field(default_factory=list)
    tokens: int = 0
    squares: int = 0
    _shape: Shape | None = None
    _costs: tuple[float, float] | None = None

    def add(self, ticket: Ticket[P]) -> None:
        """Add a row."""
        insort(self.entries, (ticket.due_at, ticket.number, ticket))
        insort(self.arrivals, (ticket.since, ticket.number, ticket))
        self._count(ticket, 1)

    def remove(self, ticket: Ticket[P]) -> None:
        """Remove a row."""
        del self.entries[bisect_left(self.entries, (ticket.due_at, ticket.number))]
        del self.arrivals[bisect_left(self.arrivals, (ticket.since, ticket.number))]
        self._count(ticket, -1)

    @property
    def oldest(self) -> Ticket[P]:
        """The row that came first. At least one row must wait."""
        return self.arrivals[0][2]

    def _count(self, ticket: Ticket[P], times: int) -> None:
        # Costs are computed on demand: many rows arrive in one message, and costs are read only after the last.
        self._costs = self._shape = None
        length = ticket.length
        self.tokens += times * length
        self.squares += times * length * length

    @property
    def shape(self) -> Shape:
        """The shape whose cost equals that of all rows. At least one row must wait."""
        if self._shape is None:
            self._shape = self.layout.shape(Lengths(len(self.entries), self.edge, self.tokens, self.squares))
        return self._shape

    def costs(self, prices: Prices) -> tuple[float, float]:
        """Predicted seconds of all rows, and what they would take if every batch had the best size."""
        if self._costs is None:
            rows, length = self.shape
            self._costs = prices.group_s(rows, length), rows * prices.batched_s(length)
        return self._costs

    def reprice(self) -> None:
        """Drop remembered costs, because prices have changed."""
        self._costs = None


@dataclass(frozen=True, slots=True)
class Group(Generic[P]):
    """Waiting rows that may run together: their buckets' edges, their number, and the row that must be in the next batch of them."""

    edges: Sequence[int]
    rows: int
    first: Ticket[P]

    @property
    def length(self) -> int:
        """The longest length that a row of the group may have."""
        return self.edges[-1]


class ClassQueue(Generic[P]):
    """The queue of one priority class. Costs are table seconds; the caller multiplies them by the current speed."""

    def __init__(self, share: float, buckets: Sequence[int], prices: Prices, layout: Layout, objective_s: float) -> None:
        """Start empty.

        Args:
            share: this class's share of the run time while other classes wait too, 0 to 1.
            buckets: for each length the edge of its bucket; a longer row belongs to the last.
            prices: costs of groups of rows.
            layout: how the graph takes the rows of a batch.
            objective_s: rows that arrive this many seconds later do not overtake a row of this class, unless a deadline is near.
        """
        self.share = share
        self.rows = 0
        # Run time given to this class, divided by its share.
        self.charged_s = 0.0
        self.demand = Demand()
        # By how much predicted waits are too short: see ``forecast``.
        self.caution = 1.0
        # Table seconds of all rows if each ran alone, and of the most expensive row. The latter falls only when nothing waits or may run.
        self.alone_s = 0.0
        self.dearest_s = 0.0
        # Of what may run after rows that wait, and after those that have begun: see Ticket.
        self.reserved_s = self.begun_s = 0.0
        self._begun = 0
        self._edges = buckets
        self._prices = prices
        self._layout = layout
        self._objective_s = objective_s
        self._buckets: dict[int, _Bucket[P]] = {}
        self._rates = {edge: Rate(RATE_WINDOW_S) for edge in set(buckets)}
        self._use = Rate(USE_WINDOW_S)
        # Of each caller with waiting rows, their table seconds in batches of the best size, and the last of their arrivals.
        self._payers: dict[int, tuple[float, float]] = {}
        self._work_s: float | None = 0.0

    def add(self, ticket: Ticket[P], now: float | None) -> None:
        """Add a waiting row, which may have run before. ``now``: when it arrives; None for one that takes the place of another."""
        edge = self._edge(ticket)
        bucket = self._buckets.get(edge)
        if bucket is None:
            bucket = self._buckets[edge] = _Bucket(edge, self._layout)
        bucket.add(ticket)
        if now is not None:
            self._rates[edge].add(1, now)
        self.rows += 1
        if ticket.payer:
            seconds, last = self._payers.get(ticket.payer, (0.0, ticket.since))
            self._payers[ticket.payer] = seconds + ticket.batched_s, max(last, ticket.since)
        self.alone_s += ticket.alone_s
        self.reserved_s += ticket.reserved_s
        self.dearest_s = max(self.dearest_s, ticket.alone_s)
        self.demand.add(ticket.due_at, ticket.batched_s, ticket.alone_s)
        self._work_s = None

    def remove(self, ticket: Ticket[P]) -> None:
        """Remove a waiting row."""
        edge = self._edge(ticket)
        bucket = self._buckets[edge]
        bucket.remove(ticket)
        if not bucket.entries:
            del self._buckets[edge]
        self.rows -= 1
        if ticket.payer:
            seconds, last = self._payers[ticket.payer]
            self._payers[ticket.payer] = seconds - ticket.batched_s, last
            # Rounding errors are far less than the least work.
            if seconds - ticket.batched_s < WORK_S_MIN:
                del self._payers[ticket.payer]
        self.alone_s -= ticket.alone_s
        self.reserved_s -= ticket.reserved_s
        self.demand.remove(ticket.due_at, ticket.batched_s)
        self._work_s = None
        self._emptied()

    def begin(self, ticket: Ticket[P]) -> None:
        """A row that was taken runs; what may run after it stays reserved, and due by its deadline."""
        if ticket.then:
            self._begun += 1
            self.begun_s += ticket.reserved_s
            self.dearest_s = max(self.dearest_s, ticket.reserved_s)
            self.demand.add(ticket.due_at, ticket.reserved_s, ticket.reserved_s)

    def settle(self, ticket: Ticket[P]) -> None:
        """A row that has begun gets its fate, or waits for what runs after it."""
        if ticket.then:
            self._begun -= 1
            self.begun_s -= ticket.reserved_s
            self.demand.remove(ticket.due_at, ticket.reserved_s)
            self._emptied()

    def _emptied(self) -> None:
        """Sums of nothing are exactly 0, without rounding errors."""
        if not self.rows:
            self.alone_s = self.reserved_s = 0.0
        if not self._begun:
            self.begun_s = 0.0
        if not self.rows and not self._begun:
            self.dearest_s = 0.0

    def earliest(self) -> Ticket[P]:
        """The row with the earliest deadline. At least one row must wait."""
        return min(bucket.entries[0] for bucket in self._buckets.values())[2]

    def waiting(self) -> list[Ticket[P]]:
        """All waiting rows."""
        return [entry[2] for bucket in self._buckets.values() for entry in bucket.entries]

    def hopeless(self, now: float, speed: float) -> list[Ticket[P]]:
        """Rows that would miss their deadline even if they started now."""
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
        """Predicted seconds of all rows, bucket by bucket, and of what may run after them and after those that have begun."""
        if self._work_s is None:
            self._work_s = self.reserved_s + sum([bucket.costs(self._prices)[0] for bucket in self._buckets.values()])
        return self._work_s + self.begun_s

    def overhead(self) -> float:
        """Predicted work divided by the work if all batches had the best size; at least 1."""
        best_s = self.reserved_s + sum([bucket.costs(self._prices)[1] for bucket in self._buckets.values()])
        return max(1.0, (self.work_s() - self.begun_s) / best_s) if self.rows else 1.0

    def batch_s(self) -> float:
        """Table seconds of the most expensive batch that could be next."""
        prices, shapes = self._prices, [bucket.shape for bucket in self._buckets.values()]
        return max([prices.group_s(min(rows, prices.best_rows(length)), length) for rows, length in shapes], default=0.0)

    def use_per_s(self, now: float) -> float:
        """Table seconds of run time per second that this class got recently."""
        return self._use.per_s(now)

    def reprice(self, prices: Prices) -> None:
        """Use new prices."""
        self._prices = prices
        self._work_s = None
        for bucket in self._buckets.values():
            bucket.reprice()

    def fair_arrival(self, payer: int, now: float, per_s: float) -> float:
        """When a row of the caller that comes now would come if the caller sent its rows one by one, at ``per_s`` table seconds a second.

        As in start-time fair queueing. So the rows of a caller with few go before most of those of a caller that always has many waiting.
        The rows of each caller keep their order.
        """
        seconds, last = self._payers.get(payer, (0.0, now))
        return max(last, now + seconds / per_s)

    def turn_at(self, ticket: Ticket[P]) -> float:
        """The virtual arrival of a row. A row whose own virtual arrival is earlier goes first, although it came later."""
        return ticket.since + min(self._objective_s, HEAD_START * self._prices.cost.speed * ticket.alone_s)

    def only(self) -> Group[P]:
        """The group of the only row that waits."""
        (bucket,) = self._buckets.values()
        return Group([bucket.edge], 1, bucket.entries[0][2])

    def plan(self) -> list[Group[P]]:
        """Divide all rows into groups so that their total predicted time is least."""
        buckets = [self._buckets[edge] for edge in sorted(self._buckets)]
        groups = []
        for span in split([bucket.shape[::-1] for bucket in buckets], self._prices):
            own = buckets[span.first : span.last + 1]
            first = min([bucket.oldest for bucket in own], key=self.turn_at)
            groups.append(Group([bucket.edge for bucket in own], sum([len(bucket.entries) for bucket in own]), first))
        return groups

    def portion(self, group: Group[P], within_s: float = math.inf) -> tuple[int, Shape]:
        """The number of rows in a group's next batch, and the planned shape of that batch.

        ``within_s`` limits the batch's predicted seconds; a single row may take longer.
        """
        lengths = (ticket.length for ticket in self._in_order(group))
        return self._layout.portion(Candidates(group.rows, group.length, lengths), self._prices, within_s)

    def urgent(self, groups: Sequence[Group[P]], now: float) -> tuple[Group[P], int, str]:
        """The group of the row with the earliest deadline, how many of its rows let that row finish in time, and the batch's reason."""
        first = self.earliest()
        group = replace(next(group for group in groups if first.length <= group.length or group is groups[-1]), first=first)
        most, _ = self.portion(group)
        left_s = first.due_at - now - (self._prices.cost.run_s(1, first.then) if first.then else 0.0)
        rows, _ = self.portion(group, left_s)
        return group, rows, "tight" if rows < most else "full" if rows < group.rows else "alike"

    def arrivals_per_s(self, group: Group[P], now: float) -> float:
        """Measured arrival rate of rows that could join the group. A single arrival does not count as a rate."""
        first, last = group.edges[0], group.length
        within = [rate.decayed(now) for edge, rate in self._rates.items() if first <= edge <= last and rate.sum]
        return max(0.0, sum(within) - 1) / RATE_WINDOW_S

    def hold_until(self, group: Group[P], shape: Shape, now: float) -> float | None:
        """When to stop waiting for the next arrival, if it is expected so soon that waiting raises rows per second; else None.

        No row is held longer than its batch takes, and no row whose deadline is near. ``shape`` is that of the whole group.
        """
        (rows, length), cost = shape, self._prices.cost
        if group.rows >= self._prices.limits.rows_at(rows * length // group.rows):
            return None
        rate = self.arrivals_per_s(group, now)
        batch_s, more_s = cost.run_s(rows, length), cost.run_s(rows + 1, length)
        if not rate or (group.rows + 1) / (1 / rate + more_s) <= group.rows / batch_s:
            return None
        oldest_at = min([self._buckets[edge].oldest.since for edge in group.edges])
        until = min(now + 1 / rate, oldest_at + batch_s, self.earliest().due_at - 2 * more_s)
        return until if until > now else None

    def charge(self, seconds: float, now: float) -> None:
        """Account ``seconds`` table seconds of run time to this class."""
        self.charged_s += seconds / self.share
        self._use.add(seconds, now)

    def front(self, group: Group[P], rows: int) -> list[Ticket[P]]:
        """``rows`` rows of a group: its first, and those with the earliest deadlines."""
        return [group.first] if rows == 1 else list(islice(self._in_order(group), rows))

    def take(self, group: Group[P], rows: int) -> list[Ticket[P]]:
        """Remove and return the ``front`` of a group."""
        taken = self.front(group, rows)
        if rows == self.rows and not self._begun:
            self._clear()
        else:
            for ticket in taken:
                self.remove(ticket)
        return taken

    def _clear(self) -> None:
        self._buckets.clear()
        self._payers.clear()
        self.demand = Demand()
        self.rows = 0
        self._work_s = None
        self._emptied()

    def _in_order(self, group: Group[P]) -> Iterable[Ticket[P]]:
        yield group.first
        for _, _, ticket in heapq.merge(*(self._buckets[edge].entries for edge in group.edges)):
            if ticket is not group.first:
                yield ticket

    def _edge(self, ticket: Ticket[P]) -> int:
        return self._edges[min(ticket.length, len(self._edges) - 1)]


def next_group(queues: Sequence[ClassQueue[P]]) -> tuple[ClassQueue[P], list[Group[P]], Group[P]]:
    """The waiting class that runs next, its rows in groups, and the group that holds its next row."""
    queue = min(queues, key=lambda queue: queue.charged_s)
    groups = queue.plan()
    return queue, groups, min(groups, key=lambda group: queue.turn_at(group.first))
