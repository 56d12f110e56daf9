"""Progress lines of a load test on standard error, and the table at the end."""

import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TextIO

from sentiment.files.progress import every_s
from sentiment_tools.loadtest.results import JUDGED, OK, STAGES, Group, Point, Second

LIMITED = "*"
_LATENCY = ("load", "answered/s", "goodput/s", "in time", "p50", "p90", "p99", "p99.9", "longest", "")
_STAGES = ("load", "tokenize", "queue", "run", "rest", "sent late p99", "client CPU", "sent", "repeated", "not answered")


class Progress:
    """A line of its own for each second on a terminal, else for as many seconds as ``files.progress`` has for a log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = every_s(self._stream)
        self._waiting: list[Second] = []

    def begin(self, load: str, seconds: float) -> None:
        """A load begins."""
        self._waiting.clear()
        self.say(f"holding {load} for {seconds:g} s")

    def second(self, second: Second) -> None:
        """A second has passed."""
        self._waiting.append(second)
        if len(self._waiting) >= self._every:
            self._show()

    def end(self, point: Point) -> None:
        """The load has ended."""
        if self._waiting:
            self._show()
        if point.client_limited:
            self.say(f"{LIMITED} client limited: {point.client_limited}")

    def say(self, line: str) -> None:
        """Print a line. A reader that has gone away does not end the test."""
        with suppress(OSError):
            print(line, file=self._stream, flush=True)

    def _show(self) -> None:
        seen, self._waiting = self._waiting, []
        span = len(seen)
        rates = {name: sum(getattr(second, name) for second in seen) / span for name in ("sent", "in_time", "late", "failed")}
        p50_s = statistics.median(second.p50_s for second in seen)
        p99_s = max(second.p99_s for second in seen)
        self.say(
            f"{seen[-1].at_s + 1:5} s  {rates['sent']:7.0f}/s sent  {rates['in_time']:7.0f} in time  {rates['late']:6.0f} late  "
            f"{rates['failed']:6.0f} failed   p50 {show_s(p50_s)}  p99 {show_s(p99_s)}"
        )


def show_s(seconds: float) -> str:
    """Nine columns of milliseconds or seconds; a dash if nothing was counted."""
    if not seconds:
        return f"{'-':>9}"
    return f"{seconds * 1e3:6.4g} ms" if seconds < 1 else f"{seconds:6.4g} s "


def load_of(point: Point) -> str:
    """A short name of the load."""
    return f"{point.callers} callers" if point.closed_loop else f"{point.offered_per_s:.4g}/s"


def table(points: Sequence[Point]) -> str:
    """Latency and stages of each load, one line each, then server messages, classes and client limits.

    Loads at which the client was the limit are marked.
    """
    lines = [*_aligned([_LATENCY, *map(_latency_row, points)]), "", *_aligned([_STAGES, *map(_stages_row, points)])]
    lines += [f"{code}, for example: {message}" for code, message in sorted(first_messages(points).items())]
    mixed = [point for point in points if len(point.by_class) > 1]
    lines += [_class_line(load_of(point), name, group) for point in mixed for name, group in sorted(point.by_class.items())]
    if limited := [point for point in points if point.client_limited]:
        lines.append(f"{LIMITED} client limited, for example at {load_of(limited[-1])}: {limited[-1].client_limited}")
    return "\n".join(lines)


def first_messages(points: Sequence[Point]) -> dict[str, str]:
    """The first message of the server by outcome."""
    return {code: message for point in reversed(points) for code, message in point.messages.items()}


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Columns to the right but for the last, which is words."""
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for *cells, last in rows:
        yield "  ".join((*(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), last)).rstrip()


def _marked(point: Point) -> str:
    return f"{LIMITED if point.client_limited else ''}{load_of(point)}"


def _latency_row(point: Point) -> tuple[str, ...]:
    found = point.latency.percentiles((50, 90, 99, 99.9))
    seconds = (*found.values(), point.latency.longest_s)
    share = f"{point.share_in_time:.2%}" if point.judged else "-"
    rates = (f"{point.answered_per_s:.1f}", f"{point.goodput_per_s:.1f}", share)
    return (_marked(point), *rates, *(show_s(each).strip() for each in seconds), "")


def _stages_row(point: Point) -> tuple[str, ...]:
    """The server's stages, how late calls were sent, and the outcomes of calls without an answer."""
    stages = (point.stages[name].percentile(50) if name in point.stages else 0.0 for name in STAGES)
    others = ", ".join(f"{count} {code}" for code, count in sorted(point.outcomes.items()) if code != OK)
    lag_s = point.lag.percentile(99)
    return (
        _marked(point),
        *(show_s(each).strip() for each in (*stages, lag_s)),
        f"{point.client_cpu:.0%}",
        str(point.sent),
        f"{point.repeated_share:.1%}",
        others or "none",
    )


def _class_line(load: str, name: str, group: Group) -> str:
    found = group.latency.percentiles((50, 99))
    share = f", {group.in_time / group.sent:.2%} in time" if name in JUDGED and group.sent else ""
    p50, p99 = (show_s(each).strip() for each in found.values())
    return f"{load} {name}: {group.outcomes[OK]} of {group.sent} answered{share}, p50 {p50}, p99 {p99}"
