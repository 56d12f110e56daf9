"""Plots as PNG bytes, in the style of ``plot_style``: curves, reliability diagrams, confusion matrices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from sentiment.observability.agreement import wilson
from sentiment_models.evaluation.metrics import Bin
from sentiment_tools.reports.plot_style import COLOURS, INK, Series, as_png, draw, figure, legend, plain

GREY = "#999999"
# With more lines, the legend is larger than the plot.
SERIES_MAX = 28
Array = npt.NDArray[Any]


def curves(series: Series, x: str, y: str, title: str) -> bytes:
    """Draw a line for each name.

    Args:
        series: at most SERIES_MAX lines.
        x: label of the horizontal axis, with the unit.
        y: label of the vertical axis, with the unit.
        title: title of the plot.

    Raises:
        ValueError: there are more lines.
    """
    drawn = figure(7.6, 4.4)
    axes = drawn.subplots()
    _draw(axes, series, x, title)
    axes.set_ylabel(y)
    legend(drawn, axes.get_legend_handles_labels()[0], "right upper")
    return as_png(drawn)


def panels(parts: Mapping[str, Series], x: str, y: str) -> bytes:
    """Draw several plots side by side, with one scale and one legend below.

    Args:
        parts: the lines of each plot by its title, as for ``curves``, with the same names in the same order.
        x: label of the horizontal axes, with the unit.
        y: label of the vertical axes, with the unit.

    Raises:
        ValueError: a plot has more lines.
    """
    drawn = figure(4.6 * len(parts), 4.8)
    row = drawn.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    for axes, (title, series) in zip(row, parts.items(), strict=True):
        _draw(axes, series, x, title)
    row[0].set_ylabel(y)
    legend(drawn, row[0].get_legend_handles_labels()[0], "lower center", 3)
    return as_png(drawn)


def _draw(axes: Any, series: Series, x: str, title: str) -> None:  # matplotlib's, which has no types here
    if len(series) > SERIES_MAX:
        raise ValueError(f"{len(series)} curves; the limit is {SERIES_MAX}")
    plain(axes, grid="both")
    draw(axes, series)
    axes.set_xlabel(x)
    axes.set_title(title)
    if all(point[0] == int(point[0]) for points in series.values() for point in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def reliability(bins: Sequence[Bin], title: str) -> bytes:
    """Draw accuracy over confidence, with the share of the rows in each bin below.

    Args:
        bins: from ``metrics.reliability_bins``, without empty ones.
        title: title of the plot.
    """
    drawn = figure(5.6, 5.6)
    upper, lower = drawn.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1)})
    plain(upper, grid="both")
    plain(lower)
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
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    total = sum(one.rows for one in bins)
    lower.bar(middles, [100 * one.rows / total for one in bins], width=widths, color=COLOURS[0])
    lower.set_ylabel("% of texts")
    lower.set_xlabel("predicted probability of the answer")
    return as_png(drawn)


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
    drawn = figure(side + 0.3, side)
    axes = drawn.subplots()
    texts = [[f"{int(count):,}\n{share:.1%}" for count, share in zip(*both, strict=True)] for both in zip(array, shares, strict=True)]
    shaded(axes, shares, texts, shares > 0.55, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels, rotation=90, va="center")
    axes.set_xlabel("answer")
    axes.set_ylabel("correct label")
    axes.set_title(title)
    return as_png(drawn)


def shaded(
    axes: Any, values: Array, texts: Sequence[Sequence[str]], dark: Array, fontsize: float | None = None, **shades: Any
) -> Any:  # matplotlib's, which has no types here
    """Draw a matrix of shades with a text in each cell, white where the shade is dark; return the image, for a colour bar."""
    plain(axes)
    for row, column in np.ndindex(values.shape):
        colour = "white" if dark[row, column] else INK
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=fontsize, color=colour)
    return axes.imshow(values, **shades)
