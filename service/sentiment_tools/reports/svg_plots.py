"""Plots as inline SVG for an HTML page, whose style sheet sets their colours for light and dark. Equal input gives equal output.

Needs the ``plots`` extra. Does not use matplotlib's global state (no pyplot). The colours are those of Okabe and Ito, which people with
any kind of colour vision can distinguish; lines also differ in dash and marker. Knows nothing about the data.
"""

import html
import importlib.util
import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentiment.errors import BadSettings

# (light, dark): for dark pages, the dark colours of Okabe and Ito are lightened to the same contrast.
COLOURS = (
    ("#0072b2", "#5bb4ec"),
    ("#d55e00", "#f58a3c"),
    ("#009e73", "#2cc99c"),
    ("#cc79a7", "#e29cc4"),
    ("#e69f00", "#f0b93a"),
    ("#56b4e9", "#8fd0f5"),
    ("#777777", "#a8a8a8"),
    ("#101010", "#f4f4f4"),
)
INK, SOFT = "#010203", "#040506"
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "X", "P")
# A line with more points has no markers.
MARKED_MAX = 20
# A log axis has ticks at 2 and 5 as well if its ends differ by at most this factor.
FINE_TICKS_RATIO_MAX = 100
WIDTH_IN, HEIGHT_IN = 5.2, 3.6
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

STYLE = (
    ":root { "
    + " ".join(f"--series-{number}: light-dark({light}, {dark});" for number, (light, dark) in enumerate(COLOURS))
    + """ }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem 1.5rem; margin: 1rem 0; }
.plots figure { margin: 0; min-width: 0; }
.plots svg { display: block; width: 100%; max-width: 36rem; height: auto; }
.plots svg text { font-family: system-ui, sans-serif !important; paint-order: stroke; stroke: Canvas; stroke-width: 3px; }
.plots figcaption { font-size: .88rem; max-width: 36rem; }
"""
)
"""The additional style of a page with plots."""

Points = Sequence[tuple[float, float]]


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


def lines(series: Mapping[str, Points], x: Axis, y: Axis, alt: str, marks: Sequence[Mark] = ()) -> str:
    """Draw a line through the points of each series. Points that are not finite are left out.

    Args:
        series: at most 28 lines, by name.
        x: the horizontal axis.
        y: the vertical axis.
        alt: a text alternative to the plot, for screen readers.
        marks: thin lines with names.
    """

    def draw(axes: Any) -> None:  # matplotlib's, which has no types here
        for number, (name, points) in enumerate(series.items()):
            finite = [point for point in points if all(map(math.isfinite, point))]
            style = LINES[number // len(COLOURS) % len(LINES)] if len(series) > len(COLOURS) else LINES[number % len(LINES)]
            marker = MARKERS[number % len(MARKERS)] if len(finite) <= MARKED_MAX else None
            xs, ys = [point[0] for point in finite], [point[1] for point in finite]
            axes.plot(xs, ys, style, color=_colour(number), marker=marker, markersize=4, linewidth=1.6, label=name)

    return _drawn(draw, x, y, alt, marks, named=len(series) > 1)


def stacked(parts: Mapping[str, Sequence[float]], names: Sequence[str], x: Axis, y: Axis, alt: str) -> str:
    """Draw a stacked bar for each of ``names``, of its values in ``parts``."""

    def draw(axes: Any) -> None:  # matplotlib's, which has no types here
        places = range(len(names))
        below = [0.0] * len(names)
        for number, (name, values) in enumerate(parts.items()):
            axes.bar(places, values, 0.72, bottom=below, color=_colour(number), label=name, linewidth=0)
            below = [low + value for low, value in zip(below, values, strict=True)]
        # More than 10 names would overlap.
        step = -(-len(names) // 10)
        # Keeps a single bar narrow.
        axes.set_xlim(-0.6, max(len(names), 4) - 0.4)
        axes.set_xticks(list(places)[::step], list(names)[::step])

    return _drawn(draw, x, y, alt, (), named=True)


def figures(drawn: Sequence[tuple[str, str]]) -> str:
    """Lay plots out side by side across the page. ``drawn``: pairs of SVG and a caption in plain text."""
    parts = [f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>" for svg, text in drawn]
    return f'<div class="plots">{"".join(parts)}</div>'


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)][0]


def _drawn(draw: Callable[[Any], None], x: Axis, y: Axis, alt: str, marks: Sequence[Mark], named: bool) -> str:
    import matplotlib as mpl  # noqa: PLC0415  # an extra, loaded only if needed
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  # as above
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above

    # Text remains text, in the font of the page. The salt keeps the ids of two plots on one page distinct.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": alt, "font.size": 10}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        draw(axes)
        for axis, side in ((x, "x"), (y, "y")):
            _set_axis(axes, axis, side)
        for mark in marks:
            _mark(axes, mark)
        _plain(axes)
        if named:
            handles, names = axes.get_legend_handles_labels()
            columns = max(1, min(4, 72 // (max(map(len, names)) + 6)))
            figure.legend(
                handles,
                names,
                loc="outside upper left",
                ncols=columns,
                frameon=False,
                fontsize=9,
                labelcolor=INK,
                handlelength=2.4,
                columnspacing=1.2,
            )
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(stream.getvalue(), alt)


def _set_axis(axes: Any, axis: Axis, side: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415  # as below

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
    if mark.upright:
        axes.axvline(mark.at, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        where, turned = {"xy": (mark.at, 0.02), "xycoords": ("data", "axes fraction"), "xytext": (3, 0)}, 90
    else:
        axes.axhline(mark.at, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        where, turned = {"xy": (0.01, mark.at), "xycoords": ("axes fraction", "data"), "xytext": (0, 3)}, 0
    axes.annotate(mark.name, **where, textcoords="offset points", rotation=turned, color=INK, fontsize=8.5, va="bottom")


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(INK)
    axes.tick_params(which="both", color=INK, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=SOFT, linewidth=0.7)


def _inline(document: str, alt: str) -> str:
    """The SVG as an element of a page: without ids that could clash, with the colours of the page's style sheet and an aria-label."""
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(document)  # noqa: S314  # written by matplotlib just now
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    text = ET.tostring(root, encoding="unicode")
    for number, (light, _) in enumerate(COLOURS):
        text = text.replace(light, f"var(--series-{number})")
    return text.replace(INK, "currentColor").replace(SOFT, "var(--line)")
