"""The cost table: predicted seconds of a batch by rows and length, refined by every batch that runs. Pure."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

# Number of rows and their length. A batch of rows of different lengths is costed as a batch of equal rows: see ``layout``.
Shape = tuple[int, int]
# The points around a shape with their weights, which sum to 1, and what is added for a shape beyond the table's points.
Place = tuple[list[tuple[int, float]], float]

# A batch uses the cores of idle runners if its time falls below this fraction and it saves more than WIDE_SAVES_S seconds.
WIDE = 0.9
WIDE_SAVES_S = 1e-3
# Each batch corrects the speed by a twentieth of its error and the points near its shape by a fiftieth. Errors that all shapes share
# (a throttled core, a busy neighbour) end up in the speed, the rest in the table.
SPEED_RATE = 0.05
TABLE_RATE = 0.02
# A batch that could use the cores of idle runners counts as a tenth of what is known of their use.
WIDE_RATE = 0.1
# The error of one run is capped at this factor, so that a single slow run (a page fault, a stolen core) does not spoil the table.
OUTLIER = 4.0
# Ratios of about 4 between steps, up to 4,096 rows: see ``shapes_to_measure``.
GPU_STEPS = 6
# Predictions are cached until a point has moved by this much, in logarithms: 5 %, less than the table's own error.
MOVED = math.log(1.05)
# Shapes of which predictions and interpolation weights are cached. Enough for every shape of a CPU's batches.
PLACED_MAX = 8192


class CostTable:
    """Seconds that one runner needs for a batch.

    Interpolates linearly in the logarithms of rows, length and seconds. A power law is matched exactly, a fixed cost plus a cost per
    token within a few per cent. Beyond the most rows or tokens the cost grows in proportion; below the fewest it extrapolates from
    the first two points.
    """

    def __init__(self, points: Mapping[Shape, float], wide: Mapping[Shape, float] | None = None) -> None:
        """Start from measured points; not all lengths need the same rows.

        Args:
            points: seconds by rows and length.
            wide: the same points of batches that use the cores of idle runners too; None: there are no such batches.

        Raises:
            ValueError: there is no point, one is not positive and finite, or ``wide`` has others.
        """
        if wide is not None and set(wide) != set(points):
            raise ValueError(f"wide must have the {len(points)} points of the table, got {sorted(wide)}")
        if not points or not all(rows > 0 and length > 0 and 0 < s < math.inf for (rows, length), s in points.items()):
            raise ValueError(f"a cost table needs at least one point, all positive and finite; got {len(points)} points")
        self._shapes = sorted(points, key=lambda shape: (shape[1], shape[0]))
        self._seconds = [math.log(points[shape]) for shape in self._shapes]
        self._lengths = sorted({length for _, length in points})
        # For each length the indices of its points, in order of rows.
        self._columns = [[i for i, shape in enumerate(self._shapes) if shape[1] == length] for length in self._lengths]
        # Current ratio of measured to predicted run time: 2 means that everything takes twice as long as the table says.
        self.speed = 1.0
        self._remembered: dict[Shape, float] = {}
        self._placed: dict[Shape, Place] = {}
        # How far each point has moved since predictions were last dropped.
        self._moved = [0.0] * len(self._shapes)
        # Incremented when cached predictions are dropped.
        self.version = 0
        self.wide = None if wide is None else CostTable(wide)
        # For each point the logarithm of how much longer a wide batch takes than the wide table says. Learned from runs.
        self._wide_loss = [0.0] * len(self._shapes)

    def points(self) -> dict[Shape, float]:
        """The current points, without the current speed."""
        return {shape: math.exp(seconds) for shape, seconds in zip(self._shapes, self._seconds, strict=True)}

    def table_s(self, rows: int, length: int) -> float:
        """Table seconds: the prediction without the current speed."""
        shape = (rows, length)
        found = self._remembered.get(shape)
        if found is None:
            if len(self._remembered) >= PLACED_MAX:
                self._remembered.clear()
            found = self._remembered[shape] = math.exp(self._interpolate(shape))
        return found

    def run_s(self, rows: int, length: int) -> float:
        """Predicted seconds of a batch of ``rows`` rows of ``length`` tokens."""
        return self.speed * self.table_s(rows, length)

    def widening_saves(self, rows: int, length: int) -> bool:
        """Whether a batch is predicted to end clearly sooner if it uses the cores of idle runners too."""
        if self.wide is None:
            return False
        loss = sum([weight * self._wide_loss[index] for index, weight in self._place((rows, length))[0]])
        narrow_s, wide_s = self.table_s(rows, length), self.wide.table_s(rows, length) * math.exp(loss)
        return wide_s < min(WIDE * narrow_s, narrow_s - WIDE_SAVES_S)

    def observe(self, rows: int, length: int, run_s: float, wide: bool = False) -> None:
        """Learn from a batch that ran for ``run_s`` seconds.

        ``wide``: it could use the cores of idle runners. How much of them it got is not known, so only a time shorter than with all of
        them, or longer than with none, is an error of the table, and corrects both kinds of batches alike. What width saves, with the
        share of the cores that it gets, is learned from every wide batch.
        """
        # Not the cached prediction: learning from an error that has been corrected already swings ever wider.
        run_s, expected_s = max(run_s, 1e-9), self.speed * math.exp(self._interpolate((rows, length)))
        if wide and self.wide is not None:
            least_s = self.speed * math.exp(self.wide._interpolate((rows, length)))
            self._learn_width((rows, length), run_s / least_s)
            expected_s = min(max(run_s, least_s), max(expected_s, least_s))
        error = _bounded_log(run_s / expected_s)
        self.speed *= math.exp(SPEED_RATE * error)
        tables = [self] if self.wide is None else [self, self.wide]
        moved = False
        for index, weight in self._place((rows, length))[0]:
            step = TABLE_RATE * max(0.0, weight) * error
            for table in tables:
                table._seconds[index] += step
            self._moved[index] += step
            moved |= abs(self._moved[index]) > MOVED
        if moved:
            self._moved = [0.0] * len(self._shapes)
            for table in tables:
                table._remembered.clear()
            self.version += 1

    def _learn_width(self, shape: Shape, ratio: float) -> None:
        """``ratio``: seconds of a wide batch over those by the wide table."""
        loss = _bounded_log(ratio)
        for index, weight in self._place(shape)[0]:
            self._wide_loss[index] += WIDE_RATE * min(1.0, max(0.0, weight)) * (loss - self._wide_loss[index])

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


def _bounded_log(ratio: float) -> float:
    return max(-math.log(OUTLIER), min(math.log(OUTLIER), math.log(ratio)))


def _between(value: int, knots: Sequence[int]) -> tuple[tuple[int, float], tuple[int, float]]:
    """The knots below and above a value with weights by its logarithm, which sum to 1. Beyond the last knot, the last alone."""
    above = max(1, bisect_right(knots, value))
    if above == len(knots):
        return (above - 1, 1.0), (above - 1, 0.0)
    low, high = knots[above - 1], knots[above]
    share = math.log(value / low) / math.log(high / low)
    return (above - 1, 1 - share), (above, share)


def shapes_to_measure(rows_at: Sequence[tuple[int, int]], steps: int = 2) -> list[Shape]:
    """The shapes to measure at warm-up, the largest first: from one row to the most, in equal ratios.

    Args:
        rows_at: lengths, each with the most rows that a batch of that length may have.
        steps: number of ratios for each length. 2 are enough for a CPU, where cost grows with the tokens. A GPU's cost is flat at
            first, and where it starts to grow is not known beforehand: use GPU_STEPS.
    """
    # The small term makes exact powers survive rounding.
    shapes = {(int(most ** (step / steps) + 1e-9), length) for length, most in rows_at for step in range(steps + 1)}
    return sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape))
