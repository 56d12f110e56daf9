"""A fleet in virtual time: a balancer distributes requests among replicas, each with the server's own scheduler. Pure.

Replicas that the balancer does not compare are independent of each other and can be simulated in several processes.
"""

import heapq
import itertools
import math
import random
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.batching.ticket import Priority
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Floats, Ledger, Marks, Outcome, Spent
from sentiment_tools.planning.replica import Replica
from sentiment_tools.traffic.arrivals import Law
from sentiment_tools.traffic.lengths import Lengths

Ints = npt.NDArray[np.int64]

# The most replicas that one least-backlog balancer compares. A larger fleet is divided into groups, which get requests in turn.
GROUP_MAX = 32
ROUND_ROBIN, RANDOM, LEAST_BACKLOG = "round-robin", "random", "least-backlog"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order: arrival in seconds from the start, tokens before truncation, and whether they are bulk."""

    due_at: Floats
    lengths: Ints
    bulk: Marks

    def of(self, which: Ints) -> "Traffic":
        """The requests at these indices."""
        return Traffic(self.due_at[which], self.lengths[which], self.bulk[which])


def draw_traffic(law: Law, lengths: Lengths, requests: int, seed: int, bulk_share: float = 0.0) -> Traffic:
    """Draw at most ``requests`` requests, fewer if the law ends earlier. The same seed gives the same requests."""
    due_at = np.array(list(itertools.islice(law.times(seed), requests)))
    rng = random.Random(f"lengths {seed}")
    drawn = np.array([lengths.draw(rng) for _ in range(len(due_at))], np.int64)
    return Traffic(due_at, drawn, _chance("bulk", seed).random(len(due_at)) < bulk_share)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas and a balancer.

    Args:
        machine: the performance model of each replica.
        replicas: number of replicas.
        balance: round-robin (one balancer, replicas in turn), random (many clients that each take turns), or least-backlog (the replica
            with the least predicted work, without delay).
        timeout_s: each request's deadline.
        queue_rows_max: the most rows that may wait at a replica.
    """

    machine: Machine
    replicas: int
    balance: str = ROUND_ROBIN
    timeout_s: float = 5.0
    queue_rows_max: int = 4096

    @property
    def groups(self) -> int:
        """The number of independent groups of replicas."""
        return math.ceil(self.replicas / GROUP_MAX) if self.balance == LEAST_BACKLOG else self.replicas


def simulate(traffic: Traffic, fleet: Fleet, seed: int, executor: Executor | None = None) -> Outcome:
    """Simulate until every request has its fate.

    Args:
        traffic: at least one request.
        fleet: replicas and balancer.
        seed: for the replicas and the balancer. The same seed gives the same outcome with any executor.
        executor: runs the groups in parallel. None: one after the other in this process.
    """
    slots = np.arange(len(traffic.due_at)) % fleet.replicas
    if fleet.balance == RANDOM:
        slots = _chance("balance", seed).integers(fleet.replicas, size=len(traffic.due_at))
    sizes = np.bincount(np.arange(fleet.replicas) % fleet.groups)
    members = members_of(slots % fleet.groups, fleet.groups)
    tasks = [(traffic.of(mine), fleet, int(size), f"{seed} {group}") for group, (mine, size) in enumerate(zip(members, sizes, strict=True))]
    parts = list(map(_run_group, tasks) if executor is None else executor.map(_run_group, tasks))
    answered_at, fates = np.empty(len(traffic.due_at)), np.zeros(len(traffic.due_at), np.uint8)
    for mine, (ledger, _) in zip(members, parts, strict=True):
        answered_at[mine], fates[mine] = ledger.answered_at, np.frombuffer(ledger.fates, np.uint8)
    spent = Spent.of(spent for _, spent in parts)
    return Outcome(traffic.due_at, answered_at - traffic.due_at, fates, traffic.bulk, fleet.replicas, fleet.machine, spent)


def _chance(what: str, seed: int) -> np.random.Generator:
    """A random generator for one purpose; the seed may be any whole number."""
    return np.random.default_rng(random.Random(f"{what} {seed}").getrandbits(64))


def members_of(group_of: Ints, groups: int) -> list[Ints]:
    """The indices of each group's requests, in order. One sort, because a mask for each of thousands of groups would not fit in memory."""
    return np.split(np.argsort(group_of, kind="stable"), np.cumsum(np.bincount(group_of, minlength=groups))[:-1])


def _run_group(task: tuple[Traffic, Fleet, int, str]) -> tuple[Ledger, Spent]:
    traffic, fleet, size, seed = task
    ledger = Ledger(len(traffic.due_at))
    replicas = [Replica(fleet.machine, fleet.queue_rows_max, f"{seed} {number}", ledger) for number in range(size)]
    # Instants of the replicas' next events; outdated entries are skipped.
    due: list[tuple[float, int]] = []
    lengths = traffic.lengths.tolist()
    priorities = [Priority.BULK if bulk else Priority.INTERACTIVE for bulk in traffic.bulk]
    for number, at in enumerate(traffic.due_at.tolist()):
        _advance(replicas, due, at)
        # A group of one needs no comparison.
        index = 0 if size == 1 else min(range(size), key=lambda index: replicas[index].ahead_s)
        replica = replicas[index]
        before_at = replica.next_at
        replica.ask(number, at, lengths[number], at + fleet.timeout_s, priorities[number])
        if replica.next_at != before_at:
            heapq.heappush(due, (replica.next_at, index))
    _advance(replicas, due, math.inf)
    return ledger, Spent.of(replica.spent for replica in replicas)


def _advance(replicas: list[Replica], due: list[tuple[float, int]], until: float) -> None:
    """Process all events until ``until``."""
    while due and due[0][0] <= until:
        at, index = heapq.heappop(due)
        replica = replicas[index]
        if at == replica.next_at < math.inf:
            replica.advance()
            heapq.heappush(due, (replica.next_at, index))
