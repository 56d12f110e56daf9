"""A closed loop in virtual time: the capacity of one replica, and costs corrected to a measured capacity. Pure."""

import heapq
import random
from dataclasses import dataclass

from sentiment.batching.ticket import Priority
from sentiment.errors import BadSettings
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Fate, Ledger, Limit
from sentiment_tools.planning.replica import Replica
from sentiment_tools.traffic.lengths import Lengths

# For each event loop that takes calls, so that several front ends are all kept busy.
CALLERS = 64
# Answers are counted from SETTLE_S on. Before that short texts prevail: all callers start at once, and short texts are answered first.
SETTLE_S, SECONDS = 5.0, 65.0
# Enough to end earlier. Only front ends answer this many; simulating them takes half a minute.
ANSWERS_MAX = 200_000
# Long enough that no call is refused: the slowest machine answers all callers within it.
TIMEOUT_S = 1e6
QUEUE_ROWS_MAX = 4096
# Costs are scaled in up to ROUNDS rounds, each by at most FACTOR_MAX. Each round removes most of the error, or no round can.
ROUNDS, FACTOR_MAX = 4, 100.0
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one replica answers to callers that always wait: calls per second, and how busy each of its parts is then."""

    per_s: float
    shares: dict[Limit, float]

    @property
    def limit(self) -> Limit:
        """The busiest part, which is the first without room. Of equals the first: where runs take all cores, more runners do not help.

        Below the capacity the shares do not tell it: batches are smaller then, and take more time a row.
        """
        return max(self.shares, key=self.shares.__getitem__)


class _Callers(Ledger):
    """Callers that each send the next call as soon as they are answered."""

    def __init__(self, callers: int) -> None:
        super().__init__(0)
        self.ask_at = [0.0] * callers
        self.answers = 0
        self.ends_at = SECONDS

    def answered(self, number: int, at: float) -> None:  # noqa: ARG002  # callers are alike
        self.answers += SETTLE_S < at <= self.ends_at
        if self.answers == ANSWERS_MAX:
            self.ends_at = min(self.ends_at, at)
        heapq.heappush(self.ask_at, at)

    def ended(self, number: int, fate: Fate) -> None:
        """A caller without an answer sends no more calls. This does not happen before TIMEOUT_S."""


def callers_of(machine: Machine) -> int:
    """The callers of a closed loop that keeps a replica busy."""
    return CALLERS * max(1, machine.front_ends)


def capacity_per_s(machine: Machine, lengths: Lengths, seed: int, concurrency: int = 0) -> float:
    """Answers per second of one replica in a closed loop."""
    return capacity_of(machine, lengths, seed, concurrency).per_s


def capacity_of(machine: Machine, lengths: Lengths, seed: int, concurrency: int = 0) -> Capacity:
    """The capacity of one replica in a closed loop, after a settling time. ``concurrency``: calls at once; 0: ``callers_of``."""
    callers = _Callers(concurrency or callers_of(machine))
    replica = Replica(machine, QUEUE_ROWS_MAX, seed, callers)
    rng = random.Random(f"callers {seed}")
    while min(replica.next_at, callers.ask_at[0] if callers.ask_at else SECONDS) < callers.ends_at:
        if not callers.ask_at or replica.next_at <= callers.ask_at[0]:
            replica.advance()
        else:
            at = heapq.heappop(callers.ask_at)
            replica.ask(0, at, lengths.draw(rng), at + TIMEOUT_S, Priority.INTERACTIVE)
    return Capacity(callers.answers / (callers.ends_at - SETTLE_S), replica.spent.shares(machine, callers.ends_at))


def corrected(machine: Machine, measured_per_s: float, lengths: Lengths, seed: int, concurrency: int = 0) -> Machine:
    """The machine with all run times scaled by one factor, so that its simulated capacity is the measured one.

    ``concurrency``: as for ``capacity_of``.

    Raises:
        BadSettings: no factor gives that capacity: an event loop limits it, or it is too low to be counted.
    """
    found = capacity_per_s(machine, lengths, seed, concurrency)
    for _ in range(ROUNDS):
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, found / measured_per_s))
        machine = machine.scaled(factor)
        found = capacity_per_s(machine, lengths, seed, concurrency)
    if abs(found / measured_per_s - 1) > NEAR:
        takes = f"{1e3 * machine.loop_s:g} ms of the event loop"
        if machine.front_ends:
            takes = f"{1e3 * machine.front_end_s:g} ms of a front end"
        most = f"besides its run a call takes up to {takes}"
        least = f"fewer calls cannot be counted within {SECONDS - SETTLE_S:g} s"
        why = most if found < measured_per_s else least
        raise BadSettings(f"costs cannot be scaled to a capacity of {measured_per_s:g} calls/s, only to {found:.3g} calls/s: {why}")
    return machine
