"""The plots of a load test: latency against load, percentiles, stages, outcomes, and single loads over time."""

import math
from collections.abc import Sequence

from sentiment_tools.loadtest.knee import of_sent
from sentiment_tools.loadtest.progress import load_of
from sentiment_tools.loadtest.results import CANCELLED_BY_US, JUDGED, OK, STAGES, Point
from sentiment_tools.loadtest.search import Search, Slo
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.svg_plots import Axis, Mark

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# Each code has the same colour on every plot; all other codes count as other.
CODES = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE", CANCELLED_BY_US)
# More lines cannot be distinguished.
LINES_MAX = 6
_STEPS_A_DECADE = 12


def one_a_load(points: Sequence[Point]) -> list[Point]:
    """One measurement for each load, by rising load: the one with the median share in time."""
    loads: dict[tuple[int, float], list[Point]] = {}
    for point in points:
        loads.setdefault((point.callers, point.offered_per_s), []).append(point)
    ordered = [sorted(loads[load], key=lambda point: point.share_in_time) for load in sorted(loads)]
    return [each[len(each) // 2] for each in ordered]


def by_load(points: Sequence[Point], slo: Slo, search: Search | None) -> str:
    """Percentiles of all judged calls against the load. A line ends where too few calls are answered for its percentile."""
    shown = one_a_load(points)
    place = _load_axis(shown)
    series = {f"p{percentile:g}": [(_load(point), 1e3 * of_sent(point, percentile)) for point in shown] for percentile in PERCENTILES}
    marks = [Mark(str(slo), 1e3 * slo.objective_s, upright=False)]
    if search:
        marks += [Mark(name, rate) for name, rate in (("objective met", search.slo_rate), ("knee", search.knee.rate)) if rate]
    alt = "Latency against load: percentiles of all judged calls, in milliseconds."
    return svg_plots.lines(series, place, Axis("ms", log=True), alt, marks)


def by_percentile(points: Sequence[Point], slo: Slo) -> str:
    """Latency of the answers against the percentile, on a logarithmic scale of the distance from 100 %."""
    shown = [point for point in _spread(one_a_load(points)) if len(point.latency)]
    series = {load_of(point): _percentiles(point) for point in shown}
    ticks = [(1 / (1 - percent / 100), f"{percent:g} %") for percent in (0, 50, 90, 99, 99.9, 99.99, 99.999)]
    furthest = max((line[-1][0] for line in series.values()), default=10.0)
    place = Axis("percentile of the answers", log=True, ticks=[tick for tick in ticks if tick[0] <= furthest])
    alt = "Latency of the answers against the percentile, one line a load, in milliseconds."
    return svg_plots.lines(series, place, Axis("ms", log=True), alt, [Mark(str(slo), 1e3 * slo.objective_s, upright=False)])


def by_stage(points: Sequence[Point]) -> str:
    """Mean time of the answers in each stage, one bar per load; empty if the server reports no stages."""
    shown = [point for point in one_a_load(points) if any(len(stage) for stage in point.stages.values())]
    if not shown:
        return ""
    parts = {stage: [1e3 * point.stages[stage].mean_s if stage in point.stages else 0.0 for point in shown] for stage in STAGES}
    names = [_short(point) for point in shown]
    return svg_plots.stacked(parts, names, _load_axis(shown), Axis("mean ms"), "Mean time in each stage against load, in milliseconds.")


def by_outcome(points: Sequence[Point]) -> str:
    """Outcomes of the calls of all classes in per cent, one bar per load."""
    shown = one_a_load(points)
    counted = [outcomes(point) for point in shown]
    parts = {name: [100 * each[name] / max(1, point.sent) for each, point in zip(counted, shown, strict=True)] for name in counted[0]}
    parts = {name: shares for name, shares in parts.items() if any(shares) or name == "in time"}
    alt = "Outcomes of the calls against load, in per cent."
    return svg_plots.stacked(parts, [_short(point) for point in shown], _load_axis(shown), Axis("% of the calls", least=0, most=100), alt)


def outcomes(point: Point) -> dict[str, int]:
    """Counts of the calls of all classes by outcome; always the same names, in the same order.

    "in time" and "late" count judged answers only.
    """
    ok = sum(group.outcomes[OK] for name, group in point.by_class.items() if name in JUDGED) if point.by_class else point.ok
    in_time = sum(group.in_time for name, group in point.by_class.items() if name in JUDGED) if point.by_class else point.in_time
    named = {code: point.outcomes.get(code, 0) for code in CODES}
    failed = sum(point.outcomes.values()) - point.ok - sum(named.values())
    return {"in time": in_time, "late": ok - in_time, "other answered": point.ok - ok, **named, "other failed": failed}


def over_time(point: Point) -> tuple[str, str]:
    """Two plots of one load second by second: calls sent and answered, and latency of the answers."""
    seconds = Axis("s since the load began")
    # An incomplete last second would look like a drop.
    shown = [second for second in point.series if second.at_s + 1 <= point.seconds + 0.01]
    rates = {
        "sent": [(second.at_s, float(second.sent)) for second in shown],
        "in time": [(second.at_s, float(second.in_time)) for second in shown],
        "late": [(second.at_s, float(second.late)) for second in shown],
        "not answered": [(second.at_s, float(second.failed)) for second in shown],
    }
    # A second without answers has no latency; the line skips it.
    answered = [second for second in shown if second.ok]
    latency = {
        "p50": [(second.at_s, 1e3 * second.p50_s) for second in answered],
        "p99": [(second.at_s, 1e3 * second.p99_s) for second in answered],
    }
    load = load_of(point)
    return (
        svg_plots.lines(rates, seconds, Axis("calls/s", least=0), f"Calls sent and answered, second by second, at {load}."),
        svg_plots.lines(latency, seconds, Axis("ms", log=True), f"Latency of the answers of each second, in milliseconds, at {load}."),
    )


def _load(point: Point) -> float:
    return float(point.callers) if point.closed_loop else point.offered_per_s


def _short(point: Point) -> str:
    return f"{_load(point):.3g}"


def _load_axis(points: Sequence[Point]) -> Axis:
    return Axis("callers at once" if any(point.closed_loop for point in points) else "calls offered a second")


def _spread(points: Sequence[Point]) -> list[Point]:
    """At most LINES_MAX of the points, including the first and the last."""
    if len(points) <= LINES_MAX:
        return list(points)
    return [points[round(number * (len(points) - 1) / (LINES_MAX - 1))] for number in range(LINES_MAX)]


def _percentiles(point: Point) -> list[tuple[float, float]]:
    """(1 / (1 - share), ms), as far as there are enough answers; the last is the longest answer."""
    count = len(point.latency)
    steps = max(1, math.ceil(_STEPS_A_DECADE * math.log10(count))) if count > 1 else 0
    places = [count ** (number / steps) for number in range(steps + 1)] if steps else [1.0]
    found = point.latency.percentiles(100 * (1 - 1 / place) for place in places[:-1])
    return [(place, 1e3 * seconds) for place, seconds in zip(places, [*found.values(), point.latency.longest_s], strict=True)]
