"""The search on simulated servers with a known answer: response times of an M/M/1 queue, with noise, refusals and a slow client."""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from sentiment_tools.loadtest.durations import Durations
from sentiment_tools.loadtest.knee import find_knee, of_sent
from sentiment_tools.loadtest.results import Point
from sentiment_tools.loadtest.search import POINTS_MAX, Search, Slo, Verdict, find_slo, steps

SLO = Slo(0.5, 99.0)
CAPACITY = 100.0
# p99 of an M/M/1 queue is ln(100) / (capacity - rate): within 0.5 s up to here.
TRUE_RATE = CAPACITY - math.log(100) / 0.5


def of(seconds: Iterable[float]) -> Durations:
    """The histogram of some durations."""
    durations = Durations()
    for each in seconds:
        durations.record(each)
    return durations


def held(
    rate: float, *, capacity: float = CAPACITY, refused: float = 0.0, limited: str = "", interrupted: bool = False, calls: int = 1000
) -> Point:
    """The measurement of ``calls`` calls: quantiles of the exponential response time of M/M/1, or 60 s on average above capacity."""
    mean_s = 1 / (capacity - rate) if rate < capacity else 60.0
    answered = round(calls * (1 - refused))
    latency_s = [-mean_s * math.log(1 - (number + 0.5) / answered) for number in range(answered)]
    return Point(
        offered_per_s=rate,
        seconds=calls / rate,
        objective_s=SLO.objective_s,
        sent=calls,
        outcomes={"OK": answered, "RESOURCE_EXHAUSTED": calls - answered},
        judged=calls,
        in_time=sum(latency <= SLO.objective_s for latency in latency_s),
        latency=of(latency_s),
        answered_per_s=min(rate, capacity) * answered / calls,
        client_limited=limited,
        interrupted=interrupted,
    )


def searched(hold: Callable[[float], Point], capacity: float = CAPACITY, **limits: float) -> Search:
    search = steps(capacity, SLO, **limits)  # type: ignore[arg-type]
    rate = next(search)
    while True:
        try:
            rate = search.send(hold(rate))
        except StopIteration as end:
            found: Search = end.value
            return found


def test_the_highest_rate_is_found_to_the_resolution_and_held_twice() -> None:
    found = searched(held, resolution=0.02)

    assert found.slo_rate <= TRUE_RATE < found.missed_rate <= 1.02 * found.slo_rate
    assert sum(point.offered_per_s == found.slo_rate for point in found.points) == 2
    assert sum(point.offered_per_s == found.missed_rate for point in found.points) == 2
    assert found.goodput_per_s == pytest.approx(found.slo_rate, rel=0.01)
    assert "met p99 within 500 ms in 2 of 2" in found.why[0]


@pytest.mark.parametrize("guess", [3.0, 30.0, 60.0, 300.0, 2000.0])
def test_a_wrong_guess_of_the_capacity_does_not_hide_the_rate(guess: float) -> None:
    found = searched(held, guess)

    assert found.slo_rate <= TRUE_RATE < found.missed_rate <= 1.05 * found.slo_rate


def test_without_a_capacity_rates_are_doubled() -> None:
    found = searched(held, 0.0)

    assert [point.offered_per_s for point in found.points[:4]] == [1, 2, 4, 8]
    assert 90 <= found.capacity_per_s <= 100
    assert found.slo_rate <= TRUE_RATE < found.missed_rate <= 1.05 * found.slo_rate


@pytest.mark.parametrize("seed", range(30))
def test_noise_and_one_stall_move_the_rate_little(seed: int) -> None:
    rng = random.Random(seed)
    hiccup = rng.randrange(12)
    measured = 0

    def hold(rate: float) -> Point:
        nonlocal measured
        measured += 1
        # The machine's speed varies; once it stands still.
        return held(rate, capacity=CAPACITY * rng.gauss(1, 0.03), refused=0.3 if measured == hiccup else 0)

    found = searched(hold)

    print(f"seed {seed}: {found.why}")
    assert 0.85 * TRUE_RATE <= found.slo_rate <= 1.1 * TRUE_RATE
    assert len(found.points) <= POINTS_MAX


def test_a_rate_that_met_the_objective_as_often_as_it_missed_it_does_not_count() -> None:
    times = 0

    def hold(rate: float) -> Point:
        nonlocal times
        times += rate == 75
        return held(rate, refused=0.5 if rate > 75 or (rate == 75 and times == 1) else 0)

    found = searched(hold, resolution=0.2, points_max=10)

    assert times == 2
    assert found.slo_rate == pytest.approx(math.sqrt(60 * 75))
    assert "75 calls/s missed it in 1 of 2; after 10 measurements the border is not settled" in found.why[0]


def test_the_search_ends_on_a_server_that_never_meets_the_objective() -> None:
    found = searched(lambda rate: held(rate, refused=0.05))

    assert found.slo_rate == 0 == found.goodput_per_s
    assert found.why[0].startswith("no rate meets p99 within 500 ms")
    assert "95.0% of the calls" in found.why[0]
    assert len(found.points) < POINTS_MAX


def test_the_search_ends_on_a_server_without_a_limit() -> None:
    found = searched(lambda rate: held(rate, capacity=1e9))

    assert found.missed_rate == 0
    assert 100 * CAPACITY < found.slo_rate == max(point.offered_per_s for point in found.points)
    assert "no higher rate is known to miss it; after 20 measurements the border is not settled" in found.why[0]


def test_a_limited_client_is_not_mistaken_for_a_limited_server() -> None:
    limit = "a client process used 97% of a core"

    found = searched(lambda rate: held(rate, capacity=500, limited=limit if rate > 70 else ""))
    never = searched(lambda rate: held(rate, limited=limit))

    assert 0.95 * 70 <= found.slo_rate <= 70
    assert found.missed_rate == 0
    assert any(f"calls/s ({limit})" in why for why in found.why)
    assert never.slo_rate == 0 == never.missed_rate
    assert never.why[0].startswith("it is not known whether any rate meets p99 within 500 ms")


def test_a_client_that_is_limited_once_does_not_move_the_rate() -> None:
    times = 0

    def hold(rate: float) -> Point:
        nonlocal times
        times += rate == 90
        return held(rate, limited="it stood still" if rate == 90 and times == 1 else "")

    found = searched(hold)

    assert found.slo_rate <= TRUE_RATE < found.missed_rate <= 1.05 * found.slo_rate
    assert sum("client limited" in why for why in found.why) == 0


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 99.99])
def test_exactly_the_percentile_meets_the_objective(percentile: float) -> None:
    slo = Slo(0.5, percentile)

    for calls in range(slo.calls_min, 20 * slo.calls_min + 1, slo.calls_min):
        late = calls // slo.calls_min
        assert slo.of_calls(calls, calls - late) is Verdict.MET
        assert slo.of_calls(calls, calls - late - 1) is Verdict.MISSED


def test_too_few_calls_do_not_show_that_the_objective_is_met() -> None:
    assert SLO.of_calls(99, 99) is SLO.of_calls(99, 98) is SLO.of_calls(0, 0) is Verdict.TOO_FEW
    assert SLO.of_calls(99, 97) is Verdict.MISSED


@pytest.mark.parametrize("seed", range(10))
def test_loads_of_few_calls_do_not_hide_a_tail_that_is_always_late(seed: int) -> None:
    rng = random.Random(seed)

    def hold(rate: float) -> Point:
        # 10 s of an M/M/1 queue of 5 calls/s, of which more than 8 % are late at any rate.
        calls = round(10 * rate)
        in_time = sum(rng.random() > math.exp(-0.5 * max(0.0, 5 - rate)) for _ in range(calls))
        return replace(held(rate, calls=calls), in_time=in_time)

    found = searched(hold, 5.0)

    print(f"seed {seed}: {found.why}")
    assert found.slo_rate == 0
    assert any("fewer than the 100 judged calls" in why for why in found.why)


def test_loads_of_few_calls_are_added_up() -> None:
    found = searched(lambda rate: held(rate, calls=60), points_max=40)

    assert found.slo_rate <= TRUE_RATE < found.missed_rate <= 1.05 * found.slo_rate


def test_the_search_ends_when_the_server_is_gone() -> None:
    measured = 0

    def hold(rate: float) -> Point:
        nonlocal measured
        measured += 1
        return replace(held(rate, refused=1), outcomes={"UNAVAILABLE": 1000}) if measured > 4 else held(rate)

    found = searched(hold)

    assert len(found.points) == 5
    assert (found.slo_rate, found.missed_rate) == (75, 0)
    assert any("the search ended at 90 calls/s, because the server was gone" in why for why in found.why)


def test_loads_too_short_to_show_a_backlog_are_reported() -> None:
    found = searched(lambda rate: replace(held(rate), seconds=6.0))
    long = searched(lambda rate: replace(held(rate), seconds=20.0))

    assert any("rates up to 8% above the server's capacity may pass" in why for why in found.why)
    assert any("use --seconds 20" in why for why in found.why)
    assert len(long.why) == 2


def test_an_interrupted_search_returns_its_measurements() -> None:
    measured: list[float] = []

    def hold(rate: float) -> Point:
        measured.append(rate)
        return held(rate, interrupted=len(measured) == 4)

    found = searched(hold)

    assert len(found.points) == 4
    assert found.slo_rate == measured[2]
    assert "not settled" in found.why[0]
    assert "not known" in searched(lambda rate: held(rate, interrupted=True)).why[0]


async def test_rates_are_measured_one_after_the_other() -> None:
    open_now = 0

    async def measure(rate: float) -> Point:
        nonlocal open_now
        open_now += 1
        assert open_now == 1
        point = held(rate * (1 + 1e-12))
        open_now -= 1
        return point

    found = await find_slo(measure, CAPACITY, SLO)

    assert [point.offered_per_s for point in found.points] == [point.offered_per_s for point in searched(held).points]
    assert found.why == searched(held).why


def test_the_knee_is_where_the_tail_has_doubled() -> None:
    # p99 = ln(100) / (capacity - rate): twice that of 10 at 55.
    knee = find_knee([held(rate) for rate in (10, 30, 50, 60, 80, 90, 140)], 99)

    assert knee.rate == pytest.approx(55, abs=1)
    assert knee.low_s == pytest.approx(math.log(100) / 90, rel=0.02)


def test_higher_rates_do_not_move_the_knee() -> None:
    few, many = (find_knee([held(rate) for rate in rates], 99) for rates in ((10, 50, 60), (10, 50, 60, 90, 99, 200, 400)))

    assert few == many


def test_one_slow_moment_at_a_low_rate_does_not_move_the_knee() -> None:
    points = [held(rate) for rate in (10, 30, 50, 60)] + [held(20, refused=0.5)]

    assert find_knee(points, 99).rate == pytest.approx(55, abs=1)


def test_a_limited_client_does_not_move_the_knee() -> None:
    points = [held(10), held(30), held(40, refused=0.5, limited="99 calls were due and not sent")]

    assert find_knee(points, 99) == find_knee(points[:2], 99)


def test_a_refused_call_counts_as_infinite_latency() -> None:
    assert math.isinf(of_sent(held(10, refused=0.02), 99))
    assert of_sent(held(10, refused=0.001), 99.9) < 1
    # The 99th of 100 calls is the last of 99 that were answered.
    assert of_sent(held(10, refused=0.01), 99) == pytest.approx(held(10, refused=0.01).latency.longest_s, rel=0.01)
    assert find_knee([held(10), held(20, refused=0.1)], 99).rate == 10
    assert find_knee([held(10, refused=0.1)], 99).why.startswith("no knee")
    assert find_knee([held(10), held(20)], 99).rate == 0
