"""How every plot looks, and its two forms: SVG inside an HTML page, whose style sheet colours it for light and dark, and PNG.

Equal input gives equal output. Does not use matplotlib's global state (no pyplot), so any thread may draw. The colours are those of Okabe
and Ito, which people with any kind of colour vision can distinguish; lines also differ in dash and marker. Knows nothing about the data.
"""

import io
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

# (light, dark): for dark pages, the dark colours of Okabe and Ito are lightened to the same contrast.
PALETTE = (
    ("#0072b2", "#5bb4ec"),
    ("#d55e00", "#f58a3c"),
    ("#009e73", "#2cc99c"),
    ("#cc79a7", "#e29cc4"),
    ("#e69f00", "#f0b93a"),
    ("#56b4e9", "#8fd0f5"),
    ("#777777", "#a8a8a8"),
    ("#101010", "#f4f4f4"),
)
COLOURS = tuple(light for light, _ in PALETTE)
INK, SOFT = "#222222", "#dddddd"
"""The colours of text, and of the lines behind the data. In a page they are its own."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "X", "P")
# A line with more points has no markers.
MARKED_MAX = 20
DPI = 120
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

STYLE = (
    ":root { "
    + " ".join(f"--series-{number}: light-dark({light}, {dark});" for number, (light, dark) in enumerate(PALETTE))
    + """ }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem 1.5rem; margin: 1rem 0; }
.plots figure { margin: 0; min-width: 0; }
.plots svg { display: block; width: 100%; max-width: 36rem; height: auto; }
.plots svg text { font-family: system-ui, sans-serif !important; paint-order: stroke; stroke: Canvas; stroke-width: 3px; }
.plots figcaption { font-size: .88rem; max-width: 36rem; }
"""
)
"""The additional style of a page with SVG plots."""

Series = Mapping[str, Sequence[tuple[float, float]]]
"""The points (x, y) of each line, by name."""


def figure(width: float, height: float) -> Any:  # matplotlib's, which has no types here
    """Return an empty white figure with a constrained layout; sizes in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra, loaded only if needed

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def plain(axes: Any, grid: str = "") -> None:  # as above
    """Apply the common style to axes. ``grid``: lines behind the data at the ticks of ``x``, ``y`` or ``both``; empty: none."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(INK)
    axes.tick_params(which="both", color=INK, labelcolor=INK)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
    axes.title.set_fontsize(11)
    if grid:
        axes.grid(axis=grid, color=SOFT, linewidth=0.8)
        axes.set_axisbelow(True)


def draw(axes: Any, series: Series) -> None:  # as above
    """Draw a line through the points of each series."""
    for number, (name, points) in enumerate(series.items()):
        dash = LINES[(number // len(COLOURS) if len(series) > len(COLOURS) else number) % len(LINES)]
        marker = MARKERS[number % len(MARKERS)] if len(points) <= MARKED_MAX else None
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        axes.plot(xs, ys, dash, color=COLOURS[number % len(COLOURS)], marker=marker, markersize=4.5, linewidth=1.7, label=name)


def legend(drawn: Any, handles: Sequence[Any], place: str, columns: int = 1) -> None:  # as above
    """Name the lines outside of the axes of a figure: at ``upper left``, ``lower center`` or ``right upper``."""
    drawn.legend(
        handles=handles,
        loc=f"outside {place}",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.4,
        columnspacing=1.2,
    )


def as_png(drawn: Any) -> bytes:  # as above
    """Render a figure as PNG bytes."""
    stream = io.BytesIO()
    # Without metadata, which would contain the library's version.
    drawn.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def as_svg(drawn: Any, alt: str) -> str:  # as above
    """Render a figure as an element of a page with STYLE: without ids that could clash, with an aria-label."""
    import matplotlib as mpl  # noqa: PLC0415  # an extra, loaded only if needed

    stream = io.StringIO()
    # Text remains text, in the font of the page. The salt keeps the ids of two plots on one page distinct.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": alt}):
        drawn.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(stream.getvalue())  # noqa: S314  # written by matplotlib just now
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    text = ET.tostring(root, encoding="unicode")
    for number, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--series-{number})")
    return text.replace(INK, "currentColor").replace(SOFT, "var(--line)")
