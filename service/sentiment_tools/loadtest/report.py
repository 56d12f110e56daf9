"""The report of a load test as one self-contained HTML file: settings, results, plots, and a table of every load."""

from collections.abc import Mapping, Sequence

from sentiment_tools.loadtest import plots
from sentiment_tools.loadtest.progress import first_messages, load_of
from sentiment_tools.loadtest.results import JUDGED, OK, Point
from sentiment_tools.loadtest.search import Search, Slo, Verdict
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.html_report import Section, notice, page, paragraph, table
from sentiment_tools.reports.plot_style import STYLE

HIDES_WAITING = (
    "closed loop: each caller waits for its answer before it sends the next call, so a slow server gets fewer calls and the waiting time "
    "of real users is hidden (coordinated omission); use the throughput, and take latencies from an open loop"
)
ANSWERED_HEADER = ("load", "answered/s", "goodput/s", "in time", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "longest ms", "tokens/s")
CLIENT_HEADER = ("load", "seconds", "not sent", "lag p99 ms", "busiest process", "client cores", "verdict")


def compose(found: Search | Sequence[Point], facts: Mapping[str, str], slo: Slo, warnings: Sequence[str] = ()) -> str:
    """The report as an HTML document.

    Args:
        found: the result of a search, or the loads that were held; at least one measurement.
        facts: the settings of the run in order: names and plain text.
        slo: the objective.
        warnings: reasons to doubt the figures, in addition to those that the figures show.
    """
    search = found if isinstance(found, Search) else None
    points = found.points if isinstance(found, Search) else found
    noted = "".join(map(notice, (*warnings, *doubts(points, slo))))
    sections = [
        Section("In short", noted + (_headline(search) if search else _summary(points, slo))),
        Section("Latency", svg_plots.figures(_latency(points, slo, search))),
        Section("Where time and calls go", svg_plots.figures(_shares(points))),
        *_over_time(points, search),
        Section("Every load", _tables(points, slo)),
        *_classes(points),
        Section("What was run", table(("", "this run"), list(facts.items()))),
    ]
    return page("Load test", sections, STYLE)


def doubts(points: Sequence[Point], slo: Slo) -> list[str]:
    """Reasons to doubt the figures, as sentences."""
    found = [f"client limited at {load_of(point)}: {point.client_limited}" for point in points if point.client_limited]
    verdicts = [slo.verdict(point) for point in points]
    if few := [load_of(point) for point, verdict in zip(points, verdicts, strict=True) if verdict is Verdict.TOO_FEW]:
        found.append(f"too few judged calls to show whether {slo} is met, which needs {slo.calls_min}: {', '.join(few)}")
    if Verdict.GONE in verdicts:
        found.append(f"the server was gone at {load_of(points[verdicts.index(Verdict.GONE)])}: all calls were UNAVAILABLE")
    if any(point.closed_loop for point in points):
        found.append(HIDES_WAITING)
    if any(point.interrupted for point in points):
        found.append("the test was interrupted: the last load was held for less than its full time")
    return found


def shown_rate(search: Search) -> str:
    """The highest rate that met the objective as text; "at least" if no higher rate is known to miss it."""
    if not search.slo_rate:
        return "none" if search.missed_rate else "not known"
    return f"{'' if search.missed_rate else 'at least '}{search.slo_rate:.4g} calls/s"


def _headline(search: Search) -> str:
    rows = [
        (f"highest rate with {search.slo}", shown_rate(search)),
        ("answered in time at that rate", f"{search.goodput_per_s:.4g} calls/s"),
        ("knee", f"{search.knee.rate:.4g} calls/s" if search.knee.rate else "none"),
        ("capacity, about", f"{search.capacity_per_s:.4g} calls/s"),
    ]
    return table(("", "found"), rows) + "".join(map(paragraph, search.why))


def _summary(points: Sequence[Point], slo: Slo) -> str:
    rows = [(load_of(point), slo.verdict(point), _percent(point.share_in_time), f"{point.goodput_per_s:.4g}/s") for point in points]
    return table(("load", str(slo), "answered in time", "goodput"), rows)


def _latency(points: Sequence[Point], slo: Slo, search: Search | None) -> list[tuple[str, str]]:
    drawn = []
    if len(plots.one_a_load(points)) > 1:
        caption = (
            "Percentiles of all judged calls, from when each was due. A refused or failed call counts as infinite latency: a line ends "
            "where more calls failed than its percentile leaves room for."
        )
        drawn.append((plots.by_load(points, slo, search), caption))
    return [*drawn, (plots.by_percentile(points, slo), "Percentiles of the answers, without refused and failed calls.")]


def _shares(points: Sequence[Point]) -> list[tuple[str, str]]:
    stages = plots.by_stage(points)
    caption = "Mean time of an answer in the stages that the server reports. rest: network, gRPC on both sides, and how late it was sent."
    return [*([(stages, caption)] if stages else []), (plots.by_outcome(points), "Outcomes of the calls of all classes.")]


def _over_time(points: Sequence[Point], search: Search | None) -> list[Section]:
    """For a search the highest load that met the objective and the highest of all, else the first two loads."""
    shown = plots.one_a_load(points)
    if search:
        shown = [point for point in shown if point.offered_per_s in (search.slo_rate, shown[-1].offered_per_s)]
    drawn = []
    for point in shown[:2]:
        if point.series:
            rates, latency = plots.over_time(point)
            load = load_of(point)
            drawn += [(rates, f"{load}: calls of each second."), (latency, f"{load}: latency of the answers of each second.")]
    return [Section("Over time", svg_plots.figures(drawn))] if drawn else []


def _tables(points: Sequence[Point], slo: Slo) -> str:
    answered = [answered_row(point) for point in points]
    client = [
        (
            load_of(point),
            f"{point.seconds:.1f}",
            point.unsent,
            _ms(point.lag.percentile(99)),
            _percent(point.client_cpu),
            f"{point.client_cores:.2f}",
            slo.verdict(point),
        )
        for point in points
    ]
    counted = [plots.outcomes(point) for point in points]
    seen = [name for name in counted[0] if any(each[name] for each in counted)]
    outcomes = [
        (load_of(point), point.sent, _percent(point.repeated_share), *(each[name] for name in seen))
        for point, each in zip(points, counted, strict=True)
    ]
    note = paragraph(
        "In the order of measurement. Percentiles are of judged answers, outcomes of calls of all classes. "
        "repeated: share of the texts that came before in the load."
    )
    words = first_messages(points)
    messages = table(("outcome", "first message of the server"), list(words.items())) if words else ""
    return (
        note
        + table(ANSWERED_HEADER, answered)
        + table(("load", "sent", "repeated", *seen), outcomes)
        + messages
        + table(CLIENT_HEADER, client)
    )


def answered_row(point: Point) -> tuple[str, ...]:
    """A row under ANSWERED_HEADER."""
    percentiles = point.latency.percentiles(plots.PERCENTILES).values()
    return (
        load_of(point),
        f"{point.answered_per_s:.1f}",
        f"{point.goodput_per_s:.1f}",
        _percent(point.share_in_time),
        *map(_ms, percentiles),
        _ms(point.latency.longest_s),
        f"{point.tokens_per_s:,.0f}" if point.tokens_per_s else "",
    )


def _classes(points: Sequence[Point]) -> list[Section]:
    """Results by class, if there are several."""
    rows = [
        (
            load_of(point),
            name,
            group.sent,
            group.outcomes[OK],
            group.in_time if name in JUDGED else "",
            *map(_ms, group.latency.percentiles((50.0, 99.0)).values()),
        )
        for point in plots.one_a_load(points)
        for name, group in point.by_class.items()
    ]
    if len({row[1] for row in rows}) < 2:
        return []
    return [Section("By class", table(("load", "class", "sent", "answered", "in time", "p50 ms", "p99 ms"), rows))]


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}" if seconds < 10 else f"{seconds * 1e3:.0f}"
