"""Queued work by deadline: how many seconds of work are due by each instant. Pure."""

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Demand:
    """Seconds of work by deadline. Rows with the same deadline, such as those of one batch call, share an entry."""

    def __init__(self) -> None:
        self._deadlines = array("d")
        self._work = array("d")
        self._rows = array("L")
        # The most expensive row of each entry. It never falls while the entry exists.
        self._dearest = array("d")
        self.total_s = 0.0
        self._curve: tuple[Times, Times, Times] | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def first_at(self) -> float:
        """The earliest deadline. There must be an entry."""
        return self._deadlines[0]

    def add(self, deadline_at: float, work_s: float, alone_s: float) -> None:
        """Add a row that takes ``work_s`` seconds as part of a batch and ``alone_s`` seconds alone."""
        self._curve = None
        place = bisect_left(self._deadlines, deadline_at)
        if place < len(self._deadlines) and self._deadlines[place] == deadline_at:
            self._work[place] += work_s
            self._rows[place] += 1
            self._dearest[place] = max(self._dearest[place], alone_s)
        else:
            self._deadlines.insert(place, deadline_at)
            self._work.insert(place, work_s)
            self._rows.insert(place, 1)
            self._dearest.insert(place, alone_s)
        self.total_s += work_s

    def remove(self, deadline_at: float, work_s: float) -> None:
        """Remove a row that was added before."""
        self._curve = None
        place = bisect_left(self._deadlines, deadline_at)
        assert place < len(self._deadlines) and self._deadlines[place] == deadline_at, "removed a row that was not added"
        self._rows[place] -= 1
        self._work[place] -= work_s
        self.total_s -= work_s
        if not self._rows[place]:
            del self._deadlines[place], self._work[place], self._rows[place], self._dearest[place]
        if not self._deadlines:
            # Exactly 0, without rounding errors.
            self.total_s = 0.0

    def curve(self) -> tuple[Times, Times, Times]:
        """Deadlines in order, the seconds of work due by each, and the seconds that each one's most expensive row takes alone."""
        if self._curve is None:
            # Copied, because a view would prevent the arrays from growing.
            self._curve = np.array(self._deadlines), np.cumsum(np.array(self._work)), np.array(self._dearest)
        return self._curve
