"""``sentiment loadtest``: holds the given loads one after the other and prints the result."""

import argparse
import asyncio
import json
import math
import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.output import beside, new_file, refuse_same_file
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible_lines
from sentiment.security.client_credentials import Credentials
from sentiment_tools.loadtest import report
from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.fleet import OPEN_MAX, Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.progress import Progress, table
from sentiment_tools.loadtest.results import Point
from sentiment_tools.loadtest.search import Search, Slo, Verdict, find_slo
from sentiment_tools.reports import svg_plots
from sentiment_tools.traffic.arrivals import Bursts, Law, Poisson, Schedule, Steps, parse_law
from sentiment_tools.traffic.texts import read_pool

DONE, FAILED = 0, 1
SECONDS = 10.0
# Callers of the closed loop that estimates the capacity before a search.
CAPACITY_CALLERS = 16


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a test: each load that was held, in order. In a search the first is the closed loop for the capacity.

    ``lost`` says why no more loads could be held.
    """

    points: tuple[Point, ...]
    search: Search | None = None
    lost: str = ""


def run(options: argparse.Namespace, credentials: Credentials) -> int:
    """Run the command; returns its exit code.

    Raises:
        BadSettings: an option's value is not valid, or contradicts another option.
        BadFile: an output cannot be written.
        LoadFailed: no server answers at the target, or a client process died in the first load.
    """
    slo = Slo(options.slo, options.slo_percentile)
    laws = _laws(options, slo)
    mix = _mix(options)
    load = {"law": options.law or options.find_slo or "poisson:1", "texts": options.texts, "column": options.column, **asdict(mix)}
    texts = read_pool(options.texts, options.column)
    target = Target(options.target, options.protocol, options.model, options.channels, credentials, options.effort)
    if options.html:
        svg_plots.need_plots()
    need_standard_output(options.json, options.html)
    refuse_same_file(json=options.json, html=options.html)
    # Opened first, so that an output that cannot be written is reported before a long test. Each is complete before the next can fail.
    with _output(options.html) as write_html:
        with _output(options.json) as write_json:
            found, facts = asyncio.run(_test(options, target, laws, mix, texts, slo))
            try:
                write_json(_json_of(found, facts, slo, load))
            except BadFile:
                # The measurements are worth more than the file: print them.
                print(visible_lines(_shown(found, facts, slo)))
                raise
        print(visible_lines(_shown(found, facts, slo)), file=beside(options.json, options.html))
        if options.html:
            write_html(report.compose(found.search or found.points, facts, slo))
    return _verdict(options, found, slo)


def _output(path: Path | None) -> AbstractContextManager[Callable[[str], None]]:
    return new_file(path) if path else nullcontext(lambda _: None)


def _laws(options: argparse.Namespace, slo: Slo) -> list[Law | int]:
    """The loads to hold; for a search its law.

    Raises:
        BadSettings: a law is not valid, or cannot be held for --seconds.
    """
    loads: list[Law | int] = [Poisson(rate) for rate in options.rate or ()]
    loads += options.concurrency or ()
    loads = loads or [parse_law(options.law or options.find_slo)]
    for load in loads:
        _held_s(options, slo, load)
    return loads


def _mix(options: argparse.Namespace) -> Mix:
    """The mix of calls.

    Raises:
        BadSettings: the protocol cannot send it, or options contradict each other.
    """
    if options.protocol == "http" and options.channels > 1:
        raise BadSettings("--channels cannot be used with --protocol http, which has as many connections as open calls")
    if options.concurrency and options.open_max:
        raise BadSettings("--open-max cannot be used with --concurrency, whose callers have one open call each")
    ours = {"--explain": options.explain, "--slow-readers": options.slow_readers, "--stream": options.stream}
    wrong = [name for name, given in ours.items() if given and options.protocol != "grpc"]
    if options.protocol == "http" and options.per_call > 1:
        wrong.append("--per-call")
    if options.protocol == "oip":
        wrong += [f"--{name}" for name in ("bulk", "effort") if getattr(options, name)]
    if wrong:
        raise BadSettings(f"--protocol {options.protocol} cannot send {', '.join(wrong)}")
    if options.protocol == "oip" and not options.model:
        raise BadSettings("--protocol oip needs --model NAME")
    if options.stream and (options.cancel or options.per_call > 1):
        raise BadSettings("--stream cannot be used with --cancel or --per-call: it sends single texts, which cannot be cancelled")
    if (shares := options.bulk + options.explain + options.slow_readers) > 1:
        raise BadSettings(f"--bulk, --explain and --slow-readers must sum to at most 1, got {shares:.4g}")
    mix = Mix(
        timeout_s=options.timeout or (options.slo, options.slo),
        per_call=options.per_call,
        stream=options.stream,
        cancel=options.cancel,
        bulk=options.bulk,
        explain=options.explain,
        slow_readers=options.slow_readers,
        zipf=options.zipf,
    )
    if not mix.judged and (options.find_slo or options.require):
        raise BadSettings("--slo judges classifications that are not cancelled, and this mix has none")
    return mix


async def _test(
    options: argparse.Namespace, target: Target, laws: list[Law | int], mix: Mix, texts: list[str], slo: Slo
) -> tuple[Found, dict[str, str]]:
    """Hold each load, or search the highest rate of the only one, a law. Earlier loads are kept if the client fails."""
    progress = Progress()
    points: list[Point] = []
    fleet = Fleet(
        target,
        mix,
        texts,
        slo.objective_s,
        percentile=slo.percentile,
        processes=options.processes,
        seed=options.seed,
        open_max=options.open_max or OPEN_MAX,
        on_second=progress.second,
    )

    async def hold(load: Law | int) -> Point:
        seconds = _held_s(options, slo, load)
        progress.begin(f"{load} callers" if isinstance(load, int) else f"{load.rate:.4g} calls/s", seconds)
        points.append(await fleet.measure(load, seconds, options.warm_up))
        progress.end(points[-1])
        return points[-1]

    async def search(law: Law | int) -> Search | None:
        assert not isinstance(law, int)
        capacity = await hold(CAPACITY_CALLERS)
        return None if fleet.stopped else await find_slo(lambda rate: hold(law.scaled_to(rate)), capacity.answered_per_s, slo)

    async with fleet:
        # The first Ctrl-C ends the load and prints the result; the second aborts.
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            progress.say("stopping: the result follows when open calls have ended; press Ctrl-C again to abort")
            fleet.stop()

        with suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, stop)
        facts = _facts(options, fleet, len(texts))
        try:
            if options.find_slo:
                found = await search(laws[0])
                return Found(tuple(points), found), facts
            for load in laws:
                if not fleet.stopped:
                    await hold(load)
        except LoadFailed as error:
            if not points:
                raise
            return Found(tuple(points), lost=str(error)), facts
        return Found(tuple(points)), facts


def _held_s(options: argparse.Namespace, slo: Slo, load: Law | int) -> float:
    """How long a load is held. A law that changes or ends has its mean rate only as a whole.

    Raises:
        BadSettings: --seconds does not fit the law.
    """
    if isinstance(load, Steps | Schedule):
        if options.seconds:
            raise BadSettings(f"--seconds cannot be used with a law that ends by itself, after {load.seconds:g} s")
        return load.seconds
    seconds = float(options.seconds or max(SECONDS, slo.seconds_wanted if options.find_slo else 0.0))
    if isinstance(load, Bursts):
        periods = seconds / load.every_s
        if not options.seconds:
            return math.ceil(periods) * load.every_s
        if not math.isclose(periods, round(periods), abs_tol=1e-6):
            raise BadSettings(f"--seconds must be whole periods of the bursts, {load.every_s:g} s each, got {seconds:g}")
    return seconds


def _facts(options: argparse.Namespace, fleet: Fleet, texts: int) -> dict[str, str]:
    """The settings of the run, by name."""
    connections = "" if options.protocol == "http" else f" with {_many(options.channels, 'connection', 'connections')}"
    facts = {
        "command": shlex.join(["sentiment", *sys.argv[1:]]),
        "target": f"{options.target} ({options.protocol})",
        **fleet.server,
        "texts": f"{texts:,} of {options.texts}, {options.per_call} a call"
        + (f", by Zipf's law with exponent {options.zipf:g}" if options.zipf else "")
        + (", by ClassifyStream" if options.stream else ""),
        "deadline": "..".join(f"{seconds:g} s" for seconds in sorted(set(options.timeout or (options.slo,)))),
        "shares": ", ".join(f"{name} {getattr(options, name):.0%}" for name in ("cancel", "bulk", "explain", "slow_readers")),
        "client": f"{_many(fleet.processes, 'process', 'processes')}{connections}"
        + f"{' each' * bool(connections and fleet.processes > 1)}, seed {options.seed}",
        "client's machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    # A file name may not be valid Unicode, which no output could hold.
    return {name: value.encode(errors="backslashreplace").decode() for name, value in facts.items()}


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _json_of(found: Found, facts: Mapping[str, str], slo: Slo, load: Mapping[str, Any]) -> str:  # Any: JSON
    rest: dict[str, Any]  # Any: JSON
    if found.search:
        rest = {"search": found.search.to_json(), "capacity": found.points[0].to_json()}
    else:
        rest = {"points": [point.to_json() for point in found.points]}
    slo_json = {"objective_s": slo.objective_s, "percentile": slo.percentile}
    return json.dumps({"meta": dict(facts), "slo": slo_json, "load": load, "lost": found.lost, **rest}, indent=1) + "\n"


def _shown(found: Found, facts: Mapping[str, str], slo: Slo) -> str:
    lines = [", ".join(value for name, value in facts.items() if name in ("target", "model", "precision", "texts", "client"))]
    lines.append(table(sorted(found.points, key=lambda point: (point.closed_loop, point.offered_per_s))))
    if found.search:
        lines += found.search.why
        lines.append(f"highest rate with {slo}: {report.shown_rate(found.search)}")
    if any(point.closed_loop for point in found.points):
        lines.append(f"note: {report.HIDES_WAITING}")
    if any(point.interrupted for point in found.points):
        lines.append("note: interrupted; the last load was held for less than its full time")
    return "\n".join(lines)


def _verdict(options: argparse.Namespace, found: Found, slo: Slo) -> int:
    if not any(point.ok for point in found.points):
        codes = ", ".join(f"{count} {code}" for point in found.points for code, count in sorted(point.outcomes.items()))
        print(f"error: no call was answered OK: {codes or 'no call was due'}", file=sys.stderr)
        return FAILED
    why = found.lost or (_why_not_met(options, found, slo) if options.require else "")
    if why:
        print(f"error: {why}", file=sys.stderr)
    return FAILED if why else DONE


def _why_not_met(options: argparse.Namespace, found: Found, slo: Slo) -> str:
    """Why --require fails; empty if the objective is met."""
    if options.find_slo and not found.search:
        return f"{slo} is not shown to be met: the search was interrupted"
    verdicts = {slo.verdict(point) for point in (found.search.points if found.search else found.points)}
    if (found.search and found.search.slo_rate) or verdicts == {Verdict.MET}:
        return ""
    if Verdict.MISSED in verdicts:
        return f"{slo} is not met"
    return f"{slo} is not shown to be met: {', '.join(sorted(verdicts - {Verdict.MET})) or 'there is no measurement'}"
