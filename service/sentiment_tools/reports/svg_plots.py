"""Plots as inline SVG for an HTML page, in the style of ``plot_style``. Needs the ``plots`` extra. Knows nothing about the data."""

import html
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentiment.errors import BadSettings
from sentiment_tools.reports.plot_style import COLOURS, INK, Series, as_svg, draw, figure, legend, plain

# A log axis has ticks at 2 and 5 as well if its ends differ by at most this factor.
FINE_TICKS_RATIO_MAX = 100
WIDTH_IN, HEIGHT_IN = 5.2, 3.6


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. ``label`` includes the unit. ``ticks``: (value, name); empty: the default. ``least``, ``most``: the ends."""

    label: str
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A thin line with a name across the plot: vertical at a value of the x axis (``upright``), or horizontal at a value of the y axis."""

    name: str
    at: float
    upright: bool = True


def need_plots() -> None:
    """Check at the start of a command that plots can be drawn at its end.

    Raises:
        BadSettings: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadSettings("plots need matplotlib, which is not installed: pip install 'sentiment-service[plots]'")


def lines(series: Series, x: Axis, y: Axis, alt: str, marks: Sequence[Mark] = ()) -> str:
    """Draw a line through the points of each series. Points that are not finite are left out.

    Args:
        series: by name; from the 29th line on, colours and dashes repeat.
        x: the horizontal axis.
        y: the vertical axis.
        alt: a text alternative to the plot, for screen readers.
        marks: thin lines with names.
    """
    drawn = figure(WIDTH_IN, HEIGHT_IN)
    axes = drawn.subplots()
    draw(axes, {name: [point for point in points if all(map(math.isfinite, point))] for name, points in series.items()})
    return _finished(drawn, axes, x, y, alt, marks, named=len(series) > 1)


def stacked(parts: Mapping[str, Sequence[float]], names: Sequence[str], x: Axis, y: Axis, alt: str) -> str:
    """Draw a stacked bar for each of ``names``, of its values in ``parts``."""
    drawn = figure(WIDTH_IN, HEIGHT_IN)
    axes = drawn.subplots()
    below = [0.0] * len(names)
    for number, (name, values) in enumerate(parts.items()):
        axes.bar(range(len(names)), values, 0.72, bottom=below, color=COLOURS[number % len(COLOURS)], label=name, linewidth=0)
        below = [low + value for low, value in zip(below, values, strict=True)]
    # More than 10 names would overlap.
    step = -(-len(names) // 10)
    # Keeps a single bar narrow.
    axes.set_xlim(-0.6, max(len(names), 4) - 0.4)
    axes.set_xticks(range(0, len(names), step), list(names)[::step])
    return _finished(drawn, axes, x, y, alt, (), named=True)


def figures(drawn: Sequence[tuple[str, str]]) -> str:
    """Lay plots out side by side across the page. ``drawn``: pairs of SVG and a caption in plain text."""
    parts = [f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>" for svg, text in drawn]
    return f'<div class="plots">{"".join(parts)}</div>'


def _finished(drawn: Any, axes: Any, x: Axis, y: Axis, alt: str, marks: Sequence[Mark], named: bool) -> str:  # matplotlib's, without types
    for axis, side in ((x, "x"), (y, "y")):
        _set_axis(axes, axis, side)
    for mark in marks:
        _mark(axes, mark)
    plain(axes, grid="y")
    if named:
        handles, names = axes.get_legend_handles_labels()
        legend(drawn, handles, "upper left", max(1, min(4, 72 // (max(map(len, names)) + 6))))
    return as_svg(drawn, alt)


def _set_axis(axes: Any, axis: Axis, side: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415  # an extra, loaded only if needed

    getattr(axes, f"set_{side}label")(axis.label)
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
        drawn = getattr(axes, f"{side}axis")
        low, high = getattr(axes, f"get_{side}lim")()
        drawn.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= FINE_TICKS_RATIO_MAX * low else (1.0,)))
        # 0.1, 10, 1000 instead of powers of ten.
        drawn.set_major_formatter(lambda value, _: f"{value:,g}")
        drawn.set_minor_formatter(NullFormatter())
    if axis.ticks:
        getattr(axes, f"set_{side}ticks")([place for place, _ in axis.ticks], [name for _, name in axis.ticks], minor=False)
        getattr(axes, f"set_{side}ticks")([], minor=True)
    if axis.least is not None or axis.most is not None:
        getattr(axes, f"set_{side}lim")(axis.least, axis.most)


def _mark(axes: Any, mark: Mark) -> None:
    across, where, turned = (
        (axes.axvline, {"xy": (mark.at, 0.02), "xycoords": ("data", "axes fraction"), "xytext": (3, 0)}, 90)
        if mark.upright
        else (axes.axhline, {"xy": (0.01, mark.at), "xycoords": ("axes fraction", "data"), "xytext": (0, 3)}, 0)
    )
    across(mark.at, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate(mark.name, **where, textcoords="offset points", rotation=turned, color=INK, fontsize=8.5, va="bottom")
