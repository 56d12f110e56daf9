"""The outcomes of simulated requests, and statistics of them. Pure."""

import enum
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sentiment.batching.offered import work_ratio
from sentiment.batching.ticket import Priority
from sentiment_tools.planning.machine import Machine

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Fate(enum.IntEnum):
    """How a request ended."""

    ANSWERED = 0
    EXPIRED = 1
    REFUSED = 2


class Limit(enum.StrEnum):
    """A part of a replica that no more load fits into once it works all the time."""

    EVENT_LOOP = "event loop"
    FRONT_ENDS = "front ends"
    EXECUTOR = "executor"
    CORES = "cores"
    RUNNERS = "runners"
    DEVICE = "device"


class Spent(NamedTuple):
    """What one replica or several together have spent.

    Args:
        runs_s: run time of the runners.
        batches: batches that ran.
        rows: rows that ran in them.
        loop_s: core seconds of the event loop that takes calls; with front ends, of each replica's busiest.
        executor_s: core seconds of the executor's event loop.
        cores_s: core seconds of everything on the replica's cores.
        asked_s: predicted seconds of a runner for what was asked, refused or not.
        predicted_s: predicted seconds of ``runs_s``.
    """

    runs_s: float = 0.0
    batches: int = 0
    rows: int = 0
    loop_s: float = 0.0
    executor_s: float = 0.0
    cores_s: float = 0.0
    asked_s: float = 0.0
    predicted_s: float = 0.0

    @classmethod
    def of(cls, parts: Iterable["Spent"]) -> "Spent":
        """What at least one part has spent, together."""
        return cls(*map(sum, zip(*parts, strict=True)))

    def shares(self, machine: Machine, seconds: float) -> dict[Limit, float]:
        """Share of the seconds, over all replicas, in which each part works. An event loop that waits for a core does not work."""
        seconds = max(seconds, 1e-9)
        found = {Limit.EVENT_LOOP: self.loop_s / seconds}
        if machine.front_ends:
            found = {Limit.FRONT_ENDS: self.loop_s / seconds, Limit.EXECUTOR: self.executor_s / seconds}
        found[Limit.CORES] = self.cores_s / (seconds * machine.shared_cores)
        found[Limit.DEVICE if machine.packed else Limit.RUNNERS] = self.runs_s / (seconds * machine.runners)
        return {limit: min(1.0, share) for limit, share in found.items()}


class Ledger:
    """Records fates by the request's number."""

    def __init__(self, requests: int) -> None:
        # Instants of the answers, NaN where there is none.
        self.answered_at = array("d", [math.nan]) * requests
        self.fates = bytearray(requests)

    def answered(self, number: int, at: float) -> None:
        """Record an answer."""
        self.answered_at[number] = at

    def ended(self, number: int, fate: Fate) -> None:
        """Record that a request gets no answer."""
        self.fates[number] = fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """All requests of one simulation, in the order of arrival.

    Args:
        due_at: arrival times in seconds from the start.
        latency_s: seconds from arrival to answer; NaN where there is no answer.
        fates: the Fate of each request.
        bulk: whether each request is a bulk request.
        replicas: number of replicas.
        machine: the performance model of each replica.
        spent: what all replicas together have spent.
    """

    due_at: Floats
    latency_s: Floats
    fates: Codes
    bulk: Marks
    replicas: int
    machine: Machine
    spent: Spent

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.due_at)

    @property
    def ended_at(self) -> float:
        """Seconds from the start to the last arrival or the last answer, whichever is later."""
        ends = self.due_at + np.nan_to_num(self.latency_s)
        return float(max(self.due_at[-1], ends.max()))

    @property
    def offered_per_s(self) -> float:
        """Requests per second."""
        return self.requests / max(float(self.due_at[-1]), 1e-9)

    @property
    def answered_per_s(self) -> float:
        """Answers per second until ``ended_at``."""
        return self.share(Fate.ANSWERED) * self.requests / max(self.ended_at, 1e-9)

    @property
    def busy_share(self) -> float:
        """Share of the time in which runners ran."""
        return self.spent.runs_s / max(self.ended_at * self.replicas * self.machine.runners, 1e-9)

    @property
    def shares(self) -> dict[Limit, float]:
        """Share of the time in which each part of a replica works."""
        return self.spent.shares(self.machine, self.ended_at * self.replicas)

    @property
    def demand_ratio(self) -> float:
        """The mean of what a replica shows as ``sentiment_demand_ratio``."""
        spent, seconds = self.spent, self.ended_at * self.replicas
        work = work_ratio(spent.asked_s / seconds, spent.runs_s / seconds, spent.predicted_s / seconds, self.machine.runners)
        loops = (Limit.EVENT_LOOP, Limit.FRONT_ENDS, Limit.EXECUTOR)
        return max([work, *(share for limit, share in self.shares.items() if limit in loops)])

    @property
    def batch_rows(self) -> float:
        """Mean rows per batch."""
        return self.spent.rows / max(1, self.spent.batches)

    def share(self, fate: Fate, priority: Priority | None = None) -> float:
        """Share of the requests, or of one class, that had this fate; 0 without requests."""
        fates = self.fates[self._of(priority)]
        return float((fates == fate).mean()) if len(fates) else 0.0

    def in_time(self, objective_s: float, priority: Priority | None = None) -> float:
        """Share of all requests, refused and expired ones included, that were answered within the objective; 0 without requests."""
        latency_s = self.latency_s[self._of(priority)]
        # A comparison with NaN is false.
        return float((latency_s <= objective_s).mean()) if len(latency_s) else 0.0

    def goodput_per_s(self, objective_s: float) -> float:
        """Answers within the objective per second of arrivals."""
        return self.in_time(objective_s) * self.offered_per_s

    def percentile_s(self, percentile: float, priority: Priority | None = None) -> float:
        """The percentile (0 to 100) of the answers' latency in seconds; NaN without answers. Refusals do not count: see ``in_time``."""
        latency_s = self.latency_s[self._of(priority)]
        found = latency_s[~np.isnan(latency_s)]
        return float(np.percentile(found, percentile, method="higher")) if len(found) else math.nan

    def classes(self) -> list[Priority]:
        """The classes that have requests."""
        return [priority for priority, there in ((Priority.INTERACTIVE, ~self.bulk), (Priority.BULK, self.bulk)) if there.any()]

    def requests_of(self, priority: Priority) -> int:
        """The number of requests of a class."""
        return int(self._of(priority).sum())

    def _of(self, priority: Priority | None) -> Marks:
        if priority is None:
            return np.ones(self.requests, bool)
        return self.bulk if priority is Priority.BULK else ~self.bulk

    def summary(self, objective_s: float) -> dict[str, Any]:  # JSON
        """All figures as JSON, by name with unit."""
        percentiles = {f"p{percentile:g}_ms": number(1e3 * self.percentile_s(percentile)) for percentile in PERCENTILES}
        return {
            "replicas": self.replicas,
            "requests": self.requests,
            "seconds": self.ended_at,
            "offered_per_s": self.offered_per_s,
            "answered_per_s": self.answered_per_s,
            "goodput_per_s": self.goodput_per_s(objective_s),
            "in_time_share": self.in_time(objective_s),
            **percentiles,
            "refused_share": self.share(Fate.REFUSED),
            "expired_share": self.share(Fate.EXPIRED),
            "demand_ratio": self.demand_ratio,
            "runner_busy_share": self.busy_share,
            "busy_share": {limit.value: share for limit, share in self.shares.items()},
            "batch_rows": self.batch_rows,
            "by_class": {
                priority.value: {
                    "requests": self.requests_of(priority),
                    "in_time_share": self.in_time(objective_s, priority),
                    **{f"p{percentile:g}_ms": number(1e3 * self.percentile_s(percentile, priority)) for percentile in PERCENTILES},
                }
                for priority in self.classes()
            },
        }


def number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
