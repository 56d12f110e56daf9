"""Plots of a study as PNG bytes: erasure by fraction, differences with intervals, heads, agreement of methods. Style: ``plot_style``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from sentiment_models.explanations.findings import (
    ATTENTION,
    ATTRIBUTION,
    BASELINE,
    BOUND,
    CONTROL,
    FRACTIONS,
    KINDS,
    DatasetFound,
    Difference,
    HeadsFound,
)
from sentiment_models.reports.plots import GREY, shaded
from sentiment_tools.reports.plot_style import COLOURS, INK, MARKERS, as_png, figure, legend, plain

# Blue, orange, grey, black; brown is not in the palette.
KIND_COLOURS = {ATTRIBUTION: COLOURS[0], ATTENTION: COLOURS[1], BASELINE: COLOURS[6], BOUND: COLOURS[7], CONTROL: "#8b4513"}
KIND_LINES = {ATTRIBUTION: "-", ATTENTION: "--", BASELINE: ":", BOUND: "-", CONTROL: "-."}
# Baselines are grey and differ by marker; methods of the other kinds have distinct colours within their kind.
GREYS = ("#555555", "#777777", "#999999", "#bbbbbb")
OPERATOR_MARKERS = {"attention_mask": "o", "mask_token": "s", "deletion": "D"}
# Outside the range of a change in probability: the far edge of a shaded area.
FAR = 2.0
SHORT = {"previous": "prev", "punctuation": "punct", "identical_word": "same", "sentence_internal": "sent"}


def by_fraction(found: DatasetFound, operators: Sequence[str]) -> bytes:
    """Draw comprehensiveness and sufficiency by share of words, one row of two plots per operator.

    The shaded area is no better than random orders: below their comprehensiveness, above their sufficiency.
    """
    drawn = figure(12.4, 4.3 * len(operators))
    grid = drawn.subplots(len(operators), 2, sharex=True, squeeze=False)
    for row, operator in zip(grid, operators, strict=True):
        for axes, measure in zip(row, ("comprehensiveness", "sufficiency"), strict=True):
            plain(axes, grid="both")
            _fractions(axes, found, operator, measure)
            better = "higher is better" if measure == "comprehensiveness" else "lower is better"
            axes.set_title(f"{measure} by {operator} ({better})")
            axes.set_ylabel("change of the probability")
        for axes in grid[-1]:
            axes.set_xlabel("share of the words, highest scores first")
    legend(drawn, grid[0][0].get_legend_handles_labels()[0], "right upper")
    return as_png(drawn)


def _fractions(axes: Any, found: DatasetFound, operator: str, measure: str) -> None:  # matplotlib's, which has no types here
    places = np.arange(len(FRACTIONS))
    counts = dict.fromkeys(KIND_COLOURS, 0)
    for name, method in found.methods.items():
        if operator not in method.operators or name == "uniform":
            continue
        one = method.operators[operator]
        values = getattr(one, f"{measure}_by_fraction")
        texts = one.over_random.texts if one.over_random else found.texts
        if name == "random":
            axes.plot(places, values, "-", color=GREY, linewidth=3.5, label=name, zorder=2)
            axes.fill_between(places, values, FAR if measure == "sufficiency" else -FAR, color="#eeeeee", zorder=0, linewidth=0)
            continue
        colour, marker = _style(method.kind, counts[method.kind])
        counts[method.kind] += 1
        width = 1.2 if method.kind == BASELINE else 2.0
        line = KIND_LINES[method.kind]
        label = name if texts == found.texts else f"{name} ({texts} texts)"
        axes.plot(places, values, line, color=colour, marker=marker, markersize=5, linewidth=width, label=label, zorder=3)
    axes.set_ylim(*_limits(found, measure))
    axes.set_xticks(places, [f"{fraction:.0%}" for fraction in FRACTIONS])


def _limits(found: DatasetFound, measure: str) -> tuple[float, float]:
    """Return common axis limits for all methods and operators."""
    every = [one for method in found.methods.values() for one in method.operators.values()]
    shown = [value for one in every for value in getattr(one, f"{measure}_by_fraction")]
    low, high = min(shown), max(shown)
    return low - 0.05 * (high - low) - 1e-3, high + 0.05 * (high - low) + 1e-3


def _style(kind: str, number: int) -> tuple[str, str]:
    if kind == BASELINE:
        return GREYS[number % len(GREYS)], MARKERS[number % len(MARKERS)]
    if kind in (BOUND, CONTROL):
        return KIND_COLOURS[kind], "*" if kind == BOUND else "P"
    # Attributions take colours from the start of the list, attention from its end, without grey and black.
    return (COLOURS[:6] if kind == ATTRIBUTION else COLOURS[5::-1])[number % 6], MARKERS[number % len(MARKERS)]


def forest(rows: Mapping[str, Mapping[str, Difference | None]], x: str, title: str) -> bytes:
    """Draw differences with their intervals, one line per method and one marker per operator; hollow: the interval includes 0.

    Args:
        rows: the differences of each method by operator, from top to bottom; at least one.
        x: label of the horizontal axis.
        title: title of the plot.
    """
    operators = list(dict.fromkeys(operator for row in rows.values() for operator in row))
    drawn = figure(8.2, 1.5 + 0.36 * len(rows))
    axes = drawn.subplots()
    plain(axes, grid="x")
    axes.axvline(0, color=INK, linewidth=1)
    for place, (name, row) in enumerate(rows.items()):
        for number, operator in enumerate(operators):
            one = row.get(operator)
            if one is None:
                continue
            colour = KIND_COLOURS[KINDS.get(name, BASELINE)]
            height = place + 0.3 * ((number + 0.5) / len(operators) - 0.5) * 2
            axes.plot([one.low, one.high], [height, height], color=colour, linewidth=1.6, solid_capstyle="butt")
            filling = colour if one.shown else "white"
            axes.plot([one.mean], [height], OPERATOR_MARKERS[operator], color=colour, markersize=6, markerfacecolor=filling)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(x)
    axes.set_title(title)
    kinds = dict.fromkeys(KINDS.get(name, BASELINE) for name in rows)
    marks = [Line2D([], [], color=INK, marker=OPERATOR_MARKERS[operator], linestyle="", label=operator) for operator in operators]
    marks.append(Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="", label="interval includes 0"))
    marks += [Line2D([], [], color=KIND_COLOURS[kind], linewidth=3, label=kind) for kind in kinds]
    legend(drawn, marks, "lower center", len(marks))
    return as_png(drawn)


def heads_map(found: HeadsFound, title: str) -> bytes:
    """Draw the mean absolute effect of each head (rows: layers), with its most frequent pattern unless that is mixed."""
    effect = np.array(found.effect)
    layers, heads = effect.shape
    drawn = figure(max(5.6, 1.8 + 0.72 * heads), max(3.0, 1.6 + 0.42 * layers))
    axes = drawn.subplots()
    patterns = [["" if pattern == "mixed" else SHORT.get(pattern, pattern) for pattern in row] for row in found.pattern]
    image = shaded(axes, effect, patterns, effect > 0.6 * effect.max(), fontsize=8, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(title)
    drawn.colorbar(image, ax=axes, label="mean absolute effect, logits")
    return as_png(drawn)


def tau_matrix(agreement: Mapping[str, Mapping[str, float]], title: str) -> bytes:
    """Draw the mean rank agreement of each pair of methods, from -1 to 1."""
    names = list(agreement)
    values = np.array([[agreement[first].get(second, np.nan) for second in names] for first in names])
    side = 2.6 + 0.5 * len(names)
    drawn = figure(side + 1.4, side)
    axes = drawn.subplots()
    texts = [[f"{value:.2f}" if np.isfinite(value) else "" for value in row] for row in values]
    image = shaded(axes, values, texts, np.abs(values) > 0.8, fontsize=8, cmap="PuOr_r", vmin=-1, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title)
    drawn.colorbar(image, ax=axes, label="Kendall's tau-b", shrink=0.8)
    return as_png(drawn)
