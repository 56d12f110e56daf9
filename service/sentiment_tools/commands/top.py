"""``sentiment top``: its arguments here; ``figures`` and ``lines`` are pure. What reads and shows is imported only when it runs."""

import argparse
import sys
from typing import Any

from sentiment.cli.arguments import add_credentials, credentials_of, seconds
from sentiment.errors import BadSettings
from sentiment.files.standard_streams import need_standard_output

DEFAULT = "127.0.0.1:8080"
INTERVAL_S_MIN = 0.2


def add_top(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "top",
        help="watch a server live",
        description="Show what a server does, live, by its metrics page: calls, latencies, refusals, queue, batches, cores, and what its "
        "models answer. q or Ctrl-C ends it.",
    )
    # The same in the form of earlier versions.
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("-t", "--target", metavar="HOST:PORT", help=f"the server's HTTP port, or a URL (default: {DEFAULT})")
    parser.add_argument("--interval", type=_interval, default=2.0, metavar="TIME", help="time between two readings (default: 2s)")
    parser.add_argument("--once", action="store_true", help="print one reading over the interval as plain text, and end")
    add_credentials(parser)
    parser.set_defaults(run=_run)


def _interval(value: str) -> float:
    found = seconds(value)
    if found < INTERVAL_S_MIN:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be at least {INTERVAL_S_MIN:g} s")
    return found


def _run(options: argparse.Namespace) -> int:
    from sentiment.security.client_credentials import Credentials  # noqa: PLC0415  # importing gRPC takes 0.1 s
    from sentiment_tools.top.run import once  # noqa: PLC0415  # as above
    from sentiment_tools.top.scrape import Scraper  # noqa: PLC0415  # as above

    if options.address and options.target:
        raise BadSettings(f"give the server once: {options.target} or {options.address}")
    need_standard_output()
    scraper = Scraper(options.target or options.address or DEFAULT, Credentials(**credentials_of(options)))
    if options.once:
        print(once(scraper, options.interval))
        return 0
    if not sys.stdout.isatty():
        raise BadSettings("standard output is not a terminal; --once prints a plain reading")
    try:
        from sentiment_tools.top.screen import show  # noqa: PLC0415  # --once needs no extra
    except ModuleNotFoundError as error:
        raise BadSettings(f"module {error.name} is missing: run pip install 'sentiment-service[top]', or use --once") from error
    show(scraper, options.interval)
    return 0
