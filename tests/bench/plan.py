"""Compares the planner's predictions with this machine: real runs at fractions of the capacity, and simulations of the same requests.

``python -m tests.bench.plan`` measures costs as ``sentiment plan --measure`` does, starts the server, offers Poisson arrivals from another
process on the same cores, and replays in the planner what was sent. Needs the machine to itself; about 3 minutes for each 3 runs.

What the client takes is measured in a run of its own: its core time, which it shares with the server, and what its calls take beyond what
the server tells of them. Before and after each run the capacity is measured, by which costs are corrected as by ``--capacity``. Where the
machine's speed wanders all the same, a third figure tells what would have been foretold with the speed of the run itself: how much longer
than the table says texts took in each 2 s of it, scaled until the simulated runners are as busy as the real ones were.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from sentiment.batching.cost import CostTable
from sentiment.files.html_report import plain
from sentiment.planning.closed_loop import CALLERS, corrected
from sentiment.planning.machine import PACE_S, Machine, changed
from sentiment.planning.measuring import MEASURE_S, measure
from sentiment.planning.outcome import Outcome
from sentiment.planning.simulation import Fleet, Traffic, simulate
from sentiment.traffic.arrivals import Poisson
from sentiment.traffic.lengths import MIXED, estimate_tokens
from sentiment.traffic.texts import make_texts
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.processes import cpu_s, start_server

LOADS = (0.3, 0.6, 0.8)
# The load of the run that measures the cost of the client and of the event loop.
TRIAL_LOAD, TRIAL_SEED, TRIAL_S = 0.5, 1000, 8.0
# Short texts of the first burst are answered first, so answers are not counted from the start.
SETTLE_S, CAPACITY_S = 3.0, 6.0
TIMEOUT_S = 5.0
TEXTS = 1024
# Simulations to average, each with its own noise.
REPLAYS = 5
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# The greatest deviations of a correct prediction.
WANTED = {"answers/s": 0.15, "p50 ms": 0.15, "p99 ms": 0.30}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of calls, in order: the text's number, when it was sent, and the answer's seconds, None without one; how many of
    them the server does not know of, and its part of the run time, by what the server tells; when all had ended; and the client's core
    time.
    """

    texts: list[int]
    sent_at: list[float]
    latency_s: list[float | None]
    away_s: list[float]
    run_s: list[float]
    ended_at: float
    client_s: float


def offer(target: str, rate: float, seconds: float, seed: int) -> Seen:
    """Send texts at random instants whether or not others are answered; in a process of its own."""
    return asyncio.run(_offer(target, rate, seconds, seed))


async def _offer(target: str, rate: float, seconds: float, seed: int) -> Seen:
    texts = make_texts(MIXED, TEXTS)
    due_at = list(itertools.takewhile(lambda at: at < seconds, Poisson(rate).times(seed)))
    chosen = random.Random(seed).choices(range(TEXTS), k=len(due_at))
    async with grpc.aio.insecure_channel(target, [("grpc.enable_retries", 0)]) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        await stub.Classify(pb.ClassifyRequest(text="ready"))
        sent_at, latency_s = [0.0] * len(due_at), list[float | None]([None] * len(due_at))
        away_s, run_s = [0.0] * len(due_at), [0.0] * len(due_at)
        cpu_begun, begun = time.process_time(), time.perf_counter() + 0.1

        async def call(number: int) -> None:
            sent_at[number] = time.perf_counter() - begun
            try:
                timing = (await stub.Classify(pb.ClassifyRequest(text=texts[chosen[number]]), timeout=TIMEOUT_S)).timing
            except grpc.aio.AioRpcError:
                return
            latency_s[number] = time.perf_counter() - begun - sent_at[number]
            away_s[number] = latency_s[number] - timing.total.ToTimedelta().total_seconds()
            run_s[number] = timing.run.ToTimedelta().total_seconds() / timing.batch_rows

        calls = []
        for number, at in enumerate(due_at):
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            calls.append(asyncio.create_task(call(number)))
        await asyncio.gather(*calls)
        return Seen(chosen, sent_at, latency_s, away_s, run_s, time.perf_counter() - begun, time.process_time() - cpu_begun)


def saturate(target: str, seconds: float) -> tuple[float, float]:
    """Answers a second to CALLERS callers that always wait, and the client's core seconds for each."""
    return asyncio.run(_saturate(target, seconds))


async def _saturate(target: str, seconds: float) -> tuple[float, float]:
    texts = make_texts(MIXED, TEXTS)
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        cpu_begun, begun, answers, counted = time.process_time(), time.perf_counter() + SETTLE_S, 0, 0

        async def caller(seed: int) -> None:
            nonlocal answers, counted
            rng = random.Random(seed)
            while time.perf_counter() < begun + seconds:
                await stub.Classify(pb.ClassifyRequest(text=rng.choice(texts)), timeout=60)
                answers += 1
                counted += begun <= time.perf_counter() < begun + seconds

        await asyncio.gather(*(caller(seed) for seed in range(CALLERS)))
        return counted / seconds, (time.process_time() - cpu_begun) / answers


@dataclass(frozen=True, slots=True)
class Compared:
    """A run beside its simulations: the capacity before and after, the cores that others took meanwhile, and each figure as (real,
    foretold, foretold at the run's own speed).
    """

    load: float
    seed: int
    capacities: tuple[float, float]
    others_cores: float
    figures: dict[str, tuple[float, float, float]]

    def row(self) -> list[str]:
        """For a table."""
        cells = [
            f"{real:.1f}, {foretold:.1f} ({foretold / real - 1:+.0%}), {own:.1f} ({own / real - 1:+.0%})"
            for real, foretold, own in self.figures.values()
        ]
        return [f"{self.load:g}", str(self.seed), "{:.1f}, {:.1f}".format(*self.capacities), *cells, f"{self.others_cores:.2f}"]

    def holds(self, which: int = 1) -> bool:
        """Whether the first or the second simulation predicts all figures."""
        return all(abs(each[which] / each[0] - 1) <= WANTED.get(name, math.inf) for name, each in self.figures.items())


class Validation:
    """A server, its client in another process, and the machine as the planner sees it."""

    def __init__(self, machine: Machine, pid: int, target: str, client: Executor) -> None:
        self._pid = pid
        self._target = target
        self._client = client
        self._tokens = np.array([estimate_tokens(text) for text in make_texts(MIXED, TEXTS)])
        capacity, self._saturated_s = client.submit(saturate, target, CAPACITY_S).result()
        before = _threads_cpu_s(pid)
        trial: Seen = client.submit(offer, target, TRIAL_LOAD * capacity, TRIAL_S, TRIAL_SEED).result()
        spent_s = sorted(after - before.get(thread, 0.0) for thread, after in _threads_cpu_s(pid).items())
        # The runners have worked most; the others are the event loop and gRPC's own threads.
        loop_s = sum(spent_s[: -machine.runners]) / len(trial.texts) - machine.token_s * float(self._tokens[trial.texts].mean())
        self._machine = changed(machine, loop_s=loop_s, beside_s=trial.client_s / len(trial.texts))
        # The server's own measurement ends before it sends the answer.
        self._away_s = max(0.0, statistics.median(trial.away_s) - self._machine.turns.answer_s)

    def __str__(self) -> str:
        return f"{self._machine} ({1e3 * self._saturated_s:.2f} of a client that always waits); on its way {1e3 * self._away_s:.2f} ms"

    def compare(self, load: float, seed: int, seconds: float) -> tuple[Compared, Seen, Machine]:
        """Offer a part of the capacity and replay it."""
        before, _ = self._client.submit(saturate, self._target, CAPACITY_S).result()
        used_s, server_s = _machine_cpu_s(), cpu_s(self._pid)
        seen: Seen = self._client.submit(offer, self._target, load * before, seconds, seed).result()
        others_s = _machine_cpu_s() - used_s - (cpu_s(self._pid) - server_s) - seen.client_s
        after, _ = self._client.submit(saturate, self._target, CAPACITY_S).result()
        always_waited = changed(self._machine, beside_s=self._saturated_s)
        machine = changed(corrected(always_waited, (before + after) / 2, MIXED, seed), beside_s=self._machine.beside_s)
        figures = self._figures(seen, machine)
        return Compared(load, seed, (before, after), others_s / seen.ended_at, figures), seen, machine

    def _figures(self, seen: Seen, machine: Machine) -> dict[str, tuple[float, float, float]]:
        sent_at = np.array(seen.sent_at)
        order = np.argsort(sent_at)
        traffic = Traffic(sent_at[order], self._tokens[seen.texts][order], np.zeros(len(order), bool))

        def replayed(machine: Machine) -> list[Outcome]:
            return [simulate(traffic, Fleet(machine, 1, timeout_s=TIMEOUT_S), replay) for replay in range(REPLAYS)]

        foretold = own = replayed(machine)
        machine = replace(machine, pace=self._pace(seen, machine))
        for _ in range(REPLAYS):
            factor = sum(seen.run_s) / statistics.fmean(each.spent.runs_s for each in own)
            machine = replace(machine, points={shape: run_s * factor for shape, run_s in machine.points.items()})
            own = replayed(machine)
        answered = [latency_s for latency_s in seen.latency_s if latency_s is not None]
        by_both = [statistics.fmean(each.answered_per_s for each in outcomes) for outcomes in (foretold, own)]
        figures = {"answers/s": (len(answered) / seen.ended_at, by_both[0], by_both[1])}
        for percentile in (50, 90, 99):
            seconds = [self._away_s + statistics.fmean(each.percentile_s(percentile) for each in outcomes) for outcomes in (foretold, own)]
            real_s = float(np.percentile(answered, percentile, method="higher"))
            figures[f"p{percentile} ms"] = 1e3 * real_s, 1e3 * seconds[0], 1e3 * seconds[1]
        return figures

    def _pace(self, seen: Seen, machine: Machine) -> tuple[float, ...]:
        """The ratio of the measured time of texts to their time in the cost table, for each PACE_S seconds of the run."""
        cost = CostTable(machine.points)
        real_s, table_s = [1e-9], [1e-9]
        for text, at, run_s in zip(seen.texts, seen.sent_at, seen.run_s, strict=True):
            window = int(at / PACE_S)
            while len(real_s) <= window:
                real_s.append(1e-9)
                table_s.append(1e-9)
            if run_s:
                real_s[window] += run_s
                table_s[window] += cost.table_s(1, min(int(self._tokens[text]), machine.length_max))
        return tuple(real / table for real, table in zip(real_s, table_s, strict=True))


def _threads_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of each thread of a process, by its number."""
    found = {}
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        found[stat.parent.name] = (int(fields[11]) + int(fields[12])) * TICK_S
    return found


def _machine_cpu_s() -> float:
    """CPU seconds of all processes, what the host has taken among them."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + irq + soft + steal) * TICK_S


def main() -> int:
    """Compare, print and write. Returns 1 if a prediction was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="parts of the capacity")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--measure", type=float, default=MEASURE_S, help="seconds")
    parser.add_argument("--json", type=Path, default=None, help="write all instants there")
    options = parser.parse_args()
    machine = measure("", options.measure)
    process, target, _ = start_server("english")
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as client:
            validation = Validation(machine, process.pid, target, client)
            print(validation, flush=True)
            compared, kept = [], []
            for seed, load in itertools.product(options.seeds, options.loads):
                found, seen, used = validation.compare(load, seed, options.seconds)
                compared.append(found)
                kept.append({**asdict(found), "seen": asdict(seen), "machine": json.loads(used.to_json())})
                print(" ".join(found.row()), flush=True)
    finally:
        process.terminate()
        process.wait(60)
    header = (
        "load",
        "seed",
        "capacity before, after",
        *(f"{name}: real, foretold, at own speed" for name in compared[0].figures),
        "cores of others",
    )
    print(plain(header, [each.row() for each in compared]))
    if options.json:
        options.json.write_text(json.dumps(kept))
    missed = sum(not each.holds() for each in compared)
    wanted = ", ".join(f"{name} {most:.0%}" for name, most in WANTED.items())
    own = sum(each.holds(2) for each in compared)
    print(f"within {wanted}: {len(compared) - missed} of {len(compared)} runs, with the run's own speed {own}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
