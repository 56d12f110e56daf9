"""The scheduler decides which rows run together and when, which rows are refused, and which never run.

Pure: no clock, thread, task or socket; ``now`` is an argument. The driver calls ``step`` whenever a runner is free (a device's may
wait for ``hold_s``) or a deadline comes.
``step`` returns what to do now and when to call it again. The driver reports events with ``add``, ``cancel``, ``begin``, ``finish``,
``fail`` and ``give_back``. docs/internals/scheduler.md explains how a batch is chosen, and why.

Promises, checked by a simulation in tests/core/batching/test_simulation.py:

- Every ticket has exactly one fate: answered, expired, cancelled or failed. A row that ``add`` refuses gets no ticket.
- No row is computed while another with the same key waits or runs, but for what runs after parts that did not suffice. No fate of a row
  but an answer or a failure ends those that follow it.
- A batch is formed for a free runner, or, if it is full, for a runner that is about to be free. Every batch keeps every limit.
- A row that cannot finish by its deadline even if it starts now joins no batch. A row that becomes late because the run before it
  was late still runs with its batch. No row waits or runs past its deadline without being expired.
- A row is admitted only if it is predicted to finish in time, behind the rows of its class with earlier deadlines and the run time of
  other classes, and if it makes no other row of its class late.
- No batch starts for a row that arrived the objective later than another of its class, unless a deadline is near. Rows with earlier
  deadlines may ride along, whenever they came.
- A row of a caller that has had its share waits in a class of its own, whose work delays the others by little. Its rows within the share
  are bulk as long as it floods.
- While several classes wait, each gets its share of the run time, to within one batch per runner.
- A failed batch is halved and retried until only the row that causes the failure fails. A batch that did not fit in memory lowers the
  limits.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic

from sentiment.batching.class_queue import ClassQueue, Group, next_group
from sentiment.batching.cost import CostTable, Shape
from sentiment.batching.forecast import Forecast
from sentiment.batching.layout import Layout, Lengths, Padded
from sentiment.batching.plan import BatchLimits, Prices, bucket_by_length
from sentiment.batching.rate import Rate
from sentiment.batching.retries import Retries
from sentiment.batching.shares import BURST_S, Shares
from sentiment.batching.sharing import Sharing
from sentiment.batching.ticket import CLASSES, LIVE, RETRY, WIDE, Batch, Entry, P, Priority, State, Step, Ticket
from sentiment.errors import Expired, Refused, Unavailable, shown_s

# Probes: an idle server runs a row that the cost table says is too slow, if it is too slow by up to this factor, and once in PROBE_S
# seconds whatever the factor. A wrong table corrects itself only by running.
PROBE = 0.5
PROBE_S = 1.0
# The share of the queue's room that only interactive rows may use.
KEPT_FOR_INTERACTIVE = 0.25
# And the part that rows of callers over their share leave free while others ask. Run time goes to those rows while others wait too, beside
# shares that sum to 1: so little that others wait for one such batch, and enough that none of them waits for ever.
KEPT_FROM_OVER, OVER_SHARE = 0.5, 0.05
# What a caller may have admitted beyond its share, if that is more than BURST_S: this number of rows of this length, or of the longest one.
# With half as many, one in a thousand texts of a caller that asks for little more than half of its share waits for a flooder's.
BURST_ROWS, BURST_LENGTH = 8, 512
# A batch is divided between two runners, one of which would be idle, if the time falls to at most this part.
SPREAD = 0.75
# Batches use the cores of idle runners only while runners were busy for less than WIDE_BUSY_MAX of the last WIDE_BUSY_S seconds or so. A
# wide batch takes more CPU time, and the busier the server, the more others wait for that. More than half, since one caller who always
# waits for an answer keeps one of two runners busy.
WIDE_BUSY_MAX = 0.55
WIDE_BUSY_S = 3.0
# Of the batches that could use them, one in this many does the opposite of what the cost table advises: what width saves now, and what a
# batch takes without, is learned only from runs. Less than one in a hundred: p99 is then at most the others' p99.8. A prime, so that texts
# that come in turns are all tried.
WIDE_TRIAL = 127
# A device's batch is held for up to HOLD_S: not at all while the event loop is busy for less than HOLD_FROM of the time, for all of HOLD_S
# from HOLD_ALL on, and for a part of it between. A row that must be answered within HURRY times the hold is not held.
HOLD_S = 4e-3
HOLD_FROM, HOLD_ALL = 0.5, 0.8
HURRY = 10
# How far one text that is read in parts moves the share of those whose whole is read too: a mean of the last 50 or so.
GOES_ON_RATE = 0.02


class Scheduler(Generic[P]):
    """The scheduler of one model on one device. Not thread-safe."""

    def __init__(
        self,
        cost: CostTable,
        limits: BatchLimits,
        runners: int,
        queue_rows_max: int,
        length_max: int,
        bulk_share: float = 0.2,
        layout: Layout | None = None,
        objective_s: float = 0.5,
        width: int = 1,
        weights: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Start empty.

        Args:
            cost: predicted costs of batches; learns from batches that ran.
            limits: limits of one batch.
            runners: how many batches may run at once.
            queue_rows_max: the most rows that may wait.
            length_max: the longest row, in tokens.
            bulk_share: share of the run time that bulk rows get while interactive rows wait too, between 0 and 1.
            layout: how the graph takes the rows of a batch; the default is padded.
            objective_s: rows that arrive this many seconds later do not overtake a row of their class, unless a deadline is near.
            width: the cores that a batch may use while runners are idle.
            weights: of callers, by number, as of now; others have 1.
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
        shares = {Priority.INTERACTIVE: 1 - bulk_share, Priority.BULK: bulk_share, Priority.OVER: OVER_SHARE}
        self._shares = Shares(max(BURST_S, BURST_ROWS * cost.table_s(1, min(length_max, BURST_LENGTH))), weights)
        self.queues: dict[Priority, ClassQueue[P]] = {
            priority: ClassQueue(share, buckets, self._prices, self.layout, objective_s) for priority, share in shares.items()
        }
        # A heap. Entries of ended tickets are dropped lazily; it is rebuilt when they are the majority.
        self._by_deadline: list[Entry[P]] = []
        self._retries: Retries[P] = Retries()
        self.sharing: Sharing[P] = Sharing()
        self.forecast: Forecast[P] = Forecast(cost, list(self.queues.values()), runners)
        self._hold_until: float | None = None
        # What the class that ran last had been charged before that.
        self._last_charged_s = 0.0
        self._probe_at = -math.inf
        self._width = width
        # Seconds that runners were busy.
        self._busy = Rate(WIDE_BUSY_S)
        # Of rows after which more may run, the share after which it does.
        self._goes_on = 1.0
        # How many batches could have been wide.
        self._could_widen = 0
        # The batch that runs on several cores now.
        self._wide: Batch[P] | None = None

    @property
    def rows_waiting(self) -> int:
        """Rows that wait for a runner, or for the answer of another row."""
        rows = self._retries.rows + self.sharing.rows
        for queue in self.queues.values():
            rows += queue.rows
        return rows

    @property
    def open(self) -> bool:
        """Whether rows are admitted at all."""
        return not self._closed and self.runners > 0

    @property
    def runners(self) -> int:
        """Runners that have not been lost."""
        return self.forecast.runners

    def rows_max(self, priority: Priority) -> int:
        """A row of this class is admitted while fewer rows wait, of any class."""
        kept = 0.0 if priority is Priority.INTERACTIVE else KEPT_FOR_INTERACTIVE
        if priority is Priority.OVER and self._shares.callers > 1:
            kept = KEPT_FROM_OVER
        return self.queue_rows_max - int(self.queue_rows_max * kept)

    def work_s(self, length: int, then: int = 0) -> float:
        """Predicted seconds of a runner for a row in a batch of the best size, and for what runs after it in the usual share of cases."""
        then_s = self._goes_on * self._prices.batched_s(then) if then else 0.0
        return self.cost.speed * (self._prices.batched_s(length) + then_s)

    def add(
        self,
        length: int,
        now: float,
        deadline_at: float,
        payload: P,
        priority: Priority = Priority.INTERACTIVE,
        checked: bool = False,
        then: int = 0,
        key: bytes | None = None,
        payer: int = 0,
    ) -> Ticket[P]:
        """Admit a row of ``length`` tokens. ``checked``: the caller has already checked the deadline, as for the windows of one text.

        ``then``: the tokens that run after it, under the same ticket, unless its answer suffices: see ``finish``. Their time is reserved.
        ``payer``: who asks; 0: nobody in particular. A row of a caller that has had its share becomes one of a class of its own.
        ``key``: of a row whose answer is equal to that of any row with the same key, and so is the answer to what runs after it.

        Raises:
            Unavailable: the scheduler is closed, or all runners are lost.
            Expired: even an idle server could not meet the deadline.
            Refused: the queue is full, or the queued work leaves too little time. Carries the seconds after which to retry.
        """
        if not self.open:
            raise Unavailable("the server has drained" if self.runners else "no runner is left; the server is about to be replaced")
        reserved_s = self.cost.table_s(1, then) if then else 0.0
        alone_s, batched_s = self.cost.table_s(1, length) + reserved_s, self._prices.batched_s(length) + reserved_s
        ticket = Ticket(length, now, deadline_at, payload, priority, next(self._numbers), alone_s, batched_s)
        ticket.then, ticket.reserved_s, ticket.key, ticket.payer = then, reserved_s, key, payer
        if payer:
            per_s = self.runners / self.cost.speed
            allowed = self._shares.ask(payer, batched_s, per_s, now)
            ticket.priority = max(priority, allowed, key=CLASSES.index)
            if self._shares.others_within(payer, now):
                ticket.over_share = allowed is not Priority.INTERACTIVE
                ticket.since = self.queues[ticket.priority].fair_arrival(payer, now, per_s * self._shares.weight_of(payer))
        try:
            return self._add(ticket, now, checked)
        except Refused as error:
            error.over_share = ticket.over_share
            raise

    def _add(self, ticket: Ticket[P], now: float, checked: bool) -> Ticket[P]:
        priority, deadline_at, waiting = ticket.priority, ticket.deadline_at, self.rows_waiting
        if waiting >= (limit := self.rows_max(priority)):
            raise Refused(f"{waiting} rows are waiting; the limit is {limit}", self.forecast.backlog_s(now), "queue_full")
        leader = self.sharing.leader(ticket)
        if leader is None:
            self._admit(ticket, now, checked)
        elif ticket.precedes(leader):
            late = ticket.due_at < leader.due_at
            ticket.replaces(leader)
            try:
                self._admit(ticket, now, checked)
            except (Expired, Refused):
                if late:
                    # It could follow, but then it could also take the leader's place, where it would make others late.
                    raise
                ticket.priority, ticket.due_at = priority, deadline_at
            else:
                self._overtake(ticket, leader)
                leader = None
        heapq.heappush(self._by_deadline, (deadline_at, ticket.number, ticket))
        if leader is None:
            self._queue(ticket, now)
        else:
            self.sharing.follow(ticket, leader)
        return ticket

    def _admit(self, ticket: Ticket[P], now: float, checked: bool) -> None:
        """Raises Expired or Refused, as ``add`` does."""
        queue, slack_s, own_s = self.queues[ticket.priority], ticket.due_at - now, self.cost.speed * ticket.alone_s
        idle = not self.rows_waiting and self.forecast.idle
        if slack_s < own_s and not (checked or (idle and self.may_probe(slack_s, own_s, now))):
            raise Expired(f"the deadline leaves {shown_s(slack_s)} and this text alone needs about {own_s:.3f} s", ticket.alone_s)
        self._catch_up(queue)
        ticket.ahead_s = None if idle or checked else self.forecast.check(queue, ticket.alone_s, now, ticket.due_at)
        ticket.probe = slack_s < own_s

    def _overtake(self, ticket: Ticket[P], leader: Ticket[P]) -> None:
        """A row takes the place of a waiting one, which follows it from now on. Within its class it does not lose its turn."""
        self.queues[leader.priority].remove(leader)
        if ticket.priority is leader.priority:
            ticket.since = min(ticket.since, leader.since)
        self.sharing.follow(leader, ticket)

    def _queue(self, ticket: Ticket[P], now: float | None) -> None:
        """Let a row wait that may be followed. ``now``: see ``ClassQueue.add``."""
        queue = self.queues[ticket.priority]
        self._catch_up(queue)
        queue.add(ticket, now)
        self.sharing.lead(ticket)

    def may_probe(self, slack_s: float, own_s: float, now: float) -> bool:
        """Whether an idle server runs a row although the cost table says that the time is too short: see PROBE."""
        if slack_s <= 0 or (slack_s < PROBE * own_s and now < self._probe_at):
            return False
        self._probe_at = now + PROBE_S
        return True

    def _catch_up(self, queue: ClassQueue[P]) -> None:
        """Prevent a class that had no rows from claiming the run time that others got meanwhile."""
        if not queue.rows:
            queue.charged_s = max(queue.charged_s, self._last_charged_s)

    def close(self) -> None:
        """Admit no more rows; admitted rows still run."""
        self._closed = True

    def cancel(self, ticket: Ticket[P]) -> bool:
        """Withdraw a row; a waiting row will not run. Returns False if it already has a fate."""
        self.forecast.room_made()
        cancelled = self._end(ticket, State.CANCELLED)
        self._compact()
        return cancelled

    def finish(self, batch: Batch[P], now: float, run_s: float, unsettled: Iterable[Ticket[P]] = ()) -> list[Ticket[P]]:
        """Record that a batch has run in ``run_s`` seconds.

        ``unsettled``: those of its tickets whose answer does not suffice. What runs after them waits from now on.

        Returns:
            The tickets that it answers, in order, each before those that follow it. The others have another fate or get one in the next
            ``step``: a deadline that passed while the batch ran counts, even if no step has noticed it yet.
        """
        self._ended(batch)
        self._busy.add(run_s, now)
        self.cost.observe(*batch.shape, run_s, batch.wide)
        going_on = list(unsettled)
        for ticket in batch.tickets:
            if ticket.then:
                self._goes_on += GOES_ON_RATE * ((ticket in going_on) - self._goes_on)
        for ticket in going_on:
            self._go_on(ticket, now)
        settled = [one for ticket in batch.tickets if ticket not in going_on for one in self._together(ticket) if one.deadline_at > now]
        return [ticket for ticket in settled if self._end(ticket, State.ANSWERED)]

    def _together(self, ticket: Ticket[P]) -> list[Ticket[P]]:
        """A row whose run has ended, if it has no fate yet, and those that follow it; none follow it from now on."""
        self.sharing.end(ticket)
        followers = self.sharing.followers(ticket)
        for one in followers:
            one.started_at = max(ticket.started_at, one.queued_at)
        return [ticket, *followers] if ticket.state is State.RUNNING else followers

    def _go_on(self, ticket: Ticket[P], now: float) -> None:
        """Let a row wait once more, for what runs after it. It keeps its place: its class, its deadline and its arrival."""
        running = self._running([ticket])
        if not running:
            return
        (ticket,) = running
        self.queues[ticket.priority].settle(ticket)
        self.sharing.end(ticket)
        length, ticket.then, ticket.reserved_s = ticket.then, 0, 0.0
        ticket.length, ticket.alone_s, ticket.batched_s = length, self.cost.table_s(1, length), self._prices.batched_s(length)
        ticket.state, ticket.retrying = State.WAITING, False
        self.rows_running -= 1
        leader = self.sharing.leader(ticket)
        if leader is not None:
            if leader.state is not State.WAITING or leader.retrying or leader.priority is not ticket.priority:
                # A batch that runs, or another class, may end after the deadline for which the row was admitted.
                ticket.key = None
            elif leader.due_at <= ticket.due_at:
                self.sharing.follow(ticket, leader)
                return
            else:
                self._overtake(ticket, leader)
        self._queue(ticket, now)

    def _running(self, tickets: Sequence[Ticket[P]]) -> list[Ticket[P]]:
        """Those of a batch's rows that have no fate yet, and the heirs of the others."""
        found = []
        for ticket in tickets:
            if ticket.state is State.RUNNING:
                found.append(ticket)
            elif (heir := self.sharing.heir(ticket)) is not None:
                heir.state, heir.started_at = State.RUNNING, max(ticket.started_at, heir.queued_at)
                self.queues[heir.priority].begin(heir)
                self.rows_running += 1
                found.append(heir)
        return found

    def fail(self, batch: Batch[P], out_of_memory: bool = False) -> list[Ticket[P]]:
        """Record that a batch failed. A row that ran alone fails and is returned; several rows are retried in halves.

        A wide batch may have failed for its further threads, so its rows are retried on one core, and no batch is wide any more.
        ``out_of_memory``: from now on batches are at most half as large.
        """
        self._ended(batch)
        if len(batch.tickets) == 1 and not batch.wide:
            return [one for one in self._together(batch.tickets[0]) if self._end(one, State.FAILED)]
        alive = self._running(batch.tickets)
        middle = len(alive) // 2
        if batch.wide:
            self._width, middle = 1, 0
        elif out_of_memory:
            self.limits = self.limits.below(batch.tokens, batch.squares)
            self._reprice()
        self.rows_running -= len(alive)
        self._retries.add(alive[:middle])
        self._retries.add(alive[middle:])
        return []

    def give_up(self, batch: Batch[P]) -> list[Ticket[P]]:
        """Record that a batch and its runner are lost. Returns the tickets that fail."""
        self._ended(batch)
        self.forecast.runners -= 1
        return [one for ticket in batch.tickets for one in self._together(ticket) if self._end(one, State.FAILED)]

    def fail_waiting(self) -> list[Ticket[P]]:
        """Fail every waiting ticket, because no runner is left. Returns them."""
        waiting = [ticket for queue in self.queues.values() for ticket in queue.waiting()] + list(self._retries.waiting())
        return [one for ticket in waiting for one in (*self.sharing.followers(ticket), ticket) if self._end(one, State.FAILED)]

    def step(self, now: float, runners_free: int) -> Step[P]:
        """Decide what to run now. The driver must start every batch that is returned; the next ``step`` counts its runner as busy."""
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
        wide = self._widened(chosen, runners_free, now)
        batches = [self._batch(tickets, WIDE if tickets is wide else reason, now) for tickets, reason in chosen]
        self._compact()
        next_at = self._by_deadline[0][0] if self._by_deadline else None
        return Step(expired, hopeless, batches, min(filter(None, (next_at, self._hold_until)), default=None))

    def ahead(self, before: Batch[P], now: float, starts_at: float) -> Batch[P] | None:
        """Decide ahead which batch runs after ``before``, which is predicted to end at ``starts_at``. Call it as late as possible.

        The driver must start the batch and report to ``begin`` or ``give_back``. Returns None where rows that arrive until then could
        improve the batch: it must be full, all rows of its class must be in time behind it, and what may run after ``before`` too, and no
        retry may wait. Nor may a row of it be late at ``starts_at``: another runner may be free sooner.
        """
        if self._prices.stale():
            self._reprice()
        waiting = [queue for queue in self.queues.values() if queue.rows]
        if self._retries or not waiting:
            return None
        queue, _, group = next_group(waiting)
        rows, shape = queue.portion(group)
        if rows == group.rows or self.forecast.makes_late(queue, run_s := self.cost.run_s(*shape), now):
            return None
        ends_at = starts_at + run_s
        for ticket in sorted([ticket for ticket in before.tickets if ticket.then], key=lambda ticket: ticket.due_at):
            ends_at += self.cost.run_s(1, ticket.then)
            if ends_at > ticket.due_at:
                return None
        late = queue.hopeless(starts_at, self.cost.speed)
        if late and not set(late).isdisjoint(queue.front(group, rows)):
            return None
        batch = self._batch(self._take(queue, group, rows, now), "full", now)
        self.forecast.follows(batch, before, starts_at, batch.predicted_s)
        return batch

    def hold_s(self, busy_share: float, now: float) -> float:
        """How long to wait for more rows before the next batch of a device starts, while the event loop is busy; 0: it starts at once.

        Each batch costs the event loop as much as several rows. Where a device is faster than its host, each row would have a batch of its
        own. So a batch is held, but not if its rows keep the device busy as long, or if one of them must be answered soon.
        """
        hold_s = HOLD_S * min(1.0, (busy_share - HOLD_FROM) / (HOLD_ALL - HOLD_FROM))
        if hold_s <= 0 or self._retries or (self._by_deadline and self._by_deadline[0][0] - now < HURRY * hold_s):
            return 0.0
        return hold_s if self.cost.speed * sum([queue.demand.total_s for queue in self.queues.values()]) < hold_s else 0.0

    def begin(self, batch: Batch[P], now: float) -> None:
        """Record that a batch that was decided ahead starts to run now."""
        self.forecast.begun(batch, now + batch.predicted_s)
        for ticket in batch.tickets:
            ticket.started_at = now

    def give_back(self, batch: Batch[P], before: Batch[P] | None = None) -> None:
        """Take back a batch that was decided ahead; its rows run first. ``before``: the batch it was to follow, if that still runs."""
        self.forecast.ended(batch) if before is None else self.forecast.unfollow(batch, before)
        alive = self._running(batch.tickets)
        self.rows_running -= len(alive)
        self._retries.add(alive, began=False)

    def _purge(self, now: float) -> list[Ticket[P]]:
        """End the rows that would miss their deadline even if they started now."""
        speed, ended = self.cost.speed, []
        hopeless = [ticket for queue in self.queues.values() for ticket in queue.hopeless(now, speed)]
        hopeless += [ticket for ticket in self._retries.waiting() if ticket.hopeless(now, speed)]
        for ticket in hopeless:
            group, one = ticket.group, ticket
            # And each that takes its place, if that is hopeless too.
            while one.state is State.WAITING and one.hopeless(now, speed):
                self._end(one, State.EXPIRED)
                ended.append(one)
                one = one if group is None else group.leader
        return ended

    def _choose(self, now: float, chosen: int) -> tuple[list[Ticket[P]], str] | None:
        waiting = [queue for queue in self.queues.values() if queue.rows]
        if not waiting:
            return None
        if len(waiting) == 1 and waiting[0].rows == 1:
            return self._choose_only(waiting[0], now, chosen)
        queue, groups, group = next_group(waiting)
        rows, shape = queue.portion(group)
        reason = "full" if rows < group.rows else "alike"
        if self.forecast.makes_late(queue, self.cost.run_s(*shape), now):
            group, rows, reason = queue.urgent(groups, now)
        elif reason == "alike" and not chosen and len(waiting) == len(groups) == 1 and (until := queue.hold_until(group, shape, now)):
            self._hold_until = until
            return None
        return self._take(queue, group, rows, now), reason

    def _choose_only(self, queue: ClassQueue[P], now: float, chosen: int) -> tuple[list[Ticket[P]], str] | None:
        """As ``_choose`` where one row waits. There is nothing to plan, which saves half of a step's time."""
        group = queue.only()
        if not chosen and (until := queue.hold_until(group, (1, group.first.length), now)):
            self._hold_until = until
            return None
        return self._take(queue, group, 1, now), "alike"

    def _take(self, queue: ClassQueue[P], group: Group[P], rows: int, now: float) -> list[Ticket[P]]:
        tickets = queue.take(group, rows)
        for ticket in tickets:
            queue.begin(ticket)
        # Start-time fair queueing (Goyal, Vin and Cheng 1996).
        self._last_charged_s = queue.charged_s
        queue.charge(self._table_s(tickets), now)
        return tickets

    def _spread(self, chosen: list[tuple[list[Ticket[P]], str]], runners_free: int) -> None:
        """When no other rows wait, halve batches for runners that would be idle, where that answers sooner: the most expensive first."""
        while chosen and len(chosen) < runners_free:
            dearest_first = sorted(chosen, key=lambda choice: self._table_s(choice[0]), reverse=True)
            choice = next((choice for choice in dearest_first if choice[1] != RETRY and self._sooner_in_halves(choice[0])), None)
            if choice is None:
                return
            chosen.remove(choice)
            chosen += [(half, "spread") for half in self.layout.halves(choice[0])]

    def _sooner_in_halves(self, tickets: Sequence[Ticket[P]]) -> bool:
        cheaper, dearer = self.layout.halves(tickets)
        return bool(cheaper) and self._table_s(dearer) <= SPREAD * self._table_s(tickets)

    def _widened(self, chosen: Sequence[tuple[list[Ticket[P]], str]], runners_free: int, now: float) -> list[Ticket[P]] | None:
        """The most expensive batch may use the cores of the runners that would be idle, where runs show that it saves time.

        Rows that arrive meanwhile run at once on those runners, since the batch's further threads give way. One batch at a time, because
        all share those threads. A retry runs on one core, lest it fails for the same reason. Near capacity no batch is wide.
        """
        fresh = [tickets for tickets, reason in chosen if reason != RETRY]
        if self.cost.wide is None or not fresh or self._wide is not None or not runners_free - len(chosen) >= self._width - 1 > 0:
            return None
        if self._busy.per_s(now) > WIDE_BUSY_MAX * self.runners:
            return None
        dearest = max(fresh, key=self._table_s)
        self._could_widen += 1
        trial = self._could_widen % WIDE_TRIAL == 0
        return dearest if self.cost.widening_saves(*self._shape(dearest)) is not trial else None

    def _ended(self, batch: Batch[P]) -> None:
        self.forecast.ended(batch)
        if batch is self._wide:
            self._wide = None

    def _shape(self, tickets: Sequence[Ticket[P]]) -> Shape:
        return self.layout.shape(Lengths.of([ticket.length for ticket in tickets]))

    def _table_s(self, tickets: Sequence[Ticket[P]]) -> float:
        return self.cost.table_s(*self._shape(tickets))

    def _batch(self, tickets: list[Ticket[P]], reason: str, now: float) -> Batch[P]:
        for ticket in tickets:
            ticket.state, ticket.started_at = State.RUNNING, now
        self.rows_running += len(tickets)
        lengths = Lengths.of([ticket.length for ticket in tickets])
        shape = self.layout.shape(lengths)
        batch = Batch(tickets, reason, shape, lengths.tokens, *self.layout.computed(lengths), self.cost.run_s(*shape))
        if batch.wide:
            self._wide = batch
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
        queue = self.queues[ticket.priority]
        if ticket.state is State.RUNNING:
            self.rows_running -= 1
            queue.settle(ticket)
        elif ticket.state is not State.WAITING:
            return False
        elif ticket.leader is not None:
            self.sharing.left(ticket)
        else:
            if ticket.retrying:
                self._retries.left()
                queue.settle(ticket)
            else:
                queue.remove(ticket)
            if (heir := self.sharing.heir(ticket)) is not None:
                self._queue(heir, None)
        ticket.state = fate
        if fate in (State.ANSWERED, State.EXPIRED):
            self.forecast.record_outcome(queue, ticket, fate is State.ANSWERED)
        return True

    def _reprice(self) -> None:
        self._prices = Prices(self.cost, self.layout.within(self.limits))
        for queue in self.queues.values():
            queue.reprice(self._prices)

    def _compact(self) -> None:
        if len(self._by_deadline) > 2 * (self.rows_waiting + self.rows_running) + 64:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].state in LIVE]
            heapq.heapify(self._by_deadline)
