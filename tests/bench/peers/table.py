"""The table of peers: rows of figures, who leads each, and its forms in Markdown and JSON. Pure."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "ours"
# Figures that differ by less count as equal, since the speed of a machine varies within a run.
LEVEL = 0.03


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure: its name, its unit, and whether higher is better."""

    key: str
    name: str
    unit: str
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of each peer, by name: infinite if nothing was answered, missing if it cannot be measured."""

    figure: Figure
    values: Mapping[str, float]

    @property
    def best_other(self) -> str:
        """The best of the other peers; empty if none has the figure."""
        others = [name for name in self.values if name != OURS]
        return min(others, key=lambda name: self._rank(self.values[name]), default="")

    @property
    def verdict(self) -> str:
        """``ahead``, ``level`` (within LEVEL of the best other) or ``behind``; empty if there is nothing to compare."""
        if OURS not in self.values or not self.best_other:
            return ""
        ours, best = self.values[OURS], self.values[self.best_other]
        if ours == best or abs(ours - best) <= LEVEL * max(abs(ours), abs(best)) < math.inf:
            return "level"
        return "ahead" if self._rank(ours) < self._rank(best) else "behind"

    def _rank(self, value: float) -> float:
        return -value if self.figure.higher_is_better else value


def to_markdown(rows: Iterable[Row], names: Sequence[str]) -> str:
    """One table; the best value of a row is bold."""
    lines = ["| | " + " | ".join(names) + " | ours is |", "|---|" + "---:|" * len(names) + "---|"]
    for row in rows:
        best = min((row._rank(value) for value in row.values.values()), default=math.nan)
        cells = [_cell(row.values.get(name), bold=name in row.values and row._rank(row.values[name]) == best) for name in names]
        unit = f", {row.figure.unit}" if row.figure.unit else ""
        lines.append(f"| {row.figure.name}{unit} | {' | '.join(cells)} | {row.verdict} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None, *, bold: bool) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "none"
    digits = 0 if value == 0 or abs(value) >= 100 else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return f"**{text}**" if bold else text


def to_json(rows: Iterable[Row], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``{"meta", "rows": [{"key", "name", "unit", "higher_is_better", "values": {peer: value or null}, "best_other", "verdict"}]}``.

    An infinite value is null, one that cannot be measured is missing.
    """
    return {
        "meta": dict(meta),
        "rows": [
            {
                "key": row.figure.key,
                "name": row.figure.name,
                "unit": row.figure.unit,
                "higher_is_better": row.figure.higher_is_better,
                "values": {name: value if math.isfinite(value) else None for name, value in row.values.items()},
                "best_other": row.best_other,
                "verdict": row.verdict,
            }
            for row in rows
        ],
    }


def from_json(values: Mapping[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """Rows and meta, back from ``to_json``."""
    rows = []
    for each in values["rows"]:
        figure = Figure(each["key"], each["name"], each["unit"], each["higher_is_better"])
        rows.append(Row(figure, {name: math.inf if value is None else value for name, value in each["values"].items()}))
    return rows, dict(values["meta"])


def write(path: Path, rows: Sequence[Row], meta: Mapping[str, Any]) -> None:
    """The JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(rows, meta), indent=1) + "\n")
