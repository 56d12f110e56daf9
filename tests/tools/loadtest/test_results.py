"""Measurements: histograms, classes, client limits, and their JSON format."""

import json
import random
from collections import Counter
from dataclasses import fields

import pytest

from sentiment_tools.loadtest.durations import LONGEST_US, Durations
from sentiment_tools.loadtest.messages import line_of, message_of
from sentiment_tools.loadtest.results import Group, Part, Point, Second, merge
from tests.tools.loadtest.test_search import of


def part(**changes: object) -> Part:
    return Part(
        **{
            "groups": {
                "interactive": Group(8, Counter(OK=7, UNAVAILABLE=1), 6, 7, 70, of([0.1] * 6 + [0.9])),
                "leaver": Group(3, Counter(OK=1, cancelled_by_us=2), 1, 1, 10, of([0.001])),
                "explain": Group(2, Counter(OK=2), 1, 2, 20, of([3.0, 0.2])),
            },
            "stages": {"queue": of([0.01])},
            "lag": of([0.001] * 10),
            "answered": 8,
            "texts": 9,
            "tokens": 90,
            "texts_sent": 10,
            "repeated": 3,
            "cpu": 0.5,
            "held_s": 2.0,
            "messages": {"UNAVAILABLE": "gone"},
            **changes,
        }
    )


def point(*parts: Part, callers: int = 0) -> Point:
    return merge(parts, offered_per_s=5.0, seconds=2.0, objective_s=0.5, callers=callers)


def test_percentiles_are_exact_to_a_thousandth() -> None:
    rng = random.Random(1)
    drawn = sorted(rng.lognormvariate(-4, 1.5) for _ in range(10_000))

    durations = of(drawn)

    for percentile in (1, 50, 99, 99.9):
        assert durations.percentile(percentile) == pytest.approx(drawn[round(percentile / 100 * len(drawn)) - 1], rel=2e-3)
        assert durations.percentiles([percentile])[percentile] == durations.percentile(percentile)
    assert durations.longest_s == pytest.approx(drawn[-1], rel=1e-3)
    assert durations.mean_s == pytest.approx(sum(drawn) / len(drawn), rel=1e-3)


def test_histograms_add_up_and_survive_their_encoding() -> None:
    one, other = of([0.001, 0.5, 2.0]), of([0.0, 1e6])

    one.add(other)

    back = Durations(one.encode())
    assert len(back) == len(one) == 5
    assert back == one
    assert back.longest_s == pytest.approx(LONGEST_US / 1e6, rel=1e-3)


def test_an_empty_histogram_is_zero() -> None:
    empty = Durations(Durations().encode())

    assert (len(empty), empty.percentile(99), empty.percentiles([50]), empty.mean_s, empty.longest_s) == (0, 0.0, {50: 0.0}, 0.0, 0.0)


def test_only_classifications_that_are_not_cancelled_are_judged() -> None:
    """Of calls that are cancelled only fast answers would count."""
    found = point(part(), part())

    assert found.sent == 26
    assert found.outcomes == {"OK": 20, "cancelled_by_us": 4, "UNAVAILABLE": 2}
    assert (found.judged, found.in_time, found.share_in_time) == (16, 12, 0.75)
    assert found.goodput_per_s == 6.0
    assert found.repeated_share == 0.3
    assert len(found.latency) == 14
    assert found.latency.longest_s == pytest.approx(0.9, rel=1e-3)
    assert (found.answered_per_s, found.texts_per_s, found.tokens_per_s) == (8.0, 9.0, 90.0)
    assert (found.client_cpu, found.client_cores) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("changes", "callers", "why"),
    [
        ({}, 0, ""),
        ({"unsent": 3}, 0, "3 calls were due but not sent"),
        ({"lag": of([0.06] * 10)}, 0, "1 % of the calls were sent 60.03 ms late or more; the limit is 50 ms"),
        # A closed loop is never late.
        ({"lag": of([0.06] * 10)}, 8, ""),
        ({"cpu": 0.95}, 0, "a client process used 95% of a core; the limit is 90%"),
    ],
)
def test_a_limited_client_is_reported(changes: dict[str, object], callers: int, why: str) -> None:
    found = point(part(), part(**changes), callers=callers) if "lag" not in changes else point(part(**changes), callers=callers)

    assert found.client_limited.startswith(why)
    assert bool(found.client_limited) is bool(why)


@pytest.mark.parametrize(
    ("objective_s", "percentile", "lags", "limited"),
    [
        (0.01, 99.0, [0.004] * 100, False),
        # So late that the client alone misses the objective.
        (0.01, 99.0, [0.011] * 100, True),
        (0.001, 99.0, [0.0006] * 100, True),
        # One late call of 200 matters to p99.9, not to p99.
        (0.5, 99.0, [0.001] * 199 + [3.0], False),
        (0.5, 99.9, [0.001] * 199 + [3.0], True),
    ],
)
def test_the_limit_of_lateness_depends_on_the_objective(objective_s: float, percentile: float, lags: list[float], limited: bool) -> None:
    found = merge([part(lag=of(lags))], offered_per_s=5.0, seconds=2.0, objective_s=objective_s, percentile=percentile)

    assert bool(found.client_limited) is limited


def test_json_keeps_everything() -> None:
    whole = point(part(), part(unsent=1))
    series = (Second(0, 5, 4, 3, 1, 0.1, 0.2), Second(1))
    found = Point(**{**{name: getattr(whole, name) for name in whole.__slots__}, "series": series, "interrupted": True})

    written = json.loads(json.dumps(found.to_json()))

    assert written.keys() >= {field.name for field in fields(Point)}
    assert written["percentiles_s"]["p50"] == found.percentile(50)
    assert Durations(written["latency"]) == found.latency
    assert written["by_class"]["interactive"]["outcomes"] == found.by_class["interactive"].outcomes
    assert [Second(**second) for second in written["series"]] == list(series)


def test_measurements_survive_the_way_from_another_process() -> None:
    assert message_of(line_of({"part": part()}).strip()) == {"part": part()}
