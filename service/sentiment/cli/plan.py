"""The arguments of ``sentiment plan``. What it runs is imported only then."""

import argparse
from pathlib import Path
from typing import Any

from sentiment.cli.arguments import count, percentile, positive, seconds, seconds_or_none, share

BALANCES = ("round-robin", "random", "least-backlog")


def add_plan(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "plan",
        help="foretell latency and replicas needed for a load",
        description="Simulate a fleet of servers under a load, with the server's own scheduler on virtual time: how fast it answers and, "
        "unless --replicas is given, how many replicas meet --slo.",
    )
    group = parser.add_argument_group("a replica")
    costs = group.add_mutually_exclusive_group(required=True)
    costs.add_argument("--costs", type=Path, metavar="FILE", help="what batches cost: a file of a server's cache_dir, or of --save")
    costs.add_argument(
        "--measure", nargs="?", const="", metavar="BUNDLE", help="measure it here and now, with all cores (default: the default bundle)"
    )
    group.add_argument("--measure-for", type=seconds, default=15.0, metavar="TIME", help="with --measure (default: 15s)")
    group.add_argument("--save", type=Path, metavar="FILE", help="keep what was measured, for --costs")
    group.add_argument("--runners", type=count(1024), metavar="N", help="batches at a time (default: as measured; of a server's file 1)")
    group.add_argument("--cores", type=count(4096), metavar="N", help="cores of a replica (default: one for each runner)")
    group.add_argument("--loop", type=seconds_or_none, metavar="TIME", help="core time of the event loop for a call (default: 1.6ms)")
    group.add_argument(
        "--beside", type=seconds_or_none, metavar="TIME", help="core time a call that others on these cores take (default: 0)"
    )
    group.add_argument(
        "--capacity",
        type=positive,
        metavar="N",
        help="calls a second that one replica was measured to answer to 64 callers that always wait (sentiment loadtest --concurrency 64), "
        "with these lengths: costs are scaled until the simulation does (default: as they are)",
    )
    group.add_argument("--queue-rows", type=count(65_536), default=4096, metavar="N", help="the setting queue_rows_max (default: 4096)")

    group = parser.add_argument_group("the load")
    group.add_argument(
        "--law",
        required=True,
        metavar="LAW",
        help="poisson:200, bursts:200,factor=5,on=1,every=10, steps:100x30,200x30 or schedule:FILE (a file of seconds, a line each)",
    )
    group.add_argument(
        "--lengths", default="mixed", metavar="LENGTHS", help="sst2, imdb, mixed, a number of tokens, or a file (default: mixed)"
    )
    group.add_argument("--column", default="text", metavar="NAME", help="column of the file (default: text)")
    group.add_argument("--bulk", type=share, default=0.0, metavar="SHARE", help="of the calls, with bulk priority")
    group.add_argument("--timeout", type=seconds, metavar="TIME", help="deadline of a call (default: --slo)")
    group.add_argument("--requests", type=count(10_000_000), default=100_000, metavar="N", help="how many, at most (default: 100000)")
    group.add_argument("--seed", type=int, default=1, help="the same seed gives the same (default: 1)")

    group = parser.add_argument_group("the fleet")
    group.add_argument("--slo", type=seconds, default=0.5, metavar="TIME", help="an answer after it is late (default: 500ms)")
    group.add_argument("--percentile", type=percentile, default=99.0, metavar="P", help="per cent of the calls within it (default: 99)")
    group.add_argument("--replicas", type=count(4096), metavar="N", help="simulate so many (default: find the fewest)")
    group.add_argument(
        "--balance",
        choices=BALANCES,
        default="round-robin",
        help="round-robin: one balancer, each in turn; random: many clients that each go round; least-backlog: where the least work "
        "waits, in groups of at most 32 replicas (default: round-robin)",
    )
    group.add_argument("--processes", type=count(1024), metavar="N", help="that simulate (default: one for each core)")

    group = parser.add_argument_group("what comes out")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots there; it needs no network")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from sentiment.planning.run import run  # noqa: PLC0415  # NumPy loads in a tenth of a second that other commands need not wait

    return run(options)
