"""Repeated measurements: one value, and how far the rounds lie apart."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rounds:
    """A figure and the rounds that it comes from, at least one."""

    value: float
    rounds: Sequence[float]

    def spread(self) -> dict[str, float]:
        """The least and greatest round, the quartiles, and the number of rounds."""
        values = sorted(self.rounds)
        lower, _, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return {"min": values[0], "q1": lower, "q3": upper, "max": values[-1], "rounds": len(values)}


def median(rounds: Sequence[float]) -> Rounds:
    """The median of at least one round."""
    return Rounds(statistics.median(rounds), rounds)


def slices_of(ends: Sequence[tuple[float, int]], begin: float, count: int) -> list[float]:
    """The rates in ``count`` equal slices of the time from ``begin`` to the last end.

    Args:
        ends: instants, and what ended then; in any order.
        begin: the start of the first slice; what ended before it is not counted.
        count: the number of slices.
    """
    last = max((at for at, _ in ends), default=begin)
    each = (last - begin) / count
    if each <= 0:
        return []
    counted = [0] * count
    for at, items in ends:
        if at >= begin:
            counted[min(count - 1, int((at - begin) / each))] += items
    return [items / each for items in counted]
