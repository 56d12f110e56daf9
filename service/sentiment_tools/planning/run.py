"""``sentiment plan``: reads or measures a replica's costs, simulates fleets and prints the result."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from sentiment.errors import BadSettings
from sentiment.files.output import beside, new_file, refuse_same_file
from sentiment.files.standard_streams import need_standard_output
from sentiment.model.cores import cores_granted
from sentiment_tools.planning import report
from sentiment_tools.planning.calibration import Calibration, Measured, calibrate, read_measured
from sentiment_tools.planning.cautions import cautions, not_quiet
from sentiment_tools.planning.closed_loop import Capacity, callers_of, capacity_of, corrected
from sentiment_tools.planning.machine import Machine, counted, read_machine
from sentiment_tools.planning.outcome import Outcome
from sentiment_tools.planning.search import Objective, Ranges, Sizing, fewest_replicas
from sentiment_tools.planning.simulation import GROUP_MAX, LEAST_BACKLOG, Fleet, Traffic, draw_traffic, simulate
from sentiment_tools.reports import html_report, svg_plots
from sentiment_tools.traffic.arrivals import Law, parse_law
from sentiment_tools.traffic.lengths import Lengths, parse_lengths

# Simulating fewer requests takes less time than starting processes.
PROCESSES_FROM = 20_000


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit code.

    Raises:
        BadSettings: an option's value is not valid.
        BadBundle: the bundle to measure cannot be served.
        BadFile: an output cannot be written.
    """
    law, lengths = parse_law(options.law), parse_lengths(options.lengths, options.column)
    if options.save and options.measure is None:
        raise BadSettings("--save needs --measure")
    need_standard_output(options.json, options.html)
    refuse_same_file(costs=options.costs, measured=options.measured, save=options.save, json=options.json, html=options.html)
    if options.html:
        svg_plots.need_plots()
    objective = Objective(options.slo, options.percentile)
    measured = read_measured(options.measured) if options.measured else None
    with ExitStack() as stack:
        # Opened first, so that an output that cannot be written is reported before a long simulation.
        outputs = {name: stack.enter_context(new_file(path)) for name in ("json", "html") if (path := getattr(options, name))}
        machine = _machine(options)
        if options.capacity:
            machine = corrected(machine, options.capacity, lengths, options.seed)
        calibration = _calibration(options, measured, machine)
        machine = machine.scaled(calibration.cost)
        begun = time.monotonic()
        executor = None
        if options.requests >= PROCESSES_FROM:
            executor = stack.enter_context(ProcessPoolExecutor(options.processes or cores_granted(), get_context("spawn")))
        plan = _Plan(options, law, lengths, objective, calibration, executor)
        traffic = plan.traffic(options.seed)
        sizing = plan.sizing(machine, traffic, options.seed)
        ranges = plan.ranges(sizing, machine)
        capacity = capacity_of(machine, lengths, options.seed)
        facts = _facts(options, machine, traffic, capacity.per_s, time.monotonic() - begun)
        if measured:
            facts[f"calibrated by {measured.name}"] = calibration.says
        warned = [*calibration.doubts, *cautions(law, traffic, objective, options.requests, options.seed)]
        answer = [report.verdict(sizing, objective, capacity), *([report.ranges(ranges, objective)] if ranges else [])]
        if "json" in outputs:
            outputs["json"](_json_of(sizing, ranges, objective, calibration, capacity, facts, warned))
        if "html" in outputs:
            outputs["html"](report.compose(sizing, objective, answer, facts, warned))
    print(_shown(sizing, objective, answer, facts, warned), file=beside(options.save, options.json, options.html))
    return 0 if sizing.fewest else 1


def _machine(options: argparse.Namespace) -> Machine:
    if options.costs:
        machine = read_machine(options.costs)
    else:
        from sentiment_tools.planning.measuring import measure  # noqa: PLC0415  # only this needs a model's runtime

        # Closed before the simulation starts, so that an interrupt does not lose the measurement.
        with new_file(options.save) if options.save else nullcontext(str) as save:
            print(f"measuring for {options.measure_for:g} s", file=sys.stderr, flush=True)
            machine = measure(options.measure, options.measure_for, options.runners)
            save(machine.to_json())
    given = {"runners": options.runners, "cores": options.cores, "loop_s": options.loop, "beside_s": options.beside}
    given |= {"front_ends": options.front_ends, "early": options.early or None, "known": options.known or None, "callers": options.callers}
    return replace(machine, **{name: value for name, value in given.items() if value is not None})


def _calibration(options: argparse.Namespace, measured: Measured | None, machine: Machine) -> Calibration:
    if not measured:
        return Calibration(doubts=tuple(not_quiet(machine)))
    if options.capacity and measured.closed:
        raise BadSettings(f"--capacity cannot be used with {measured.name}, whose closed loop gives the capacity")
    return calibrate(machine, measured, options.queue_rows, options.seed)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all simulations of a plan have in common."""

    options: argparse.Namespace
    law: Law
    lengths: Lengths
    objective: Objective
    calibration: Calibration
    executor: Executor | None

    def traffic(self, seed: int) -> Traffic:
        """The requests.

        Raises:
            BadSettings: there are none, or they have no rate.
        """
        most = self.options.requests
        traffic = draw_traffic(self.law, self.lengths, most, seed, self.options.bulk)
        if not len(traffic.due_at) or not traffic.due_at[-1]:
            raise BadSettings(f"--law {self.options.law}: its first {most} requests all arrive at the start, or there are none")
        return traffic

    def simulated(self, machine: Machine, traffic: Traffic, seed: int, replicas: int) -> Outcome:
        """Simulate one fleet."""
        options = self.options
        fleet = Fleet(machine, replicas, options.balance, options.timeout or options.slo, options.queue_rows)
        outcome = self.calibration.of(simulate(traffic, fleet, seed, self.executor), fleet.timeout_s)
        in_time = f"{outcome.in_time(self.objective.seconds):.2%} in time"
        print(f"{counted(replicas, 'replica')}: {in_time}, runners {outcome.busy_share:.0%} busy", file=sys.stderr, flush=True)
        return outcome

    def sizing(self, machine: Machine, traffic: Traffic, seed: int) -> Sizing:
        """Find the fewest replicas, or simulate the number that was given."""
        simulated, replicas = partial(self.simulated, machine, traffic, seed), self.options.replicas
        if not replicas:
            return fewest_replicas(simulated, self.objective, traffic, machine)
        outcome = simulated(replicas)
        why = f"{counted(replicas, 'replica')} {'misses' if replicas == 1 else 'miss'} {self.objective}"
        met = self.objective.met(outcome)
        return Sizing(replicas if met else None, {replicas: outcome}, "" if met else why)

    def ranges(self, sizing: Sizing, machine: Machine) -> Ranges | None:
        """The ranges of the answer: both ends of the measured cost, each with other seeds. None where no number of replicas is enough."""
        replicas = self.options.replicas or sizing.fewest
        if not replicas:
            return None
        outcomes, fewest = [sizing.tried[replicas]], [sizing.fewest]
        for seed, factor in enumerate(machine.cost_range, self.options.seed + 1):
            traffic, scaled = self.traffic(seed), machine.scaled(factor)
            print(f"run times {factor:.2f} times as long, seed {seed}:", file=sys.stderr, flush=True)
            found = self.sizing(scaled, traffic, seed)
            fewest.append(found.fewest)
            outcomes.append(found.tried.get(replicas) or self.simulated(scaled, traffic, seed, replicas))
        return Ranges.of(outcomes, [] if self.options.replicas else fewest, self.objective)


def _facts(options: argparse.Namespace, machine: Machine, traffic: Traffic, capacity: float, seconds: float) -> dict[str, str]:
    """The settings of the simulation, by name."""
    groups = ""
    if options.balance == LEAST_BACKLOG:
        groups = f" among at most {GROUP_MAX} replicas; a larger fleet is divided into groups, which get requests in turn"
    return {
        "command": shlex.join(["sentiment", *sys.argv[1:]]).encode(errors="backslashreplace").decode(),
        "requests": f"{len(traffic.due_at):,} in {traffic.due_at[-1]:,.1f} s by {options.law}, "
        f"lengths {options.lengths} (mean {traffic.lengths.mean():.0f} tokens), {100 * options.bulk:g} % bulk, "
        f"deadline {1e3 * (options.timeout or options.slo):g} ms",
        "a replica": str(machine),
        "capacity of a replica": f"{capacity:.1f} calls/s with {callers_of(machine)} callers in a closed loop",
        "balance": options.balance + groups,
        "simulated in": f"{seconds:.1f} s, seed {options.seed}",
    }


def _json_of(
    sizing: Sizing,
    ranges: Ranges | None,
    objective: Objective,
    calibration: Calibration,
    capacity: Capacity,
    facts: Mapping[str, str],
    warned: Sequence[str],
) -> str:
    found: dict[str, Any] = {  # JSON
        "meta": dict(facts),
        "objective": {"seconds": objective.seconds, "percentile": objective.percentile},
        "replicas": sizing.fewest,
        "why": sizing.why,
        "ranges": ranges and ranges.summary(objective),
        "calibration": {"run_times": calibration.cost, "p50": calibration.p50, "p99": calibration.p99},
        "cautions": list(warned),
        "capacity": {"per_s": capacity.per_s, "busy_share": capacity.shares, "first_limit": capacity.limit},
        "tried": [outcome.summary(objective.seconds) for outcome in sizing.tried.values()],
    }
    return json.dumps(found, indent=1) + "\n"


def _shown(sizing: Sizing, objective: Objective, answer: Sequence[str], facts: Mapping[str, str], warned: Sequence[str]) -> str:
    lines = [f"{name}: {value}" for name, value in facts.items() if name != "command"]
    tables = [html_report.plain(header, rows) for header, rows in report.tables(sizing, objective)]
    return "\n".join([*lines, "", "\n\n".join(tables), "", *answer, *(f"caution: {caution}" for caution in warned)])
