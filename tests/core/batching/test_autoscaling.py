"""Pods are scaled by their offered load in virtual time: the real batcher, and the autoscaler of deploy/ as Kubernetes documents it.

https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ has the algorithm. What it reads is as old as a scrape.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from sentiment.batching.batcher import Batcher
from sentiment.batching.plan import BatchLimits
from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.text import Waiting
from sentiment.batching.ticket import Priority
from sentiment.errors import RequestError
from sentiment.model.runner import Ran, Report
from sentiment.model.tokenizer import Row
from tests.core.batching.test_batcher import Notes
from tests.core.batching.test_class_queue import proportional
from tests.virtual_time import VirtualClock, VirtualTimeLoop

MANIFEST = Path(__file__).parents[3] / "deploy/kustomize/cpu/sentiment.yaml"
# Kubernetes' defaults, the chart's scrape interval, and how long a pod takes from its order to its first call.
SYNC_S, TOLERANCE, SCRAPE_S, START_S = 15.0, 0.1, 15.0, 20.0
RUNNERS = 2
LENGTH = 10
Decision = tuple[float, int, float]


class Autoscaler:
    """A HorizontalPodAutoscaler with one metric of pods."""

    def __init__(self, spec: dict[str, Any]) -> None:
        (metric,) = spec["metrics"]
        assert metric["pods"]["metric"]["name"] == "sentiment_demand_ratio"
        self.target = int(metric["pods"]["target"]["averageValue"].removesuffix("m")) / 1000
        self.least, self.most = spec["minReplicas"], spec["maxReplicas"]
        (self.up,), (self.down,) = (spec["behavior"][way]["policies"] for way in ("scaleUp", "scaleDown"))
        assert (self.up["type"], self.down["type"]) == ("Percent", "Pods")
        assert spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0
        self.window_s = spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"]
        self.recommended: list[tuple[float, int]] = []
        self.changes: list[tuple[float, int]] = []

    def decide(self, now: float, replicas: int, found: Sequence[float]) -> int:
        """The replicas from now on. ``found``: the values of the pods that have one."""
        if not self.recommended:
            self.recommended.append((now, replicas))
        wanted = self._recommend(replicas, found)
        self.recommended.append((now, wanted))
        # What was wanted at any time within the window is not taken away.
        wanted = max(wanted, min(replicas, max(was for at, was in self.recommended if at > now - self.window_s)))
        added = sum(change for at, change in self.changes if change > 0 and at > now - self.up["periodSeconds"])
        removed = sum(change for at, change in self.changes if change < 0 and at > now - self.down["periodSeconds"])
        highest = math.ceil((replicas - added) * (1 + self.up["value"] / 100))
        lowest = replicas - removed - self.down["value"]
        decided = min(self.most, max(self.least, min(highest, max(lowest, wanted))))
        self.changes.append((now, decided - replicas))
        return decided

    def _recommend(self, replicas: int, found: Sequence[float]) -> int:
        if not found:
            return replicas
        ratio = sum(found) / len(found) / self.target
        # Pods without a value count as idle where pods are to be added, and as on target where they are to be removed.
        missing = [0.0 if ratio > 1 else self.target] * (replicas - len(found))
        all_ratio = (sum(found) + sum(missing)) / (len(found) + len(missing)) / self.target
        if abs(all_ratio - 1) <= TOLERANCE or (ratio > 1) is not (all_ratio > 1):
            return replicas
        return math.ceil(all_ratio * replicas - 1e-9)


@dataclass
class TimedRunner:
    """Batches take what they are predicted to take, within a tenth."""

    run_s: float
    name: str = "timed"
    ahead: bool = False

    def start(self, classifier: object, rows: Sequence[Row], report: Report, *_: bool) -> Callable[[], None]:
        seconds = self.run_s * len(rows) * random.uniform(0.9, 1.1)
        asyncio.get_running_loop().call_later(seconds, report, Ran([[0.0]] * len(rows), 0.0, seconds))
        return lambda: None


class Pod:
    def __init__(self, clock: VirtualClock, run_s: float) -> None:
        self.ready_at = clock.now + START_S
        self.value: float | None = None
        scheduler: Scheduler[Waiting] = Scheduler(proportional(run_s / LENGTH), BatchLimits(8, 1024, 2**26, 2), RUNNERS, 4096, 512)
        self.batcher = Batcher(None, scheduler, [TimedRunner(run_s)] * RUNNERS, Notes(), clock=clock)


@dataclass
class Cluster:
    """Pods that calls reach in turn. ``offered``: by the instant, in pods that it would fill."""

    clock: VirtualClock
    offered: Callable[[float], float]
    run_s: float = 0.25
    deadline_s: float = 2.0
    pods: list[Pod] = field(default_factory=list)
    # Of each sync its instant, the replicas from then on, and the mean of what the pods say.
    decisions: list[Decision] = field(default_factory=list)
    # Calls of each minute, and of these the ones that were answered.
    calls: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    # The pods' mean, at each scrape.
    backlogs_s: list[float] = field(default_factory=list)

    async def run(self, seconds: float, pods: int) -> None:
        documents = yaml.safe_load_all(MANIFEST.read_text())
        hpa = Autoscaler(next(one["spec"] for one in documents if one["kind"] == "HorizontalPodAutoscaler"))
        self.pods = [Pod(self.clock, self.run_s) for _ in range(pods)]
        for pod in self.pods:
            pod.ready_at = 0.0
        tasks = [asyncio.create_task(work) for work in (self.scrape(), self.scale(hpa))]
        await self.call(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(pod.batcher.drained() for pod in self.pods))

    async def call(self, seconds: float) -> None:
        number = 0
        while (now := self.clock.now) < seconds:
            await asyncio.sleep(random.expovariate(max(0.1, self.offered(now) * RUNNERS / self.run_s)))
            ready = [pod for pod in self.pods if pod.ready_at <= self.clock.now]
            minute, number = int(self.clock.now // 60), number + 1
            self.calls[minute] += 1

            def tell(outcome: TextOutcome, minute: int = minute) -> None:
                self.answered[minute] += isinstance(outcome, RowsResult)

            try:
                row = Row([1] * LENGTH, None, False)
                ready[number % len(ready)].batcher.submit([row], self.clock.now + self.deadline_s, tell, Priority.INTERACTIVE)
            except RequestError:
                pass

    async def scrape(self) -> None:
        while True:
            await asyncio.sleep(SCRAPE_S)
            ready = [pod for pod in self.pods if pod.ready_at <= self.clock.now]
            for pod in ready:
                pod.value = pod.batcher.offered.ratio(self.clock.now)
            self.backlogs_s.append(sum(pod.batcher.backlog_s for pod in ready) / len(ready))

    async def scale(self, hpa: Autoscaler) -> None:
        # Between two scrapes.
        await asyncio.sleep(SCRAPE_S / 2)
        while True:
            await asyncio.sleep(SYNC_S)
            found = [pod.value for pod in self.pods if pod.value is not None]
            wanted = hpa.decide(self.clock.now, len(self.pods), found)
            self.decisions.append((self.clock.now, wanted, sum(found) / len(found)))
            self.pods += [Pod(self.clock, self.run_s) for _ in range(wanted - len(self.pods))]
            del self.pods[wanted:]

    def in_time(self, first: float, last: float) -> float:
        """Of the calls of these whole minutes, the share that was answered."""
        minutes = range(int(first // 60), int(last // 60))
        return sum(self.answered[minute] for minute in minutes) / sum(self.calls[minute] for minute in minutes)

    def replicas(self, at: float) -> int:
        return next(replicas for when, replicas, _ in reversed(self.decisions) if when <= at)


def simulated(seconds: float, pods: int, offered: Callable[[float], float], seed: int = 1, **changes: float) -> Cluster:
    print(f"seed {seed}")
    random.seed(seed)
    clock = VirtualClock()
    cluster = Cluster(clock, offered, **changes)
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(cluster.run(seconds, pods))
    return cluster


def test_pods_follow_a_ramp_and_no_call_is_refused() -> None:
    cluster = simulated(540, 2, lambda at: 1 + 3.5 * min(1.0, at / 420))

    assert cluster.in_time(0, 540) > 0.995
    assert all(replicas >= cluster.offered(at) for at, replicas, _ in cluster.decisions)
    # The autoscaler leaves pods alone while they are a tenth over the target.
    assert 4.5 / (0.7 * 1.1) <= cluster.replicas(540) <= 4.5 / 0.7 + 1


def test_pods_follow_a_burst_and_go_again_when_it_has_long_been_over() -> None:
    begins_at, ends_at = 180, 270
    cluster = simulated(900, 2, lambda at: 4.2 if begins_at <= at < ends_at else 1.4)

    assert cluster.replicas(begins_at) == 2
    assert cluster.replicas(begins_at + 60) >= 4.2
    assert cluster.in_time(begins_at + 120, 900) > 0.99
    assert cluster.replicas(ends_at + 240) >= 4.2
    assert cluster.replicas(900) <= 3


def test_pods_follow_three_times_what_they_can_do_although_what_is_refused_never_waits() -> None:
    # A call may take 1.2 runs, so nearly all that cannot run at once is refused. With 0.1 s the queue itself would add no pod.
    cluster = simulated(180, 2, lambda _: 6.0, run_s=0.1, deadline_s=0.12)

    assert cluster.in_time(0, 60) < 0.6
    assert max(cluster.backlogs_s) < 0.1
    assert max(value for *_, value in cluster.decisions) > 2.0
    assert cluster.replicas(90) >= 6
    assert cluster.in_time(120, 180) > 0.9


def test_pods_stay_under_a_steady_load_with_noise() -> None:
    # Calls at random, at a rate that goes up and down by a tenth.
    cluster = simulated(900, 4, lambda at: 2.8 * (1 + 0.1 * math.sin(at / 7)))

    assert len({replicas for _, replicas, _ in cluster.decisions}) <= 2
    changes = [after - before for (_, before, _), (_, after, _) in pairwise(cluster.decisions) if after != before]
    assert len(changes) <= 1
    assert cluster.in_time(0, 900) > 0.999
