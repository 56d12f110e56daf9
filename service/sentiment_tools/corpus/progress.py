"""The progress of a corpus: rows, share done, speed, and estimated time left."""

from sentiment.files import progress


class Progress:
    """Counts from the first rows on: until then, the workers start."""

    def __init__(self, rows_before: int, size: int) -> None:
        self._before = f" ({rows_before:,} more from before)" if rows_before else ""
        self._size = size
        self._shown: progress.Progress | None = None
        self._first = self._now = (0, 0, 0.0)

    def show(self, rows: int, bad: int, size: float) -> None:
        """Show rows, rows without answer, and bytes done so far, at most once in a while."""
        if not rows:
            return
        self._now = (rows, bad, size)
        if self._shown is None:
            self._shown, self._first = progress.Progress(self._line), self._now
        self._shown.show()

    def close(self) -> None:
        """Show the end."""
        if self._shown:
            self._shown.close()

    def _line(self, seconds: float) -> str:
        (rows, bad, size), (rows_first, _, size_first) = self._now, self._first
        left = f", {progress.time_text(seconds * (self._size - size) / (size - size_first))} left" if self._size > size > size_first else ""
        rate = f"{(rows - rows_first) / seconds:,.0f} a second"
        return f"{rows:,} rows{self._before}, {bad:,} bad, {size / max(1, self._size):.0%}, {rate}{left}"
