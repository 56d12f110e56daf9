"""``make release-check``: holds our server to the limits in release.toml, which are ratios and counts, so that they fit any machine.

The server with the default bundle and the load tester share this machine, as in a developer's check; about five minutes.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sentiment.client import CallFailed, Client
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.cores import cores_granted
from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.knee import of_sent
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.report import compose
from sentiment_tools.loadtest.results import Group, Point
from sentiment_tools.loadtest.search import Search, Slo, find_slo
from sentiment_tools.reports.html_report import plain
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.texts import read_pool
from tests.bench.processes import CEILING_ROWS, Started, Worker, cpu_s, idle_share, start_server

LIMITS = Path(__file__).with_name("release.toml")
SLO = Slo(0.5, 99.0)
# Equal to the objective, so that the server can drop calls that would be late.
IN_TIME = (SLO.objective_s, SLO.objective_s)
PATIENT = (60.0, 60.0)
CALLERS = 32
BATCH_TEXTS = 256
SHARED_TEXTS = 120
SCORE_MOVES_MAX = 1e-4
POINTS_MAX = 11
RESOLUTION = 0.08
# Below this, other work on the machine affects the figures.
IDLE_MIN = 0.9


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a figure, if given: at least ``least``, at most ``most``. ``why``: what the limit protects."""

    why: str
    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a figure is within it; NaN is not."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most) and value == value

    def __str__(self) -> str:
        return " and ".join(f"{sign} {edge:g}" for sign, edge in ((">=", self.least), ("<=", self.most)) if edge is not None)


def read_limits(path: Path = LIMITS) -> dict[str, Limit]:
    """The limits by the figure's name."""
    return {name: Limit(**limit) for name, limit in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def judged(values: Mapping[str, float], limits: Mapping[str, Limit]) -> list[tuple[str, str, str, str]]:
    """(figure, value, limit, verdict) of each limit in turn. A figure that was not measured has missed its limit.

    Raises:
        ValueError: a figure has no limit: then nobody would notice that it got worse.
    """
    if unknown := sorted(set(values) - set(limits)):
        raise ValueError(f"without a limit in {LIMITS.name}: {', '.join(unknown)}")
    rows = []
    for name, limit in limits.items():
        value = values.get(name, float("nan"))
        rows.append((name, f"{value:.4g}", str(limit), "holds" if limit.holds(value) else "MISSED"))
    return rows


class Subject:
    """The server under test and what is needed to load it."""

    def __init__(self, server: Started, seconds: float) -> None:
        self.server, self.seconds = server, seconds
        self.mixed, self.short = read_pool("mixed"), read_pool("sst2")

    def fleet(self, mix: Mix, texts: Sequence[str] = ()) -> Fleet:
        """Clients that send this mix."""
        return Fleet(Target(self.server.grpc), mix, texts or self.mixed, SLO.objective_s)

    async def hold(self, mix: Mix, load: Poisson | int) -> Point:
        """One load."""
        async with self.fleet(mix) as fleet:
            return await fleet.measure(load, self.seconds)


async def measure(subject: Subject) -> tuple[dict[str, float], Search]:
    """Every figure by its name, and the search behind one of them.

    Raises:
        LoadFailed: the server answers nothing.
    """
    alone = _told("alone", await subject.hold(Mix(PATIENT), 1))
    waiting = _told("capacity", await subject.hold(Mix(PATIENT), 2 * CALLERS))
    if not alone.ok or not waiting.answered_per_s:
        raise LoadFailed("the server answered nothing while callers waited")
    capacity = waiting.answered_per_s
    print(f"capacity {capacity:.1f} texts/s, alone p99 {alone.percentile(99) * 1e3:.1f} ms", flush=True)
    async with subject.fleet(Mix(IN_TIME)) as fleet:

        async def hold(rate: float) -> Point:
            return _told(f"{rate:.1f} texts/s", await fleet.measure(Poisson(rate), subject.seconds))

        halves = [await hold(capacity / 2) for _ in range(2)]
        found = await find_slo(hold, capacity, SLO, resolution=RESOLUTION, points_max=POINTS_MAX)
        overload = await hold(3 * capacity)
    cancels = _told("half cancel", await subject.hold(Mix(IN_TIME, cancel=0.5), Poisson(0.8 * capacity)))
    beside = _told("half bulk", await subject.hold(Mix(IN_TIME, bulk=0.5), Poisson(1.5 * capacity)))
    bulky = beside.by_class.get("interactive", Group())
    values = {
        "slo_load_over_capacity": found.slo_rate / capacity,
        # Other work can only add to it, so the lower of two measurements is closer to the truth.
        "p99_at_half_over_alone": min(of_sent(point, 99) for point in halves) / alone.percentile(99),
        "errors_at_half": max(point.judged - point.in_time for point in halves),
        "goodput_at_3x_over_capacity": overload.goodput_per_s / capacity,
        "in_time_where_half_cancel": cancels.share_in_time,
        "interactive_in_time_beside_bulk": bulky.in_time / max(1, bulky.sent),
        "answers_changed": answers_changed(subject),
    }
    return values, found


def _told(name: str, point: Point) -> Point:
    limited = f"; the client was the limit: {point.client_limited}" if point.client_limited else ""
    print(f"  {name}: {point.share_in_time:.2%} in time{limited}", flush=True)
    return point


def answers_changed(subject: Subject) -> int:
    """Texts whose label or score moves when they are sent amid others."""
    texts = random.Random(5).sample(subject.mixed, SHARED_TEXTS)
    with Client(subject.server.grpc) as client:
        alone = [client.classify(text, timeout_s=60) for text in texts]
        among = list(client.classify_batch(texts, timeout_s=60))
    return sum(
        isinstance(second, CallFailed) or first.label != second.label or abs(first.score - second.score) > SCORE_MOVES_MAX
        for first, second in zip(alone, among, strict=True)
    )


async def measure_efficiency(subject: Subject, ceiling: Worker) -> dict[str, float]:
    """CPU time of a plain loop over the server's, for short texts, one a call and many a call."""

    def least_ms() -> float:
        return min(float(ceiling.ask(texts=subject.short[:256], rows=rows, passes=1)["ms"]) for rows in CEILING_ROWS)

    least, values = [least_ms()], {}
    for name, mix, callers in (("unary", Mix(PATIENT), CALLERS), ("batch", Mix(PATIENT, per_call=BATCH_TEXTS), 2)):
        async with subject.fleet(mix, subject.short) as fleet:
            await fleet.measure(callers, 1.0)
            begun = cpu_s(subject.server.process.pid)
            # Without a warm-up every text that is sent is counted.
            point = await fleet.measure(callers, subject.seconds, warm_up_s=0)
            values[name] = 1e3 * (cpu_s(subject.server.process.pid) - begun) / max(1, point.texts_ok)
        least.append(least_ms())
    return {f"efficiency_{name}": sum(least) / len(least) / value for name, value in values.items()}


async def run(options: argparse.Namespace, values: dict[str, float]) -> None:
    """Measure everything; ``values`` has what was measured even where this raises.

    Raises:
        LoadFailed: the server or a client process is gone.
        CallFailed: the server does not answer a text.
    """
    with ExitStack() as stack:
        subject = Subject(start_server(options.model), options.seconds)
        stack.callback(subject.server.end)
        ceiling = Worker("processes", "ceiling", str(find_bundle(options.model, bundle_roots([]))), str(cores_granted()))
        stack.callback(ceiling.close)
        measured, found = await measure(subject)
        values |= measured
        if options.html:
            facts = {"command": "make release-check", "model": options.model, "texts": "mixed", "seconds a load": f"{options.seconds:g}"}
            options.html.write_text(compose(found, facts, SLO), encoding="utf-8")
        values |= await measure_efficiency(subject, ceiling)


def main() -> int:
    """Measure, print the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="make release-check", description="Hold the server to the limits in release.toml.")
    parser.add_argument("--model", default="english")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each load is held")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--html", type=Path, help="write the report of the search for the highest load there")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    limits, idle = read_limits(), idle_share()
    if idle < IDLE_MIN:
        print(f"warning: the machine is only {idle:.0%} idle; missed limits may be due to other work")
    values: dict[str, float] = {}
    try:
        asyncio.run(run(options, values))
    except (LoadFailed, CallFailed) as error:
        print(f"error: {error}")
    if options.json:
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    rows = judged(values, limits)
    print(plain(("figure", "value", "limit", "verdict"), rows))
    for name, _, _, verdict in rows:
        if verdict != "holds":
            print(f"{name}: {limits[name].why}")
    return int(any(row[-1] != "holds" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
