"""Front ends, their executor and a device in a simulated replica: which of them answers how much, and which is the first limit."""

from dataclasses import replace

import numpy as np
import pytest

from sentiment_tools.planning.closed_loop import capacity_of, capacity_per_s
from sentiment_tools.planning.machine import BATCH_PART, Machine
from sentiment_tools.planning.outcome import Limit
from sentiment_tools.planning.simulation import Fleet, Traffic, draw_traffic, simulate
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.lengths import parse_lengths

LENGTHS = parse_lengths("32")
FRONT_END_S = 0.02


def device(run_s: float = 1e-6, **changes: float) -> Machine:
    """A device that takes ``run_s`` seconds for up to 64 rows, and front ends whose executor takes no time."""
    usual = {"packed": True, "loop_s": 0.0, "front_end_s": FRONT_END_S, "row_s": 0.0, "token_s": 0.0}
    return Machine({(1, 32): run_s, (64, 32): run_s}, **(usual | changes))  # type: ignore[arg-type]  # numbers by name


def at(*due_at: float) -> Traffic:
    """Calls at these instants, with texts of 32 tokens."""
    return Traffic(np.array(due_at), np.full(len(due_at), 32), np.zeros(len(due_at), bool))


def test_two_front_ends_double_the_capacity_of_a_device_that_takes_no_time() -> None:
    one, two = (capacity_per_s(device(front_ends=count), LENGTHS, seed=1) for count in (1, 2))

    assert one == pytest.approx(1 / FRONT_END_S, rel=0.01)
    assert two == pytest.approx(2 * one, rel=0.03)


def test_a_call_that_comes_alone_takes_its_time_of_both_loops_and_its_run() -> None:
    machine = device(0.1, front_ends=2, row_s=3e-3, token_s=1e-5, loop_s=0.01)

    outcome = simulate(at(1.0), Fleet(machine, 1), seed=1)

    assert outcome.latency_s == pytest.approx([FRONT_END_S + 32e-5 + 3e-3 + BATCH_PART * 0.01 + 0.1])


def test_calls_of_an_idle_front_end_do_not_wait_for_those_of_a_busy_one() -> None:
    # The first text takes its front end a second; the others come one at a time.
    lengths = np.array([100_000, *[32] * 20])
    traffic = Traffic(np.linspace(1.0, 1.6, 21), lengths, np.zeros(21, bool))

    latency_s = simulate(traffic, Fleet(device(front_ends=2, token_s=1e-5), 1), seed=1).latency_s[1:]

    late = latency_s > 0.35
    assert 5 <= late.sum() <= 15
    assert latency_s[~late].max() < 3 * FRONT_END_S


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({"loop_s": 0.05}, [Limit.EVENT_LOOP]),
        ({"front_ends": 2}, [Limit.FRONT_ENDS]),
        ({"front_ends": 4, "row_s": 0.01}, [Limit.EXECUTOR]),
        ({"front_ends": 4, "row_s": 0.004, "cores": 2}, [Limit.CORES]),
        ({"front_ends": 8, "run_s": 0.5}, [Limit.DEVICE]),
        ({"front_ends": 2, "run_s": 0.5, "front_end_s": 1e-3, "packed": False, "cores": 4}, [Limit.RUNNERS]),
        # More runners would not help where runs take all cores.
        ({"front_ends": 2, "run_s": 0.5, "front_end_s": 1e-3, "packed": False}, [Limit.CORES, Limit.RUNNERS]),
    ],
)
def test_the_first_limit_is_the_part_that_works_all_the_time(changes: dict[str, float], full: list[Limit]) -> None:
    capacity = capacity_of(device(**changes), LENGTHS, seed=1)

    assert capacity.limit is full[0]
    assert [limit for limit, share in capacity.shares.items() if share > 0.9] == full


def test_a_part_that_is_busier_at_a_low_load_than_the_first_limit_is_not_named() -> None:
    # Each batch takes 20 ms of the executor. They are small at a low load.
    machine = device(front_ends=2, loop_s=0.02 / BATCH_PART)
    traffic = draw_traffic(Poisson(30.0), LENGTHS, 1000, seed=1)

    low = simulate(traffic, Fleet(machine, 1, timeout_s=5.0), seed=1).shares

    assert low[Limit.EXECUTOR] > low[Limit.FRONT_ENDS]
    assert capacity_of(machine, LENGTHS, seed=1).limit is Limit.FRONT_ENDS


def test_more_front_ends_than_cores_answer_no_more_than_the_cores_can() -> None:
    machine = device(front_ends=4, row_s=0.005, cores=2)

    assert capacity_per_s(machine, LENGTHS, seed=1) == pytest.approx(2 / (FRONT_END_S + 0.005), rel=0.05)


def test_front_ends_take_their_time_from_the_runs_on_their_cores() -> None:
    machine = Machine({(1, 32): 0.1}, runners=2, front_ends=2, front_end_s=FRONT_END_S, row_s=0.0, loop_s=0.0, token_s=0.0)

    alone = capacity_per_s(replace(machine, front_end_s=0.0), LENGTHS, seed=1)
    shared = capacity_per_s(machine, LENGTHS, seed=1)
    roomy = capacity_per_s(replace(machine, cores=5), LENGTHS, seed=1)

    assert alone == pytest.approx(2 / 0.1, rel=0.01)
    assert shared == pytest.approx(2 / (0.1 + FRONT_END_S), rel=0.06)
    assert roomy == pytest.approx(alone, rel=0.02)
