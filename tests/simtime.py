"""A server's day on virtual time: clients that come, leave and time out, runners that take their time and fail.

``simulate`` drives a real scheduler through a random but seeded run and checks its promises at every instant.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sentiment.batching.scheduler import Batch, BatchLimits, Scheduler, State, Ticket
from sentiment.errors import Refused, Unavailable

# A deadline may be so far away; no admitted row may be without a fate longer.
DEADLINE_MAX_S = 8.0


@dataclass
class World:
    """Everything that is random about one run, drawn once."""

    rng: random.Random
    runners: int
    limits: BatchLimits
    queue_rows_max: int
    rows: int
    rate: float
    cancel_share: float
    poison_share: float
    failure_share: float
    token_s: float

    @classmethod
    def draw(cls, seed: int) -> "World":
        rng = random.Random(seed)
        return cls(
            rng=rng,
            runners=rng.randint(1, 4),
            limits=BatchLimits(rng.choice([1, 4, 16]), rng.choice([64, 1024]), rng.choice([2**16, 2**26]), rng.choice([2, 12])),
            queue_rows_max=rng.choice([4, 64, 4096]),
            rows=rng.randint(1, 120),
            rate=rng.choice([2.0, 50.0, 2000.0]),
            cancel_share=rng.choice([0.0, 0.1, 0.5]),
            poison_share=rng.choice([0.0, 0.0, 0.1]),
            failure_share=rng.choice([0.0, 0.0, 0.05]),
            token_s=rng.choice([1e-5, 1e-4, 5e-3]),
        )


@dataclass
class Row:
    """A client's text and what was seen of it."""

    number: int
    poison: bool
    fates: list[str] = field(default_factory=list)
    ticket: Ticket["Row"] | None = None


class Broken(AssertionError):
    """A promise was broken; the message gives the seed."""


def simulate(seed: int) -> Counter[str]:
    """Run one seeded day to its end; returns how many rows had which fate.

    Raises:
        Broken: a promise of the scheduler did not hold.
    """
    return _Day(seed).run()


class _Day:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World.draw(seed)
        self.scheduler: Scheduler[Row] = Scheduler(self.world.limits, self.world.queue_rows_max)
        self.now = 0.0
        self.free = self.world.runners
        self.rows: list[Row] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.serials = itertools.count()
        self.closed = False
        self.wake_at: float | None = None

    def run(self) -> Counter[str]:
        rng, at = self.world.rng, 0.0
        for number in range(self.world.rows):
            at += rng.expovariate(self.world.rate)
            row = Row(number, rng.random() < self.world.poison_share)
            self.rows.append(row)
            self.at(at, lambda row=row: self.arrive(row))  # type: ignore[misc]  # default binds the loop's value
        if rng.random() < 0.3:
            self.at(at * rng.random(), self.close)
        for steps in itertools.count():
            times = [time for time in (self.events[0][0] if self.events else None, self.wake_at) if time is not None]
            if not times:
                break
            # Each row brings a bounded number of events: more turns than that would be spinning.
            self.check(steps < 40 * self.world.rows + 100, f"it spins: {steps} turns for {self.world.rows} rows")
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
            raise Broken(f"seed {self.seed} at {self.now:.6f} s: {promise}")

    def arrive(self, row: Row) -> None:
        rng = self.world.rng
        length = min(512, 1 + int(rng.expovariate(1 / 40)))
        deadline_at = self.now + rng.choice([0.0, 0.01, 0.1, 1.0, DEADLINE_MAX_S])
        waiting = self.scheduler.rows_waiting
        try:
            row.ticket = self.scheduler.add(length, self.now, deadline_at, row)
        except Refused:
            self.check(waiting >= self.world.queue_rows_max, f"refused with {waiting} rows waiting")
            row.fates.append("refused")
        except Unavailable:
            self.check(self.closed, "unavailable though open")
            row.fates.append("refused")
        else:
            self.check(waiting < self.world.queue_rows_max and not self.closed, "admitted though full or closed")
            if rng.random() < self.world.cancel_share:
                self.at(self.now + rng.expovariate(20), lambda: self.cancel(row))

    def cancel(self, row: Row) -> None:
        assert row.ticket is not None
        if self.scheduler.cancel(row.ticket):
            row.fates.append("cancelled")

    def close(self) -> None:
        self.scheduler.close()
        self.closed = True

    def step(self) -> None:
        step = self.scheduler.step(self.now, self.free)
        for ticket in step.expired:
            self.check(ticket.deadline_at <= self.now, "expired before its deadline")
            ticket.payload.fates.append("expired")
        self.check(len(step.batches) <= self.free, "more batches than free runners")
        for batch in step.batches:
            self.start(batch)
        self.check(
            self.free == 0 or self.scheduler.rows_waiting == 0, f"{self.free} runners idle and {self.scheduler.rows_waiting} rows wait"
        )
        live = [row.ticket for row in self.rows if row.ticket and row.ticket.state in (State.WAITING, State.RUNNING)]
        # Rows that come back from a failed batch were admitted before and are not turned away now.
        admitted = sum(ticket.state is State.WAITING and not ticket.retrying for ticket in live)
        self.check(admitted <= self.world.queue_rows_max, "the queue is over its limit")
        self.check(all(ticket.deadline_at > self.now for ticket in live), "a row is past its deadline and has no fate")
        self.check(sum(t.state is State.WAITING for t in live) == self.scheduler.rows_waiting, "rows_waiting is wrong")
        self.check(sum(t.length for t in live if t.state is State.WAITING) == self.scheduler.tokens_waiting, "tokens_waiting is wrong")
        self.check(step.wake_at is None or step.wake_at > self.now, "it wants to be woken at once")
        self.check(not live or step.wake_at is not None, "rows are live and nothing will wake it")
        self.wake_at = step.wake_at

    def start(self, batch: Batch[Row]) -> None:
        limits, rows = self.world.limits, len(batch.tickets)
        self.free -= 1
        self.check(rows >= 1, "an empty batch")
        self.check(rows <= limits.rows, f"{rows} rows in a batch")
        self.check(rows == 1 or batch.tokens <= limits.tokens, f"{batch.tokens} tokens in a batch")
        self.check(rows == 1 or rows * limits.heads * batch.length**2 * 4 <= limits.scores_bytes, "attention scores over the limit")
        for ticket in batch.tickets:
            self.check(ticket.state is State.RUNNING and not ticket.payload.fates, "runs a row that has a fate")
            self.check(self.now < ticket.deadline_at, "starts after the deadline")
        if batch.reason != "retry":
            waiting = [row.ticket for row in self.rows if row.ticket and row.ticket.state is State.WAITING and not row.ticket.retrying]
            earliest = min((t.deadline_at for t in waiting), default=float("inf"))
            self.check(min(t.deadline_at for t in batch.tickets) <= earliest, "a later deadline overtakes")
        run_s = 1e-4 + self.world.token_s * batch.tokens * self.world.rng.uniform(0.5, 2)
        self.at(self.now + run_s, lambda: self.end(batch))

    def end(self, batch: Batch[Row]) -> None:
        self.free += 1
        fails = any(ticket.payload.poison for ticket in batch.tickets) or self.world.rng.random() < self.world.failure_share
        # As the batcher does: a row whose deadline has come is not answered, whatever the run gave.
        for ticket in self.scheduler.fail(batch) if fails else self.scheduler.finish(self.in_time(batch)):
            ticket.payload.fates.append("failed" if fails else "answered")
            self.check(not fails or len(batch.tickets) == 1, "a row fails that did not run alone")

    def in_time(self, batch: Batch[Row]) -> Batch[Row]:
        return Batch([ticket for ticket in batch.tickets if ticket.deadline_at > self.now], batch.reason)

    def settle(self) -> Counter[str]:
        for row in self.rows:
            self.check(len(row.fates) == 1, f"row {row.number} has the fates {row.fates}")
            self.check(row.fates != ["answered"] or not row.poison, "poison was answered")
        self.check(
            self.scheduler.rows_waiting == self.scheduler.rows_running == self.scheduler.tokens_waiting == 0, "something is left over"
        )
        self.check(self.free == self.world.runners, "a runner is lost")
        return Counter(row.fates[0] for row in self.rows)
