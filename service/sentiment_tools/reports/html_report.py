"""A report as one HTML file with sections of tables and pictures. No scripts and no external resources; for light, dark and print.

Knows nothing about the content.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Right-aligned cells: numbers such as 0.93, -1,204, +0.5 %, 1.2 to 3.4 or 12 ms. A unit has at most 8 characters.
NUMBER = re.compile(r"[-+\u2212]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( to [-+\u2212]?\d[\d,]*(\.\d+)?)?(\s?[%\w/]{1,8})?")

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
body { background: Canvas; color: CanvasText; }
h1 { line-height: 1.2; }
h2 { margin-top: 2.5rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
nav ul { padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
a { color: LinkText; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; overflow-wrap: break-word; }
thead th { border-bottom-width: 2px; vertical-align: bottom; background: var(--soft); }
td:first-child:not(.number) { min-width: 9rem; }
.number { text-align: right; }
.notice { padding: .5rem .8rem; border-left: 4px solid #d55e00; background: var(--soft); }
td.number { white-space: nowrap; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; margin: .5rem 0; }
@media print {
  :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .wide { overflow: visible; }
  tr, img { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
# With this policy the browser blocks any script or resource that a text in the report might inject.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report. ``title`` is plain text. ``html`` is not escaped, so build it with the functions of this module."""

    title: str
    html: str


def page(title: str, sections: Sequence[Section], style: str = "") -> str:
    """Return a whole HTML document with the sections in order, and links to them if there are at least three.

    ``style``: additional CSS rules for the sections.
    """
    links = "".join(f'<li><a href="#s{number}">{html.escape(section.title)}</a></li>' for number, section in enumerate(sections, 1))
    parts = [
        f'<section id="s{number}">\n<h2>{html.escape(section.title)}</h2>\n{section.html}\n</section>'
        for number, section in enumerate(sections, 1)
    ]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}{style}</style>",
        "</head>",
        "<body>",
        f"<h1>{html.escape(title)}</h1>",
        *([f"<nav><ul>{links}</ul></nav>"] if len(sections) >= 3 else []),
        *parts,
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows of cells as an HTML table. Everything is escaped; columns of numbers are right-aligned.

    An int gets thousands separators, a float 4 decimals, and None is empty; pass text for any other format. Text that is a number with
    a unit, such as 12.5 % or 3 ms, counts as a number.

    Raises:
        ValueError: a row has another number of cells than the header.
    """
    cells, numeric = _laid_out(header, rows)
    classes = [' class="number"' if right else "" for right in numeric]
    head = "".join(f'<th scope="col"{kind}>{html.escape(name)}</th>' for name, kind in zip(header, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{html.escape(cell)}</td>" for cell, kind in zip(row, classes, strict=True)) + "</tr>" for row in cells
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def plain(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out the same table for a terminal.

    Raises:
        ValueError: a row has another number of cells than the header.
    """
    cells, numeric = _laid_out(header, rows)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    for row in (list(header), *cells):
        padded = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out the same table in Markdown. Vertical bars and tags of HTML in a cell are escaped; a line break becomes a space.

    Raises:
        ValueError: a row has another number of cells than the header.
    """
    cells, numeric = _laid_out(header, rows)
    lines = [list(header), ["---:" if right else "---" for right in numeric], *cells]
    return "\n".join("| " + " | ".join(" ".join(without_tags(cell.replace("|", "\\|")).split()) for cell in line) + " |" for line in lines)


def without_tags(text: str) -> str:
    r"""Escape what a reader of Markdown takes for tags of HTML.

    >>> without_tags("<b>5 < 6")
    '\\<b>5 < 6'
    """
    # Backslashes before it are doubled, or they would escape ours.
    return re.sub(r"(\\*)<(?=[A-Za-z/!?])", r"\1\1\\<", text)


def paragraph(text: str) -> str:
    """Return a paragraph of plain text, escaped."""
    return f"<p>{html.escape(text)}</p>"


def notice(text: str) -> str:
    """Return a highlighted paragraph of plain text, escaped."""
    return f'<p class="notice">{html.escape(text)}</p>'


def _laid_out(header: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[list[list[str]], list[bool]]:
    """The cells as text, and which columns have only numbers."""
    cells = [[_cell(value) for value in row] for row in rows]
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells; the header has {len(header)}")
    columns = [[row[index] for row in cells] for index in range(len(header))]
    return cells, [any(column) and all(not cell or NUMBER.fullmatch(cell) for cell in column) for column in columns]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
