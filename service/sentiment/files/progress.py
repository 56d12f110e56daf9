"""The progress of long work on standard error: on a terminal a line that is rewritten each second, in a log a new one every 10 seconds."""

import math
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from sentiment.files.visible import fitted

# No progress is shown for work that ends sooner.
AFTER_S = 2.0
TERMINAL_EVERY_S, LOG_EVERY_S = 1, 10
# Of a terminal that does not know its size.
COLUMNS = 80


def every_s(stream: TextIO) -> int:
    """How often, in seconds, progress is shown on a stream."""
    return TERMINAL_EVERY_S if stream.isatty() else LOG_EVERY_S


class Progress:
    """A line about work that begins now. ``line`` makes it of the seconds since then. ``shown``: False to show nothing."""

    def __init__(self, line: Callable[[float], str], shown: bool = True) -> None:
        self._line = line
        self._begun_at = time.monotonic()
        self._next_at = self._begun_at + AFTER_S if shown else math.inf
        self._shown = False

    def show(self) -> None:
        """Show the line, unless it was shown a moment ago."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + every_s(sys.stderr)
            self._shown = True
            self._write("" if sys.stderr.isatty() else "\n")

    def close(self) -> None:
        """Show the end, if there was a line before."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        line = self._line(max(1e-9, time.monotonic() - self._begun_at))
        if sys.stderr.isatty():
            # In the last column some terminals begin the next line already.
            line = "\r" + fitted(line, (os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS) - 1)
        sys.stderr.write(line + end)
        sys.stderr.flush()


class TextProgress(Progress):
    """Counts texts. ``before``: texts that an earlier run has processed. ``count``: of all; None: unknown, and no time left is shown."""

    def __init__(self, before: int = 0, shown: bool = True, count: int | None = None) -> None:
        super().__init__(self._of_texts, shown)
        self.texts = 0
        self._before = f" ({before:,} more from before)" if before else ""
        self._to_do = None if count is None else count - before

    def advance(self) -> None:
        """Count a text."""
        self.texts += 1
        self.show()

    def _of_texts(self, seconds: float) -> str:
        if self._to_do is None:
            rate = self.texts / seconds
            return f"{self.texts:,} texts{self._before}, {rate:,.{0 if rate >= 10 else 1}f} a second"
        to_do = self._to_do - self.texts
        left = f", {time_text(seconds * to_do / self.texts)} left" if self.texts and to_do > 0 else ""
        return f"{self.texts:,} of {self._to_do:,} texts{self._before}{left}"


def time_text(seconds: float) -> str:
    """A time in words, to the second."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
