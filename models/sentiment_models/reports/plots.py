"""Plots as PNG bytes: curves, reliability diagrams, confusion matrices. Equal input gives equal bytes.

Uses no global state of matplotlib (no pyplot), so any thread may draw. The colours are those of Okabe and Ito, which are
distinguishable with any kind of colour vision; curves also differ in line style and marker.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sentiment.observability.agreement import wilson
from sentiment_models.evaluation.metrics import Bin

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "X", "P")
INK = "#222222"
GREY = "#999999"
DPI = 120
# With more lines, the legend is larger than the plot.
SERIES_MAX = 28


Series = Mapping[str, Sequence[tuple[float, float]]]
"""The points (x, y) of each line, by name."""


def curves(series: Series, x: str, y: str, title: str) -> bytes:
    """Draw a line for each name.

    Args:
        series: at most SERIES_MAX lines; a name that starts with an underscore has no legend entry.
        x: label of the horizontal axis, with the unit.
        y: label of the vertical axis, with the unit.
        title: title of the plot.

    Raises:
        ValueError: there are more than SERIES_MAX lines.
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
    """Draw several plots side by side, with one scale and one legend below.

    Args:
        parts: the lines of each plot by its title, at most SERIES_MAX each, with the same names in the same order.
        x: label of the horizontal axes, with the unit.
        y: label of the vertical axes, with the unit.

    Raises:
        ValueError: a plot has more than SERIES_MAX lines.
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
        bins: from ``metrics.reliability_bins``, without empty ones.
        title: title of the plot.
    """
    figure = blank(5.6, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1)})
    for axes in (upper, lower):
        plain_axes(axes)
    low = min((one.low for one in bins), default=0.0)
    upper.plot([low, 1], [low, 1], "--", color=GREY, linewidth=1.2, label="calibrated")
    middles, widths = [(one.low + one.high) / 2 for one in bins], [0.9 * (one.high - one.low) for one in bins]
    accuracy = np.array([one.accuracy for one in bins])
    below, above = np.array([wilson(one.accuracy * one.rows, one.rows) for one in bins]).reshape(-1, 2).T
    upper.errorbar(
        [one.confidence for one in bins],
        accuracy,
        yerr=(np.maximum(accuracy - below, 0), np.maximum(above - accuracy, 0)),
        fmt="o",
        color=COLOURS[0],
        capsize=3,
        markersize=6,
        label="measured, with 95 % interval",
    )
    upper.set_ylim(0, 1.03)
    upper.set_ylabel("share of correct answers")
    upper.set_title(title)
    upper.grid(color="#dddddd", linewidth=0.8)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    total = sum(one.rows for one in bins)
    lower.bar(middles, [100 * one.rows / total for one in bins], width=widths, color=COLOURS[0])
    lower.set_ylabel("% of texts")
    lower.set_xlabel("predicted probability of the answer")
    return as_png(figure)


def confusion(counts: Sequence[Sequence[int]], labels: Sequence[str], title: str) -> bytes:
    """Draw counts by correct label (rows) and answer (columns), shaded by the share of the row.

    Args:
        counts: [labels, labels], the correct label first.
        labels: label names.
        title: title of the plot.
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
    axes.set_ylabel("correct label")
    axes.set_title(title)
    return as_png(figure)


def blank(width: float, height: float) -> Figure:
    """Return an empty white figure with a constrained layout; sizes in inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = blank(width, height)
    axes = figure.subplots()
    plain_axes(axes)
    return figure, axes


def plain_axes(axes: Axes) -> None:
    """Apply the common style to axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.title.set_fontsize(11)


def as_png(figure: Figure) -> bytes:
    """Render a figure as PNG bytes."""
    stream = io.BytesIO()
    # Without metadata, which would contain the library's version.
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
