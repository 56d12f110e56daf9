"""Finds the highest rate that meets an objective, and the knee of latency against load, with a bounded number of measurements.

Pure: which rate to hold next is decided here, by what was measured before; how a rate is held is an argument.
"""

import math
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sentiment.loadtest.knee import Knee, find_knee
from sentiment.loadtest.results import CANCELLED_BY_US, Point

# Loads of the curve, as shares of the capacity: hardly loaded, the bend, and what overload does. A lower first one would have too few
# calls for a tail.
CURVE = (0.2, 0.4, 0.6, 0.75, 0.9, 1.1, 1.4)
# Rates that stand nearer than this cannot be told apart on a machine with other work: its speed wanders by more.
RESOLUTION = 0.05
POINTS_MAX = 20
# The first rate where the capacity is not known.
START = 1.0
# Below this share of the capacity nothing is looked for.
SHARE_MIN = 0.02
# A rate holds, or does not, when so many measurements say so and fewer the contrary: one alone may be luck.
TIMES = 2
# More calls than this are asked of no percentile: all calls (100) would want infinitely many.
CALLS_MAX = 10_000


class Verdict(StrEnum):
    """What a measurement says of an objective; only the first two are the server's."""

    MET = "met"
    MISSED = "missed"
    CLIENT_LIMITED = "client limited"
    TOO_FEW = "too few calls"
    GONE = "server gone"


@dataclass(frozen=True, slots=True)
class Slo:
    """So many per cent of the judged calls (see ``Point``) are answered OK within so many seconds: refused ones count as missed."""

    objective_s: float
    percentile: float = 99.0

    @property
    def calls_min(self) -> int:
        """The fewest judged calls that can meet it: of fewer, one late call is more than the percentile leaves room for."""
        return round(min(CALLS_MAX, 100 / max(100 - self.percentile, 100 / CALLS_MAX)))

    @property
    def seconds_wanted(self) -> float:
        """How long to hold a load: an overload whose backlog grows to the objective only later is then one of less than half RESOLUTION."""
        return self.objective_s / (RESOLUTION / 2)

    def verdict(self, point: Point) -> Verdict:
        """What a measurement says."""
        failed = {code for code, count in point.outcomes.items() if count} - {CANCELLED_BY_US}
        if failed == {"UNAVAILABLE"}:
            return Verdict.GONE
        return Verdict.CLIENT_LIMITED if point.client_limited else self.of_calls(point.judged, point.in_time)

    def of_calls(self, judged: int, in_time: int) -> Verdict:
        """What so many calls say: too few ones have missed it only if it would be missed were they enough, the rest in time."""
        enough = max(judged, self.calls_min)
        # Not as a share: 0.999 * 1000 is above 999.
        if 100 * (enough - judged + in_time) < self.percentile * enough:
            return Verdict.MISSED
        return Verdict.MET if judged >= self.calls_min else Verdict.TOO_FEW

    def met(self, point: Point) -> bool:
        """Whether a measurement shows that it is met."""
        return self.verdict(point) is Verdict.MET

    def __str__(self) -> str:
        return f"p{self.percentile:g} within {self.objective_s * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found.

    ``points`` stand in the order of measuring, ``slo_rate`` is 0 if no rate met the objective, ``missed_rate`` the lowest that
    did not (0: none, or the client was the limit before: then ``slo_rate`` is a lower bound), ``why`` says in sentences how each
    figure came about and what casts doubt on it.
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
        """Answers in time a second at the highest rate that met the objective (median of its measurements), 0 without one."""
        return statistics.median([point.goodput_per_s for point in self.points if point.offered_per_s == self.slo_rate] or [0.0])

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; the points as in ``Point.to_json``."""
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


@dataclass(slots=True)
class _Tally:
    """What the measurements of one rate say. Those with too few calls are taken together until they say something."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    judged: int = 0
    in_time: int = 0

    def add(self, point: Point, slo: Slo) -> None:
        verdict = slo.verdict(point)
        if verdict is Verdict.TOO_FEW:
            self.judged, self.in_time = self.judged + point.judged, self.in_time + point.in_time
            verdict = slo.of_calls(self.judged, self.in_time)
            if verdict is not Verdict.TOO_FEW:
                self.judged = self.in_time = 0
        self.counts[verdict] += 1

    @property
    def met(self) -> int:
        return self.counts[Verdict.MET]

    @property
    def missed(self) -> int:
        return self.counts[Verdict.MISSED]

    @property
    def limited(self) -> int:
        return self.counts[Verdict.CLIENT_LIMITED]


Steps = Generator[float, Point, Search]
"""Yields the rate to hold next, a second; takes what was measured; returns what was found."""


async def find_slo(measure: Callable[[float], Awaitable[Point]], capacity: float, slo: Slo, **limits: Any) -> Search:
    """Measure until the highest rate that meets ``slo`` is known to a resolution.

    Args:
        measure: holds a rate (calls a second) for a while.
        capacity: about the calls a second that the server answers; 0: not known, the rate is doubled from START on.
        slo: what is wanted.
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

    First the curve is measured, then twice the rate until one does not hold. Then the gap between the highest rate that holds and the
    lowest that does not is halved on a log scale until it is no wider than ``resolution``, and both of its ends are measured again
    until each was seen at least twice. It ends early where a load was interrupted, or the server is gone.

    Args:
        resolution: share of the rate.
        points_max: measurements in all.
    """
    points: list[Point] = []
    rates = [share * capacity for share in CURVE] if capacity else [START]
    least = SHARE_MIN * (capacity or START)
    for number in range(points_max):
        rate = rates[number] if number < len(rates) else _next_rate(_tallied(points, slo), least, resolution)
        if not rate:
            break
        # A law that was scaled to a rate has it but for rounding, and rates are told apart by their value here.
        points.append(replace((yield rate), offered_per_s=rate))
        if points[-1].interrupted or slo.verdict(points[-1]) is Verdict.GONE:
            break
    tallies = _tallied(points, slo)
    low, high = _border(tallies)
    settled = math.isfinite(high) and not _next_rate(tallies, least, resolution)
    missed_rate = high if math.isfinite(high) and tallies[high].missed else 0.0
    knee = find_knee([point for point in points if not point.interrupted], slo.percentile)
    why = (_why_rate(points, tallies, slo, settled), *_doubts(points, tallies, slo, resolution), knee.why)
    capacity = capacity or max((point.answered_per_s for point in points), default=0.0)
    return Search(slo, capacity, low, missed_rate, knee, tuple(points), why)


def _tallied(points: Sequence[Point], slo: Slo) -> dict[float, _Tally]:
    tallies: dict[float, _Tally] = {}
    for point in points:
        # What was cut short may have met it by luck, and has not missed it yet.
        if not point.interrupted:
            tallies.setdefault(point.offered_per_s, _Tally()).add(point, slo)
    return tallies


def _border(tallies: Mapping[float, _Tally]) -> tuple[float, float]:
    """The highest rate that holds and the lowest that does not: where the fewest measurements contradict; 0 and infinity if there is none.

    Noise makes verdicts cross, so no single one decides; of equally good borders the lowest is taken. A rate above the border that
    the client could not offer bounds what can be found as one that was missed does.
    """
    rates = sorted(rate for rate, tally in tallies.items() if tally.met or tally.missed)
    wrong = least = sum(tally.met for tally in tallies.values())
    place = 0
    for number, rate in enumerate(rates, 1):
        wrong += tallies[rate].missed - tallies[rate].met
        if wrong < least:
            least, place = wrong, number
    low = rates[place - 1] if place else 0.0
    return low, min([*rates[place:], *(rate for rate, tally in tallies.items() if tally.limited and rate > low)], default=math.inf)


def _next_rate(tallies: Mapping[float, _Tally], least: float, resolution: float) -> float:
    """The rate whose measurement says most about the border; 0: none is needed. None is below ``least``."""
    low, high = _border(tallies)
    if math.isinf(high):
        return 2 * max(tallies)
    if not low and high >= 2 * least:
        return high / 2
    if low and high / low > 1 + resolution:
        return math.sqrt(low * high)
    if low and tallies[low].met < TIMES:
        return low
    if tallies[high].missed + tallies[high].limited < TIMES:
        return high
    return 0.0


def _why_rate(points: Sequence[Point], tallies: Mapping[float, _Tally], slo: Slo, settled: bool) -> str:
    low, high = _border(tallies)
    missed = math.isfinite(high) and tallies[high].missed
    if not low and not missed:
        return f"whether any rate meets {slo} is not known: no load says so that was held to its end"
    if not low:
        share = statistics.median(point.share_in_time for point in points if point.offered_per_s == high)
        return f"no rate meets {slo}: at {high:.4g} calls/s, the lowest that tells, {share:.1%} of the calls were answered in time"
    held = f"{low:.4g} calls/s met {slo} in {tallies[low].met} of {tallies[low].met + tallies[low].missed} measurements"
    if missed:
        held += f", {high:.4g} calls/s missed it in {missed} of {tallies[high].met + missed}"
    else:
        held += "; no higher rate is known to miss it"
    return held + ("" if settled else f"; after {len(points)} measurements the border is not settled")


def _doubts(points: Sequence[Point], tallies: Mapping[float, _Tally], slo: Slo, resolution: float) -> list[str]:
    """What keeps the border from being known better."""
    low, high = _border(tallies)
    found = []
    limited = [point.client_limited for point in points if point.offered_per_s == high and slo.verdict(point) is Verdict.CLIENT_LIMITED]
    if limited and not tallies[high].missed:
        found.append(f"at {high:.4g} calls/s the client was the limit ({limited[0]}): what the server holds above {low:.4g} is not known")
    if points and slo.verdict(points[-1]) is Verdict.GONE:
        found.append(f"the search ended at {points[-1].offered_per_s:.4g} calls/s, where the server was gone: all calls were UNAVAILABLE")
    if few := sum(slo.verdict(point) is Verdict.TOO_FEW for point in points):
        found.append(f"{few} loads had fewer than the {slo.calls_min} judged calls that p{slo.percentile:g} takes: hold loads for longer")
    held_s = min((point.seconds for point in points if point.offered_per_s == low and not point.interrupted), default=math.inf)
    if (over := slo.objective_s / held_s) > resolution:
        found.append(
            f"in loads of {held_s:.3g} s up to {over:.0%} more than what the server can do for good may pass, since a backlog that grows "
            f"so slowly does not reach {slo.objective_s * 1e3:g} ms in them: hold loads for {slo.seconds_wanted:.3g} s"
        )
    return found
