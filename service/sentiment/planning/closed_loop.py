"""Callers that always wait, on virtual time: what one replica answers then, and costs corrected by what a real one does. Pure."""

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
# Answers are counted after the first of these: of texts that all come at once the short ones are answered first.
SETTLE_S, SECONDS = 5.0, 65.0
# Nobody is refused: as many runs of the slowest machine end before.
TIMEOUT_S = 1e6
QUEUE_ROWS_MAX = 4096
# Scaled so often, each time by this factor at most: each time leaves a small part of the error, or none comes near what cannot be.
ROUNDS, FACTOR_MAX = 4, 100.0
NEAR = 0.1


class _Callers(Ledger):
    """Each asks again when it is answered."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ask_at = [0.0] * CALLERS
        self.answers = 0

    def answered(self, number: int, at: float) -> None:  # noqa: ARG002  # callers are alike
        self.answers += SETTLE_S < at <= SECONDS
        heapq.heappush(self.ask_at, at)

    def ended(self, number: int, fate: Fate) -> None:
        """A caller without an answer asks no more; there is none before TIMEOUT_S."""


def capacity_per_s(machine: Machine, lengths: Lengths, seed: int) -> float:
    """Answers a second of one replica to CALLERS callers that always wait, after they have done so for a while."""
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
    """The machine with all runs faster or slower, so that its simulation has the capacity that was measured.

    Raises:
        BadSettings: no runs are so fast that it has, because of what calls take beside them, or it is too little to be counted.
    """
    found = capacity_per_s(machine, lengths, seed)
    for _ in range(ROUNDS):
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, found / measured_per_s))
        machine = replace(machine, points={shape: run_s * factor for shape, run_s in machine.points.items()})
        found = capacity_per_s(machine, lengths, seed)
    if abs(found / measured_per_s - 1) > NEAR:
        most = f"beside its run a call takes up to {1e3 * machine.loop_s:g} ms of the event loop"
        least = f"{SECONDS - SETTLE_S:g} s are too short to count fewer"
        why = most if found < measured_per_s else least
        raise BadSettings(f"costs cannot be scaled to a capacity of {measured_per_s:g} calls/s, only to {found:.3g}: {why}")
    return machine
