"""Corrects a plan by what a load test measured on one replica. Pure, except for the load test's file."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sentiment.errors import BadSettings
from sentiment_tools.planning.closed_loop import capacity_per_s, corrected
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Fate, Outcome
from sentiment_tools.planning.simulation import Fleet, draw_traffic, simulate
from sentiment_tools.traffic.arrivals import Law, parse_law
from sentiment_tools.traffic.lengths import Lengths, parse_lengths

# The judged calls that a p99 takes, and the most that are simulated.
CALLS_MIN, CALLS_MAX = 100, 10_000_000
# The most calls without an answer: p99 is of the answers, and where more have none, it is the deadlines'.
FAILED_MAX = 0.01
# A forecast that is further off was probably made for another machine, or for one in another state.
FACTOR_MAX = 4.0
# Of what cannot be 0.
LEAST = 1e-9
# Each forecast is the median of simulations with this many seeds.
SEEDS = 3
# What the simulation sends: of each share that the mix of a load test may have.
SIMULATED = {"per_call": 1, "stream": False, "cancel": 0.0, "explain": 0.0, "slow_readers": 0.0, "zipf": 0.0}


class _Load(NamedTuple):
    """One load of a load test. ``callers``: 0 for an open loop."""

    callers: int
    offered_per_s: float
    answered_per_s: float
    calls: int
    in_time: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load test measured on one replica: the highest open and closed loop that it kept up with, None where it held none.

    ``name``: of the file. ``server``: what the server said about itself.
    """

    name: str
    server: Mapping[str, Any]
    law: Law
    lengths: Lengths
    bulk: float
    timeout_s: float
    objective_s: float
    open: _Load | None
    closed: _Load | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured over forecast: factors on run times, and on latencies up to the median and from the 99th percentile on.

    ``says``: the figures. ``doubts``: warnings.
    """

    cost: float = 1.0
    p50: float = 1.0
    p99: float = 1.0
    says: str = ""
    doubts: tuple[str, ...] = ()

    def of(self, outcome: Outcome, timeout_s: float) -> Outcome:
        """The outcome with corrected latencies; what then takes longer than ``timeout_s`` has expired.

        Between the two percentiles the factor's logarithm follows that of the share of slower answers.
        """
        if self.p50 == self.p99 == 1.0:
            return outcome
        latency_s = outcome.latency_s
        # The share of faster answers. NaN, no answer, sorts last and stays.
        ranks = np.empty(len(latency_s))
        ranks[np.argsort(latency_s)] = np.arange(len(latency_s)) / max(1, int((~np.isnan(latency_s)).sum()))
        above = np.clip(1 - ranks, 0.01, 0.5)
        latency_s = latency_s * self.p50 * (self.p99 / self.p50) ** (np.log(2 * above) / math.log(0.02))
        late = latency_s > timeout_s
        fates = np.where(late, np.uint8(Fate.EXPIRED), outcome.fates)
        return replace(outcome, latency_s=np.where(late, math.nan, latency_s), fates=fates)


def read_measured(path: Path) -> Measured:
    """Read the JSON of a load test.

    Raises:
        BadSettings: the file cannot be used: it is broken, of calls that the simulation does not know, or it has no load that the server
            kept up with.
    """
    # A file name may not be valid Unicode, which no output could hold.
    name = str(path).encode(errors="backslashreplace").decode()
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        server, load = dict(kept["meta"]), kept["load"]
        points = kept["points"] if "points" in kept else [kept["capacity"], *kept["search"]["points"]]
        reasons = [_why_not(point) for point in points]
        kept_up = [_load(point) for point, why in zip(points, reasons, strict=True) if not why]
        law, bulk, (shortest_s, longest_s) = str(load["law"]), _number(load["bulk"], 0, 1), map(float, load["timeout_s"])
        others = {option: load[option] for option, ours in SIMULATED.items() if load[option] != ours}
        texts, column, objective_s = str(load["texts"]), str(load["column"]), _number(kept["slo"]["objective_s"], LEAST)
        if not points or not 0 < shortest_s <= longest_s < math.inf:
            raise ValueError(f"it has {len(points)} loads, and deadlines from {shortest_s:g} to {longest_s:g} s")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise BadSettings(f"{name}: not what sentiment loadtest --json writes: {why}") from error
    if shortest_s != longest_s:
        others["timeout"] = f"{shortest_s:g}..{longest_s:g} s"
    if others:
        said = ", ".join(f"--{option.replace('_', '-')} {value}" for option, value in others.items())
        raise BadSettings(f"{name}: measured with {said}, which the plan does not simulate: use calls of single texts with one deadline")
    if not kept_up:
        raise BadSettings(f"{name}: {reasons[0]}: calibrate by a load that the server and the client keep up with")
    return Measured(
        name,
        server,
        parse_law(law),
        parse_lengths(texts, column),
        bulk,
        longest_s,
        objective_s,
        max((load for load in kept_up if not load.callers), key=lambda load: load.offered_per_s, default=None),
        max((load for load in kept_up if load.callers), key=lambda load: load.callers, default=None),
    )


def calibrate(machine: Machine, measured: Measured, queue_rows_max: int, seed: int) -> Calibration:
    """Simulate the measured loads on one replica, which one caller loads as a load tester does, and compare.

    Raises:
        BadSettings: the load test was of another model or device than the costs, no cost gives the measured throughput, or the simulation
            answers no call of the measured load.
    """
    doubts = list(_not_compared(measured.name, measured.server, machine.key))
    machine = replace(machine, callers=1, known=0.0, early=0.0)
    said: list[str] = []
    cost = p50 = p99 = 1.0
    if closed := measured.closed:
        before = machine
        forecast = capacity_per_s(machine, measured.lengths, seed, closed.callers)
        said.append(f"{closed.callers} callers got {closed.answered_per_s:.4g} answers/s there, forecast {forecast:.4g}")
        machine = corrected(machine, closed.answered_per_s, measured.lengths, seed, closed.callers)
        cost = next(machine.points[shape] / run_s for shape, run_s in before.points.items())
    if load := measured.open:
        fleet = Fleet(machine, 1, timeout_s=measured.timeout_s, queue_rows_max=queue_rows_max)
        law = measured.law.scaled_to(load.offered_per_s)
        seeds = range(seed, seed + SEEDS)
        outcomes = [simulate(draw_traffic(law, measured.lengths, load.calls, each, measured.bulk), fleet, each) for each in seeds]
        p50_s, p99_s = (statistics.median(outcome.percentile_s(percentile) for outcome in outcomes) for percentile in (50, 99))
        in_time = statistics.median(outcome.in_time(measured.objective_s) for outcome in outcomes)
        said.append(
            f"p99 there {1e3 * load.p99_s:.4g} ms, forecast {1e3 * p99_s:.4g} ms at {load.offered_per_s:.4g} calls/s "
            f"(p50 {1e3 * load.p50_s:.4g} and {1e3 * p50_s:.4g} ms, in time {load.in_time:.2%} and {in_time:.2%})"
        )
        p50, p99 = load.p50_s / p50_s, load.p99_s / p99_s
        if math.isnan(p99):
            raise BadSettings(f"{measured.name}: {said[-1]}: the costs are of a slower machine")
    for name, factor in (("run times", cost), ("p99", p99)):
        if not 1 / FACTOR_MAX <= factor <= FACTOR_MAX:
            far = f"{name} there {factor:.3g} times the forecast"
            doubts.append(f"{measured.name} may be of another machine, or one of the two was busy, with {far}: measure both again")
    return Calibration(cost, p50, p99, "; ".join(said), tuple(doubts))


def _number(value: Any, low: float, high: float = 1e9) -> float:  # Any: JSON
    """A number in the range; NaN is in none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g}, got {value!r}")
    return value


def _load(point: Mapping[str, Any]) -> _Load:  # Any: JSON
    calls = int(_number(point["judged"], CALLS_MIN, CALLS_MAX))
    return _Load(
        int(_number(point["callers"], 0)),
        _number(point["offered_per_s"], 0),
        _number(point["answered_per_s"], LEAST),
        calls,
        _number(point["in_time"], 0, calls) / calls,
        *(_number(point["percentiles_s"][name], LEAST) for name in ("p50", "p99")),
    )


def _why_not(point: Mapping[str, Any]) -> str:  # Any: JSON
    """Why a load cannot calibrate; empty if it can."""
    sent, calls, ok = (int(_number(value, 0)) for value in (point["sent"], point["judged"], point["outcomes"].get("OK", 0)))
    where = f"with {point['callers']} callers" if point["callers"] else f"at {_number(point['offered_per_s'], LEAST):.4g} calls/s"
    if sent - ok > FAILED_MAX * sent:
        codes = ", ".join(f"{count} {code}" for code, count in point["outcomes"].items() if code != "OK")
        return f"{sent - ok} of {sent} calls {where} had no answer ({codes}), more than {FAILED_MAX:.0%}"
    if calls < CALLS_MIN:
        return f"{calls} calls {where} are too few for a p99, which takes {CALLS_MIN}"
    if point["client_limited"]:
        return f"the client was the limit {where}: {point['client_limited']}"
    return f"the load {where} was interrupted" if point["interrupted"] else ""


def _not_compared(name: str, server: Mapping[str, Any], key: Mapping[str, str]) -> tuple[str, ...]:  # Any: JSON
    """What does not say of which model it is, as a sentence.

    Raises:
        BadSettings: the load test was of another model or device than the costs.
    """
    if not {"digest", "provider", "model"} <= set(server):
        return (f"{name} does not say which model answered, so it may be another one: use loadtest --protocol grpc",)
    if not {"digest", "device"} <= set(key):
        return (f"the costs do not say of which model they are, so {name} may be of another one: measure them again with --measure",)
    digest, ours = str(server["digest"]), key["digest"]
    if digest != ours:
        raise BadSettings(f"{name}: measured with another model, {server['model']} ({digest[:12]}); the costs are of {ours[:12]}")
    if not key["device"].startswith(f"{server['provider']} "):
        raise BadSettings(f"{name}: measured on another device, {server['provider']}; the costs are of {key['device']}")
    precision = server.get("precision")
    if precision and not key.get("graph", precision).startswith(precision):
        raise BadSettings(f"{name}: measured in {precision}; the costs are of {key['graph']}")
    return ()
