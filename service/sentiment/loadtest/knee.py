"""Where the curve of latency against load bends: the knee.

It is the highest rate up to which the tail stays within twice its value on the idle server. Kneedle (Satopaa and others, 2011),
which looks for the point furthest from a straight line, is not used: how far it lies depends on how far into overload one happened
to measure, while this rule does not change when a rate is added above.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sentiment.loadtest.results import Point

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Knee:
    """``rate``: calls a second, 0 if the curve has none; ``low_s``: the percentile at the lowest rate, in seconds; ``why``: a sentence."""

    rate: float
    low_s: float
    why: str


def find_knee(points: Sequence[Point], percentile: float) -> Knee:
    """Find it on measurements in any order; of one rate's the median counts.

    A percentile is of all judged calls: one that was refused or late never comes, so where more are than the percentile
    leaves room for it is infinite. Between two rates the curve is taken as straight.
    """
    curve = _curve(points, percentile)
    name = f"p{percentile:g}"
    if not curve or math.isinf(curve[0][1]):
        return Knee(0.0, math.inf, f"no knee: at the lowest rate too few calls are answered for a {name}")
    low_s = curve[0][1]
    limit_s = FACTOR * low_s
    stays = f"the {name} stays within {FACTOR:g} times the {low_s * 1e3:.3g} ms that it is at {curve[0][0]:.4g}"
    for (rate, before_s), (above, after_s) in itertools.pairwise(curve):
        if after_s > limit_s:
            part = 0.0 if math.isinf(after_s) else (limit_s - before_s) / (after_s - before_s)
            knee = rate + part * (above - rate)
            return Knee(knee, low_s, f"up to {knee:.4g} calls/s {stays}")
    return Knee(0.0, low_s, f"no knee up to {curve[-1][0]:.4g} calls/s: {stays}")


def _curve(points: Sequence[Point], percentile: float) -> list[tuple[float, float]]:
    """(rate, percentile in seconds) by rising rate, made to rise: a single slow moment at a low rate is not the bend."""
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
    # Not as a share: 0.999 * 1000 is above 999.
    return point.percentile(min(100.0, wanted / answered)) if answered and wanted <= 100 * answered else math.inf
