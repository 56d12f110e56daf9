"""``sentiment plan``: reads or measures a replica's costs, simulates fleets and prints the result."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from sentiment.errors import BadSettings
from sentiment.files.output import beside, new_file, refuse_same_file
from sentiment.files.standard_streams import need_standard_output
from sentiment.model.cores import cores_granted
from sentiment_tools.planning import report
from sentiment_tools.planning.cautions import cautions
from sentiment_tools.planning.closed_loop import Capacity, callers_of, capacity_of, corrected
from sentiment_tools.planning.machine import Machine, counted, read_machine
from sentiment_tools.planning.outcome import Outcome
from sentiment_tools.planning.search import Objective, Sizing, fewest_replicas
from sentiment_tools.planning.simulation import GROUP_MAX, LEAST_BACKLOG, Fleet, Traffic, draw_traffic, simulate
from sentiment_tools.reports import html_report, svg_plots
from sentiment_tools.traffic.arrivals import parse_law
from sentiment_tools.traffic.lengths import parse_lengths

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
    refuse_same_file(costs=options.costs, save=options.save, json=options.json, html=options.html)
    if options.html:
        svg_plots.need_plots()
    objective = Objective(options.slo, options.percentile)
    with ExitStack() as stack:
        # Opened first, so that an output that cannot be written is reported before a long simulation.
        outputs = {name: stack.enter_context(new_file(path)) for name in ("json", "html") if (path := getattr(options, name))}
        machine = _machine(options)
        if options.capacity:
            machine = corrected(machine, options.capacity, lengths, options.seed)
        begun = time.monotonic()
        traffic = draw_traffic(law, lengths, options.requests, options.seed, options.bulk)
        if not len(traffic.due_at) or not traffic.due_at[-1]:
            raise BadSettings(f"--law {options.law}: its first {options.requests} requests all arrive at the start, or there are none")
        executor = None
        if options.requests >= PROCESSES_FROM:
            executor = stack.enter_context(ProcessPoolExecutor(options.processes or cores_granted(), get_context("spawn")))
        sizing = _simulate(options, objective, machine, traffic, executor)
        capacity = capacity_of(machine, lengths, options.seed)
        facts = _facts(options, machine, traffic, capacity.per_s, time.monotonic() - begun)
        warned = cautions(law, traffic, objective, options.requests, options.seed)
        if "json" in outputs:
            outputs["json"](_json_of(sizing, objective, capacity, facts, warned))
        if "html" in outputs:
            outputs["html"](report.compose(sizing, objective, capacity, facts, warned))
    print(_shown(sizing, objective, capacity, facts, warned), file=beside(options.save, options.json, options.html))
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
    given |= {"front_ends": options.front_ends, "early": options.early or None, "known": options.known or None}
    return replace(machine, **{name: value for name, value in given.items() if value is not None})


def _simulate(options: argparse.Namespace, objective: Objective, machine: Machine, traffic: Traffic, executor: Executor | None) -> Sizing:
    """Find the fewest replicas, or simulate the number that was given."""

    def simulated(replicas: int) -> Outcome:
        fleet = Fleet(machine, replicas, options.balance, options.timeout or options.slo, options.queue_rows)
        outcome = simulate(traffic, fleet, options.seed, executor)
        line = f"{counted(replicas, 'replica')}: {outcome.in_time(objective.seconds):.2%} in time, runners {outcome.busy_share:.0%} busy"
        print(line, file=sys.stderr, flush=True)
        return outcome

    if not options.replicas:
        return fewest_replicas(simulated, objective, traffic, machine)
    outcome = simulated(options.replicas)
    met = objective.met(outcome)
    return Sizing(
        options.replicas if met else None,
        {options.replicas: outcome},
        "" if met else f"{counted(options.replicas, 'replica')} {'misses' if options.replicas == 1 else 'miss'} {objective}",
    )


def _facts(options: argparse.Namespace, machine: Machine, traffic: Traffic, capacity: float, seconds: float) -> dict[str, str]:
    """The settings of the simulation, by name."""
    groups = ""
    if options.balance == LEAST_BACKLOG:
        groups = f" among at most {GROUP_MAX} replicas; a larger fleet is divided into groups, which get requests in turn"
    return {
        "command": shlex.join(["sentiment", *sys.argv[1:]]),
        "requests": f"{len(traffic.due_at):,} in {traffic.due_at[-1]:,.1f} s by {options.law}, "
        f"lengths {options.lengths} (mean {traffic.lengths.mean():.0f} tokens), {100 * options.bulk:g} % bulk, "
        f"deadline {1e3 * (options.timeout or options.slo):g} ms",
        "a replica": str(machine),
        "capacity of a replica": f"{capacity:.1f} calls/s with {callers_of(machine)} callers in a closed loop",
        "balance": options.balance + groups,
        "simulated in": f"{seconds:.1f} s, seed {options.seed}",
    }


def _json_of(sizing: Sizing, objective: Objective, capacity: Capacity, facts: Mapping[str, str], warned: Sequence[str]) -> str:
    found: dict[str, Any] = {  # JSON
        "meta": dict(facts),
        "objective": {"seconds": objective.seconds, "percentile": objective.percentile},
        "replicas": sizing.fewest,
        "why": sizing.why,
        "cautions": list(warned),
        "capacity": {"per_s": capacity.per_s, "busy_share": capacity.shares, "first_limit": capacity.limit},
        "tried": [outcome.summary(objective.seconds) for outcome in sizing.tried.values()],
    }
    return json.dumps(found, indent=1) + "\n"


def _shown(sizing: Sizing, objective: Objective, capacity: Capacity, facts: Mapping[str, str], warned: Sequence[str]) -> str:
    lines = [f"{name}: {value}" for name, value in facts.items() if name != "command"]
    tables = [html_report.plain(header, rows) for header, rows in report.tables(sizing, objective)]
    answer = report.verdict(sizing, objective, capacity)
    return "\n".join([*lines, "", "\n\n".join(tables), "", answer, *(f"caution: {caution}" for caution in warned)])
