"""Cautions about a simulation, and plots of times without requests."""

import math

import numpy as np
import pytest

from sentiment_tools.planning.cautions import cautions, not_quiet
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.report import shares_over_time
from sentiment_tools.planning.search import Objective
from sentiment_tools.planning.simulation import draw_traffic
from sentiment_tools.traffic.arrivals import parse_law
from sentiment_tools.traffic.lengths import parse_lengths
from tests.tools.planning.test_search import outcome


@pytest.mark.parametrize(
    ("law", "requests", "expected"),
    [
        ("poisson:100", 4000, []),
        ("steps:100x40", 10_000, []),
        ("poisson:1000", 4000, ["above a fleet's capacity passes"]),
        ("poisson:10", 400, ["are too few for 99 %"]),
        ("bursts:100,factor=5,on=1,every=60", 4000, ["less than one period"]),
        ("steps:100x30,200x30", 4000, ["--requests 4000 ended the law after"]),
    ],
)
def test_each_caution_has_its_reason(law: str, requests: int, expected: list[str]) -> None:
    traffic = draw_traffic(parse_law(law), parse_lengths("32"), requests, seed=1)

    found = cautions(parse_law(law), traffic, Objective(0.5), requests, seed=1)

    assert len(found) == len(expected) and all(part in caution for part, caution in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("noise", "load", "expected"),
    [
        (0.29, 0.24, ""),
        (0.3, 0.0, "with run times of equal batches that vary by 30%: measure again on a quiet machine, or calibrate with --measured"),
        (0.1, 0.25, "with a load average of 0.25 per core before it began: measure again"),
        (0.4, 5.0, "with a load average of 5 per core before it began and run times of equal batches that vary by 40%: measure again"),
    ],
)
def test_a_machine_that_was_busy_while_it_was_measured_is_a_caution(noise: float, load: float, expected: str) -> None:
    found = not_quiet(Machine({(1, 8): 1.0}, noise=noise, others_load=load))

    assert len(found) == bool(expected) and all(expected in caution for caution in found)


def test_no_share_is_drawn_where_no_request_arrived() -> None:
    came = outcome(1, in_time=False)
    came.due_at[50:] += 100.0

    shares = [share for _, share in shares_over_time(came, Objective(0.5))]

    # No request arrives in half of the time.
    assert 9 <= sum(map(math.isnan, shares)) <= 10
    assert np.nanmin(shares) == pytest.approx(80.0) and np.nanmax(shares) == 100.0
