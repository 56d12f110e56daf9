"""Arrival laws: their rates, their bursts and ends, and what is no law."""

import itertools
import json
import math
from pathlib import Path

import pytest

from sentiment.errors import BadSettings
from sentiment.traffic.arrivals import Bursts, Law, Poisson, Schedule, Steps, from_json, parse_law, to_json

# Of the third hardly a piece has an arrival.
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


def test_a_burst_is_so_many_times_faster_and_ends_its_period() -> None:
    law = Bursts(rate=100.0, factor=5.0, on_s=1.0, every_s=10.0)

    times = until(law, 1000.0)

    in_bursts = sum(at % 10.0 >= 9.0 for at in times)
    quiet = len(times) - in_bursts
    assert in_bursts / (quiet / 9) == pytest.approx(5.0, rel=0.05)


def test_a_pause_is_silent_and_the_last_step_the_end() -> None:
    law = parse_law("steps:100x10,0x5,300x10,0x5")

    times = list(law.times(1))

    assert law.seconds == 30.0
    assert [at for at in times if 10 < at < 15 or at > 25] == []
    assert sum(15 < at < 25 for at in times) == pytest.approx(3 * sum(at < 10 for at in times), rel=0.15)


def test_a_schedule_is_kept_from_its_first_instant_and_stretched(tmp_path: Path) -> None:
    file = tmp_path / "recorded"
    file.write_text("100.5\n101\n101\n104.5\n")

    law = parse_law(f"schedule:{file}")

    assert list(law.times(seed=9)) == [0.0, 0.5, 0.5, 4.0]
    assert law.rate == 3 / 4.0
    # So that whoever holds it for that long sends the last too, and at its rate.
    assert law.seconds == 4 / law.rate
    faster = law.scaled_to(7.5)
    assert list(faster.times(1)) == pytest.approx([0.0, 0.05, 0.05, 0.4])
    assert (faster.rate, faster.seconds) == pytest.approx((7.5, law.seconds / 10))


@pytest.mark.parametrize("law", [Poisson(3.0), Bursts(3.0, 2.0, 1.0, 4.0), Steps(((1.0, 2.0), (0.0, 1.0))), Schedule((0.0, 0.5, 2.0))])
def test_a_law_reaches_another_process_whole(law: Law) -> None:
    assert from_json(json.loads(json.dumps(to_json(law)))) == law


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("200", "law '200' is unknown; wanted is poisson:200, bursts:"),
        ("poisson:", "law 'poisson:' is unknown"),
        ("poisson:nan", "rate of poisson is 'nan'; wanted is a number above 0, at most 1e+06"),
        ("poisson:0", "rate of poisson is '0'"),
        ("bursts:10,factor=2", "gives factor beside the rate; wanted are factor, on and every"),
        ("bursts:10,factor=2,on=5,every=4", "on of bursts is '5'; wanted is a number above 0, at most 4"),
        ("steps:10x5,7", "step '7' is not RATExSECONDS"),
        ("steps:0x5", "no step with a rate above 0"),
        ("schedule:nothing-there", "nothing-there: cannot be read: No such file"),
    ],
)
def test_what_is_no_law_is_refused_with_what_is_wanted(text: str, reason: str) -> None:
    with pytest.raises(BadSettings) as caught:
        parse_law(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("1\n2\nx\n", ":3: not a number of seconds that is at least the line before's"),
        ("1\n0.5\n", ":2: not a number"),
        ("1\ninf\n", ":2: not a number"),
        ("1\n", ": 1 arrivals, all at one instant"),
        ("1\n1\n", ": 2 arrivals, all at one instant"),
    ],
)
def test_a_schedule_that_is_none_names_its_line(tmp_path: Path, lines: str, reason: str) -> None:
    file = tmp_path / "recorded"
    file.write_text(lines)

    with pytest.raises(BadSettings) as caught:
        parse_law(f"schedule:{file}")
    assert f"{file}{reason}" in str(caught.value)
