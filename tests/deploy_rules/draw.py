"""Draws the board's panels from a real Prometheus' data: ``python -m tests.deploy_rules.draw OUT.png`` (about two minutes).

Two servers of the default bundle, one runner each, are called for 100 s: calmly, with more than they can do, calmly again. All of it is
traced, and while it is too much the collector refuses the spans.

``--texts FILE:RATE:SECONDS ...`` instead draws what the model answers: one server gets the texts of one file after the other, drawn at
random, RATE a second, from the load tester. It also prints when the condition of the drift alert begins and ends to hold.

What is drawn is what dashboard.json asks for, by matplotlib and not by Grafana: an approximation of how it looks. Series that are zero all
the time are left out.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, Formatter, PercentFormatter, ScalarFormatter
from PIL import Image

from sentiment.client import AsyncClient
from sentiment.files.reading import read_texts
from sentiment.loadtest.drivers import Target
from sentiment.loadtest.fleet import Fleet
from sentiment.loadtest.mix import Mix
from sentiment.traffic.arrivals import Poisson
from sentiment_models.reports.plots import COLOURS, GREY, LINES, as_png, blank, plain_axes
from tests.demo import TEXTS
from tests.deploy_rules.expressions import chosen_all, panels, queries, rows
from tests.deploy_rules.load import Caller
from tests.deploy_rules.watching import Found, Prometheus
from tests.tracing.collector import Collector

PODS = ("pod-a", "pod-b")
# Calls a second to each server until so many seconds after the begin.
PHASES = ((30.0, 12.0), (65.0, 70.0), (100.0, 12.0))
UNITS: dict[str, Callable[[], Formatter]] = {
    "s": lambda: EngFormatter("s"),
    "bytes": lambda: EngFormatter("B"),
    "percentunit": lambda: PercentFormatter(1.0),
    "reqps": lambda: EngFormatter("/s"),
    "cps": lambda: EngFormatter("/s"),
    "short": ScalarFormatter,
}
# Points by legend: seconds from the start, value.
Series = dict[str, list[tuple[float, float]]]
# Inches of a panel, and panels side by side.
WIDTH, HEIGHT, ACROSS = 4.3, 2.4, 3
# Grafana's grid: columns of a panel.
PANEL_COLUMNS = 8
# The row of what the model answers, and the alert on drift.
ANSWERS, DRIFT = "What the model answers", "SentimentDrift"
# Seconds within which a text is answered there.
PATIENCE_S = 5.0


class Phase(NamedTuple):
    """Texts of one file for a while."""

    file: Path
    rate: float
    seconds: float


def main() -> None:
    """Serve, call, scrape, draw."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deploy_rules.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the picture to write")
    parser.add_argument("--texts", nargs="+", type=_phase, metavar="FILE:RATE:SECONDS", help="draw what the model answers to these instead")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        collector = Collector()
        stack.callback(collector.stop)
        flags = [] if options.texts else ["--runners", "1", "--tracing"]
        servers = {pod: stack.enter_context(_serving(collector.url, flags)) for pod in PODS[: 1 if options.texts else None]}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {pod: str(ready["http"]).removeprefix("http://") for pod, ready in servers.items()}
        prometheus = stack.enter_context(Prometheus(folder, urls))
        begun = time.time()
        targets = [str(ready["grpc"]) for ready in servers.values()]
        if options.texts:
            starts = asyncio.run(_load(targets[0], options.texts))
            marks = {phase.file.stem: start - begun for phase, start in zip(options.texts, starts, strict=True)}
            _tell_alert(prometheus, options.texts, [*starts, time.time()])
            content = _drawn(prometheus, begun, time.time(), rows()[ANSWERS], marks)
        else:
            asyncio.run(_call(targets, collector))
            content = _drawn(prometheus, begun, time.time(), panels())
        picture = Image.open(io.BytesIO(content))
    # A third of the bytes: there are few colours in it.
    picture.quantize(64).save(options.out, "PNG", optimize=True)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")


def _phase(text: str) -> Phase:
    file, rate, seconds = text.rsplit(":", 2)
    return Phase(Path(file), float(rate), float(seconds))


@contextlib.contextmanager
def _serving(collector: str, more: Sequence[str]) -> Iterator[dict[str, object]]:
    flags = ["--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0", *more]
    variables = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
    server = subprocess.Popen([sys.executable, "-m", "sentiment", "serve", *flags], stderr=subprocess.PIPE, text=True, env=variables)
    assert server.stderr is not None
    try:
        entries = (json.loads(line) for line in server.stderr)
        ready = next(entry for entry in entries if entry["event"] == "ready")
        # A pipe that nobody empties fills, and then its writer waits.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield ready
    finally:
        server.terminate()
        server.wait(60)


async def _call(targets: list[str], collector: Collector) -> None:
    shuffled = random.Random(0)
    texts = [" ".join(shuffled.choices(TEXTS, k=shuffled.choice((1, 1, 2, 4, 12)))) for _ in range(200)]
    begun = time.monotonic()

    def rate() -> float:
        calls = next((calls for until, calls in PHASES if time.monotonic() - begun < until), PHASES[-1][1])
        collector.refuses = calls == max(calls for _, calls in PHASES)
        return calls

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(target)) for target in targets]
        callers = asyncio.gather(*(Caller(client, texts, seed).call(rate) for seed, client in enumerate(clients)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(callers, PHASES[-1][0])


async def _load(target: str, phases: Sequence[Phase]) -> list[float]:
    """Load a server, and return when each phase began."""
    begun = []
    for phase in phases:
        async with Fleet(Target(target), Mix((PATIENCE_S, PATIENCE_S)), [*read_texts(phase.file)], PATIENCE_S) as fleet:
            begun.append(time.time())
            point = await fleet.measure(Poisson(phase.rate), phase.seconds)
        print(f"{phase.file.stem}: {point.texts_per_s:.1f} texts/s answered of {phase.rate:g}")
    return begun


def _tell_alert(prometheus: Prometheus, phases: Sequence[Phase], times: Sequence[float]) -> None:
    """Print in which phases the condition of the drift alert holds."""
    (alert,) = (query for query in queries("alert") if query.name == DRIFT)
    holds = {labels["signal"]: [at for at, _ in points] for labels, points in prometheus.query_range(alert.text, times[0], times[-1])}
    for phase, (start, end) in zip(phases, pairwise(times), strict=True):
        found = {signal: [at - start for at in points if start <= at < end] for signal, points in holds.items()}
        told = [f"{signal} from {at[0]:.0f} to {at[-1]:.0f} s, {at[0] * phase.rate:.0f} texts" for signal, at in found.items() if at]
        print(f"{phase.file.stem}: {DRIFT} would hold: {'; '.join(told) or 'never'}")


def _drawn(
    prometheus: Prometheus, start: float, end: float, shown: Sequence[dict[str, Any]], marks: Mapping[str, float] | None = None
) -> bytes:
    """Panels over time as PNG. ``marks``: seconds from the start at which to draw a line, by what begins there."""
    lines = sorted({panel["gridPos"]["y"] for panel in shown})
    figure = blank(WIDTH * ACROSS, HEIGHT * len(lines))
    grid = figure.add_gridspec(len(lines), ACROSS)
    for panel in shown:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[lines.index(place["y"]), place["x"] // PANEL_COLUMNS])
        series: Series = {}
        for target in panel["targets"]:
            series |= _named(target["legendFormat"], prometheus.query_range(chosen_all(target["expr"]), start, end), start)
        _draw(axes, panel, series, end - start)
        for name, at in (marks or {}).items():
            axes.axvline(at, color=GREY, linewidth=0.8, linestyle=":")
            axes.text(at, 0, f" {name}", rotation=90, fontsize=7, color=GREY, va="bottom")
    return as_png(figure)


def _named(legend: str, found: Found, start: float) -> Series:
    """Series by their legend, over seconds from the start, without those that are zero throughout."""
    moved = [(labels, points) for labels, points in found if any(value > 0 for _, value in points)]
    # There is one model.
    return {_filled(legend.replace(" {{model}}", ""), labels): [(at - start, value) for at, value in points] for labels, points in moved}


def _filled(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend).strip()


def _draw(axes: Axes, panel: dict[str, Any], series: Series, seconds: float) -> None:
    plain_axes(axes)
    axes.set_title(panel["title"], loc="left")
    defaults = panel["fieldConfig"]["defaults"]
    axes.yaxis.set_major_formatter(UNITS[defaults["unit"]]())
    axes.xaxis.set_major_formatter("{x:.0f} s")
    axes.set_xlim(0, seconds)
    axes.grid(color="#dddddd", linewidth=0.8)
    if not series:
        axes.text(0.5, 0.5, "no data, or zero throughout", ha="center", va="center", transform=axes.transAxes)
        return
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    below: dict[float, float] = {}
    for number, (name, points) in enumerate(sorted(series.items())):
        colour, line = COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]
        at = [x for x, _ in points]
        if stacked:
            floor = [below.get(round(x), 0.0) for x in at]
            top = [low + value for low, (_, value) in zip(floor, points, strict=True)]
            axes.fill_between(at, floor, top, color=colour, alpha=0.75, linewidth=0, label=name)
            below |= {round(x): high for x, high in zip(at, top, strict=True)}
        else:
            axes.plot(at, [value for _, value in points], line, color=colour, linewidth=1.5, label=name)
    columns = 2 if len(series) > 3 else 1
    # Room for the legend, which must not make the panel narrower.
    axes.set_ylim(0, (1.1 + 0.1 * -(-len(series) // columns)) * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=7, ncols=columns, loc="upper left", labelspacing=0.2).set_in_layout(False)


if __name__ == "__main__":
    main()
