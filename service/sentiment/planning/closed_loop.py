"""Callers that always wait, on virtual time: what one replica answers then, and costs corrected by what a real one does. Pure."""

import heapq
import random
from dataclasses import replace

from sentiment.batching.ticket import Priority
from sentiment.planning.machine import Machine
from sentiment.planning.outcome import Ledger
from sentiment.planning.replica import Replica
from sentiment.traffic.lengths import Lengths

CALLERS = 64
# Answers are counted after the first of these: of texts that all come at once the short ones are answered first.
SETTLE_S, SECONDS = 5.0, 65.0
TIMEOUT_S = 60.0
QUEUE_ROWS_MAX = 4096
# Scaled so often: each time leaves a small part of the error.
ROUNDS = 4


class _Callers(Ledger):
    """Each asks again when it is answered."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ask_at = [0.0] * CALLERS
        self.answers = 0

    def answered(self, number: int, at: float) -> None:  # noqa: ARG002  # callers are alike
        self.answers += SETTLE_S < at <= SECONDS
        heapq.heappush(self.ask_at, at)


def capacity_per_s(machine: Machine, lengths: Lengths, seed: int) -> float:
    """Answers a second of one replica to CALLERS callers that always wait, after they have done so for a while."""
    callers = _Callers()
    replica = Replica(machine, QUEUE_ROWS_MAX, seed, callers)
    rng = random.Random(seed)
    while min(replica.next_at, callers.ask_at[0] if callers.ask_at else SECONDS) < SECONDS:
        if not callers.ask_at or replica.next_at <= callers.ask_at[0]:
            replica.advance()
        else:
            at = heapq.heappop(callers.ask_at)
            replica.ask(0, at, lengths.draw(rng), at + TIMEOUT_S, Priority.INTERACTIVE)
    return callers.answers / (SECONDS - SETTLE_S)


def corrected(machine: Machine, measured_per_s: float, lengths: Lengths, seed: int) -> Machine:
    """The machine with all runs faster or slower, so that its simulation has the capacity that was measured."""
    for _ in range(ROUNDS):
        factor = capacity_per_s(machine, lengths, seed) / measured_per_s
        machine = replace(machine, points={shape: run_s * factor for shape, run_s in machine.points.items()})
    return machine
