"""The scheduler: which rows run together and when, which are refused at the door, and which never run.

Pure: no clock, thread, task or socket; ``now`` is an argument. Its driver calls ``step`` whenever a runner is free or a deadline comes,
which answers what to do now and when to ask again, and ``add``, ``cancel``, ``begin``, ``finish``, ``fail`` and ``give_back`` as things
happen. docs/internals/scheduler.md tells how a batch is chosen, and why.

Promises, checked by a simulation in tests/batching/test_simulation.py:

- Every ticket has exactly one fate: answered, expired, cancelled or failed. One that ``add`` refuses never becomes a ticket.
- A batch is formed only for a runner that is free, or full for one that is about to be, and keeps every limit.
- A row that cannot finish by its deadline even if it starts now is put in no batch; one that a late run before it has made so runs
  with its batch. No row waits or runs past its deadline without being expired.
- A row is admitted only if it is predicted to finish in time, behind the rows of its class with earlier deadlines and what other
  classes may claim meanwhile, and if it makes no other row of its class late.
- While classes wait together each gets its share of the run time, to within a batch a runner.
- A batch that fails is halved until only the culprit fails. One that was too large for the memory lowers the limits.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Generic

from sentiment.batching.class_queue import Group, Lane, next_group
from sentiment.batching.cost import CostTable
from sentiment.batching.forecast import Forecast
from sentiment.batching.layout import Layout, Lengths, Padded
from sentiment.batching.plan import BatchLimits, Prices, bucket_by_length
from sentiment.batching.retries import Retries
from sentiment.batching.ticket import LIVE, Batch, Entry, P, Priority, State, Step, Ticket
from sentiment.errors import Expired, Refused, Unavailable

# An idle server tries what its table denies within this factor, and once in so many seconds whatever it denies: a table that is
# wrong corrects itself only by running.
PROBE = 0.5
PROBE_S = 1.0
# Bulk rows leave so much of the queue to interactive ones.
KEPT_FOR_INTERACTIVE = 0.25
# Two batches instead of one, for a runner that would be idle, if that cuts the time to so much of it.
SPREAD = 0.75


class Scheduler(Generic[P]):
    """The queue of one model on one device. Not thread-safe: one owner calls it."""

    def __init__(
        self,
        cost: CostTable,
        limits: BatchLimits,
        runners: int,
        queue_rows_max: int,
        length_max: int,
        bulk_share: float = 0.2,
        layout: Layout | None = None,
    ) -> None:
        """Start empty.

        Args:
            cost: what batches are predicted to take; learns from those that ran.
            limits: what one batch may be.
            runners: batches that may run at once.
            queue_rows_max: rows that may wait; one more is refused.
            length_max: the longest row, in tokens.
            bulk_share: part of the run time that bulk rows get while interactive ones wait too, between 0 and 1.
            layout: how the graph takes the rows of a batch; padded unless given.
        """
        self.cost = cost
        self.limits = limits
        self.layout = layout or Padded()
        self.queue_rows_max = queue_rows_max
        self.rows_running = 0
        self._closed = False
        self._numbers = itertools.count(1)
        self._prices = Prices(cost, self.layout.within(limits))
        buckets = bucket_by_length(self.layout.edges(length_max))
        shares = {Priority.INTERACTIVE: 1 - bulk_share, Priority.BULK: bulk_share}
        self.lanes: dict[Priority, Lane[P]] = {
            priority: Lane(share, buckets, self._prices, self.layout) for priority, share in shares.items()
        }
        # Drops dead entries lazily and is rebuilt when those are the majority.
        self._by_deadline: list[Entry[P]] = []
        self._retries: Retries[P] = Retries()
        self.forecast: Forecast[P] = Forecast(cost, list(self.lanes.values()), runners)
        self._hold_until: float | None = None
        # What the class that was served last had been charged before.
        self._charged_s = 0.0
        self._probe_at = -math.inf

    @property
    def rows_waiting(self) -> int:
        """Rows that wait for a runner."""
        rows = self._retries.rows
        for lane in self.lanes.values():
            rows += lane.rows
        return rows

    @property
    def runners(self) -> int:
        """Runners that have not been lost."""
        return self.forecast.runners

    def add(
        self, length: int, now: float, deadline_at: float, payload: P, priority: Priority = Priority.INTERACTIVE, checked: bool = False
    ) -> Ticket[P]:
        """Admit a row of ``length`` tokens; ``checked``: the caller has seen to its deadline, as for the windows of one text.

        Raises:
            Unavailable: the scheduler is closed, or all runners are lost.
            Expired: its deadline is too near even for an idle server.
            Refused: the queue is full, or the work ahead leaves it no time; carries when a retry may find room.
        """
        if self._closed or not self.runners:
            raise Unavailable("the server has drained" if self.runners else "no runner is left; the server is about to be replaced")
        waiting, lane = self.rows_waiting, self.lanes[priority]
        kept = KEPT_FOR_INTERACTIVE if priority is Priority.BULK else 0.0
        limit = self.queue_rows_max - int(self.queue_rows_max * kept)
        if waiting >= limit:
            raise Refused(f"{waiting} rows are waiting; the limit is {limit}", self.forecast.backlog_s(now), "queue_full")
        alone_s = self.cost.table_s(1, length)
        slack_s, own_s = deadline_at - now, self.cost.speed * alone_s
        idle = not waiting and self.forecast.idle
        if slack_s < own_s and not (checked or (idle and self.may_probe(slack_s, own_s, now))):
            raise Expired(f"the deadline leaves {max(0.0, slack_s):.3f} s and this text alone needs about {own_s:.3f} s")
        self._catch_up(lane)
        ahead_s = None if idle or checked else self.forecast.check(lane, alone_s, now, deadline_at)
        number, batched_s = next(self._numbers), self._prices.batched_s(length)
        ticket = Ticket(length, now, deadline_at, payload, priority, number, alone_s, batched_s, slack_s < own_s, ahead_s=ahead_s)
        heapq.heappush(self._by_deadline, (deadline_at, ticket.number, ticket))
        lane.add(ticket)
        return ticket

    def may_probe(self, slack_s: float, own_s: float, now: float) -> bool:
        """Whether an idle server tries what its table says takes longer than there is time."""
        if slack_s <= 0 or (slack_s < PROBE * own_s and now < self._probe_at):
            return False
        self._probe_at = now + PROBE_S
        return True

    def _catch_up(self, lane: Lane[P]) -> None:
        """A class that was away has no claim to what others got meanwhile."""
        if not lane.rows:
            lane.charged_s = max(lane.charged_s, self._charged_s)

    def close(self) -> None:
        """Admit nothing from now on; what was admitted goes on."""
        self._closed = True

    def cancel(self, ticket: Ticket[P]) -> bool:
        """Nobody waits for this row any more. A waiting one will not run. False if it already has a fate."""
        cancelled = self._end(ticket, State.CANCELLED)
        self._compact()
        return cancelled

    def finish(self, batch: Batch[P], now: float, run_s: float) -> list[Ticket[P]]:
        """A batch has run in ``run_s`` seconds.

        Returns:
            The tickets that are answered by it, in order. The others have another fate or get one in the next ``step``: a deadline
            that came while the batch ran counts, even if nobody has noticed it yet.
        """
        self.forecast.ended(batch)
        self.cost.observe(*batch.shape, run_s)
        return [ticket for ticket in batch.tickets if ticket.deadline_at > now and self._end(ticket, State.ANSWERED)]

    def fail(self, batch: Batch[P], out_of_memory: bool = False) -> list[Ticket[P]]:
        """A batch could not run. Returns the ticket that fails by it: one that ran alone. Several rows are retried in halves.

        ``out_of_memory``: from now on batches are at most half as large.
        """
        self.forecast.ended(batch)
        if out_of_memory and len(batch.tickets) > 1:
            self.limits = self.limits.below(batch.tokens, batch.squares)
            self._reprice()
        alive = [ticket for ticket in batch.tickets if ticket.state is State.RUNNING]
        if len(batch.tickets) == 1:
            return [ticket for ticket in alive if self._end(ticket, State.FAILED)]
        self.rows_running -= len(alive)
        self._retries.add(alive[: len(alive) // 2])
        self._retries.add(alive[len(alive) // 2 :])
        return []

    def give_up(self, batch: Batch[P]) -> list[Ticket[P]]:
        """A batch does not come back, and its runner with it. Returns the tickets that fail by it."""
        self.forecast.ended(batch)
        self.forecast.runners -= 1
        return [ticket for ticket in batch.tickets if self._end(ticket, State.FAILED)]

    def abandon(self) -> list[Ticket[P]]:
        """Nothing can run any more. Returns the tickets that waited, which fail."""
        waiting = [ticket for lane in self.lanes.values() for ticket in lane.waiting()] + list(self._retries.waiting())
        return [ticket for ticket in waiting if self._end(ticket, State.FAILED)]

    def step(self, now: float, runners_free: int) -> Step[P]:
        """Decide. Every batch of the answer must be started; the next ``step`` counts its runner as busy."""
        expired = self._expire(now)
        hopeless: list[Ticket[P]] = []
        chosen: list[tuple[list[Ticket[P]], str]] = []
        self._hold_until = None
        if runners_free:
            if self._prices.stale():
                self._reprice()
            hopeless = self._purge(now)
            while len(chosen) < runners_free and (choice := self._retries.take() or self._choose(now, len(chosen))):
                chosen.append(choice)
            self._spread(chosen, runners_free)
        batches = [self._batch(tickets, reason, now) for tickets, reason in chosen]
        self._compact()
        next_at = self._by_deadline[0][0] if self._by_deadline else None
        return Step(expired, hopeless, batches, min(filter(None, (next_at, self._hold_until)), default=None))

    def ahead(self, before: Batch[P], now: float, starts_at: float) -> Batch[P] | None:
        """Decide already what runs after ``before``, which is predicted to end at ``starts_at``; ask as late as preparing allows.

        The batch must be started; tell ``begin`` or ``give_back`` what becomes of it. None where rows that come until then could make
        it a better one: unless it is full, all of its class are in time behind it, and no retry waits.
        """
        if self._prices.stale():
            self._reprice()
        waiting = [lane for lane in self.lanes.values() if lane.rows]
        if self._retries or not waiting:
            return None
        lane, _, group = next_group(waiting, now)
        rows, shape = lane.portion(group)
        if rows == group.rows or self.forecast.makes_late(lane, self.cost.run_s(*shape), now):
            return None
        batch = self._batch(self._take(lane, group, rows, now), "full", now)
        self.forecast.follows(batch, before, starts_at, batch.predicted_s)
        return batch

    def begin(self, batch: Batch[P], now: float) -> None:
        """A batch that was decided ahead runs from now on."""
        self.forecast.begun(batch, now + batch.predicted_s)
        for ticket in batch.tickets:
            ticket.started_at = now

    def give_back(self, batch: Batch[P], before: Batch[P] | None = None) -> None:
        """A batch that was decided ahead will not be begun; ``before``: the one it was to follow, if that still runs. Its rows go first."""
        self.forecast.ended(batch) if before is None else self.forecast.follows_no_more(batch, before)
        alive = [ticket for ticket in batch.tickets if ticket.state is State.RUNNING]
        self.rows_running -= len(alive)
        self._retries.add(alive, began=False)

    def _purge(self, now: float) -> list[Ticket[P]]:
        """End the rows that could not finish in time if they started now."""
        speed = self.cost.speed
        hopeless = [ticket for lane in self.lanes.values() for ticket in lane.hopeless(now, speed)]
        hopeless += [ticket for ticket in self._retries.waiting() if ticket.hopeless(now, speed)]
        for ticket in hopeless:
            self._end(ticket, State.EXPIRED)
        return hopeless

    def _choose(self, now: float, chosen: int) -> tuple[list[Ticket[P]], str] | None:
        waiting = [lane for lane in self.lanes.values() if lane.rows]
        if not waiting:
            return None
        lane, groups, group = next_group(waiting, now)
        rows, shape = lane.portion(group)
        reason = "full" if rows < group.rows else "alike"
        if self.forecast.makes_late(lane, self.cost.run_s(*shape), now):
            group, rows, reason = lane.urgent(groups, now)
        elif reason == "alike" and not chosen and len(waiting) == len(groups) == 1 and (until := lane.hold_until(group, shape, now)):
            self._hold_until = until
            return None
        return self._take(lane, group, rows, now), reason

    def _take(self, lane: Lane[P], group: Group, rows: int, now: float) -> list[Ticket[P]]:
        tickets = lane.take(group, rows)
        # Start-time fair queueing (Goyal, Vin and Cheng 1996).
        self._charged_s = lane.charged_s
        lane.charge(self._table_s(tickets), now)
        return tickets

    def _spread(self, chosen: list[tuple[list[Ticket[P]], str]], runners_free: int) -> None:
        """Nothing else waits: halve the dearest batch for each runner that would be idle, where that answers sooner."""
        while chosen and len(chosen) < runners_free:
            dearest = max(chosen, key=lambda choice: self._table_s(choice[0]))
            tickets, reason = dearest
            cheaper, dearer = self.layout.halves(tickets)
            if not cheaper or reason == "retry" or self._table_s(dearer) > SPREAD * self._table_s(tickets):
                return
            chosen.remove(dearest)
            chosen += [(cheaper, "spread"), (dearer, "spread")]

    def _table_s(self, tickets: Sequence[Ticket[P]]) -> float:
        return self.cost.table_s(*self.layout.shape(Lengths.of([ticket.length for ticket in tickets])))

    def _batch(self, tickets: list[Ticket[P]], reason: str, now: float) -> Batch[P]:
        for ticket in tickets:
            ticket.state, ticket.started_at = State.RUNNING, now
        self.rows_running += len(tickets)
        lengths = Lengths.of([ticket.length for ticket in tickets])
        shape = self.layout.shape(lengths)
        batch = Batch(tickets, reason, shape, *self.layout.computed(lengths), self.cost.run_s(*shape))
        self.forecast.begun(batch, now + batch.predicted_s)
        return batch

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

    def _end(self, ticket: Ticket[P], fate: State) -> bool:
        if ticket.state is State.RUNNING:
            self.rows_running -= 1
        elif ticket.state is not State.WAITING:
            return False
        elif ticket.retrying:
            self._retries.left()
        else:
            self.lanes[ticket.priority].remove(ticket)
        ticket.state = fate
        if fate in (State.ANSWERED, State.EXPIRED):
            self.forecast.fared(ticket, fate is State.ANSWERED)
        return True

    def _reprice(self) -> None:
        self._prices = Prices(self.cost, self.layout.within(self.limits))
        for lane in self.lanes.values():
            lane.reprice(self._prices)

    def _compact(self) -> None:
        if len(self._by_deadline) > 2 * (self.rows_waiting + self.rows_running) + 64:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].state in LIVE]
            heapq.heapify(self._by_deadline)
