"""The knee of the curve of latency against load: the highest rate up to which the tail stays within twice its value at the lowest rate.

Kneedle (Satopaa and others, 2011), which looks for the point furthest from a straight line, is not used: its result depends on how
far into overload the curve was measured. The rule here does not change when a higher rate is added.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sentiment_tools.loadtest.results import Point

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Knee:
    """``rate`` in calls per second, 0 if there is no knee; ``low_s``, the percentile at the lowest rate in seconds; ``why``, a sentence."""

    rate: float
    low_s: float
    why: str


def find_knee(points: Sequence[Point], percentile: float) -> Knee:
    """Find the knee. The points may have any order; of several measurements at one rate the median counts.

    The percentile is that of all judged calls. A refused or late call counts as infinite latency, so the percentile is infinite where
    more calls failed than it leaves room for. Between two rates the curve is taken as straight.
    """
    curve = _curve(points, percentile)
    name = f"p{percentile:g}"
    if not curve or math.isinf(curve[0][1]):
        return Knee(0.0, math.inf, f"no knee: too few calls were answered at the lowest rate to give a {name}")
    low_s = curve[0][1]
    limit_s = FACTOR * low_s
    stays = f"the {name} stays within {FACTOR:g} times its value at {curve[0][0]:.4g} calls/s, {low_s * 1e3:.3g} ms"
    for (rate, before_s), (above, after_s) in itertools.pairwise(curve):
        if after_s > limit_s:
            part = 0.0 if math.isinf(after_s) else (limit_s - before_s) / (after_s - before_s)
            knee = rate + part * (above - rate)
            return Knee(knee, low_s, f"knee at {knee:.4g} calls/s: up to there {stays}")
    return Knee(0.0, low_s, f"no knee up to {curve[-1][0]:.4g} calls/s: {stays}")


def _curve(points: Sequence[Point], percentile: float) -> list[tuple[float, float]]:
    """(rate, percentile in seconds) by rate, made monotonic: a single slow moment at a low rate is not the knee."""
    by_rate: dict[float, list[float]] = {}
    for point in points:
        if not point.client_limited:
            by_rate.setdefault(point.offered_per_s, []).append(of_sent(point, percentile))
    curve = [(rate, statistics.median_high(by_rate[rate])) for rate in sorted(by_rate)]
    for number in range(len(curve) - 2, -1, -1):
        curve[number] = (curve[number][0], min(curve[number][1], curve[number + 1][1]))
    return curve


def of_sent(point: Point, percentile: float) -> float:
    """The percentile, in seconds, of all judged calls; infinite if fewer were answered."""
    wanted, answered = percentile * point.judged, len(point.latency)
    # Compared without division: 0.999 * 1000 is above 999.
    return point.percentile(min(100.0, wanted / answered)) if answered and wanted <= 100 * answered else math.inf
