"""What a batch costs: a table of seconds by rows and length, refined by every batch that runs. Pure."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

# Rows and their length; a batch of unlike rows costs like one of that many alike: see ``layout``.
Shape = tuple[int, int]
# The points around a shape with their shares, which sum to 1, and what is added for lying beyond them.
Place = tuple[list[tuple[int, float]], float]

# One batch moves the machine's speed by a twentieth and the table near its shape by a fiftieth: what all shapes have in common
# (a throttled core, a busy neighbour) is learned as speed, what remains as the table.
SPEED_RATE = 0.05
TABLE_RATE = 0.02
# A single slow run (a page fault, a stolen core) counts no more than a batch that takes so many times its prediction.
OUTLIER = 4.0
# Steps of about 4 up to 4,096 rows: see ``shapes_to_measure``.
GPU_STEPS = 6
# Predictions are remembered for so many batches, in which the table moves by less than it is wrong.
REMEMBERED = 256
# Shapes whose place between the points is remembered, which never changes; all that a CPU's batches have.
PLACED_MAX = 8192


class CostTable:
    """Seconds that one runner needs for a batch.

    Between its points it interpolates linearly in the logarithms of rows, length and seconds, so that a power law is met exactly
    and a fixed cost plus a cost a token within a few per cent. Beyond its most rows or tokens cost grows in proportion, and below
    its fewest the law of its first two points goes on.
    """

    def __init__(self, points: Mapping[Shape, float]) -> None:
        """Start from measured points; not all lengths need the same rows.

        Args:
            points: seconds, positive, by rows and length.

        Raises:
            ValueError: there is no point, or one is not positive.
        """
        if not points or not all(rows > 0 and length > 0 and 0 < s < math.inf for (rows, length), s in points.items()):
            raise ValueError(f"{len(points)} points; wanted are at least 1, all of them positive and finite")
        self._shapes = sorted(points, key=lambda shape: (shape[1], shape[0]))
        self._seconds = [math.log(points[shape]) for shape in self._shapes]
        self._lengths = sorted({length for _, length in points})
        # By length: the indices of its points, in order of rows.
        self._columns = [[i for i, shape in enumerate(self._shapes) if shape[1] == length] for length in self._lengths]
        # Measured over predicted run time now: 2 when everything takes twice as long as the table says.
        self.speed = 1.0
        self._remembered: dict[Shape, float] = {}
        self._placed: dict[Shape, Place] = {}
        self._observed = 0
        # Changes whenever remembered predictions are forgotten.
        self.version = 0

    def points(self) -> dict[Shape, float]:
        """The table as it is now, without the speed of the moment."""
        return {shape: math.exp(seconds) for shape, seconds in zip(self._shapes, self._seconds, strict=True)}

    def table_s(self, rows: int, length: int) -> float:
        """Seconds by the table alone, before the speed of the moment."""
        shape = (rows, length)
        found = self._remembered.get(shape)
        if found is None:
            found = self._remembered[shape] = math.exp(self._interpolate(shape))
        return found

    def run_s(self, rows: int, length: int) -> float:
        """Predicted seconds of a batch of ``rows`` rows of ``length`` tokens."""
        return self.speed * self.table_s(rows, length)

    def observe(self, rows: int, length: int, run_s: float) -> None:
        """Learn from a batch that ran for ``run_s`` seconds."""
        error = math.log(max(run_s, 1e-9) / self.run_s(rows, length))
        error = max(-math.log(OUTLIER), min(math.log(OUTLIER), error))
        self.speed *= math.exp(SPEED_RATE * error)
        for index, weight in self._place((rows, length))[0]:
            self._seconds[index] += TABLE_RATE * max(0.0, weight) * error
        self._observed += 1
        if self._observed % REMEMBERED == 0:
            self._remembered.clear()
            self.version += 1

    def _interpolate(self, shape: Shape) -> float:
        weights, beyond = self._place(shape)
        return sum([weight * self._seconds[index] for index, weight in weights]) + beyond

    def _place(self, shape: Shape) -> Place:
        found = self._placed.get(shape)
        if found is None:
            if len(self._placed) >= PLACED_MAX:
                self._placed.clear()
            found = self._placed[shape] = self._find_place(*shape)
        return found

    def _find_place(self, rows: int, length: int) -> Place:
        weights: list[tuple[int, float]] = []
        beyond = max(0.0, math.log(length / self._lengths[-1]))
        for column, share in _between(length, self._lengths):
            if not share:
                continue
            indices = self._columns[column]
            knots = [self._shapes[index][0] for index in indices]
            beyond += share * max(0.0, math.log(rows / knots[-1]))
            weights += [(indices[knot], share * part) for knot, part in _between(rows, knots)]
        return weights, beyond


def _between(value: int, knots: Sequence[int]) -> tuple[tuple[int, float], tuple[int, float]]:
    """The knots below and above a value with their shares by its logarithm, which sum to 1; beyond the last, the last alone."""
    above = max(1, bisect_right(knots, value))
    if above == len(knots):
        return (above - 1, 1.0), (above - 1, 0.0)
    low, high = knots[above - 1], knots[above]
    share = math.log(value / low) / math.log(high / low)
    return (above - 1, 1 - share), (above, share)


def shapes_to_measure(rows_at: Sequence[tuple[int, int]], steps: int = 2) -> list[Shape]:
    """The shapes whose cost is measured at warm-up, the largest first: from one row to the most in equal ratios.

    Args:
        rows_at: lengths with the most rows that a batch of that length may have.
        steps: of each length. 2 do for a CPU, where cost grows with the tokens; a GPU's cost is flat before it grows, and where it
            bends nobody knows beforehand: GPU_STEPS.
    """
    # Whole numbers of rows are met in spite of rounding.
    shapes = {(int(most ** (step / steps) + 1e-9), length) for length, most in rows_at for step in range(steps + 1)}
    return sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape))
