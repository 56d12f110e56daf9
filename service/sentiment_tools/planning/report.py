"""The result of a capacity plan as text, tables and one self-contained HTML file."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sentiment_tools.planning.closed_loop import Capacity
from sentiment_tools.planning.machine import counted
from sentiment_tools.planning.outcome import PERCENTILES, Fate, Limit, Outcome
from sentiment_tools.planning.search import Objective, Ranges, Sizing
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.html_report import Section, notice, page, paragraph, table
from sentiment_tools.reports.plot_style import STYLE
from sentiment_tools.reports.svg_plots import Axis, Mark

Table = tuple[Sequence[str], Sequence[Sequence[object]]]

FLEET = (
    *("replicas", "in time", "goodput/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "refused", "expired"),
    *("demand", "runners busy", "loop busy", "executor busy", "cores busy", "rows a batch"),
)
CLASS = ("replicas", "class", "requests", "in time", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms")
# What to do about each limit.
REMEDIES = {
    Limit.EVENT_LOOP: "use front ends, send batches, or add replicas",
    Limit.FRONT_ENDS: "use more of them, send batches, or add replicas",
    Limit.EXECUTOR: "add replicas",
    Limit.CORES: "give a replica more cores, or add replicas",
    Limit.RUNNERS: "use more runners, or add replicas",
    Limit.DEVICE: "add GPUs or replicas",
}
# The most fleets whose latency is drawn; more lines are hard to read.
DRAWN_MAX = 4
TICKS_MAX = 10
# Ticks of a percentile plot: 1 / (1 - share) and its label.
NINES = ((2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %"))


def verdict(sizing: Sizing, objective: Objective, capacity: Capacity) -> str:
    """The answer, and which part of a replica is the first limit if the load grows."""
    if sizing.hopeless:
        return sizing.why
    busy = f"{100 * capacity.shares[capacity.limit]:.0f} % busy at the capacity of a replica"
    return f"{_answer(sizing, objective)}. First limit: the {capacity.limit}, {busy}: {REMEDIES[capacity.limit]}"


def _answer(sizing: Sizing, objective: Objective) -> str:
    if sizing.fewest is None:
        return sizing.why
    summary = f"{counted(sizing.fewest, 'replica')} {'answers' if sizing.fewest == 1 else 'answer'} {objective}"
    if any(replicas < sizing.fewest for replicas in sizing.tried):
        summary += "; fewer do not"
    missing = [replicas for replicas, outcome in sizing.tried.items() if replicas > sizing.fewest and not objective.met(outcome)]
    if missing:
        summary += f". {max(missing)} do not either, so the difference is within random variation: use more --requests"
    return summary


def ranges(found: Ranges, objective: Objective) -> str:
    """The answer's figures, each with the least and the most that it may be as the measured cost and chance have it."""
    outcome = found.outcome
    tail, in_time = _ms(outcome.percentile_s(objective.percentile)), _percent(outcome.in_time(objective.seconds))
    figures = [
        f"p{objective.percentile:g} {tail} ms ({' to '.join(map(_ms, found.tail_s))})",
        f"in time {in_time} ({' to '.join(map(_percent, found.in_time))})",
    ]
    if found.replicas:
        low, high = found.replicas
        for name, each in (("replica", 1), ("core", outcome.machine.shared_cores)):
            most = f"to {each * high}" if high else "or more"
            figures.append(f"{counted(each * outcome.replicas, name)} ({each * low} {most})")
    return f"Ranges of 95 %: {', '.join(figures)}"


def tables(sizing: Sizing, objective: Objective) -> list[Table]:
    """Header and rows of each table: every fleet that was simulated, and its classes if there are two."""
    fleets = [_fleet_row(outcome, objective) for outcome in sizing.tried.values()]
    classes = [
        (
            outcome.replicas,
            priority.value,
            outcome.requests_of(priority),
            _percent(outcome.in_time(objective.seconds, priority)),
            *(_ms(outcome.percentile_s(percentile, priority)) for percentile in PERCENTILES),
        )
        for outcome in sizing.tried.values()
        if len(outcome.classes()) > 1
        for priority in outcome.classes()
    ]
    return [(FLEET, fleets), *([(CLASS, classes)] if classes else [])]


def compose(sizing: Sizing, objective: Objective, answer: Sequence[str], facts: Mapping[str, str], cautions: Sequence[str]) -> str:
    """The HTML report: the answer, a verdict and what follows it, with its warnings, plots, tables and the settings."""
    verdict, *more = answer
    summary = paragraph(verdict) if sizing.fewest else notice(verdict)
    summary += "".join(map(paragraph, more)) + "".join(map(notice, cautions))
    shown = _shown(sizing)
    drawn = [
        (
            _latency(shown, objective),
            "Latency of all requests. A line ends where the rest of the requests was refused or expired.",
        ),
        (
            _over_time(shown, objective),
            "Share of the requests that were answered in time, for each twentieth of the simulated time. A gap: no request arrived.",
        ),
    ]
    if len(sizing.tried) > 1:
        drawn.insert(0, (_by_replicas(sizing, objective), "Requests answered in time, against the number of replicas."))
    sections = [
        Section("In short", summary),
        Section("Plots", svg_plots.figures(drawn)),
        Section("Every fleet", "".join(table(header, rows) for header, rows in tables(sizing, objective))),
        Section("What was simulated", table(("", "this run"), list(facts.items()))),
    ]
    return page("Capacity plan", sections, STYLE)


def _fleet_row(outcome: Outcome, objective: Objective) -> tuple[object, ...]:
    return (
        outcome.replicas,
        _percent(outcome.in_time(objective.seconds)),
        f"{outcome.goodput_per_s(objective.seconds):.1f}",
        *(_ms(outcome.percentile_s(percentile)) for percentile in PERCENTILES),
        _percent(outcome.share(Fate.REFUSED)),
        _percent(outcome.share(Fate.EXPIRED)),
        f"{outcome.demand_ratio:.2f}",
        _percent(outcome.busy_share),
        *_shares(outcome),
        f"{outcome.batch_rows:.2f}",
    )


def _shares(outcome: Outcome) -> tuple[str, str, str]:
    """How busy the loop that takes calls, the executor's (empty without front ends) and the cores are."""
    shares = outcome.shares
    executor = _percent(shares[Limit.EXECUTOR]) if Limit.EXECUTOR in shares else ""
    loop = Limit.FRONT_ENDS if Limit.FRONT_ENDS in shares else Limit.EVENT_LOOP
    return _percent(shares[loop]), executor, _percent(shares[Limit.CORES])


def _shown(sizing: Sizing) -> list[Outcome]:
    """The fleets whose size is nearest to the answer."""
    fewest = sizing.fewest or max(sizing.tried)
    nearest = sorted(sizing.tried, key=lambda replicas: abs(replicas - fewest))[:DRAWN_MAX]
    return [sizing.tried[replicas] for replicas in sorted(nearest)]


def _by_replicas(sizing: Sizing, objective: Objective) -> str:
    points = [(float(replicas), 100 * outcome.in_time(objective.seconds)) for replicas, outcome in sizing.tried.items()]
    marks = [Mark(f"{objective.percentile:g} %", objective.percentile, upright=False)]
    if sizing.fewest:
        marks.append(Mark(counted(sizing.fewest, "replica"), sizing.fewest))
    step = -(-len(points) // TICKS_MAX)
    ticks = [(replicas, f"{replicas:.0f}") for replicas, _ in points[::step]]
    alt = "share of the requests that are answered in time against replicas"
    return svg_plots.lines({"in time": points}, Axis("replicas", ticks=ticks), Axis(f"% within {1e3 * objective.seconds:g} ms"), alt, marks)


def _latency(outcomes: Sequence[Outcome], objective: Objective) -> str:
    series = {counted(outcome.replicas, "replica"): _tail(outcome) for outcome in outcomes}
    most = max(point[0] for points in series.values() for point in points)
    ticks = [tick for tick in NINES if tick[0] <= max(most, 10.0)]
    marks = [Mark(f"{1e3 * objective.seconds:g} ms", 1e3 * objective.seconds, upright=False)]
    alt = "latency against the share of the requests that were answered within it"
    return svg_plots.lines(series, Axis("of the requests", log=True, ticks=ticks), Axis("latency in ms", log=True), alt, marks)


def _tail(outcome: Outcome) -> list[tuple[float, float]]:
    """Latency in ms against 1 / (1 - share), with equal steps for each nine. NaN, which sorts last, where there was no answer."""
    latency_s, requests = np.sort(outcome.latency_s), outcome.requests
    places = np.unique((requests * (1 - np.logspace(0, -np.log10(requests), 200))).astype(int))
    return [(requests / (requests - place), 1e3 * float(latency_s[place])) for place in places]


def _over_time(outcomes: Sequence[Outcome], objective: Objective) -> str:
    series = {counted(outcome.replicas, "replica"): shares_over_time(outcome, objective) for outcome in outcomes}
    marks = [Mark(f"{objective.percentile:g} %", objective.percentile, upright=False)]
    alt = "share of the requests that are answered in time over the time simulated"
    return svg_plots.lines(series, Axis("seconds"), Axis(f"% within {1e3 * objective.seconds:g} ms"), alt, marks)


def shares_over_time(outcome: Outcome, objective: Objective) -> list[tuple[float, float]]:
    """For each twentieth of the time its middle and the per cent of its requests answered in time; NaN where no request arrived."""
    edges = np.linspace(0, float(outcome.due_at[-1]), 21)
    came, _ = np.histogram(outcome.due_at, edges)
    good, _ = np.histogram(outcome.due_at[outcome.latency_s <= objective.seconds], edges)
    shares = np.divide(100.0 * good, came, out=np.full(len(came), math.nan), where=came > 0)
    return list(zip(((edges[:-1] + edges[1:]) / 2).tolist(), shares.tolist(), strict=True))


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds == seconds else ""  # noqa: PLR0124  # NaN: no answer
