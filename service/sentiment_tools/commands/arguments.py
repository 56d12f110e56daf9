"""The arguments that several commands of this package have: of a load, of the objective that it is to meet, and of reports."""

from pathlib import Path
from typing import Any

from sentiment.cli.arguments import add_option, percentile, seconds, share

LAWS = "poisson:200, bursts:200,factor=5,on=1,every=10, steps:100x30,200x30 or schedule:FILE (a file, one time in seconds per line)"


def add_objective(group: Any, *old_percentile: str, dest: str) -> None:  # Any: a parser or a group of one, which share no public type
    """Add --slo and --slo-percentile, whose value is ``dest``. ``old_percentile``: old names of the latter."""
    group.add_argument("--slo", type=seconds, default=0.5, metavar="TIME", help="latency above which an answer is late (default: 500ms)")
    said = "percentage of calls that must meet --slo (default: 99)"
    add_option(group, "--slo-percentile", *old_percentile, dest=dest, type=percentile, default=99.0, metavar="P", help=said)


def add_share(group: Any, name: str, said: str) -> None:  # Any: as above
    """Add a share from 0 to 1, 0 by default. ``said``: its help."""
    group.add_argument(name, type=share, default=0.0, metavar="SHARE", help=said)


def add_report(group: Any) -> None:  # Any: as above
    """Add --json and --html."""
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures here (-: standard output)")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots here (-: standard output); it needs no network")
