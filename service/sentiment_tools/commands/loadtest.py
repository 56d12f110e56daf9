"""The arguments of ``sentiment loadtest``. The load tester is imported only when it runs."""

import argparse
import sys
from typing import Any

from sentiment.addresses import DEFAULT_TARGET, TARGET_VARIABLE, checked_target, default_target
from sentiment.cli.arguments import add_credentials, add_effort, count, credentials_of, positive, seconds, seconds_or_none
from sentiment_tools.commands.arguments import LAWS, add_objective, add_report, add_share

# A load that delays nobody, for long enough to see whether the server answers, and how fast.
RATE, RATE_S = 10.0, 5.0
DEFAULT_HTTP = "127.0.0.1:8080"
RATE_MAX = 1e6
CALLERS_MAX = 100_000
# Beyond it, nearly all calls have the first text.
ZIPF_MAX = 10.0


def add_loadtest(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "loadtest",
        help="measure how much load a server handles",
        description="Load a server from separate processes. Report how many calls it answers in time, and how fast.",
        epilog="Open loop: calls are sent when due, answered or not, and latency counts from the due time. "
        "Closed loop (--concurrency): each caller waits for its answer, which hides the waiting time of real users.",
    )
    _add_target(parser)
    _add_load(parser)
    _add_mix(parser)
    _add_output(parser)
    parser.set_defaults(run=_run)


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "-t",
        "--target",
        metavar="HOST:PORT",
        help=f"the server's port for the protocol (default: {TARGET_VARIABLE} or {DEFAULT_TARGET}; http: {DEFAULT_HTTP})",
    )
    group.add_argument(
        "--protocol",
        choices=("grpc", "oip", "http"),
        default="grpc",
        help="grpc: SentimentService; oip: Open Inference ModelInfer; http: POST /v1/classify, --target may be a URL (default: grpc)",
    )
    group.add_argument("--model", default="", metavar="NAME", help="the model (default: the server's; oip needs one)")
    add_effort(group)
    add_credentials(group)
    group.add_argument("--channels", type=count(256), default=1, metavar="N", help="connections per process (default: 1)")
    group.add_argument("--processes", type=count(64), default=None, metavar="N", help="client processes (default: one per two cores)")
    group.add_argument("--open-max", type=count(1_000_000), default=None, metavar="N", help="max open calls (default: 10000)")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    load = group.add_mutually_exclusive_group()
    load.add_argument(
        "--rate",
        type=_rates,
        metavar="N[,N...]",
        help=f"calls per second, at random times (Poisson); without any load: {RATE:g} for {RATE_S:g} s",
    )
    load.add_argument("--law", metavar="LAW", help=LAWS)
    load.add_argument(
        "--concurrency", type=_callers, metavar="N[,N...]", help="closed loop: this many callers, each waiting for its answer"
    )
    load.add_argument(
        "--find-slo",
        nargs="?",
        const="poisson:1",
        metavar="LAW",
        help="find the highest rate that meets --slo, and the knee, by trying this law at many rates (default: poisson)",
    )
    group.add_argument(
        "--seconds",
        type=seconds,
        default=None,
        metavar="TIME",
        help="duration of each load (default: 10s, or with --find-slo 40 times --slo if longer; steps and schedule: all)",
    )
    group.add_argument("--warm-up", type=seconds_or_none, default=1.0, metavar="TIME", help="load before the measurement (default: 1s)")
    group.add_argument("--seed", type=int, default=1, help="the same seed gives the same calls at the same times (default: 1)")
    add_objective(group, dest="slo_percentile")


def _add_mix(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calls")
    group.add_argument(
        "--texts",
        default="mixed",
        metavar="TEXTS",
        help="text lengths: sst2 (sentences), imdb (reviews), mixed (half of each), a number of tokens, or a file (default: mixed)",
    )
    group.add_argument("--column", default="text", metavar="NAME", help="column of the file that holds the text (default: text)")
    group.add_argument(
        "--zipf",
        type=_exponent,
        default=0.0,
        metavar="EXPONENT",
        help=f"repeat texts by Zipf's law: the weight of the text at place r is 1/r^EXPONENT, 0 to {ZIPF_MAX:g} (default: 0, all alike)",
    )
    group.add_argument("--per-call", type=count(1024), default=1, metavar="N", help="texts per call; above 1: ClassifyBatch (default: 1)")
    group.add_argument("--stream", action="store_true", help="send texts as items of ClassifyStream, one stream per channel")
    group.add_argument(
        "--timeout",
        type=_timeout,
        default=None,
        metavar="TIME[..TIME]",
        help="deadline of a classification, or a range; explanations have 30s (default: --slo)",
    )
    add_share(group, "--cancel", "share of classifications to cancel before their deadline; not counted in the result")
    add_share(group, "--bulk", "share of calls with bulk priority")
    add_share(group, "--explain", "share of calls to Explain")
    add_share(group, "--slow-readers", "share of calls to Explain with all maps, read slowly")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    add_report(group)
    group.add_argument("--require", action="store_true", help="exit with 1 unless every load meets --slo, or with --find-slo any load")


def _run(options: argparse.Namespace) -> int:
    from sentiment.security.client_credentials import Credentials  # noqa: PLC0415  # as above
    from sentiment_tools.loadtest.run import run  # noqa: PLC0415  # importing gRPC takes 0.1 s, which other commands do not need

    if not (options.rate or options.law or options.concurrency or options.find_slo):
        options.rate, options.seconds = [RATE], options.seconds or RATE_S
        said = f"no load is given: {RATE:g} calls/s for {options.seconds:g} s; the highest rate that it can take: --find-slo"
        print(said, file=sys.stderr)
    if options.protocol == "http":
        options.target = options.target or DEFAULT_HTTP
    else:
        options.target = checked_target(options.target or default_target())
    return run(options, Credentials(**credentials_of(options)))


def _timeout(value: str) -> tuple[float, float]:
    low, _, high = value.partition("..")
    shortest, longest = seconds(low), seconds(high or low)
    if shortest > longest:
        raise argparse.ArgumentTypeError(f"is {value!r}; the shortest must come first")
    return shortest, longest


def _exponent(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= ZIPF_MAX:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be a number from 0 to {ZIPF_MAX:g}")
    return found


def _rates(value: str) -> list[float]:
    rates = [positive(part) for part in value.split(",")]
    if max(rates) > RATE_MAX:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be at most {RATE_MAX:,.0f} calls per second")
    return rates


def _callers(value: str) -> list[int]:
    return [count(CALLERS_MAX)(part) for part in value.split(",")]
