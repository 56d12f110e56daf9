"""Rules of who may overtake whom, compared in virtual time: ``python -m tests.bench.overtaking``.

Each rule gets the same seeded arrivals of short and long texts on the planner's model of a replica. ``single`` runs one row at a time in
order of arrival. ``head-start-B`` runs the group whose row has the earliest virtual arrival, which is its arrival plus B times its own
run time, at most OBJECTIVE_S: a row is overtaken only by cheaper rows that arrive soon after it. The server uses HEAD_START.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from sentiment.batching.class_queue import ClassQueue
from sentiment.batching.cost import CostTable, Shape
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Ticket
from sentiment.planning import replica
from sentiment.planning.machine import Machine, changed, read_machine
from sentiment.planning.outcome import Fate
from sentiment.planning.simulation import Fleet, draw_traffic, simulate
from sentiment.traffic.arrivals import Bursts, Law, Poisson
from sentiment.traffic.lengths import MIXED
from tests.bench.policies import make_fifo

OBJECTIVE_S = 0.5
# A deadline that does not press, as the default does not below capacity.
TIMEOUT_S = 5.0
SHARES = (0.3, 0.6, 0.9)
OVERLOAD = 3.0
TurnAt = Callable[[ClassQueue[Any], Ticket[Any]], float]  # Any: the payload's type


def measured_costs() -> dict[Shape, float]:
    """Seconds of the default bundle's batches on a core with AVX2 alone, fitted to 1x25, 16x25, 1x128, 1x280, 4x280 and 1x512."""

    def seconds(rows: int, length: int) -> float:
        alone = 2.5e-4 + 1.72e-4 * length + 1.75e-7 * length**2
        return float(alone * rows ** (0.87 + 0.23 * math.log(length / 25) / math.log(280 / 25)))

    sizes = {length: max(1, 512 // length) for length in (8, 32, 128, 512)}
    return {(rows, length): seconds(rows, length) for length, most in sizes.items() for rows in {1, round(most**0.5), most}}


def head_start(times: float) -> TurnAt:
    """The rule ``head-start-TIMES``."""
    return lambda queue, ticket: ticket.queued_at + min(OBJECTIVE_S, times * queue._prices.cost.speed * ticket.alone_s)


def rules(head_starts: Sequence[float]) -> dict[str, tuple[type[Scheduler[Any]], TurnAt]]:
    """The rules by name: the scheduler, and its virtual arrivals."""
    found: dict[str, tuple[type[Scheduler[Any]], TurnAt]] = {"single": (make_fifo(1), head_start(0))}
    return found | {f"head-start-{times:g}": (Scheduler, head_start(times)) for times in head_starts}


@contextmanager
def ruled_by(kind: type[Scheduler[Any]], turn_at: TurnAt) -> Iterator[None]:
    """Let the simulated replicas use a rule."""
    with patch.object(replica, "Scheduler", kind), patch.object(ClassQueue, "turn_at", turn_at):
        yield


def latencies(machine: Machine, law: Law, calls: int, seed: int, timeout_s: float) -> tuple[Any, float]:  # Any: an array of floats
    """Ascending seconds until the answer, infinite where there is none, and the seconds in which the calls came."""
    traffic = draw_traffic(law, MIXED, calls, seed)
    outcome = simulate(traffic, Fleet(machine, 1, timeout_s=timeout_s), seed)
    return np.sort(np.where(outcome.fates == Fate.ANSWERED, outcome.latency_s, np.inf)), float(traffic.due_at[-1])


def compare(machine: Machine, calls: int, seeds: int, head_starts: Sequence[float]) -> Iterator[str]:
    """The lines of the table: medians over seeds, each rule's p99 also over that of ``single`` with the same seed."""
    costs, rng = CostTable(machine.points), random.Random(1)
    capacity = machine.runners / statistics.fmean(costs.table_s(1, MIXED.draw(rng)) for _ in range(20_000)) / machine.crowding
    laws: Mapping[str, Callable[[float], Law]] = {
        "poisson": Poisson,
        "bursts": lambda rate: Bursts(rate, factor=2.0, on_s=1.0, every_s=5.0),
    }
    yield f"{machine}\none row at a time: {capacity:.1f} texts/s; medians of {seeds} seeds of {calls} calls, in ms"
    for name, law in laws.items():
        for share in SHARES:
            single: list[float] = []
            for rule, (kind, turn_at) in rules(head_starts).items():
                with ruled_by(kind, turn_at):
                    found = [latencies(machine, law(share * capacity), calls, seed, TIMEOUT_S)[0] for seed in range(seeds)]
                p50, p99 = ([float(each[int(part * calls)]) for each in found] for part in (0.5, 0.99))
                single = single or p99
                over = statistics.median(mine / theirs for mine, theirs in zip(p99, single, strict=True))
                row = f"p50 {1e3 * statistics.median(p50):6.0f}  p99 {1e3 * statistics.median(p99):6.0f}  p99/single {over:.2f}"
                yield f"{name:8}{share:4.1f}  {rule:14} {row}"
    for rule, (kind, turn_at) in rules(head_starts).items():
        with ruled_by(kind, turn_at):
            found = [latencies(machine, Poisson(OVERLOAD * capacity), calls, seed, OBJECTIVE_S) for seed in range(seeds)]
        rate = statistics.median(float(np.isfinite(each).sum()) / seconds for each, seconds in found)
        yield f"{OVERLOAD:g} times the capacity, {OBJECTIVE_S:g} s to answer: {rule:14} {rate / capacity:.2f} of it in time"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, help="a cost file, from a server's cache_dir or `sentiment plan --save`")
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--head-starts", type=float, nargs="*", default=[0, 0.25, 0.5, 1, 2])
    args = parser.parse_args()
    machine = read_machine(args.costs) if args.costs else Machine(measured_costs(), noise=0.05, loop_s=5e-4, crowding=1.05)
    for line in compare(changed(machine, runners=args.runners), args.calls, args.seeds, args.head_starts):
        print(line, flush=True)


if __name__ == "__main__":
    main()
