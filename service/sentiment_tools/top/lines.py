"""The figures as lines of styled text, for a terminal of any size. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest

from sentiment.files.visible import columns, fitted, visible
from sentiment_tools.top.figures import Answers, Figures, Signal

# A text and its style: one of title, head, dim, good, warn, bad, bar, or none.
Span = tuple[str, str]
Line = list[Span]

# From this width on there are two columns, of which the first is as wide as the table of calls.
WIDE = 130
LEFT = 78
GAP = "  "
TITLE = 9
METHODS_MAX, MODELS_MAX, LABELS_MAX, MEMBERS_MAX = 6, 3, 4, 8
# Above this share of a second, a runner or an event loop is a limit.
BUSY = 0.9
# Why a server withholds the expected accuracy, in words.
DRIFT = "drift"
WITHHELD = {"few_texts": "too few texts", "no_reference": "no reference", DRIFT: "drift"}
# An index of drift below it is little, whatever its threshold.
DRIFTED = 0.25
BLOCKS = " ▁▂▃▄▅▆▇█"
STAGES = ("receive", "tokenize", "queue", "plan", "pad", "copy", "run", "score", "send")


@dataclass(frozen=True, slots=True)
class Frame:
    """How large the picture may be. ``blocks``: whether the terminal can show block characters; ``height`` 0: no limit."""

    width: int
    height: int = 0
    blocks: bool = True


def picture(figures: Figures, url: str, now: float, frame: Frame, history: Sequence[Figures] = ()) -> list[Line]:
    """Everything, in at most ``frame.height`` lines; what has no room is left out, the least important first.

    Args:
        figures: what to show.
        url: the page that they come from.
        now: seconds since 1970, for how long the server runs.
        frame: the size.
        history: all figures so far, plotted if there is room: answered texts per second, and the 99th percentile.
    """
    wide = frame.width >= WIDE
    left_width = LEFT if wide else frame.width
    right_width = frame.width - LEFT - len(GAP) if wide else frame.width
    left = [_calls(figures, left_width), _texts(figures, left_width), _queue(figures), _batches(figures, left_width, wide)]
    right = [_machine(figures, wide, right_width, frame.blocks), _devices(figures), _models(figures)]
    right += _answers(figures, wide, right_width, frame.blocks)
    plots = _trend(history, left_width, frame.blocks) if history else []
    head = _head(figures, url, now, frame.width)
    if wide:
        body = _beside(_stacked([*left, plots], True), _stacked(right, True))
    else:
        bodies = [_stacked([*left, *right, plots], True), _stacked([*left, *right, plots], False), _stacked([*left, *right], False)]
        body = next((body for body in bodies if not frame.height or len(head) + len(body) <= frame.height), bodies[-1])
    lines = [*head, *body]
    if frame.height and len(lines) > frame.height:
        hidden = len(lines) - frame.height + 1
        lines = [*lines[: frame.height - 1], [(f"{hidden} more lines: enlarge the window", "dim")]]
    return [_cut(line, frame.width) for line in lines]


def plain(lines: Iterable[Line]) -> str:
    """The lines without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _head(figures: Figures, url: str, now: float, width: int) -> list[Line]:
    up = "" if math.isnan(figures.started_at) else f"up {_age(max(0.0, now - figures.started_at))}"
    parts = [f"sentiment {visible(figures.version)}", visible(url), up, f"last {figures.seconds:.1f} s"]
    if width >= WIDE:
        parts.insert(1, f"onnxruntime {visible(figures.runtime)}")
    first: Line = [("  ".join(filter(None, parts)), "title")]
    if figures.restarted:
        first.append(("  restarted", "warn"))
    return [first, []]


def _calls(figures: Figures, width: int) -> list[Line]:
    objective = f"> {_time(figures.objective_s)}" if not math.isnan(figures.objective_s) else "late"
    head = ["calls/s", "texts/s", "failed/s", "p50", "p99", objective]
    lines = [_titled("calls", (" " * 15 + "".join(name.rjust(9) for name in head), "head"))]
    for calls in figures.calls[:METHODS_MAX]:
        failed = sum(calls.failed.values())
        late = 0.0 if math.isnan(calls.late) else calls.late
        row = _titled(
            "",
            (fitted(visible(calls.method), 15) + _rate(calls.calls).rjust(9) + _rate(calls.texts).rjust(9), ""),
            (_rate(failed).rjust(9), "bad" if failed else "dim"),
            (_time(calls.p50_s).rjust(9) + _time(calls.p99_s).rjust(9), ""),
            (_share(late).rjust(9), "warn" if late > 0.01 else "dim"),
        )
        lines.append(row)
    if len(figures.calls) > METHODS_MAX:
        lines.append(_titled("", (f"{len(figures.calls) - METHODS_MAX} more methods", "dim")))
    if not figures.calls:
        lines.append(_titled("", ("none", "dim")))
    codes: dict[str, float] = {}
    for calls in figures.calls:
        for code, rate in calls.failed.items():
            codes[code] = codes.get(code, 0.0) + rate
    if codes:
        lines.append(_titled("", (_listed("failed/s", codes, width - TITLE), "bad")))
    return lines


def _texts(figures: Figures, width: int) -> list[Line]:
    classes = ", ".join(f"{visible(name)} {_rate(rate)}" for name, rate in figures.classes.items())
    answered = f"answered {_rate(figures.texts)}", "good" if figures.texts else ""
    lines = [_titled("texts/s", answered, (f" ({classes})" if classes else "", ""))]
    refused = sum(figures.refused.values())
    lost = _titled("lost/s", (f"refused {_rate(refused)}", "warn" if refused else "dim"))
    for outcome in ("expired", "cancelled", "failed"):
        rate = figures.outcomes.get(outcome, 0.0)
        lost += [(GAP, ""), (f"{outcome} {_rate(rate)}", ("bad" if outcome == "failed" else "warn") if rate else "dim")]
    lines.append(lost)
    if refused:
        lines.append(_titled("", (_listed("refused", figures.refused, width - TITLE), "warn")))
    if figures.unauthenticated:
        lines.append(_titled("", (f"calls without a valid token {_rate(figures.unauthenticated)}", "warn")))
    return lines


def _queue(figures: Figures) -> list[Line]:
    waits = figures.backlog_s > (figures.objective_s if not math.isnan(figures.objective_s) else math.inf)
    said = f"{_count(figures.queue_rows)} rows, a new one would wait {_time(figures.backlog_s)}"
    line = _titled("queue", (said, "warn" if waits else ""))
    line.append((f"{GAP}demand {_share(figures.demand, 0)}", "warn" if figures.demand > BUSY else ""))
    if figures.explanations > 0:
        line.append((f"{GAP}explanations {_count(figures.explanations)}", ""))
    return [line]


def _batches(figures: Figures, width: int, wide: bool) -> list[Line]:
    said = f"{_rate(figures.batches)}/s"
    if figures.batches:
        said += f" of {figures.rows:.1f} rows, {figures.tokens:,.0f} tokens, {_share(figures.padding)} of them padding"
    lines = [_titled("batches", (said, ""))]
    stages = {stage: figures.stages_s[stage] for stage in STAGES if not math.isnan(figures.stages_s.get(stage, math.nan))}
    if stages:
        shown = stages if wide else {stage: stages[stage] for stage in ("tokenize", "queue", "run") if stage in stages}
        for text in _flowed([f"{stage} {_time(spent)}" for stage, spent in shown.items()], width - TITLE):
            lines.append(_titled("stages" if len(lines) == 1 else "", (text, "")))
    return lines


def _machine(figures: Figures, wide: bool, width: int, blocks: bool) -> list[Line]:
    first = _titled("cpu", (f"{figures.cores:.2f} cores" if not math.isnan(figures.cores) else "-", ""))
    if not math.isnan(figures.memory_bytes):
        first.append((f"{GAP}memory {_bytes(figures.memory_bytes)}", ""))
    lines = [first]
    for title, members in (("runners", figures.runners), ("loops", figures.loops)):
        shown = list(members.items())[:MEMBERS_MAX]
        bar = 10 if wide and len(shown) * 25 <= width - TITLE else 0
        line = _titled(title)
        for name, busy in shown:
            line += [
                (f"{visible(name)} ", ""),
                *([(_bar(busy, bar, blocks) + " ", "bar")] if bar else []),
                (f"{_share(busy, 0)}{GAP}", "warn" if busy > BUSY else ""),
            ]
        if len(members) > MEMBERS_MAX:
            line.append((f"{len(members) - MEMBERS_MAX} more", "dim"))
        if shown and (title == "runners" or wide):
            lines.append(line)
        elif shown:
            first.append((f"{GAP}busiest event loop {_share(max(members.values()), 0)}", "warn" if max(members.values()) > BUSY else ""))
    return lines


def _devices(figures: Figures) -> list[Line]:
    return [
        _titled(
            "" if number else "gpu",
            (f"{visible(name)} {_share(busy, 0)} busy{GAP}{_bytes(used)} in use", "warn" if busy > BUSY else ""),
        )
        for number, (name, (busy, used)) in enumerate(list(figures.devices.items())[:MEMBERS_MAX])
    ]


def _models(figures: Figures) -> list[Line]:
    lines: list[Line] = []
    for number, labels in enumerate(figures.models[:MODELS_MAX]):
        provider = labels.get("provider", "").removesuffix("ExecutionProvider")
        said = "  ".join([labels.get("model", ""), labels.get("precision", ""), provider, labels.get("digest", "")[:12]])
        lines.append(_titled("" if number else "serves", (visible(said), "")))
    if len(figures.models) > MODELS_MAX:
        lines.append(_titled("", (f"{len(figures.models) - MODELS_MAX} more models", "dim")))
    return lines or [_titled("serves", ("no model", "warn"))]


def _answers(figures: Figures, wide: bool, width: int, blocks: bool) -> list[list[Line]]:
    return [
        _of_one(answers, wide, width, blocks, f"last {_age(figures.answers_s)}")
        for answers in sorted(figures.answers, key=lambda answers: -sum(answers.labels.values()))[:MODELS_MAX]
    ]


def _of_one(answers: Answers, wide: bool, width: int, blocks: bool, span: str) -> list[Line]:
    texts = sum(answers.labels.values())
    lines = [_titled("answers", (f"{visible(answers.model)}, {_count(texts)} texts in the {span}", ""))]
    if texts:
        shares = sorted(answers.labels.items(), key=lambda item: -item[1])
        if wide:
            for label, count in shares[:LABELS_MAX]:
                bar = _bar(count / texts, width - TITLE - 24, blocks)
                lines.append(_titled("", (f"{fitted(visible(label), 14)} {_share(count / texts).rjust(7)} ", ""), (bar, "bar")))
            lines.append(_titled("", (f"{'abstain'.ljust(14)} {_share(answers.abstained / texts).rjust(7)}", "")))
        else:
            shown = GAP.join(
                f"{fitted(visible(label), min(12, columns(visible(label))))} {_share(count / texts)}" for label, count in shares[:3]
            )
            lines.append(_titled("", (f"{shown}{GAP}abstain {_share(answers.abstained / texts)}", "")))
    if not math.isnan(answers.expected):
        parts = [
            f"expected accuracy {answers.expected:.3f} ({answers.low:.3f} to {answers.high:.3f})",
            f"{_count(answers.expected_texts)} texts",
        ]
        lines += _indented(parts, width)
    elif answers.withheld and answers.expected_texts:
        reason = WITHHELD.get(answers.withheld, visible(answers.withheld))
        style = "warn" if answers.withheld == DRIFT else "dim"
        lines += _indented([f"expected accuracy withheld: {reason}", f"{_count(answers.expected_texts)} texts"], width, style)
    if not math.isnan(answers.measured):
        lines += _indented([f"measured accuracy {answers.measured:.3f}", f"{_count(answers.measured_texts)} texts with feedback"], width)
    lines += _drift(answers.drift, answers.drift_texts, wide, width)
    return [*lines, *_drift(answers.hidden, answers.hidden_texts, False, width)]


def _drift(signals: Sequence[Signal], of_texts: float, wide: bool, width: int) -> list[Line]:
    """The largest index, and with room all; in the style of a warning if it is not little."""
    if not signals:
        return []
    known = sorted((signal for signal in signals if not math.isnan(signal.index)), key=lambda signal: -signal.index)
    texts = f"{_count(of_texts)} texts"
    if not known:
        return _indented([f"drift: too few texts yet, {texts}"], width, "dim")
    beyond = any(signal.index > max(signal.threshold, DRIFTED) for signal in known)
    first = f"drift {known[0].index:.2f} of {visible(known[0].name)} (threshold {known[0].threshold:.2f})"
    others = [f"{visible(signal.name)} {signal.index:.2f}" for signal in known[1:]] if wide else []
    return _indented([first, *others, texts], width, "warn" if beyond else "")


def _titled(title: str, *spans: Span) -> Line:
    """A line of a section, whose first line has its title."""
    return [(title.ljust(TITLE), "title"), *spans]


def _indented(parts: Sequence[str], width: int, style: str = "") -> list[Line]:
    return [_titled("", (text, style)) for text in _flowed(parts, width - TITLE)]


def _trend(points: Sequence[Figures], width: int, blocks: bool) -> list[Line]:
    room = width - 2 * TITLE - 13
    lines: list[Line] = []
    for name, values, shown in (
        ("texts/s", [point.texts for point in points[-room:]], _rate),
        ("p99", [point.p99_s for point in points[-room:]], _time),
    ):
        top = max((value for value in values if math.isfinite(value)), default=math.nan)
        plot = _plot(values, top, blocks), "bar"
        lines.append(_titled("" if lines else "trend", (name.ljust(TITLE), ""), plot, (f" max {shown(top)}", "dim")))
    return lines


def _plot(values: Sequence[float], top: float, blocks: bool) -> str:
    signs = BLOCKS if blocks else " .:-=+*#"
    steps = len(signs) - 1
    return "".join(
        # NaN is above nothing.
        signs[max(1, round(min(value, top) / top * steps))] if value * top > 0 else signs[0]
        for value in values
    )


def _bar(share: float, width: int, blocks: bool) -> str:
    filled = 0 if math.isnan(share) else round(min(1.0, share) * width)
    return ("█" if blocks else "#") * filled + ("░" if blocks else ".") * (width - filled)


def _stacked(sections: Sequence[list[Line]], apart: bool) -> list[Line]:
    """The sections one below the other, with an empty line between them if ``apart``."""
    lines: list[Line] = []
    for section in filter(None, sections):
        if lines and apart:
            lines.append([])
        lines += section
    return lines


def _beside(left: list[Line], right: list[Line]) -> list[Line]:
    none: Line = []
    return [[*_filled(one, LEFT), (GAP, ""), *other] for one, other in zip_longest(left, right, fillvalue=none)]


def _filled(line: Line, width: int) -> Line:
    cut = _cut(line, width)
    return [*cut, (" " * (width - sum(columns(text) for text, _ in cut)), "")]


def _cut(line: Line, width: int) -> Line:
    """The line in at most ``width`` columns."""
    left, found = width, []
    for text, style in line:
        if left <= 0:
            break
        shown = text if columns(text) <= left else fitted(text, left) if left > 3 else "." * left
        found.append((shown, style))
        left -= columns(shown)
    return found


def _listed(what: str, rates: Mapping[str, float], width: int) -> str:
    """The largest rates for which there is room, and how many there are besides."""
    known = [f"{visible(name)} {_rate(rate)}" for name, rate in sorted(rates.items(), key=lambda item: -item[1]) if rate]
    for shown in range(len(known), 0, -1):
        left = len(known) - shown
        said = f"{what}: {', '.join(known[:shown])}" + (f", {left} more" if left else "")
        if columns(said) <= width:
            return said
    return what


def _flowed(parts: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and columns(lines[-1]) + columns(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def _rate(value: float) -> str:
    if math.isnan(value):
        return "-"
    if value < 10:
        return f"{value:.2f}" if value else "0"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def _share(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "> 60 s"
    if not seconds:
        return "0 ms"
    if seconds < 1:
        milliseconds = seconds * 1e3
        return f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 100 else 0}f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _age(seconds: float) -> str:
    whole = timedelta(seconds=round(seconds))
    hours, rest = divmod(whole.seconds, 3600)
    minutes, left = divmod(rest, 60)
    if whole.days:
        return f"{whole.days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.1f} {unit}" if unit == "GB" else f"{value / size:.0f} {unit}"
    return "-" if math.isnan(value) else f"{value / 1e3:.0f} kB"
