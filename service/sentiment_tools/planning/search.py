"""The fewest replicas that meet an objective. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sentiment.batching.cost import CostTable
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Outcome, number
from sentiment_tools.planning.simulation import Traffic

REPLICAS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency objective: ``percentile`` per cent of all requests, refused ones included, are answered within ``seconds``."""

    seconds: float
    percentile: float = 99.0

    def met(self, outcome: Outcome) -> bool:
        """Whether a simulation meets the objective."""
        return outcome.in_time(self.seconds) >= self.percentile / 100 - 1e-9

    def __str__(self) -> str:
        return f"{self.percentile:g} % within {1e3 * self.seconds:g} ms"


@dataclass(frozen=True, slots=True)
class Sizing:
    """``fewest`` replicas that meet the objective (None if no number does), all outcomes that were ``tried``, and ``why`` none does.

    ``hopeless``: too many texts are too slow even on an idle replica, whatever the load.
    """

    fewest: int | None
    tried: dict[int, Outcome]
    why: str = ""
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Ranges:
    """``outcome`` of a fleet, and the least and the most that simulations of it found: tail in seconds (NaN: no answer), share in time.

    ``replicas``: the fewest that searches found, the most is None if no number is enough; None if the number was given.
    """

    outcome: Outcome
    tail_s: tuple[float, float]
    in_time: tuple[float, float]
    replicas: tuple[int, int | None] | None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], fewest: Sequence[int | None], objective: Objective) -> "Ranges":
        """The ranges of at least one simulation, the first of which is the answer's, and of the numbers that searches found."""
        tails = sorted(s for outcome in outcomes if not math.isnan(s := outcome.percentile_s(objective.percentile))) or [math.nan]
        shares = [outcome.in_time(objective.seconds) for outcome in outcomes]
        enough = [replicas for replicas in fewest if replicas is not None]
        replicas = (min(enough), None if None in fewest else max(enough)) if enough else None
        return cls(outcomes[0], (tails[0], tails[-1]), (min(shares), max(shares)), replicas)

    def summary(self, objective: Objective) -> dict[str, Any]:  # JSON
        """The ranges as JSON, each the least and the most, by name with unit."""
        found: dict[str, Any] = {
            f"p{objective.percentile:g}_ms": [number(1e3 * seconds) for seconds in self.tail_s],
            "in_time_share": list(self.in_time),
        }
        if self.replicas:
            cores = self.outcome.machine.shared_cores
            found |= {"replicas": list(self.replicas), "cores": [replicas and replicas * cores for replicas in self.replicas]}
        return found


def fewest_replicas(run: Callable[[int], Outcome], objective: Objective, traffic: Traffic, machine: Machine) -> Sizing:
    """Find the fewest replicas: start at the number that the work keeps busy, go up in growing steps, then bisect.

    Assumes that more replicas are never worse. One replica fewer and one more than the result have always been tried.

    Args:
        run: simulates ``traffic`` on a number of replicas.
        objective: the latency objective.
        traffic: the requests.
        machine: the performance model of each replica.
    """
    hopeless = _too_long(objective, traffic, machine)
    if hopeless > 1 - objective.percentile / 100:
        slowest = f"{hopeless:.1%} of the texts take longer than {1e3 * objective.seconds:g} ms alone on an idle replica"
        busy = _busy_with(traffic, machine)
        return Sizing(None, {busy: run(busy)}, f"no number of replicas meets {objective}: {slowest}", hopeless=True)
    tried: dict[int, Outcome] = {}

    def met(replicas: int) -> bool:
        if replicas not in tried:
            tried[replicas] = run(replicas)
        return objective.met(tried[replicas])

    high, stride = _busy_with(traffic, machine), 1
    low = high - 1
    while not met(high):
        if high == REPLICAS_MAX:
            return Sizing(None, tried, f"no number of replicas up to {REPLICAS_MAX} meets {objective}")
        low, high, stride = high, min(REPLICAS_MAX, high + stride), 2 * stride
    # The start is a guess: where batches save time, fewer replicas may be enough.
    stride = 1
    while low and met(low):
        low, high, stride = max(0, low - stride), low, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    met(high + 1)
    return Sizing(high, dict(sorted(tried.items())))


def _too_long(objective: Objective, traffic: Traffic, machine: Machine) -> float:
    """Share of the texts that miss the objective even on an idle replica."""
    cost = CostTable(machine.points)
    # Longer texts are truncated to the longest row.
    longest_ok = max((n for n in range(1, machine.length_max + 1) if cost.table_s(1, n) <= objective.seconds), default=0)
    return (1 - machine.known) * float((traffic.lengths > longest_ok).mean()) if longest_ok < machine.length_max else 0.0


def _busy_with(traffic: Traffic, machine: Machine) -> int:
    """The number of replicas that the texts would keep busy without batching, at least 1."""
    work_s = sum(requests * machine.work_s(length) for length, requests in Counter(traffic.lengths.tolist()).items())
    return min(REPLICAS_MAX, max(1, math.ceil(work_s / machine.runners / max(float(traffic.due_at[-1]), 1e-9))))
