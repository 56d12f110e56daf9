"""Arrival laws: rates, bursts, ends, and invalid laws."""

import itertools
import math
import pickle
from pathlib import Path

import pytest

from sentiment.errors import BadSettings
from sentiment_tools.traffic.arrivals import Bursts, Law, Poisson, Schedule, Steps, parse_law

# In the third law most pieces have no arrival.
LAWS = ["poisson:200", "bursts:200,factor=5,on=1,every=10", "bursts:2,factor=5,on=0.01,every=0.1", "steps:100x30,0x5,200.5x30"]


def until(law: Law, end_s: float, seed: int = 1) -> list[float]:
    return list(itertools.takewhile(lambda at: at < end_s, law.times(seed)))


@pytest.mark.parametrize("text", LAWS)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_law_has_its_mean_rate_and_ascends(text: str, scale: float) -> None:
    law = parse_law(text).scaled_to(scale * parse_law(text).rate)

    times = until(law, 1000.0)

    seconds = min(1000.0, law.seconds)
    # Four standard deviations of a Poisson count.
    assert len(times) == pytest.approx(law.rate * seconds, abs=4 * math.sqrt(law.rate * seconds))
    assert law.rate == pytest.approx(scale * parse_law(text).rate)
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))
    assert times == until(law, 1000.0)
    assert times != until(law, 1000.0, seed=2)


def test_gaps_of_a_poisson_law_are_exponential() -> None:
    times = until(Poisson(100.0), 200.0)

    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))

    for share in (0.1, 0.5, 0.9, 0.99):
        assert gaps[int(share * len(gaps))] == pytest.approx(-math.log(1 - share) / 100, rel=0.1)


def test_a_burst_has_factor_times_the_rate_at_the_end_of_its_period() -> None:
    law = Bursts(rate=100.0, factor=5.0, on_s=1.0, every_s=10.0)

    times = until(law, 1000.0)

    in_bursts = sum(at % 10.0 >= 9.0 for at in times)
    quiet = len(times) - in_bursts
    assert in_bursts / (quiet / 9) == pytest.approx(5.0, rel=0.05)


def test_a_pause_has_no_arrivals_and_the_law_ends_after_its_last_step() -> None:
    law = parse_law("steps:100x10,0x5,300x10,0x5")

    times = list(law.times(1))

    assert law.seconds == 30.0
    assert [at for at in times if 10 < at < 15 or at > 25] == []
    assert sum(15 < at < 25 for at in times) == pytest.approx(3 * sum(at < 10 for at in times), rel=0.15)


def test_a_schedule_counts_from_its_first_instant_and_can_be_scaled(tmp_path: Path) -> None:
    file = tmp_path / "recorded"
    file.write_text("100.5\n101\n101\n104.5\n")

    law = parse_law(f"schedule:{file}")

    assert list(law.times(seed=9)) == [0.0, 0.5, 0.5, 4.0]
    assert law.rate == 3 / 4.0
    # Long enough to send the last arrival too, at the mean rate.
    assert law.seconds == 4 / law.rate
    faster = law.scaled_to(7.5)
    assert list(faster.times(1)) == pytest.approx([0.0, 0.05, 0.05, 0.4])
    assert (faster.rate, faster.seconds) == pytest.approx((7.5, law.seconds / 10))


@pytest.mark.parametrize("law", [Poisson(3.0), Bursts(3.0, 2.0, 1.0, 4.0), Steps(((1.0, 2.0), (0.0, 1.0))), Schedule((0.0, 0.5, 2.0))])
def test_a_law_survives_the_way_to_another_process(law: Law) -> None:
    assert pickle.loads(pickle.dumps(law)) == law  # made here


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("200", "unknown law '200'; use poisson:200, bursts:"),
        ("poisson:", "unknown law 'poisson:'"),
        ("poisson:nan", "rate of poisson must be a number above 0 and at most 1e+06, got 'nan'"),
        ("poisson:0", "got '0'"),
        ("bursts:10,factor=2", "needs the rate and exactly factor, on and every"),
        ("bursts:10,factor=2,on=5,every=4", "on of bursts must be a number above 0 and at most 4, got '5'"),
        ("steps:10x5,7", "step must have the form RATExSECONDS, such as 100x30, got '7'"),
        ("steps:0x5", "no step with a rate above 0"),
        ("schedule:nothing-there", "nothing-there: cannot be read: No such file"),
    ],
)
def test_an_invalid_law_is_refused_with_the_expected_form(text: str, reason: str) -> None:
    with pytest.raises(BadSettings) as caught:
        parse_law(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("1\n2\nx\n", ":3: expected seconds, no less than in the line before"),
        ("1\n0.5\n", ":2: expected seconds"),
        ("1\ninf\n", ":2: expected seconds"),
        ("1\n", ": expected at least two different instants, one per line; got 1 arrivals at one instant"),
        ("1\n1\n", ": expected at least two different instants, one per line; got 2 arrivals at one instant"),
    ],
)
def test_an_invalid_schedule_is_refused_with_its_line(tmp_path: Path, lines: str, reason: str) -> None:
    file = tmp_path / "recorded"
    file.write_text(lines)

    with pytest.raises(BadSettings) as caught:
        parse_law(f"schedule:{file}")
    assert f"{file}{reason}" in str(caught.value)
