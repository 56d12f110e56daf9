"""The table of peers: rows of figures, who leads each, and its forms in Markdown and JSON. Pure."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "ours"
# Ours with adaptive effort, and with a cache of answers.
ADAPTIVE, CACHED = "ours_adaptive", "ours_cached"
# Figures that differ by less count as equal, since the speed of a machine varies within a run.
LEVEL = 0.03
# The rows that docs/internals/peers.md shows, by key.
SUMMARY = (
    "core_ms_short",
    "core_ms_mixed",
    "throughput_mixed",
    "p50_ms_c1",
    "p50_ms_c1_long",
    "p50_ms_at_0.6_of_ours",
    "p99_ms_at_0.6_of_ours",
    "p99_ms_at_0.9_of_ours",
    "slo_load",
    "overload_goodput",
    "core_ms_zipf",
    "throughput_zipf",
    "memory_mib",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure: its name, its unit, and whether higher is better."""

    key: str
    name: str
    unit: str
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of each peer in each round, by name: infinite if nothing was answered, missing if it cannot be measured.

    ``libraries``: the peers that run in process. They take no calls, so ours is not compared with them.
    """

    figure: Figure
    values: Mapping[str, Sequence[float]]
    libraries: Collection[str] = ()

    @property
    def best_other(self) -> str:
        """The other server with the best median; empty if none has the figure."""
        others = (name for name in self.values if name not in (OURS, ADAPTIVE, CACHED, *self.libraries))
        return min(others, key=self.rank, default="")

    @property
    def verdict(self) -> str:
        """``beside`` the best other."""
        return self.beside(self.best_other)

    def beside(self, name: str, ours: str = OURS) -> str:
        """``ahead`` of a server, ``behind`` it, or ``level``: within LEVEL of it, or their rounds overlap. Empty: one lacks the figure."""
        if ours not in self.values or name not in self.values:
            return ""
        own, other = self.values[ours], self.values[name]
        mine, best = statistics.median(own), statistics.median(other)
        overlap = max(min(own), min(other)) <= min(max(own), max(other))
        if overlap or abs(mine - best) <= LEVEL * max(abs(mine), abs(best)) < math.inf:
            return "level"
        return "ahead" if self.rank(ours) < self.rank(name) else "behind"

    def rank(self, name: str) -> float:
        """The median of a peer's rounds; the lower, the better."""
        median = statistics.median(self.values[name])
        return -median if self.figure.higher_is_better else median


def to_markdown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """How often ours is ahead, ours beside the best other with the spread of the rounds, and the medians of all, the best bold.

    The same for ours with adaptive effort, if that was measured.
    """
    others = [name for name in names if any(name in row.values and name not in row.libraries for row in rows)]
    return "\n".join(
        [
            *_beside_others(rows, OURS, others),
            *(_beside_others(rows, ADAPTIVE, others) if ADAPTIVE in others else ()),
            "| medians | " + " | ".join(names) + " |",
            "|---|" + "---:|" * len(names),
            *(f"| {_name(row)} | {' | '.join(_median(row, name) for name in names)} |" for row in rows),
            "",
        ]
    )


def _beside_others(rows: Sequence[Row], ours: str, names: Sequence[str]) -> list[str]:
    """The lines about a server of ours beside the best other one, with the ratio of their medians."""
    servers = [name for name in names if name not in (OURS, ADAPTIVE, CACHED)]
    return [
        f"{ours.capitalize()} is {_counted(row.beside(row.best_other, ours) for row in rows)}.",
        "",
        "Beside each server alone: " + "; ".join(f"{name}: {_counted(row.beside(name, ours) for row in rows)}" for name in servers) + ".",
        "",
        f"| | {ours} | best other server | | ratio | {ours} is |",
        "|---|---:|---:|---|---:|---|",
        *(
            f"| {_name(row)} | {_spread(row, ours)} | {_spread(row, row.best_other)} | {row.best_other} | {_ratio(row, ours)} "
            f"| {row.beside(row.best_other, ours)} |"
            for row in rows
        ),
        "",
    ]


def names_of(meta: Mapping[str, Any]) -> list[str]:
    """The servers of a run: ours, ours with other settings, and the peers."""
    return [OURS, *meta.get("ours", ()), *meta["peers"]]


def to_section(rows: Sequence[Row], meta: Mapping[str, Any]) -> str:
    """A run with its tables and notes, as a section of a page."""
    names = names_of(meta)
    about = f"{meta['at'][:10]}, {meta['rounds']} round{'s' if meta['rounds'] > 1 else ''}, loads of {meta['seconds']:g} s, default bundle."
    notes = "".join(f"- {' '.join(note.split())}\n" for note in meta["notes"])
    return f"### {meta['machine']}\n\n{about} {to_markdown(rows, names)}\n{notes}"


def to_summary(rows: Sequence[Row], meta: Mapping[str, Any]) -> str:
    """A run as a section of a page: how often ours is ahead, and the medians of the rows of SUMMARY. Its JSON has the others."""
    names = names_of(meta)
    about = f"{meta['at'][:10]}, {meta['rounds']} round{'s' if meta['rounds'] > 1 else ''}, loads of {meta['seconds']:g} s."
    lines = [
        f"| medians | {' | '.join(names)} | ours is |",
        "|---|" + "---:|" * len(names) + "---|",
        *(
            f"| {_name(row)} | {' | '.join(_median(row, name) for name in names)} | {row.verdict} |"
            for row in rows
            if row.figure.key in SUMMARY
        ),
    ]
    counted = _counted(row.verdict for row in rows)
    if any(ADAPTIVE in row.values for row in rows):
        counted += f"; with adaptive effort, {_counted(row.beside(row.best_other, ADAPTIVE) for row in rows)}"
    return f"### {meta['machine']}\n\n{about} Beside the best other server, ours is {counted}.\n\n" + "\n".join(lines) + "\n"


def _counted(verdicts: Iterable[str]) -> str:
    count = Counter(verdicts)
    return f"ahead in {count['ahead']} rows, level in {count['level']} and behind in {count['behind']}"


def _name(row: Row) -> str:
    return f"{row.figure.name}, {row.figure.unit}" if row.figure.unit else row.figure.name


def _spread(row: Row, name: str) -> str:
    """The median of the rounds, with the lowest and the highest if there are several."""
    if name not in row.values:
        return "-"
    median, low, high = (_number(pick(row.values[name])) for pick in (statistics.median, min, max))
    return median if low == high else f"{median} ({low} to {high})"


def _ratio(row: Row, ours: str) -> str:
    """The median of ours over that of the best other server."""
    if ours not in row.values or not row.best_other:
        return "-"
    mine, best = statistics.median(row.values[ours]), statistics.median(row.values[row.best_other])
    return _number(mine / best) if best and best < math.inf else "-"


def _median(row: Row, name: str) -> str:
    if name not in row.values:
        return "-"
    text = _number(statistics.median(row.values[name]))
    return f"**{text}**" if row.rank(name) == min(map(row.rank, row.values)) else text


def _number(value: float) -> str:
    """With three significant digits."""
    if not math.isfinite(value):
        return "none"
    digits = 0 if value == 0 or abs(value) >= 100 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def to_json(rows: Iterable[Row], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``{"meta", "rows": [{"key", "name", "unit", "higher_is_better", "values": {peer: [value]}, "libraries", "best_other",
    "verdict"}]}``.

    There is a value for each round; an infinite one is null.
    """
    return {
        "meta": dict(meta),
        "rows": [
            {
                "key": row.figure.key,
                "name": row.figure.name,
                "unit": row.figure.unit,
                "higher_is_better": row.figure.higher_is_better,
                "values": {name: [value if math.isfinite(value) else None for value in rounds] for name, rounds in row.values.items()},
                "libraries": sorted(row.libraries),
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
        found = {name: [math.inf if value is None else value for value in rounds] for name, rounds in each["values"].items()}
        rows.append(Row(figure, found, each.get("libraries", ())))
    return rows, dict(values["meta"])


def write(path: Path, rows: Sequence[Row], meta: Mapping[str, Any]) -> None:
    """The JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(rows, meta), indent=1) + "\n")
