"""Work by deadline: what must be done by when, and which instants that leaves tight. Pure."""

from array import array
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Demand:
    """Seconds of work by deadline. Rows that share a deadline, as those of a batch call do, are one entry."""

    def __init__(self) -> None:
        self._deadlines = array("d")
        self._work = array("d")
        self._rows = array("L")
        # The dearest row of each entry; while an entry lives it is not lowered again.
        self._dearest = array("d")
        self.total_s = 0.0
        self._curve: tuple[Times, Times, Times] | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def first_at(self) -> float:
        """The earliest deadline; there must be one."""
        return self._deadlines[0]

    def add(self, deadline_at: float, work_s: float, alone_s: float) -> None:
        """A row waits that is ``work_s`` seconds of work among others and ``alone_s`` alone."""
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
        """A row that was added waits no more."""
        self._curve = None
        place = bisect_left(self._deadlines, deadline_at)
        assert place < len(self._deadlines) and self._deadlines[place] == deadline_at, "removed a row that was not added"
        self._rows[place] -= 1
        self._work[place] -= work_s
        self.total_s -= work_s
        if not self._rows[place]:
            del self._deadlines[place], self._work[place], self._rows[place], self._dearest[place]
        if not self._deadlines:
            # What rounding has left over.
            self.total_s = 0.0

    def curve(self) -> tuple[Times, Times, Times]:
        """Deadlines in order, the seconds of work due by each, and those of the dearest row of each, alone."""
        if self._curve is None:
            # Copied: a view would keep the arrays from growing.
            self._curve = np.array(self._deadlines), np.cumsum(np.array(self._work)), np.array(self._dearest)
        return self._curve
