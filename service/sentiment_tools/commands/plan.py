"""The arguments of ``sentiment plan``. The simulation is imported only when it runs."""

import argparse
from pathlib import Path
from typing import Any

from sentiment.cli.arguments import add_option, count, positive, seconds, seconds_or_none
from sentiment_tools.commands.arguments import LAWS, add_objective, add_report, add_share

BALANCES = ("round-robin", "random", "least-backlog")


def add_plan(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "plan",
        help="estimate latency and the replicas a load needs",
        description="Simulate a fleet under a load, with the server's own scheduler in virtual time. Estimate its latency and, "
        "unless you give --replicas, how many replicas meet --slo.",
    )
    group = parser.add_argument_group("replica")
    costs = group.add_mutually_exclusive_group(required=True)
    costs.add_argument("--costs", type=Path, metavar="FILE", help="measured batch costs: a file from a server's cache_dir or from --save")
    costs.add_argument(
        "--measure",
        nargs="?",
        const="",
        metavar="BUNDLE",
        help="measure batch costs on all cores of this machine (default: the default bundle)",
    )
    group.add_argument("--measure-for", type=seconds, default=15.0, metavar="TIME", help="duration of --measure (default: 15s)")
    group.add_argument("--save", type=Path, metavar="FILE", help="save the measurement here (-: standard output), for --costs")
    group.add_argument("--runners", type=count(1024), metavar="N", help="parallel batches (default: as measured; 1 for a server's file)")
    group.add_argument(
        "--cores",
        type=count(4096),
        metavar="N",
        help="cores per replica (default: one per runner; beside a GPU one more per event loop)",
    )
    group.add_argument(
        "--front-ends", type=count(64, least=0), metavar="N", help="the setting front_ends: processes that take calls (default: 0)"
    )
    group.add_argument(
        "--loop",
        type=seconds_or_none,
        metavar="TIME",
        help="core time per call in the event loop (default: 1.6ms); with --front-ends only a batch's part of it counts, 65 per cent",
    )
    group.add_argument(
        "--beside", type=seconds_or_none, metavar="TIME", help="core time per call of other programs on these cores (default: 0)"
    )
    group.add_argument(
        "--capacity",
        type=positive,
        metavar="N",
        help="calls per second that one replica was measured to answer (sentiment loadtest --concurrency 64, or 64 per front end, with "
        "these lengths): costs are scaled until the simulation matches (default: no scaling)",
    )
    group.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="correct run times and latencies by what a load test measured on one replica: the file of sentiment loadtest --json",
    )
    add_option(
        group,
        "--queue-rows-max",
        "--queue-rows",
        dest="queue_rows",
        type=count(65_536),
        default=4096,
        metavar="N",
        help="the setting queue_rows_max (default: 4096)",
    )

    group = parser.add_argument_group("load")
    group.add_argument("--law", required=True, metavar="LAW", help=LAWS)
    add_option(
        group,
        "--texts",
        "--lengths",
        dest="lengths",
        default="mixed",
        metavar="TEXTS",
        help="text lengths: sst2, imdb, mixed, a number of tokens, or a file (default: mixed)",
    )
    group.add_argument("--column", default="text", metavar="NAME", help="column of the file (default: text)")
    add_share(group, "--bulk", "share of calls with bulk priority")
    group.add_argument(
        "--callers",
        type=count(65_536, least=0),
        metavar="N",
        help="callers, by name or address, that send equal parts of the load; 0: many, none of which is over its share (default: 1)",
    )
    add_share(group, "--early", "with adaptive effort: share of the texts from 135 tokens on of which a part of 96 suffices")
    add_share(group, "--known", "with answer_cache_bytes: share of the texts whose answer is known, which need no run")
    group.add_argument("--timeout", type=seconds, metavar="TIME", help="deadline of a call (default: --slo)")
    group.add_argument("--requests", type=count(10_000_000), default=100_000, metavar="N", help="max calls to simulate (default: 100000)")
    group.add_argument("--seed", type=int, default=1, help="the same seed gives the same result (default: 1)")

    group = parser.add_argument_group("fleet")
    add_objective(group, "--percentile", dest="percentile")
    group.add_argument("--replicas", type=count(4096), metavar="N", help="simulate this many (default: find the fewest)")
    group.add_argument(
        "--balance",
        choices=BALANCES,
        default="round-robin",
        help="round-robin: one balancer, each replica in turn; random: many clients, each with its own round robin; least-backlog: the "
        "replica with the least waiting work, in groups of at most 32 (default: round-robin)",
    )
    group.add_argument("--processes", type=count(1024), metavar="N", help="simulating processes (default: one per core)")

    group = parser.add_argument_group("output")
    add_report(group)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from sentiment_tools.planning.run import run  # noqa: PLC0415  # importing NumPy takes 0.1 s, which other commands do not need

    return run(options)
