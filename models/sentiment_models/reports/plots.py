"""Plots as PNG bytes: curves, reliability diagrams, confusion matrices. Equal input gives equal bytes.

Uses no state of matplotlib's (no pyplot), so that any thread may draw. Colours are those of Okabe and Ito, which people
with any kind of colour vision tell apart; curves differ in line and marker as well.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sentiment_models.evaluation.metrics import Bin, wilson

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "X", "P")
INK = "#222222"
GREY = "#999999"
DPI = 120
# Beyond this the legend is larger than the plot.
SERIES_MAX = 28


Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) of each line by its name."""


def curves(series: Series, x: str, y: str, title: str) -> bytes:
    """Draw lines through points (x, y), one for each name.

    Args:
        series: at most 28 lines; a name that starts with an underscore gets a line and no entry in the legend.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        title: the plot's.

    Raises:
        ValueError: there are more lines than can be told apart.
    """
    figure, axes = _axes(7.6, 4.4)
    _draw(axes, series)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    if any(not name.startswith("_") for name in series):
        beside = len(series) > 4
        axes.legend(frameon=False, fontsize=9, **({"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)} if beside else {"loc": "best"}))
    return as_png(figure)


def panels(parts: Mapping[str, Series], x: str, y: str) -> bytes:
    """Draw the curves of several plots side by side, on one scale and with one legend below.

    Args:
        parts: the lines of each plot by its title, at most 28; what has one name in several plots looks alike if it has one place.
        x: what the horizontal axes show, with its unit.
        y: what the vertical axes show, with its unit.

    Raises:
        ValueError: there are more lines than can be told apart.
    """
    figure = blank(4.6 * len(parts), 4.8)
    row = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    for axes, (title, series) in zip(row, parts.items(), strict=True):
        plain_axes(axes)
        _draw(axes, series)
        axes.set_xlabel(x)
        axes.set_title(title)
    row[0].set_ylabel(y)
    handles, names = row[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9, handlelength=3.5)
    return as_png(figure)


def _draw(axes: Axes, series: Series) -> None:
    if len(series) > SERIES_MAX:
        raise ValueError(f"{len(series)} curves; the limit is {SERIES_MAX}")
    for number, (name, points) in enumerate(series.items()):
        style = LINES[(number // len(COLOURS)) % len(LINES)]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        axes.plot(xs, ys, style, color=colour, marker=marker if len(points) <= 60 else None, markersize=5, linewidth=1.8, label=name)
    if all(point[0] == int(point[0]) for points in series.values() for point in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dddddd", linewidth=0.8)


def reliability(bins: Sequence[Bin], title: str) -> bytes:
    """Draw accuracy over confidence, with the share of the rows in each bin below.

    Args:
        bins: those that hold a row; ``metrics.reliability_bins`` makes them.
        title: the plot's.
    """
    figure = blank(5.6, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1)})
    for axes in (upper, lower):
        plain_axes(axes)
    low = min((one.low for one in bins), default=0.0)
    upper.plot([low, 1], [low, 1], "--", color=GREY, linewidth=1.2, label="calibrated")
    middles, widths = [(one.low + one.high) / 2 for one in bins], [0.9 * (one.high - one.low) for one in bins]
    accuracy = np.array([one.accuracy for one in bins])
    below, above = wilson(accuracy, np.array([one.rows for one in bins]))
    upper.errorbar(
        [one.confidence for one in bins],
        accuracy,
        yerr=(np.maximum(accuracy - below, 0), np.maximum(above - accuracy, 0)),
        fmt="o",
        color=COLOURS[0],
        capsize=3,
        markersize=6,
        label="measured, with its 95 % interval",
    )
    upper.set_ylim(0, 1.03)
    upper.set_ylabel("share answered rightly")
    upper.set_title(title)
    upper.grid(color="#dddddd", linewidth=0.8)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    total = sum(one.rows for one in bins)
    lower.bar(middles, [100 * one.rows / total for one in bins], width=widths, color=COLOURS[0])
    lower.set_ylabel("% of texts")
    lower.set_xlabel("stated probability of the answer")
    return as_png(figure)


def confusion(counts: Sequence[Sequence[int]], labels: Sequence[str], title: str) -> bytes:
    """Draw counts by right label (down) and answer (across); the shade is the share of the right label's row.

    Args:
        counts: [labels, labels], the right label first.
        labels: their names.
        title: the plot's.
    """
    array = np.array(counts, np.float64)
    shares = array / np.maximum(array.sum(axis=1, keepdims=True), 1)
    side = 2.2 + 1.1 * len(labels)
    figure = blank(side + 0.3, side)
    axes = figure.subplots()
    plain_axes(axes)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row in range(len(labels)):
        for column in range(len(labels)):
            text = f"{int(array[row, column]):,}\n{shares[row, column]:.1%}"
            axes.text(column, row, text, ha="center", va="center", color="white" if shares[row, column] > 0.55 else INK)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels, rotation=90, va="center")
    axes.set_xlabel("answer")
    axes.set_ylabel("right label")
    axes.set_title(title)
    return as_png(figure)


def blank(width: float, height: float) -> Figure:
    """An empty white figure of so many inches, whose parts make room for each other."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = blank(width, height)
    axes = figure.subplots()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes) -> None:
    """Give axes the look of all plots here."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.title.set_fontsize(11)


def as_png(figure: Figure) -> bytes:
    """Draw it."""
    stream = io.BytesIO()
    # Without metadata: the library's version would be in the bytes.
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
