"""A closed loop in virtual time: the capacity of one replica, and costs corrected to a measured capacity. Pure."""

import heapq
import random
from dataclasses import replace

from sentiment.batching.ticket import Priority
from sentiment.errors import BadSettings
from sentiment.planning.machine import Machine
from sentiment.planning.outcome import Fate, Ledger
from sentiment.planning.replica import Replica
from sentiment.traffic.lengths import Lengths

CALLERS = 64
# Answers are counted from SETTLE_S on. Before that short texts prevail: all callers start at once, and short texts are answered first.
SETTLE_S, SECONDS = 5.0, 65.0
# Long enough that no call is refused: the slowest machine answers all callers within it.
TIMEOUT_S = 1e6
QUEUE_ROWS_MAX = 4096
# Costs are scaled in up to ROUNDS rounds, each by at most FACTOR_MAX. Each round removes most of the error, or no round can.
ROUNDS, FACTOR_MAX = 4, 100.0
NEAR = 0.1


class _Callers(Ledger):
    """Callers that each send the next call as soon as they are answered."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ask_at = [0.0] * CALLERS
        self.answers = 0

    def answered(self, number: int, at: float) -> None:  # noqa: ARG002  # callers are alike
        self.answers += SETTLE_S < at <= SECONDS
        heapq.heappush(self.ask_at, at)

    def ended(self, number: int, fate: Fate) -> None:
        """A caller without an answer sends no more calls. This does not happen before TIMEOUT_S."""


def capacity_per_s(machine: Machine, lengths: Lengths, seed: int) -> float:
    """Answers per second of one replica in a closed loop of CALLERS callers, after a settling time."""
    callers = _Callers()
    replica = Replica(machine, QUEUE_ROWS_MAX, seed, callers)
    rng = random.Random(f"callers {seed}")
    while min(replica.next_at, callers.ask_at[0] if callers.ask_at else SECONDS) < SECONDS:
        if not callers.ask_at or replica.next_at <= callers.ask_at[0]:
            replica.advance()
        else:
            at = heapq.heappop(callers.ask_at)
            replica.ask(0, at, lengths.draw(rng), at + TIMEOUT_S, Priority.INTERACTIVE)
    return callers.answers / (SECONDS - SETTLE_S)


def corrected(machine: Machine, measured_per_s: float, lengths: Lengths, seed: int) -> Machine:
    """The machine with all run times scaled by one factor, so that its simulated capacity is the measured one.

    Raises:
        BadSettings: no factor gives that capacity: the event loop limits it, or it is too low to be counted.
    """
    found = capacity_per_s(machine, lengths, seed)
    for _ in range(ROUNDS):
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, found / measured_per_s))
        machine = replace(machine, points={shape: run_s * factor for shape, run_s in machine.points.items()})
        found = capacity_per_s(machine, lengths, seed)
    if abs(found / measured_per_s - 1) > NEAR:
        most = f"besides its run a call takes up to {1e3 * machine.loop_s:g} ms of the event loop"
        least = f"fewer calls cannot be counted within {SECONDS - SETTLE_S:g} s"
        why = most if found < measured_per_s else least
        raise BadSettings(f"costs cannot be scaled to a capacity of {measured_per_s:g} calls/s, only to {found:.3g} calls/s: {why}")
    return machine
