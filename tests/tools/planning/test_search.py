"""The fewest replicas are found from any first guess, or reported as out of reach."""

from dataclasses import replace

import numpy as np
import pytest

from sentiment_tools.planning.closed_loop import Capacity
from sentiment_tools.planning.machine import Machine
from sentiment_tools.planning.outcome import Limit, Outcome, Spent
from sentiment_tools.planning.report import ranges, verdict
from sentiment_tools.planning.search import Objective, Ranges, fewest_replicas
from sentiment_tools.planning.simulation import Fleet, Traffic, draw_traffic, simulate
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.lengths import MIXED, parse_lengths

MACHINE = Machine({(1, 8): 1e-3, (8, 8): 4e-3, (1, 512): 64e-3}, runners=2, noise=0.1)
CAPACITY = Capacity(50.0, {Limit.CORES: 0.5, Limit.RUNNERS: 0.98})


def outcome(replicas: int, in_time: bool) -> Outcome:
    """100 requests of which 2 are late unless ``in_time``."""
    latency_s = np.full(100, 0.1)
    latency_s[:2] = 0.1 if in_time else 9.0
    spent = Spent(runs_s=100.0 * replicas, batches=100)
    return Outcome(np.arange(100.0), latency_s, np.zeros(100, np.uint8), np.zeros(100, bool), replicas, MACHINE, spent)


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("rate", [1.0, 2000.0])
def test_the_fewest_are_found_from_any_first_guess(needed: int, rate: float) -> None:
    traffic = draw_traffic(Poisson(rate), parse_lengths("64"), 500, seed=1)

    sizing = fewest_replicas(lambda replicas: outcome(replicas, replicas >= needed), Objective(0.5), traffic, MACHINE)

    assert sizing.fewest == needed
    assert {max(1, needed - 1), needed, needed + 1} <= set(sizing.tried)
    assert len(sizing.tried) <= 24


def test_an_objective_that_no_number_of_replicas_meets_has_a_reason() -> None:
    traffic = Traffic(np.arange(100.0), np.full(100, 400), np.zeros(100, bool))

    too_slow = fewest_replicas(lambda n: outcome(n, in_time=False), Objective(0.02), traffic, MACHINE)
    never = fewest_replicas(lambda n: outcome(n, in_time=False), Objective(0.5), traffic, MACHINE)

    assert too_slow.fewest is None and "100.0% of the texts take longer than 20 ms alone" in too_slow.why
    assert verdict(too_slow, Objective(0.02), CAPACITY) == too_slow.why
    assert never.fewest is None and "up to 4096" in never.why


def test_texts_whose_answers_are_known_are_not_too_long() -> None:
    traffic = Traffic(np.arange(100.0), np.full(100, 400), np.zeros(100, bool))

    slow = replace(MACHINE, points={(1, 8): 1e-3, (1, 512): 2.0}, known=0.995)

    sizing = fewest_replicas(lambda _: outcome(1, in_time=True), Objective(0.5), traffic, slow)

    assert sizing.fewest == 1


def test_a_result_within_random_variation_is_reported_as_such() -> None:
    traffic = draw_traffic(Poisson(1.0), parse_lengths("64"), 500, seed=1)
    objective = Objective(0.5)

    sizing = fewest_replicas(lambda replicas: outcome(replicas, replicas == 2), objective, traffic, MACHINE)
    usual = fewest_replicas(lambda replicas: outcome(replicas, in_time=True), objective, traffic, MACHINE)

    found = verdict(sizing, objective, CAPACITY)
    assert "fewer do not. 3 do not either, so the difference is within random variation: use more --requests" in found
    limit = "First limit: the runners, 98 % busy at the capacity of a replica: use more runners, or add replicas"
    assert verdict(usual, objective, CAPACITY) == f"1 replica answers 99 % within 500 ms. {limit}"


def test_simulated_replicas_grow_with_the_load_and_meet_the_objective() -> None:
    found = {}
    for rate in (150.0, 600.0):
        traffic = draw_traffic(Poisson(rate), MIXED, 2000, seed=2)
        sizing = fewest_replicas(
            lambda n, traffic=traffic: simulate(traffic, Fleet(MACHINE, n, timeout_s=0.3), 2), Objective(0.3), traffic, MACHINE
        )
        assert sizing.fewest is not None
        assert sizing.tried[sizing.fewest].in_time(0.3) >= 0.99
        found[rate] = sizing.fewest

    assert 3 * found[150.0] <= found[600.0] <= 4 * found[150.0]


def test_ranges_have_the_least_and_the_most_of_all_simulations() -> None:
    good, bad, none = outcome(2, in_time=True), outcome(2, in_time=False), outcome(2, in_time=True)
    none.latency_s[:] = np.nan

    found = Ranges.of([good, bad], [2, 1, 3], Objective(0.5))
    beyond = Ranges.of([good, none], [2, 2, None], Objective(0.5))
    given = Ranges.of([none, none], [], Objective(0.5, 95.0))

    assert ranges(found, Objective(0.5)) == (
        "Ranges of 95 %: p99 100.0 ms (100.0 to 9000.0), in time 100.00 % (98.00 % to 100.00 %), 2 replicas (1 to 3), 4 cores (2 to 6)"
    )
    assert found.summary(Objective(0.5)) == {
        "p99_ms": [100.0, 9000.0],
        "in_time_share": [0.98, 1.0],
        "replicas": [1, 3],
        "cores": [2, 6],
    }
    assert ", 2 replicas (2 or more), 4 cores (4 or more)" in ranges(beyond, Objective(0.5))
    assert beyond.summary(Objective(0.5)) == {
        "p99_ms": [100.0, 100.0],
        "in_time_share": [0.0, 1.0],
        "replicas": [2, None],
        "cores": [4, None],
    }
    assert given.summary(Objective(0.5, 95.0)) == {"p95_ms": [None, None], "in_time_share": [0.0, 0.0]}
