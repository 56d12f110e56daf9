"""What was found as text, as JSON and as one self-contained HTML file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentiment.observability.drift import ABOVE, TEXTS_MIN
from sentiment.observability.expected_accuracy import DRIFT, FEW_TEXTS, LIKE_TEXTS_MIN, NO_REFERENCE
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.html_report import Section, notice, page, paragraph, plain, table
from sentiment_tools.reports.plot_style import STYLE
from sentiment_tools.reports.svg_plots import Axis, Mark
from sentiment_tools.watch.counts import LARGE_INDEX, OF_TEXTS, Counts, Shift, Watch
from sentiment_tools.watch.reference import GIVEN

VALUE, SHIFT = ("", "value"), ("signal", "PSI", "by chance up to", "")
WINDOW = ("from text", "from (UTC)", "texts", "expected accuracy", "95 % interval", "measured", "labelled", "largest PSI", "drifted")
TICKS_MAX = 6
_WITHHELD = {
    DRIFT: "withheld: drifted",
    FEW_TEXTS: f"withheld: fewer than {LIKE_TEXTS_MIN} texts",
    NO_REFERENCE: "withheld: no reference",
}
# Names of the numbers on axes and in sentences.
TITLES = {
    "score": "probability of the label, up to",
    "tokens": "tokens of a text, up to",
    "unknown": "share of unknown tokens, up to",
    "fragments": "share of fragments among the first words, up to",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What was found. ``facts``: what was read, by name; ``error``: the bundle's recorded error of the expected accuracy, or NaN.

    ``signals``: those that are known of the texts, whether or not the reference has them. ``notes``: what was left out, as sentences.
    """

    facts: Mapping[str, str]
    watch: Watch
    signals: Sequence[str]
    error: float
    notes: Sequence[str]

    @property
    def shifts(self) -> list[Shift]:
        """The drift of all texts together. See ``Watch.shifts``."""
        return self.watch.shifts(self.watch.whole)


def text_of(found: Found) -> str:
    """For a terminal."""
    parts = ["\n".join(f"{name}: {value}" for name, value in found.facts.items() if name != "command"), plain(VALUE, _values(found))]
    if found.shifts:
        parts.append(plain(SHIFT, _shift_rows(found.shifts)))
    return "\n\n".join([*parts, "\n".join([*_verdict(found), *(f"note: {note}" for note in found.notes)])])


def json_of(found: Found) -> dict[str, Any]:  # JSON
    """All figures. Numbers that are not known are null."""
    watch = found.watch

    def counts_of(counts: Counts) -> dict[str, Any]:  # JSON
        mean, low, high = watch.expected(counts)
        labels, abstained, *_ = counts.bins
        row = {
            "since": counts.since or None,
            "texts": counts.texts,
            "labels": dict(zip(watch.signals[0].bins, labels, strict=True)),
            "abstained": abstained[1],
            "tokens": counts.tokens,
            "truncated": counts.truncated,
            "unknown_tokens": counts.unknown if "unknown" in found.signals else None,
            "foreign": counts.foreign if "fragments" in found.signals else None,
            "expected_accuracy": mean,
            "expected_accuracy_low": low,
            "expected_accuracy_high": high,
            "expected_accuracy_texts": counts.decided,
            "expected_accuracy_withheld": watch.withheld(counts) or None,
            "measured_accuracy": counts.measured,
            "measured_accuracy_texts": counts.labelled,
            "nearest": dict(fit.shares) if (fit := watch.fit(counts)) else None,
            "drift": {shift.signal: shift.index for shift in watch.shifts(counts)},
            "drift_threshold": {shift.signal: shift.chance for shift in watch.shifts(counts)},
            "drifted": [shift.signal for shift in watch.shifts(counts) if shift.drifted],
            "signal_texts": {
                signal.name: dict(zip(signal.bins, bins, strict=True)) for signal, bins in zip(watch.signals, counts.bins, strict=True)
            },
        }
        return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}

    references = {
        name: {signal.name: dict(zip(signal.bins, signal.counts[name], strict=True)) for signal in watch.signals}
        for name in watch.signals[0].counts
    }
    return {
        "meta": dict(found.facts),
        "notes": list(found.notes),
        "expected_accuracy_error": None if math.isnan(found.error) else found.error,
        "whole": counts_of(watch.whole),
        "window_texts": watch.window_texts,
        "windows": [counts_of(window) for window in watch.windows],
        "references": references,
    }


def html_of(found: Found) -> str:
    """The report as an HTML document."""
    watch = found.watch
    verdict = "".join(map(notice if any(shift.drifted for shift in found.shifts) else paragraph, _verdict(found)))
    drift = table(SHIFT, _shift_rows(found.shifts)) if found.shifts else ""
    sections = [
        Section("In short", verdict + table(VALUE, _values(found)) + drift + "".join(map(paragraph, found.notes))),
        *([Section("Over the texts", svg_plots.figures(_over_texts(found)))] if len(watch.windows) > 1 else []),
        Section("Distributions", svg_plots.figures(_distributions(watch))),
        *([Section("Windows", table(WINDOW, _window_rows(watch)))] if len(watch.windows) > 1 else []),
        Section("What was read", table(("", "this run"), list(found.facts.items()))),
    ]
    return page("What the model answers", sections, STYLE)


def _values(found: Found) -> list[tuple[str, str]]:
    whole, watch = found.watch.whole, found.watch
    texts = whole.texts
    labels, abstained, *_ = whole.bins
    rows = [
        ("texts", f"{texts:,}"),
        *((f"label {name}", _percent(count, texts)) for name, count in zip(watch.signals[0].bins, labels, strict=True)),
        ("abstained", _percent(abstained[1], texts)),
        ("expected accuracy, without abstained", _WITHHELD.get(watch.withheld(whole)) or _number(watch.expected(whole)[0])),
        ("  95 % interval", _interval(watch, whole)),
    ]
    if not math.isnan(found.error):
        rows.append(("  largest error on recorded data sets", _number(found.error)))
    if whole.labelled:
        rows.append((f"measured accuracy, of {whole.labelled:,} labelled", _number(whole.measured)))
    rows += [("tokens of a text", f"{whole.tokens / texts:.1f}"), ("truncated texts", _percent(whole.truncated, texts))]
    if "unknown" in found.signals:
        rows.append(("unknown tokens", _percent(whole.unknown, whole.tokens)))
    if "fragments" in found.signals:
        rows.append(("texts in another language", _percent(whole.foreign, texts)))
    return rows


def _shift_rows(shifts: Sequence[Shift]) -> list[tuple[object, ...]]:
    return [(shift.signal, f"{shift.index:.3f}", f"{shift.chance:.3f}", shift.verdict) for shift in shifts]


def _verdict(found: Found) -> list[str]:
    """Whether the texts drifted, and from where on."""
    watch = found.watch
    if not watch.has_reference:
        return ["Drift is not reported: there is no reference (--reference, or one in the bundle)."]
    if not found.shifts:
        return [f"Drift is not reported: {watch.whole.texts:,} texts; at least {TEXTS_MIN:,} are needed."]
    drifted = [shift.signal for shift in found.shifts if shift.drifted]
    lines = [f"Drifted: {', '.join(drifted)}." if drifted else f"No signal drifted: none has a PSI over {LARGE_INDEX} and above chance."]
    if len(watch.signals[0].counts) > 1 and (fit := watch.fit(watch.whole)):
        lines.append(f"Nearest to: {', '.join(f'{name} {100 * share:.0f} %' for name, share in fit.shares.items() if share >= 0.005)}.")
    first = 1
    for window in watch.windows if len(watch.windows) > 1 else ():
        if moved := [shift for shift in watch.shifts(window) if shift.drifted]:
            largest = max(moved, key=lambda shift: shift.index)
            since = f", since {_minute(window)} UTC" if window.since else ""
            last = first + window.texts - 1
            lines.append(f"First window with drift: texts {first:,} to {last:,}{since}; {largest.signal} {largest.index:.2f}.")
            break
        first += window.texts
    return lines


def _window_rows(watch: Watch) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    first = 1
    for window in watch.windows:
        shifts = watch.shifts(window)
        rows.append(
            (
                first,
                _minute(window),
                window.texts,
                _number(watch.expected(window)[0]),
                _interval(watch, window),
                _number(window.measured),
                window.labelled or None,
                f"{max(shift.index for shift in shifts):.3f}" if shifts else "",
                ", ".join(shift.signal for shift in shifts if shift.drifted),
            )
        )
        first += window.texts
    return rows


def _over_texts(found: Found) -> list[tuple[str, str]]:
    """Plots over the windows, each drawn at its last text. A time is at its window's first text."""
    watch = found.watch
    windows = watch.windows
    ends = [float(sum(window.texts for window in windows[: number + 1])) for number in range(len(windows))]
    timed = bool(windows[0].since)
    shown = range(0, len(windows), -(-len(windows) // TICKS_MAX))
    ticks = [(ends[place] - windows[place].texts, _minute(windows[place])[5:].replace(" ", "\n")) for place in shown] if timed else []
    axis = Axis("start of the window (UTC)" if timed else "last text of a window", ticks=ticks)

    def line(values: Sequence[float]) -> list[tuple[float, float]]:
        return list(zip(ends, values, strict=True))

    expected = [watch.expected(window) for window in windows]
    names = "expected", "95 % interval, low", "95 % interval, high"
    accuracy = {name: line([one[place] for one in expected]) for place, name in enumerate(names)}
    if watch.whole.labelled:
        accuracy["measured"] = line([window.measured for window in windows])
    shares = {
        **{
            f"label {name}": line([100 * window.bins[0][place] / window.texts for window in windows])
            for place, name in enumerate(watch.signals[0].bins)
        },
        "abstained": line([100 * window.bins[1][1] / window.texts for window in windows]),
    }
    drawn = [
        (
            svg_plots.lines(accuracy, axis, Axis("accuracy"), "accuracy over the texts"),
            "Of the answers that do not abstain. Expected: the mean of their probabilities, with what chance alone explains, except where "
            "texts drifted far. Measured: the share of right ones among those whose label is known.",
        ),
        (
            svg_plots.lines(shares, axis, Axis("% of the texts", least=0), "answers over the texts"),
            "The winning label, and how many answers abstain.",
        ),
    ]
    moved = [watch.shifts(window) for window in windows]
    if any(moved):
        drift = {
            signal.name: [(end, shifts[place].index) for end, shifts in zip(ends, moved, strict=True) if shifts]
            for place, signal in enumerate(watch.signals)
        }
        mark = Mark("large", LARGE_INDEX, upright=False)
        caption = "Population stability index against the nearest reference or mixture."
        # With the mark, also where all indexes are far below it.
        most = 1.1 * max(LARGE_INDEX, *(shift.index for shifts in moved for shift in shifts))
        drawn.insert(0, (svg_plots.lines(drift, axis, Axis("PSI", least=0, most=most), "drift over the texts", [mark]), caption))
    return drawn


def _distributions(watch: Watch) -> list[tuple[str, str]]:
    """A plot for each signal that is a number: the share of the texts in each bin, and the reference's."""
    drawn = []
    for signal, bins in zip(watch.signals, watch.whole.bins, strict=True):
        if signal.name not in TITLES:
            continue
        sides = {"these texts": bins, **{_reference(name): counts for name, counts in signal.counts.items()}}
        used = [place for place, both in enumerate(zip(*sides.values(), strict=True)) if any(both)]
        places = range(max(0, used[0] - 1), min(used[-1] + 2, len(bins)))
        step = -(-len(places) // 8)
        ticks = [(float(place), "more" if signal.bins[place] == ABOVE else f"{float(signal.bins[place]):g}") for place in places[::step]]
        series = {
            name: [(float(place), 100 * counts[place] / sum(counts)) for place in places] for name, counts in sides.items() if sum(counts)
        }
        alt = f"distribution of {signal.name}"
        caption = f"Signal {signal.name}: share of the texts in each bin."
        drawn.append((svg_plots.lines(series, Axis(TITLES[signal.name], ticks=ticks), Axis("% of the texts", least=0), alt), caption))
    return drawn


def _reference(name: str) -> str:
    return "reference" if name == GIVEN else f"reference {name}"


def left_out_of(signals: Sequence[str]) -> list[str]:
    """What is not known of the texts, as sentences."""
    names = {"unknown": "unknown tokens", "fragments": "fragments and texts in another language"}
    missing = [names[name] for name in OF_TEXTS if name not in signals]
    return [f"not known: {', '.join(missing)}"] if missing else []


def _minute(counts: Counts) -> str:
    """When the first text came, as 2026-11-26 02:14; empty if unknown."""
    return counts.since[:16].replace("T", " ")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %" if whole else ""


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _interval(watch: Watch, counts: Counts) -> str:
    _, low, high = watch.expected(counts)
    return "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
