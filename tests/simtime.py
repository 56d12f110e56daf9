"""A server's day in virtual time: callers arrive, cancel and time out; runners are slow, fail and hang.

``simulate`` drives the real scheduler through a seeded random day and checks its promises at every event.
"""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sentiment.batching.cost import CostTable, shapes_to_measure
from sentiment.batching.layout import Layout, Lengths, Packed, Padded
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import KEPT_FOR_INTERACTIVE, PROBE, PROBE_S, Scheduler
from sentiment.batching.ticket import Batch, Priority, State, Ticket
from sentiment.errors import Expired, Refused, Unavailable

# The furthest deadline. No admitted row may be without a fate for longer.
DEADLINE_MAX_S = 8.0
LENGTH_MAX = 512
# A run that hangs is given up after this time.
GIVE_UP_S = 3.0
# Every AHEAD_DAYS-th day, batches are decided ahead: when AHEAD_AT of the predicted time of the run before has passed.
AHEAD_DAYS = 2
AHEAD_AT = 0.7
# What remains of a run's time on several cores, while the runners of the others are idle.
WIDE_PART = 0.6
# One day in this many, if predictions are not exact, a wide batch takes up to WIDE_LOSES times as long.
WIDE_LOSES_DAYS = 3
WIDE_LOSES = 1.5
# Times of runs are not round, as deadlines are: no run takes exactly the time that a deadline leaves.
UNEVEN = 1 + 1e-7


@dataclass
class World:
    """The random parameters of one day."""

    rng: random.Random
    runners: int
    limits: BatchLimits
    queue_rows_max: int
    rows: int
    rate: float
    cancel_share: float
    poison_share: float
    failure_share: float
    hang_share: float
    memory_tokens: float
    bulk_rows: float
    bulk_share: float
    objective_s: float
    width: int
    # Rows after which more runs, unless their answer suffices; and how often it does.
    then_share: float
    suffices_share: float
    # Keys that rows draw from, if any; and the share of rows that have one.
    keys: int
    key_share: float
    # A run takes fixed_s + token_s x (tokens + squared lengths / square_at), times noise. Padding counts.
    fixed_s: float
    # Mean length; if ``alike`` the length of every row.
    length: int
    alike: bool
    token_s: float
    square_at: float
    noise: float
    # The cost table's values over the true ones.
    bias: float
    layout: Layout = field(default_factory=Padded)

    @classmethod
    def draw(cls, seed: int, packed: bool) -> "World":
        rng = random.Random(seed)
        world = cls(
            rng=rng,
            runners=rng.randint(1, 4),
            limits=BatchLimits(rng.choice([1, 4, 16]), rng.choice([64, 1024]), rng.choice([2**16, 2**26]), rng.choice([2, 12])),
            queue_rows_max=rng.choice([4, 64, 4096]),
            rows=rng.randint(1, 120),
            rate=rng.choice([2.0, 50.0, 500.0, 2000.0]),
            cancel_share=rng.choice([0.0, 0.1, 0.5]),
            poison_share=rng.choice([0.0, 0.0, 0.1]),
            failure_share=rng.choice([0.0, 0.0, 0.05]),
            hang_share=rng.choice([0.0, 0.0, 0.0, 0.05]),
            memory_tokens=rng.choice([float("inf"), float("inf"), 200.0]),
            bulk_rows=rng.choice([0.0, 0.0, 0.5, 1.0]),
            bulk_share=rng.choice([0.1, 0.2, 0.5]),
            objective_s=rng.choice([1e-3, 0.05, 0.5]),
            width=rng.choice([1, 2, 4]),
            then_share=rng.choice([0.0, 0.3, 1.0]),
            suffices_share=rng.choice([0.0, 0.6, 1.0]),
            keys=rng.choice([1, 3, 30]),
            key_share=rng.choice([0.0, 0.0, 0.5, 1.0]),
            fixed_s=rng.choice([0.0, 1e-4, 1e-2, 3e-2]),
            length=40,
            alike=rng.random() < 0.2,
            token_s=rng.choice([1e-6, 1e-5, 1e-4, 5e-3]),
            square_at=rng.choice([500.0, 3000.0]),
            noise=rng.choice([1.05, 2.0]),
            bias=rng.choice([0.3, 1.0, 3.0]),
        )
        if rng.random() < 0.25:
            world.make_exact()
        if packed:
            # None of the limits is a multiple of 48.
            world.layout = Packed(1 if world.exact else 48)
        return world

    def make_exact(self) -> None:
        """Make predictions exact: costs are proportional to tokens, and nothing fails."""
        self.fixed_s, self.square_at, self.noise, self.bias = 0.0, float("inf"), 1.0, 1.0
        self.poison_share = self.failure_share = self.hang_share = 0.0
        self.memory_tokens = float("inf")

    @property
    def exact(self) -> bool:
        """Whether every admitted row must be answered."""
        return self.noise == 1.0

    @property
    def batching_saves(self) -> bool:
        """Whether rows can cost less together than alone."""
        return self.fixed_s > 0 or self.layout.computed(Lengths.of([1]))[0] > 1

    def mean_s(self, lengths: Lengths) -> float:
        """The mean time of a run."""
        tokens, squares = self.layout.computed(lengths)
        return UNEVEN * (self.fixed_s + self.token_s * (tokens + squares / self.square_at))

    def table(self) -> CostTable:
        """The cost table that a warm-up would measure."""
        limits = self.layout.within(self.limits)
        shapes = shapes_to_measure([(length, limits.rows_at(length)) for length in (8, 32, 128, LENGTH_MAX)])
        points = {(rows, length): self.mean_s(Lengths.of([length] * rows)) * self.bias for rows, length in shapes}
        return CostTable(points, {shape: WIDE_PART * run_s for shape, run_s in points.items()})


@dataclass
class Row:
    """A row and the fates that it had, which must be one."""

    number: int
    poison: bool
    # Whether its first answer suffices; and whether it did not, so that it waits or runs once more.
    suffices: bool
    went_on: bool = False
    # Whether it follows one that runs, which may end late for it.
    followed: bool = False
    fates: list[str] = field(default_factory=list)
    ticket: Ticket["Row"] | None = None


class Broken(AssertionError):
    """A promise is broken; the message has the seed."""


def simulate(seed: int, packed: bool = False) -> Counter[str]:
    """Run one seeded day to its end, in the padded or in the packed layout.

    Returns:
        The number of rows by fate, and ``held``: how often rows were held for more to join; ``aheads``: how many batches were decided
        ahead; ``went_on``: rows whose first answer did not suffice; ``followed``: rows that followed an equal one at first; ``exact``: the
        number of rows if predictions are exact, and ``unkept``: how many of those were admitted but not answered in time.

    Raises:
        Broken: a promise of the scheduler did not hold.
    """
    return _Day(seed, packed).run()


class _Day:
    def __init__(self, seed: int, packed: bool) -> None:
        self.seed = seed
        self.world = world = World.draw(seed, packed)
        self.scheduler: Scheduler[Row] = Scheduler(
            world.table(),
            world.limits,
            world.runners,
            world.queue_rows_max,
            LENGTH_MAX,
            world.bulk_share,
            world.layout,
            world.objective_s,
            world.width,
        )
        self.now = 0.0
        self.free = world.runners
        self.rows: list[Row] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.serials = itertools.count()
        self.closed = False
        self.holds = 0
        self.probe_at = float("-inf")
        self.tokens_max = float("inf")
        self.wake_at: float | None = None
        self.shares = _Shares(world.bulk_share)
        # For each running batch the one that follows it on its runner.
        self.next: dict[Batch[Row], Batch[Row]] = {}
        self.given_up: set[Batch[Row]] = set()
        # Tickets without a fate, and some that have one since the last step.
        self.live: list[Ticket[Row]] = []
        self.aheads = 0
        # Rows of batches that run, whatever their fate.
        self.taken: set[Ticket[Row]] = set()
        # What rows with a key have in common.
        self.texts: dict[bytes, tuple[int, int, bool, bool]] = {}
        self.wide: Batch[Row] | None = None

    def run(self) -> Counter[str]:
        rng, at = self.world.rng, 0.0
        for number in range(self.world.rows):
            at += rng.expovariate(self.world.rate)
            row = Row(number, rng.random() < self.world.poison_share, rng.random() < self.world.suffices_share)
            self.rows.append(row)
            self.at(at, lambda row=row: self.arrive(row))  # type: ignore[misc]  # default binds the loop's value
        if rng.random() < 0.3:
            self.at(at * rng.random(), self.close)
        for steps in itertools.count():
            times = [time for time in (self.events[0][0] if self.events else None, self.wake_at) if time is not None]
            if not times:
                break
            # Each row causes a bounded number of events.
            self.check(steps < 60 * self.world.rows + 100, "it spins")
            self.check(min(times) >= self.now, "it wants to be woken in the past")
            self.now = min(times)
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            self.step()
        return self.settle()

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.serials), action))

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            raise Broken(f"seed {self.seed}, {self.world.layout}, at {self.now:.6f} s: {promise}")

    def arrive(self, row: Row) -> None:
        rng = self.world.rng
        length, then, key = self.text(row)
        deadline_at = self.now + rng.choice([0.0, 0.01, 0.1, 1.0, DEADLINE_MAX_S])
        priority = Priority.BULK if rng.random() < self.world.bulk_rows else Priority.INTERACTIVE
        scheduler, waiting = self.scheduler, self.scheduler.rows_waiting
        idle = not waiting and self.free == scheduler.runners
        queued = {ticket for queue in scheduler.queues.values() for ticket in queue.waiting()}
        alone_s = scheduler.cost.run_s(1, length) + (scheduler.cost.run_s(1, then) if then else 0.0)
        try:
            row.ticket = scheduler.add(length, self.now, deadline_at, row, priority, then=then, key=key)
        except Refused as error:
            kept = int(self.world.queue_rows_max * KEPT_FOR_INTERACTIVE) if priority is Priority.BULK else 0
            full = waiting >= self.world.queue_rows_max - kept
            self.check(full == (error.reason == "queue_full"), f"refused as {error.reason} with {waiting} rows waiting")
            self.check(not idle, "an idle server refuses for lack of room")
            row.fates.append("refused")
        except Expired:
            self.check(deadline_at - self.now < alone_s, "refused as hopeless though there is time")
            tried = deadline_at - self.now < PROBE * alone_s and (self.now < self.probe_at or deadline_at <= self.now)
            self.check(not idle or tried, "an idle server does not try")
            row.fates.append("refused")
        except Unavailable:
            self.check(self.closed or not scheduler.runners, "unavailable though open")
            row.fates.append("refused")
        else:
            self.live.append(row.ticket)
            self.check(waiting < self.world.queue_rows_max and not self.closed, "admitted though full or closed")
            leader = row.ticket.leader
            row.followed = leader is not None and leader not in queued
            self.check(idle or leader is not None or deadline_at - self.now >= alone_s, "admitted though hopeless")
            if row.ticket.probe:
                self.probe_at = self.now + PROBE_S
            if rng.random() < self.world.cancel_share:
                self.at(self.now + rng.expovariate(20), lambda: self.cancel(row))

    def text(self, row: Row) -> tuple[int, int, bytes | None]:
        """The length of a new row, what may run after it, and its key. Rows with equal keys are alike, but for being read in parts."""
        rng = self.world.rng
        length = self.world.length if self.world.alike else min(LENGTH_MAX, 1 + int(rng.expovariate(1 / self.world.length)))
        then = min(LENGTH_MAX, length * rng.randint(2, 6)) if rng.random() < self.world.then_share else 0
        # Who takes the place of a part that was cancelled while it ran may make others late, since nothing predicted that.
        if (self.world.exact and self.world.cancel_share and self.world.then_share) or rng.random() >= self.world.key_share:
            return length, then, None
        key = rng.randrange(self.world.keys).to_bytes()
        length, then, row.poison, row.suffices = self.texts.setdefault(key, (length, then, row.poison, row.suffices))
        return (then, 0, key) if then and rng.random() < 0.3 else (length, then, key)

    def cancel(self, row: Row) -> None:
        assert row.ticket is not None
        if self.scheduler.cancel(row.ticket):
            row.fates.append("cancelled")

    def close(self) -> None:
        self.scheduler.close()
        self.closed = True

    @property
    def queued(self) -> int:
        """Rows that wait for a runner."""
        return self.scheduler.rows_waiting - self.scheduler.sharing.rows

    def step(self) -> None:
        self.shares.look(self.scheduler)
        step = self.scheduler.step(self.now, self.free)
        for ticket in step.expired:
            self.check(ticket.deadline_at <= self.now, "expired before its deadline")
            ticket.payload.fates.append("expired")
        for ticket in step.hopeless:
            left_s = ticket.deadline_at - self.now
            self.check(left_s < self.scheduler.cost.speed * ticket.alone_s * 1.5, "dropped though there is time")
            ticket.payload.fates.append("expired")
        self.check(len(step.batches) <= self.free, "more batches than free runners")
        for batch in step.batches:
            self.start(batch)
        self.shares.look(self.scheduler)
        self.check(self.shares.fair(), "a class got more than its share")
        if self.free and self.queued:
            self.holds += 1
            self.check(self.world.batching_saves and step.wake_at is not None, "a runner is idle and rows wait for nothing")
        waiting = [ticket for ticket in self.live if ticket.state is State.WAITING]
        running = [ticket for ticket in self.live if ticket.state is State.RUNNING]
        live = self.live = waiting + running
        # Rows that have run were admitted before, and do not count again.
        new = sum(not ticket.retrying and not ticket.payload.went_on for ticket in waiting)
        self.check(new <= self.world.queue_rows_max, "the queue is over its limit")
        self.check(min([ticket.deadline_at for ticket in live], default=math.inf) > self.now, "a row is past its deadline and has no fate")
        self.check(len(waiting) == self.scheduler.rows_waiting, "rows_waiting is wrong")
        self.check(len(running) == self.scheduler.rows_running, "rows_running is wrong")
        led = Counter((ticket.key, ticket.then > 0) for ticket in live if ticket.key is not None and ticket.leader is None)
        self.check(max(led.values(), default=1) == 1, "rows with equal keys wait or run on their own")
        leaders = {ticket.leader for ticket in live if ticket.leader is not None}
        self.check(all(one.state is State.WAITING or one in self.taken for one in leaders), "a row follows one that has ended")
        self.check(step.wake_at is None or step.wake_at > self.now, "it wants to be woken at once")
        self.check(not live or step.wake_at is not None, "rows are live and nothing will wake it")
        self.check(len(self.scheduler._by_deadline) <= 2 * len(live) + 64, "it remembers rows that have ended")
        for priority, queue in self.scheduler.queues.items():
            own = [ticket for ticket in running if ticket.priority is priority]
            own += [ticket for ticket in waiting if ticket.priority is priority and ticket.retrying]
            begun_s, reserved_s = sum(one.reserved_s for one in own), sum(one.reserved_s for one in queue.waiting())
            self.check(math.isclose(queue.begun_s, begun_s, abs_tol=1e-9), "what may run after rows that run is not reserved")
            self.check(math.isclose(queue.reserved_s, reserved_s, abs_tol=1e-9), "what may run after rows that wait is not reserved")
        self.check_spread(step.batches)
        self.check_turns(step.batches)
        self.check_wide(step.batches)
        self.wake_at = step.wake_at

    def check_spread(self, batches: list[Batch[Row]]) -> None:
        cost = self.scheduler.cost
        for batch in batches if self.free and not self.queued else ():
            rows = len(batch.tickets)
            half = [ticket.length for ticket in self.world.layout.halves(batch.tickets)[1]]
            helps = rows > 1 and cost.table_s(*self.world.layout.shape(Lengths.of(half))) <= 0.75 * cost.table_s(*batch.shape)
            self.check(not helps or batch.reason == "retry", f"a runner is idle beside a batch of {rows} rows")

    def check_turns(self, batches: list[Batch[Row]]) -> None:
        for batch in batches:
            left = self.scheduler.queues[batch.tickets[0].priority].waiting()
            if not left or batch.reason == "retry":
                continue
            first_at, left_at = (min(ticket.since for ticket in tickets) for tickets in (batch.tickets, left))
            urgent = min(ticket.due_at for ticket in batch.tickets) <= min(ticket.due_at for ticket in left)
            self.check(urgent or first_at <= left_at + self.world.objective_s, "a row is overtaken past the objective")

    def check_wide(self, batches: list[Batch[Row]]) -> None:
        for batch in batches:
            idle = self.free >= self.world.width - 1 > 0 and not self.queued
            self.check(idle or not batch.wide, "a batch is wide though its cores are needed")
            self.check(not batch.wide or self.wide is None, "two batches are wide at once")
            self.wide = batch if batch.wide else self.wide

    def start(self, batch: Batch[Row]) -> None:
        self.free -= 1
        self.take(batch, self.now)
        self.go(batch)

    def take(self, batch: Batch[Row], starts_at: float) -> None:
        limits, rows = self.scheduler.limits, len(batch.tickets)
        self.check(rows >= 1, "an empty batch")
        self.check(rows <= limits.rows, f"{rows} rows in a batch")
        if batch.reason != "retry":  # a retry keeps the limits of its first run
            self.check(rows == 1 or batch.tokens <= limits.tokens, f"{batch.tokens} tokens in a batch")
            self.check(rows == 1 or batch.tokens <= self.tokens_max, f"{batch.tokens} tokens after {self.tokens_max} were too many")
            self.check(rows == 1 or limits.heads * batch.squares * 4 <= limits.scores_bytes, "attention scores over the limit")
            self.check(len({ticket.priority for ticket in batch.tickets}) == 1, "classes are mixed")
            alone_s = self.scheduler.cost.speed * 0.999999
            self.check(
                all(t.probe or starts_at + alone_s * t.alone_s <= t.deadline_at for t in batch.tickets),
                "runs a row that cannot finish in time",
            )
            self.shares.ran(batch, self.scheduler)
        self.taken.update(batch.tickets)
        for ticket in batch.tickets:
            self.check(ticket.state is State.RUNNING and not ticket.payload.fates, "runs a row that has a fate")
            self.check(starts_at < ticket.deadline_at, "starts after the deadline")

    def go(self, batch: Batch[Row]) -> None:
        world = self.world
        run_s = world.mean_s(Lengths.of([ticket.length for ticket in batch.tickets])) * world.rng.uniform(1 / world.noise, world.noise)
        # Rows that arrive meanwhile take some of its cores.
        most = WIDE_LOSES if self.seed % WIDE_LOSES_DAYS == 0 and not world.exact else 1.0
        run_s *= world.rng.uniform(WIDE_PART, most) if batch.wide else 1.0
        if world.rng.random() < world.hang_share:
            self.at(self.now + GIVE_UP_S, lambda: self.give_up(batch))
        else:
            self.at(self.now + run_s, lambda: self.end(batch, run_s))
        if self.seed % AHEAD_DAYS == 0:
            ends_at = self.now + batch.predicted_s
            self.at(self.now + AHEAD_AT * min(run_s, batch.predicted_s), lambda: self.look_ahead(batch, ends_at))

    def look_ahead(self, batch: Batch[Row], ends_at: float) -> None:
        """Decide the batch after this one ahead, if possible."""
        if batch in self.given_up:
            return
        before = {priority: queue.rows for priority, queue in self.scheduler.queues.items()}
        self.shares.look(self.scheduler)
        following = self.scheduler.ahead(batch, self.now, ends_at)
        if following is None:
            return
        self.aheads += 1
        self.next[batch] = following
        self.take(following, ends_at)
        self.check_turns([following])
        self.check(before[following.tickets[0].priority] > len(following.tickets), "decides a batch ahead that later rows could join")
        self.check(following.reason == "full", f"decides ahead though {following.reason}")

    def give_up(self, batch: Batch[Row]) -> None:
        self.wide = None if batch is self.wide else self.wide
        self.given_up.add(batch)
        self.taken.difference_update(batch.tickets)
        for ticket in self.scheduler.give_up(batch):
            ticket.payload.fates.append("failed")
        if (following := self.next.pop(batch, None)) is not None:
            self.taken.difference_update(following.tickets)
            self.scheduler.give_back(following)

    def end(self, batch: Batch[Row], run_s: float) -> None:
        self.wide = None if batch is self.wide else self.wide
        self.taken.difference_update(batch.tickets)
        following = self.next.pop(batch, None)
        if following is None:
            self.free += 1
        else:
            self.scheduler.begin(following, self.now)
            self.go(following)
        out_of_memory = batch.tokens > self.world.memory_tokens
        # A wide batch may have failed for its further threads: its rows run again on one core before limits are lowered.
        if out_of_memory and len(batch.tickets) > 1 and not batch.wide:
            self.tokens_max = min(self.tokens_max, batch.tokens // 2)
        fails = (
            out_of_memory or any(ticket.payload.poison for ticket in batch.tickets) or self.world.rng.random() < self.world.failure_share
        )
        if fails:
            ended = self.scheduler.fail(batch, out_of_memory)
        else:
            unsettled = [ticket for ticket in batch.tickets if ticket.then and not ticket.payload.suffices]
            unanswered = [one for ticket in unsettled for one in (ticket, *self.scheduler.sharing.followers(ticket))]
            ended = self.scheduler.finish(batch, self.now, run_s, unsettled)
            for ticket in unanswered:
                self.check(ticket not in ended, "answered though its first answer does not suffice")
                ticket.payload.went_on |= ticket.state is State.WAITING
        for ticket in ended:
            ticket.payload.fates.append("failed" if fails else "answered")
            self.check(not fails or len(batch.tickets) == 1, "a row fails that did not run alone")
            self.check(fails or ticket.deadline_at > self.now, "answered after its deadline")

    def settle(self) -> Counter[str]:
        unkept = 0
        for row in self.rows:
            self.check(len(row.fates) == 1, f"row {row.number} has the fates {row.fates}")
            self.check(row.fates != ["answered"] or not row.poison, "poison was answered")
            honest = not self.world.exact or row.ticket is None or row.ticket.probe or row.fates[0] in ("answered", "cancelled")
            honest |= row.followed
            # With two classes, the rows that the other one will bring are a guess.
            alone = self.world.bulk_rows in (0.0, 1.0)
            self.check(honest or not alone, f"row {row.number} was admitted, predictions were exact, and it was {row.fates[0]}")
            unkept += not honest
        self.check(self.scheduler.rows_waiting == self.scheduler.rows_running == 0, "rows are left")
        for queue in self.scheduler.queues.values():
            self.check(
                queue.rows == len(queue.demand) == queue.work_s() == queue.demand.total_s == queue.alone_s == queue.dearest_s == 0,
                "work is left",
            )
            self.check(queue.reserved_s == queue.begun_s == 0, "reserved work is left")
        self.check(self.free == self.scheduler.runners, "a runner is lost")
        exact = len(self.rows) if self.world.exact else 0
        went_on = sum(row.went_on for row in self.rows)
        followed = sum(row.followed for row in self.rows)
        seen = Counter(held=self.holds, unkept=unkept, exact=exact, aheads=self.aheads, went_on=went_on, followed=followed)
        return Counter(row.fates[0] for row in self.rows) + seen


class _Shares:
    """Run time over share that each class got while both waited. The two must stay within one step of each other."""

    def __init__(self, bulk_share: float) -> None:
        self.share = [1 - bulk_share, bulk_share]
        self.given = [0.0, 0.0]
        # The most that one step gave.
        self.largest = [0.0, 0.0]
        self.in_step = [0.0, 0.0]

    def look(self, scheduler: Scheduler[Row]) -> None:
        """A step begins or ends; reset whenever a class does not wait."""
        self.in_step = [0.0, 0.0]
        interactive, bulk = scheduler.queues[Priority.INTERACTIVE], scheduler.queues[Priority.BULK]
        if not (interactive.rows and bulk.rows):
            self.given = [0.0, 0.0]

    def ran(self, batch: Batch[Row], scheduler: Scheduler[Row]) -> None:
        place = int(batch.tickets[0].priority is Priority.BULK)
        spent_s = scheduler.cost.table_s(*batch.shape) / self.share[place]
        self.given[place] += spent_s
        self.in_step[place] += spent_s
        self.largest[place] = max(self.largest[place], self.in_step[place])

    def fair(self) -> bool:
        """Whether no class is further ahead of the other than one step of each."""
        interactive, bulk = self.given
        return abs(interactive - bulk) <= sum(self.largest) * 1.001 + 1e-9
