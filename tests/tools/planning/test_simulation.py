"""A simulated fleet: it agrees with queueing theory, loses no request, and does not depend on how it is run."""

import math
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

from sentiment.batching.cost import CostTable
from sentiment.batching.ticket import Priority
from sentiment_tools.planning.closed_loop import capacity_per_s, corrected
from sentiment_tools.planning.machine import PACE_S, RESTED_S, Machine
from sentiment_tools.planning.outcome import Fate
from sentiment_tools.planning.simulation import (
    GROUP_MAX,
    LEAST_BACKLOG,
    RANDOM,
    ROUND_ROBIN,
    Fleet,
    Traffic,
    draw_traffic,
    members_of,
    simulate,
)
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.lengths import MIXED, parse_lengths

RUN_S = 0.01


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


def lone_rows(run_s: float = RUN_S, **changes: float) -> Machine:
    """Rows of one length that always run alone for ``run_s`` seconds, and nothing else takes time."""
    free = {"loop_s": 0.0, "token_s": 0.0}
    return Machine({(1, 32): run_s}, **(free | changes))  # type: ignore[arg-type]  # numbers by name


def server(**changes: float) -> Machine:
    """Two cores on which cost is nearly in proportion to tokens."""
    shapes = [(1, 8), (16, 8), (1, 32), (16, 32), (1, 128), (4, 128), (1, 512)]
    usual = {"runners": 2, "noise": 0.1, "crowding": 1.05}
    return Machine({(rows, length): 6e-4 + 9e-5 * rows * length for rows, length in shapes}, **(usual | changes))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_runner_with_constant_runs_waits_as_by_pollaczek_and_khinchine(load: float) -> None:
    traffic = draw_traffic(Poisson(load / RUN_S), parse_lengths("32"), 20_000, seed=1)

    outcome = simulate(traffic, Fleet(lone_rows(), 1, timeout_s=60.0), seed=1)

    waited_s = float(outcome.latency_s.mean()) - RUN_S
    assert waited_s == pytest.approx(load * RUN_S / (2 * (1 - load)), rel=0.08)
    assert outcome.busy_share == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize("load", [0.5, 1.0, 3.0])
def test_the_demand_is_what_is_offered_also_where_most_is_refused(load: float) -> None:
    traffic = draw_traffic(Poisson(load * 2 / RUN_S), parse_lengths("32"), 20_000, seed=1)

    outcome = simulate(traffic, Fleet(lone_rows(), 2, timeout_s=2 * RUN_S), seed=1)

    assert outcome.demand_ratio == pytest.approx(load, rel=0.03)
    assert outcome.share(Fate.ANSWERED) < 1 / load + 0.01


def test_the_demand_is_that_of_the_event_loop_where_it_is_fuller_than_the_runners() -> None:
    traffic = draw_traffic(Poisson(0.3 / RUN_S), parse_lengths("32"), 20_000, seed=1)

    outcome = simulate(traffic, Fleet(lone_rows(loop_s=2 * RUN_S, cores=2), 1), seed=1)

    assert outcome.demand_ratio == pytest.approx(0.6, rel=0.03)


def test_the_demand_of_texts_read_in_parts_is_what_their_runs_take() -> None:
    machine = server(noise=0.0, crowding=1.0, early=0.5, known=0.25, loop_s=0.0, token_s=0.0)
    traffic = Traffic(np.arange(0.1, 200.1, 0.1), np.full(2000, 512), np.zeros(2000, bool))

    outcome = simulate(traffic, Fleet(machine, 1), seed=1)

    assert outcome.demand_ratio == pytest.approx(outcome.busy_share, rel=0.1)


@pytest.mark.parametrize("early", [0.0, 0.5, 1.0])
def test_long_texts_take_their_part_and_the_whole_unless_the_part_suffices(early: float) -> None:
    machine = server(noise=0.0, crowding=1.0, early=early)
    traffic = Traffic(np.arange(1.0, 401.0), np.tile([512, 32], 200), np.zeros(400, bool))

    outcome = simulate(traffic, Fleet(machine, 1), seed=1)

    spent_s = 200 * (machine.work_s(512) + machine.work_s(32))
    assert outcome.share(Fate.ANSWERED) == 1
    assert outcome.spent.runs_s == pytest.approx(spent_s, rel=0.1)
    assert machine.work_s(32) == server(crowding=1.0).work_s(32)
    cost = CostTable(machine.points)
    assert machine.work_s(512) == pytest.approx((early > 0) * cost.table_s(1, 96) + (1 - early) * cost.table_s(1, 512))


@pytest.mark.parametrize("front_ends", [0, 2])
def test_a_text_whose_answer_is_known_takes_the_loops_time_and_no_run(front_ends: int) -> None:
    lone = lone_rows(loop_s=2e-3, token_s=1e-5, front_ends=front_ends)
    traffic = Traffic(np.arange(1.0, 1001.0), np.full(1000, 32), np.zeros(1000, bool))

    half, whole = (simulate(traffic, Fleet(replace(lone, known=share), 1), seed=1) for share in (0.5, 1.0))

    turns = lone.turns
    known_s = turns.request_s + 2 * turns.row_s + turns.answer_s + 32e-5
    assert whole.latency_s == pytest.approx(np.full(1000, known_s))
    assert (whole.spent.runs_s, whole.spent.batches) == (0.0, 0)
    run_s = known_s + 2 * turns.batch_s + RUN_S
    assert {round(seconds, 6) for seconds in half.latency_s.tolist()} == {round(known_s, 6), round(run_s, 6)}
    assert half.spent.batches == half.spent.rows == pytest.approx(500, rel=0.1)
    assert half.spent.runs_s == pytest.approx(1000 * replace(lone, known=0.5).work_s(32), rel=0.1)
    assert half.batch_rows == 1


def test_a_row_that_runs_alone_takes_its_cost_and_the_loops_time() -> None:
    traffic = Traffic(np.array([1.0, 2.0]), np.array([32, 700]), np.zeros(2, bool))

    outcome = simulate(traffic, Fleet(lone_rows(loop_s=2e-3, token_s=1e-5), 1), seed=1)

    # The text is read to its end and cut to 32 tokens.
    assert outcome.latency_s == pytest.approx([RUN_S + 2e-3 + 32e-5, RUN_S + 2e-3 + 700e-5])


def test_the_event_loop_and_other_programs_take_their_time_from_the_runners() -> None:
    lengths = parse_lengths("32")
    free = capacity_per_s(lone_rows(0.1, runners=2), lengths, seed=1)
    shared = capacity_per_s(lone_rows(0.1, runners=2, loop_s=2e-2, token_s=1e-4, beside_s=1e-2), lengths, seed=1)
    roomy = capacity_per_s(lone_rows(0.1, runners=2, loop_s=1e-3, beside_s=1e-2, cores=3), lengths, seed=1)

    assert free == pytest.approx(2 / 0.1, rel=0.01)
    assert shared == pytest.approx(2 / (0.1 + 2e-2 + 32e-4 + 1e-2), rel=0.06)
    assert roomy == pytest.approx(free, rel=0.02)


def test_crowding_slows_every_run_by_its_factor() -> None:
    alone = simulate(Traffic(np.array([1.0]), np.array([32]), np.zeros(1, bool)), Fleet(lone_rows(runners=2, crowding=1.5), 1), seed=1)
    together = simulate(
        Traffic(np.array([1.0, 1.0 + RUN_S / 2]), np.array([32, 32]), np.zeros(2, bool)),
        Fleet(lone_rows(runners=2, crowding=1.5), 1),
        seed=1,
    )

    assert alone.latency_s == pytest.approx([RUN_S])
    # The first has half of its run left, which takes half as long again; a third of the second is done by then.
    assert together.latency_s == pytest.approx([1.25 * RUN_S, 1.25 * RUN_S])


def test_a_pace_slows_runs_that_begin_in_its_time_and_repeats() -> None:
    machine = replace(lone_rows(), pace=(1.0, 3.0))
    due_at = np.array([0.5, 1.5, 2.5, 3.5]) * PACE_S

    outcome = simulate(Traffic(due_at, np.full(4, 32), np.zeros(4, bool)), Fleet(machine, 1), seed=1)

    assert outcome.latency_s == pytest.approx([RUN_S, 3 * RUN_S, RUN_S, 3 * RUN_S])


def test_a_run_takes_longer_after_a_longer_pause() -> None:
    # Long after the start, right after the first, one time constant after the second, and beside the third.
    ends_at = 1.0 + RUN_S + 4e-3
    due_at = np.array([1.0, 1.005, ends_at + RUN_S + RESTED_S, ends_at + RUN_S + RESTED_S + 1e-3])
    traffic = Traffic(due_at, np.full(4, 32), np.zeros(4, bool))

    runs_s = [simulate(traffic.of(np.arange(count)), Fleet(lone_rows(rested_s=4e-3), 1), seed=1).spent.runs_s for count in range(1, 5)]

    assert np.diff([0.0, *runs_s]) == pytest.approx([RUN_S + 4e-3, RUN_S, RUN_S + 4e-3 * (1 - 1 / math.e), RUN_S])


def test_an_event_loop_that_lags_never_shortens_a_run() -> None:
    machine = replace(server(), points=dict.fromkeys(server().points, 1e-5), cores=1)
    traffic = draw_traffic(Poisson(2000.0), parse_lengths("32"), 2000, seed=1)

    outcome = simulate(traffic, Fleet(replace(machine, noise=0.0), 1), seed=1)

    # The least is what a run takes alone.
    assert outcome.spent.runs_s >= 1e-5 * outcome.spent.batches


def test_costs_are_corrected_to_the_measured_capacity() -> None:
    slow = replace(server(), points={shape: 10 * run_s for shape, run_s in server().points.items()})

    machine = corrected(slow, 12.0, MIXED, seed=1)

    assert capacity_per_s(machine, MIXED, seed=1) == pytest.approx(12.0, rel=0.05)
    assert machine.points[1, 32] != pytest.approx(slow.points[1, 32], rel=0.05)


def test_groups_of_replicas_get_requests_in_turn() -> None:
    traffic = draw_traffic(Poisson(2 * GROUP_MAX * 70.0), MIXED, 2000, seed=1)

    both = simulate(traffic, Fleet(server(), 2 * GROUP_MAX, LEAST_BACKLOG), seed=1)
    first = simulate(traffic.of(np.arange(0, 2000, 2)), Fleet(server(), GROUP_MAX, LEAST_BACKLOG), seed=1)

    assert both.latency_s[::2].tolist() == first.latency_s.tolist()


def test_thousands_of_groups_need_little_memory() -> None:
    group_of = np.random.default_rng(1).permutation(np.arange(100_000) % 4096)
    tracemalloc.start()

    members = members_of(group_of, 4097)

    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(members) == 4097 and not len(members[-1])
    assert members[7].tolist() == np.flatnonzero(group_of == 7).tolist()
    assert most < 10e6


@pytest.mark.parametrize("balance", [ROUND_ROBIN, RANDOM, LEAST_BACKLOG])
def test_a_simulation_does_not_depend_on_the_processes_it_runs_in(balance: str, executor: ProcessPoolExecutor) -> None:
    traffic = draw_traffic(Poisson(2000.0), MIXED, 1500, seed=4, bulk_share=0.3)
    fleet = Fleet(server(), GROUP_MAX + 3, balance)

    here = simulate(traffic, fleet, seed=5)
    there = simulate(traffic, fleet, 5, executor)

    assert np.array_equal(here.latency_s, there.latency_s, equal_nan=True)
    assert here.spent == there.spent
    assert not np.array_equal(here.latency_s, simulate(traffic, fleet, seed=6).latency_s, equal_nan=True)


def test_in_threefold_overload_every_request_has_one_fate_and_goodput_stays() -> None:
    machine = server()
    capacity = capacity_per_s(machine, MIXED, seed=1)
    traffic = draw_traffic(Poisson(3 * capacity), MIXED, 6_000, seed=2)

    outcome = simulate(traffic, Fleet(machine, 1, timeout_s=0.5), seed=2)

    fates = Counter(outcome.fates.tolist())
    assert sum(fates.values()) == 6_000 and fates[Fate.REFUSED] > 0
    assert (~np.isnan(outcome.latency_s) == (outcome.fates == Fate.ANSWERED)).all()
    # A late request ends at its deadline, apart from the event loop's work.
    assert np.nanmax(outcome.latency_s) < 0.51
    assert outcome.goodput_per_s(0.51) > 0.95 * capacity


def test_without_front_ends_the_figures_are_those_of_the_planner_that_knew_none() -> None:
    traffic = draw_traffic(Poisson(300.0), MIXED, 800, seed=1)

    outcome = simulate(traffic, Fleet(replace(server(), token_s=2.7e-6, callers=0), 1, timeout_s=0.5), seed=1)

    # Every decision and every random number counts.
    assert np.bincount(outcome.fates).tolist() == [634, 21, 145]
    assert np.nansum(outcome.latency_s) == pytest.approx(194.13402880859238, rel=1e-9)
    assert outcome.spent.runs_s == pytest.approx(5.726050422106812, rel=1e-9)


def test_one_caller_that_floods_lets_its_short_texts_go_first_and_of_many_none_is_over_its_share() -> None:
    traffic = draw_traffic(Poisson(400.0), MIXED, 2000, seed=1)

    one, many, none = (simulate(traffic, Fleet(server(callers=callers), 1), seed=1).in_time(0.5) for callers in (1, 60_000, 0))

    assert one > 1.3 * many and many == pytest.approx(none, rel=0.02)


def test_a_better_balance_answers_sooner() -> None:
    traffic = draw_traffic(Poisson(4 * 85.0), MIXED, 6_000, seed=3)

    p99_s = {
        balance: simulate(traffic, Fleet(server(), 4, balance), seed=3).percentile_s(99) for balance in (LEAST_BACKLOG, ROUND_ROBIN, RANDOM)
    }

    assert p99_s[LEAST_BACKLOG] < p99_s[ROUND_ROBIN] < p99_s[RANDOM]


def test_a_summary_counts_requests_without_an_answer() -> None:
    traffic = draw_traffic(Poisson(400.0), MIXED, 4000, seed=7, bulk_share=0.25)

    outcome = simulate(traffic, Fleet(server(), 2, timeout_s=0.3), seed=7)

    said = outcome.summary(0.3)
    answered = int((outcome.fates == Fate.ANSWERED).sum())
    assert said["in_time_share"] == pytest.approx((outcome.latency_s <= 0.3).sum() / 4000)
    assert said["refused_share"] + said["expired_share"] == pytest.approx(1 - answered / 4000)
    assert said["goodput_per_s"] == pytest.approx(said["in_time_share"] * said["offered_per_s"])
    assert said["p50_ms"] == pytest.approx(1e3 * float(np.nanmedian(outcome.latency_s)), rel=0.01)
    by_class = said["by_class"]
    assert by_class["interactive"]["requests"] + by_class["bulk"]["requests"] == 4000
    # Interactive rows get four fifths of the run time while both classes wait.
    assert outcome.in_time(0.3, Priority.INTERACTIVE) > outcome.in_time(0.3, Priority.BULK)
    assert not math.isnan(outcome.percentile_s(99.9, Priority.BULK))
