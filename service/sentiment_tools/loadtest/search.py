"""Finds the highest rate that meets an objective, and the knee of latency against load, with a bounded number of measurements.

Pure: decides from earlier measurements which rate to hold next; how a rate is held is an argument.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sentiment_tools.loadtest.knee import Knee, find_knee
from sentiment_tools.loadtest.results import CANCELLED_BY_US, Point

# Loads of the curve as shares of the capacity: a light load, the knee, and overload. A lower first load would have too few calls for a
# tail percentile.
CURVE = (0.2, 0.4, 0.6, 0.75, 0.9, 1.1, 1.4)
# Rates closer than this cannot be distinguished on a machine with other work, because its speed varies by more.
RESOLUTION = 0.05
POINTS_MAX = 20
# The first rate if the capacity is not known.
START = 1.0
# The search does not go below this share of the capacity.
SHARE_MIN = 0.02
# A rate is confirmed when this many measurements agree and fewer disagree; a single one may be chance.
TIMES = 2
# The most calls that a verdict needs; the percentile 100 would otherwise need infinitely many.
CALLS_MAX = 10_000


class Verdict(StrEnum):
    """What a measurement says about an objective. Only MET and MISSED are about the server."""

    MET = "met"
    MISSED = "missed"
    CLIENT_LIMITED = "client limited"
    TOO_FEW = "too few calls"
    GONE = "server gone"


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: ``percentile`` per cent of the judged calls (see ``Point``) are answered OK within ``objective_s``.

    Refused calls count as missed.
    """

    objective_s: float
    percentile: float = 99.0

    @property
    def calls_min(self) -> int:
        """The fewest judged calls that can show it is met. Among fewer, the percentile leaves room for less than one late call."""
        return round(min(CALLS_MAX, 100 / max(100 - self.percentile, 100 / CALLS_MAX)))

    @property
    def seconds_wanted(self) -> float:
        """How long to hold a load, so that only an overload of less than half RESOLUTION escapes notice.

        The backlog of a smaller overload takes longer to grow to the objective.
        """
        return self.objective_s / (RESOLUTION / 2)

    def verdict(self, point: Point) -> Verdict:
        """The verdict of one measurement."""
        failed = {code for code, count in point.outcomes.items() if count} - {CANCELLED_BY_US}
        if failed == {"UNAVAILABLE"}:
            return Verdict.GONE
        return Verdict.CLIENT_LIMITED if point.client_limited else self.of_calls(point.judged, point.in_time)

    def of_calls(self, judged: int, in_time: int) -> Verdict:
        """The verdict for these counts. Too few calls are MISSED only if it is missed even with all missing calls counted as in time."""
        enough = max(judged, self.calls_min)
        # Compared without division: 0.999 * 1000 is above 999.
        if 100 * (enough - judged + in_time) < self.percentile * enough:
            return Verdict.MISSED
        return Verdict.MET if judged >= self.calls_min else Verdict.TOO_FEW

    def met(self, point: Point) -> bool:
        """Whether a measurement shows that the objective is met."""
        return self.verdict(point) is Verdict.MET

    def __str__(self) -> str:
        return f"p{self.percentile:g} within {self.objective_s * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    ``points`` are in the order of measurement. ``slo_rate`` is 0 if no rate met the objective. ``missed_rate`` is the lowest rate that
    missed it; 0 if there is none or the client was the limit first, and then ``slo_rate`` is a lower bound. ``why`` explains each figure
    and gives reasons to doubt it, as sentences.
    """

    slo: Slo
    capacity_per_s: float
    slo_rate: float
    missed_rate: float
    knee: Knee
    points: tuple[Point, ...]
    why: tuple[str, ...]

    @property
    def goodput_per_s(self) -> float:
        """Answers in time per second at the highest rate that met the objective (median of its measurements); 0 if there is none."""
        return statistics.median([point.goodput_per_s for point in self.points if point.offered_per_s == self.slo_rate] or [0.0])

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON, with points as in ``Point.to_json``."""
        return {
            "slo": {"objective_s": self.slo.objective_s, "percentile": self.slo.percentile},
            "capacity_per_s": self.capacity_per_s,
            "slo_rate_per_s": self.slo_rate,
            "missed_rate_per_s": self.missed_rate,
            "goodput_per_s": self.goodput_per_s,
            "knee_rate_per_s": self.knee.rate,
            "why": list(self.why),
            "points": [point.to_json() for point in self.points],
        }


Steps = Generator[float, Point, Search]
"""Yields the next rate to hold, in calls per second; takes the measurement; returns the result."""


async def find_slo(measure: Callable[[float], Awaitable[Point]], capacity: float, slo: Slo, **limits: Any) -> Search:
    """Measure until the highest rate that meets ``slo`` is known to a resolution.

    Args:
        measure: holds a rate (calls per second) and measures.
        capacity: approximate calls per second that the server can answer; 0 if not known: then the rate doubles from START on.
        slo: the objective.
        limits: as for ``steps``.
    """
    search = steps(capacity, slo, **limits)
    rate = next(search)
    while True:
        point = await measure(rate)
        try:
            rate = search.send(point)
        except StopIteration as end:
            found: Search = end.value
            return found


def steps(capacity: float, slo: Slo, resolution: float = RESOLUTION, points_max: int = POINTS_MAX) -> Steps:
    """The search itself, see ``find_slo``.

    First it measures the curve, then doubles the rate until one misses the objective. Then it halves the gap between the highest rate
    that meets it and the lowest that misses it, on a log scale, until the gap is no wider than ``resolution``. Finally it repeats both
    ends until each was measured at least twice. It ends early if a load is interrupted or the server is gone.

    Args:
        resolution: as a share of the rate.
        points_max: the most measurements.
    """
    points: list[Point] = []
    rates = [share * capacity for share in CURVE] if capacity else [START]
    least = SHARE_MIN * (capacity or START)
    for number in range(points_max):
        rate = rates[number] if number < len(rates) else _next_rate(_tallied(points, slo), least, resolution)
        if not rate:
            break
        # Scaling a law to a rate rounds it, and rates are compared by value here.
        points.append(replace((yield rate), offered_per_s=rate))
        if points[-1].interrupted or slo.verdict(points[-1]) is Verdict.GONE:
            break
    tallies = _tallied(points, slo)
    low, high = _border(tallies)
    settled = math.isfinite(high) and not _next_rate(tallies, least, resolution)
    missed_rate = high if math.isfinite(high) and tallies[high][Verdict.MISSED] else 0.0
    knee = find_knee([point for point in points if not point.interrupted], slo.percentile)
    why = (_why_rate(points, tallies, slo, settled), *_doubts(points, tallies, slo, resolution), knee.why)
    capacity = capacity or max((point.answered_per_s for point in points), default=0.0)
    return Search(slo, capacity, low, missed_rate, knee, tuple(points), why)


# How many measurements of one rate gave each verdict.
_Tally = Counter[Verdict]


def _tallied(points: Sequence[Point], slo: Slo) -> dict[float, _Tally]:
    """The tally of each rate. Measurements with too few calls are added up until they give a verdict."""
    tallies = defaultdict[float, _Tally](Counter)
    # The judged calls of a rate without a verdict, and those in time.
    few = defaultdict[float, tuple[int, int]](lambda: (0, 0))
    for point in points:
        # An interrupted load gives no verdict.
        if point.interrupted:
            continue
        rate, verdict = point.offered_per_s, slo.verdict(point)
        if verdict is Verdict.TOO_FEW:
            few[rate] = (few[rate][0] + point.judged, few[rate][1] + point.in_time)
            verdict = slo.of_calls(*few[rate])
            if verdict is not Verdict.TOO_FEW:
                del few[rate]
        tallies[rate][verdict] += 1
    return tallies


def _border(tallies: Mapping[float, _Tally]) -> tuple[float, float]:
    """The highest rate that meets the objective and the lowest that misses it; 0 and infinity if there is none.

    Noise makes verdicts contradict each other, so the border is where the fewest measurements contradict it; of equally good borders
    the lowest. A rate above it that the client could not offer is an upper bound like a rate that missed the objective.
    """
    rates = sorted(rate for rate, tally in tallies.items() if tally[Verdict.MET] or tally[Verdict.MISSED])
    wrong = least = sum(tally[Verdict.MET] for tally in tallies.values())
    place = 0
    for number, rate in enumerate(rates, 1):
        wrong += tallies[rate][Verdict.MISSED] - tallies[rate][Verdict.MET]
        if wrong < least:
            least, place = wrong, number
    low = rates[place - 1] if place else 0.0
    return low, min(
        [*rates[place:], *(rate for rate, tally in tallies.items() if tally[Verdict.CLIENT_LIMITED] and rate > low)], default=math.inf
    )


def _next_rate(tallies: Mapping[float, _Tally], least: float, resolution: float) -> float:
    """The rate whose measurement says most about the border, at least ``least``; 0 if no more measurement is needed."""
    low, high = _border(tallies)
    if math.isinf(high):
        return 2 * max(tallies)
    if not low and high >= 2 * least:
        return high / 2
    if low and high / low > 1 + resolution:
        return math.sqrt(low * high)
    if low and tallies[low][Verdict.MET] < TIMES:
        return low
    if tallies[high][Verdict.MISSED] + tallies[high][Verdict.CLIENT_LIMITED] < TIMES:
        return high
    return 0.0


def _why_rate(points: Sequence[Point], tallies: Mapping[float, _Tally], slo: Slo, settled: bool) -> str:
    low, high = _border(tallies)
    missed = math.isfinite(high) and tallies[high][Verdict.MISSED]
    if not low and not missed:
        return f"it is not known whether any rate meets {slo}: no complete load gives a verdict"
    if not low:
        share = statistics.median(point.share_in_time for point in points if point.offered_per_s == high)
        return f"no rate meets {slo}: at {high:.4g} calls/s, the lowest rate with a verdict, {share:.1%} of the calls were answered in time"
    met, of_low = tallies[low][Verdict.MET], tallies[low][Verdict.MET] + tallies[low][Verdict.MISSED]
    held = f"{low:.4g} calls/s met {slo} in {met} of {of_low} measurements"
    if missed:
        held += f", {high:.4g} calls/s missed it in {missed} of {tallies[high][Verdict.MET] + missed}"
    else:
        held += "; no higher rate is known to miss it"
    return held + ("" if settled else f"; after {len(points)} measurements the border is not settled")


def _doubts(points: Sequence[Point], tallies: Mapping[float, _Tally], slo: Slo, resolution: float) -> list[str]:
    """Reasons why the border is not known better."""
    low, high = _border(tallies)
    found = []
    limited = [point.client_limited for point in points if point.offered_per_s == high and slo.verdict(point) is Verdict.CLIENT_LIMITED]
    if limited and not tallies[high][Verdict.MISSED]:
        found.append(f"client limited at {high:.4g} calls/s ({limited[0]}): whether the server meets it above {low:.4g} is not known")
    if points and slo.verdict(points[-1]) is Verdict.GONE:
        found.append(f"the search ended at {points[-1].offered_per_s:.4g} calls/s, because the server was gone (all UNAVAILABLE)")
    if few := sum(slo.verdict(point) is Verdict.TOO_FEW for point in points):
        found.append(f"{few} loads had fewer than the {slo.calls_min} judged calls that p{slo.percentile:g} needs: use more --seconds")
    held_s = min((point.seconds for point in points if point.offered_per_s == low and not point.interrupted), default=math.inf)
    if (over := slo.objective_s / held_s) > resolution:
        found.append(
            f"loads of {held_s:.3g} s are short: rates up to {over:.0%} above the server's capacity may pass, because their backlog does "
            f"not grow to {slo.objective_s * 1e3:g} ms in that time; use --seconds {slo.seconds_wanted:.3g}"
        )
    return found
