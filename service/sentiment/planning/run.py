"""What ``sentiment plan`` does: reads or measures a replica's costs, simulates, and says what came out."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any

from sentiment import reports, svg_plots
from sentiment.errors import BadSettings
from sentiment.files import new_file
from sentiment.model.cores import cores_granted
from sentiment.planning import report
from sentiment.planning.closed_loop import CALLERS, capacity_per_s, corrected
from sentiment.planning.machine import Machine, changed, read_machine
from sentiment.planning.outcome import Outcome
from sentiment.planning.search import Objective, Sizing, fewest_replicas
from sentiment.planning.simulation import GROUP_MAX, LEAST_BACKLOG, Fleet, Traffic, draw_traffic, simulate
from sentiment.traffic.arrivals import parse_law
from sentiment.traffic.lengths import parse_lengths

# Fewer requests are simulated sooner than other processes start.
PROCESSES_FROM = 20_000


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit code.

    Raises:
        BadSettings: an option has no acceptable value.
        BadBundle: what is to be measured cannot be served.
        BadFile: an output cannot be written.
    """
    law, lengths = parse_law(options.law), parse_lengths(options.lengths, options.column)
    if options.save and options.measure is None:
        raise BadSettings("--save goes with --measure")
    if options.html:
        svg_plots.need_plots()
    objective = Objective(options.slo, options.percentile)
    with ExitStack() as stack:
        # Opened first: an output that cannot be written is known before a long simulation.
        outputs = {name: stack.enter_context(new_file(path)) for name in ("json", "html", "save") if (path := getattr(options, name))}
        machine = _machine(options, outputs)
        if options.capacity:
            machine = corrected(machine, options.capacity, lengths, options.seed)
        begun = time.monotonic()
        traffic = draw_traffic(law, lengths, options.requests, options.seed, options.bulk)
        if not len(traffic.due_at):
            raise BadSettings(f"--law {options.law} has no arrival")
        executor = stack.enter_context(_executor(options)) if options.requests >= PROCESSES_FROM else None
        sizing = _simulate(options, objective, machine, traffic, executor)
        capacity = capacity_per_s(machine, lengths, options.seed)
        facts = _facts(options, machine, traffic, capacity, time.monotonic() - begun)
        _write(outputs, sizing, objective, facts)
    print(_shown(sizing, objective, facts))
    return 0 if sizing.fewest else 1


def _machine(options: argparse.Namespace, outputs: Mapping[str, Callable[[str], None]]) -> Machine:
    if options.costs:
        machine = read_machine(options.costs)
    else:
        from sentiment.planning.measuring import measure  # noqa: PLC0415  # only this needs a model's runtime

        print(f"measuring for {options.measure_for:g} s", file=sys.stderr, flush=True)
        machine = measure(options.measure, options.measure_for, options.runners)
        if "save" in outputs:
            outputs["save"](machine.to_json())
    return changed(machine, runners=options.runners, cores=options.cores, loop_s=options.loop, beside_s=options.beside)


def _executor(options: argparse.Namespace) -> Executor:
    return ProcessPoolExecutor(options.processes or cores_granted(), get_context("spawn"))


def _simulate(options: argparse.Namespace, objective: Objective, machine: Machine, traffic: Traffic, executor: Executor | None) -> Sizing:
    """The fewest replicas, or those that were asked for."""

    def simulated(replicas: int) -> Outcome:
        fleet = Fleet(machine, replicas, options.balance, options.timeout or options.slo, options.queue_rows)
        outcome = simulate(traffic, fleet, options.seed, executor)
        line = f"{replicas} replicas: {outcome.in_time(objective.seconds):.2%} in time, runners {outcome.busy_share:.0%} busy"
        print(line, file=sys.stderr, flush=True)
        return outcome

    if not options.replicas:
        return fewest_replicas(simulated, objective, traffic, machine)
    outcome = simulated(options.replicas)
    met = objective.met(outcome)
    return Sizing(
        options.replicas if met else None,
        {options.replicas: outcome},
        "" if met else f"{report.replicas_text(options.replicas)} {'misses' if options.replicas == 1 else 'miss'} {objective}",
    )


def _facts(options: argparse.Namespace, machine: Machine, traffic: Traffic, capacity: float, seconds: float) -> dict[str, str]:
    """What was simulated."""
    groups = ""
    if options.balance == LEAST_BACKLOG:
        groups = f" among at most {GROUP_MAX} replicas; larger fleets are groups that get requests in turn"
    return {
        "command": shlex.join(["sentiment", *sys.argv[1:]]),
        "requests": f"{len(traffic.due_at):,} in {traffic.due_at[-1]:,.0f} s by {options.law}, lengths {options.lengths} "
        f"(mean {traffic.lengths.mean():.0f} tokens), {options.bulk:.0%} bulk, deadline {1e3 * (options.timeout or options.slo):g} ms",
        "a replica": str(machine),
        "capacity of a replica": f"{capacity:.1f} calls/s to {CALLERS} callers that always wait",
        "balance": options.balance + groups,
        "simulated in": f"{seconds:.1f} s, seed {options.seed}",
    }


def _write(outputs: Mapping[str, Callable[[str], None]], sizing: Sizing, objective: Objective, facts: Mapping[str, str]) -> None:
    if "json" in outputs:
        found: dict[str, Any] = {  # JSON
            "meta": dict(facts),
            "objective": {"seconds": objective.seconds, "percentile": objective.percentile},
            "replicas": sizing.fewest,
            "why": sizing.why,
            "tried": [outcome.summary(objective.seconds) for outcome in sizing.tried.values()],
        }
        outputs["json"](json.dumps(found, indent=1) + "\n")
    if "html" in outputs:
        outputs["html"](report.compose(sizing, objective, facts))


def _shown(sizing: Sizing, objective: Objective, facts: Mapping[str, str]) -> str:
    lines = [f"{name}: {value}" for name, value in facts.items() if name != "command"]
    tables = [reports.plain(header, rows) for header, rows in report.tables(sizing, objective)]
    return "\n".join([*lines, "", "\n\n".join(tables), "", report.verdict(sizing, objective)])
