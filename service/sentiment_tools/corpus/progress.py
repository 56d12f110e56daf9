"""Shows the progress of a corpus as a line on standard error."""

import sys
import time

PROGRESS_AFTER_S = 2.0
# On a terminal the line is overwritten; a log keeps every line.
LOG_EVERY_S = 10.0


class Progress:
    """Shows rows, share done, speed, and estimated time left."""

    def __init__(self, rows_before: int, size: int) -> None:
        self._before = rows_before
        self._size = size
        self._terminal = sys.stderr.isatty()
        self._shown = False
        # Counts from the first rows on: until then, the workers start.
        self._begun_at = self._next_at = 0.0
        self._rows, self._bytes = 0, 0.0

    def show(self, rows: int, bad: int, size: float) -> None:
        """Show rows, rows without answer, and bytes done so far, at most once in a while."""
        now = time.monotonic()
        if rows and not self._begun_at:
            self._begun_at, self._rows, self._bytes = now, rows, size
            self._next_at = now + PROGRESS_AFTER_S
        if not rows or now < self._next_at:
            return
        self._next_at = now + (0 if self._terminal else LOG_EVERY_S)
        seconds = now - self._begun_at
        before = f" ({self._before:,} more from before)" if self._before else ""
        left = f", {_time(seconds * (self._size - size) / (size - self._bytes))} left" if size > self._bytes else ""
        line = f"{rows:,} rows{before}, {bad:,} bad, {size / max(1, self._size):.0%}, {(rows - self._rows) / seconds:,.0f} a second{left}"
        sys.stderr.write(f"\r{line:<100}" if self._terminal else f"{line}\n")
        sys.stderr.flush()
        self._shown = True

    def close(self) -> None:
        """End the line."""
        if self._shown and self._terminal:
            sys.stderr.write("\n")


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
