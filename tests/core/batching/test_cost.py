"""The cost table: predictions between, at and beyond its points, and learning."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from sentiment.batching.cost import GPU_STEPS, MOVED, OUTLIER, PLACED_MAX, CostTable, shapes_to_measure

ROWS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (1, 4, 16, 64, 256, 512)


def table(seconds: Callable[[int, int], float]) -> CostTable:
    """The table of a machine that takes ``seconds(rows, length)``."""
    return CostTable({(rows, length): seconds(rows, length) for rows in ROWS for length in LENGTHS})


def proportional(token_s: float = 1e-3) -> CostTable:
    """A slow CPU: cost is proportional to tokens, and batching saves nothing. Exact everywhere."""
    return table(lambda rows, length: token_s * rows * length)


def fixed(batch_s: float = 0.01, token_s: float = 1e-6) -> CostTable:
    """A GPU: every batch costs nearly the same."""
    return table(lambda rows, length: batch_s + token_s * rows * length)


def test_a_prediction_at_a_point_is_the_point() -> None:
    points = {(1, 8): 0.3, (4, 8): 0.5, (1, 32): 0.7, (2, 32): 0.71, (9, 32): 5.0}

    cost = CostTable(points)

    assert {shape: cost.run_s(*shape) for shape in points} == pytest.approx(points, rel=1e-12)


@pytest.mark.parametrize(("by_rows", "by_length"), [(1.0, 1.0), (0.5, 1.3), (0.0, 2.0)])
def test_a_power_law_is_matched_exactly_between_points(by_rows: float, by_length: float) -> None:
    cost = table(lambda rows, length: 1e-4 * rows**by_rows * length**by_length)

    for rows in (1, 3, 5, 11, 40, 64):
        for length in (1, 2, 7, 33, 100, 511):
            assert cost.run_s(rows, length) == pytest.approx(1e-4 * rows**by_rows * length**by_length, rel=1e-9)


@pytest.mark.parametrize("fixed_s", [1e-4, 1e-3, 1e-2])
def test_a_fixed_cost_plus_a_cost_per_token_is_matched_within_6_percent(fixed_s: float) -> None:
    def law(rows: int, length: int) -> float:
        return fixed_s + 1e-5 * rows * length

    cost = CostTable({(rows, length): law(rows, length) for rows in (1, 2, 4, 8, 16) for length in (8, 16, 32, 64, 128)})

    worst = max(abs(cost.run_s(rows, length) / law(rows, length) - 1) for rows in range(1, 17) for length in range(8, 129))
    assert worst < 0.06


@pytest.mark.parametrize(
    ("rows", "length", "seconds"),
    [(12, 8, 3 * 2.0), (12, 32, 6 * 4.0), (2, 96, 3 * 4.0), (4, 96, 3 * 2 * 4.0)],
    ids=["rows", "rows of the longest length", "length", "both"],
)
def test_beyond_the_most_rows_and_the_longest_length_cost_grows_in_proportion(rows: int, length: int, seconds: float) -> None:
    cost = CostTable({(1, 8): 1.0, (4, 8): 2.0, (1, 32): 3.0, (2, 32): 4.0})

    assert cost.run_s(rows, length) == pytest.approx(seconds)


def test_the_order_in_which_points_are_given_does_not_matter() -> None:
    points = {(4, 8): 2.0, (1, 32): 3.0, (2, 8): 1.4, (2, 32): 4.0, (1, 8): 1.0}
    cost, other = CostTable(points), CostTable(dict(reversed(points.items())))

    for rows in (1, 2, 3, 4, 9):
        for length in (4, 8, 20, 32, 70):
            assert other.table_s(rows, length) == cost.table_s(rows, length)


def test_one_point_is_enough() -> None:
    cost = CostTable({(2, 10): 1.0})

    assert cost.run_s(4, 30) == pytest.approx(6.0)


@pytest.mark.parametrize(
    "points",
    [{}, {(1, 8): 0.0}, {(1, 8): -1.0}, {(1, 8): math.nan}, {(1, 8): math.inf}, {(0, 8): 1.0}, {(1, 0): 1.0}],
)
def test_a_table_without_points_or_with_one_that_is_not_positive_is_refused(points: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match=r"needs at least one point"):
        CostTable(points)


def test_more_rows_never_cost_less_where_no_point_says_so() -> None:
    cost = fixed()

    for length in (1, 5, 100, 512, 700):
        seconds = [cost.run_s(rows, length) for rows in range(1, 100)]
        assert seconds == sorted(seconds)


def test_a_machine_that_becomes_half_as_fast_is_learned_in_some_hundred_batches() -> None:
    cost, seed = proportional(), 1
    print(f"seed {seed}")
    rng = random.Random(seed)

    for _ in range(400):
        rows, length = rng.choice(ROWS), rng.choice(LENGTHS)
        cost.observe(rows, length, 2 * 1e-3 * rows * length)

    assert cost.speed == pytest.approx(2, rel=0.05)
    assert cost.run_s(3, 50) == pytest.approx(2 * 1e-3 * 150, rel=0.05)


@pytest.mark.parametrize(
    ("shapes", "factors"),
    [
        ([(1, 3)], [0.2]),
        ([(1, 3)], [1.0]),
        ([(1, 3)], [5.0]),
        ([(1, 8), (16, 128)], [0.5, 2.0]),
        ([(1, 3), (2, 3), (4, 3)], [0.5, 0.5, 1.0]),
    ],
)
def test_few_shapes_for_a_long_time_are_learned_and_stay_so(shapes: list[tuple[int, int]], factors: list[float]) -> None:
    def law(rows: int, length: int) -> float:
        return 1e-4 + 1e-5 * rows * length

    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cost = CostTable({(rows, length): law(rows, length) for rows in (1, 8, 64) for length in (8, 32, 128)})

    for number in range(6000):
        (rows, length), factor = rng.choice(list(zip(shapes, factors, strict=True)))
        true_s = factor * law(rows, length)
        if number > 3000:
            assert 1 / 3 < cost.run_s(rows, length) / true_s < 3
        cost.observe(rows, length, true_s * math.exp(rng.gauss(0, 0.3)))


def make_wide(token_s: float = 1e-3, saves: float = 0.6) -> CostTable:
    points = {(rows, length): token_s * rows * length for rows in ROWS for length in LENGTHS}
    return CostTable(points, {shape: saves * seconds for shape, seconds in points.items()})


@pytest.mark.parametrize("run_s", [0.6, 0.8, 1.0], ids=["all cores", "some of them", "one core"])
def test_a_wide_run_that_its_cores_explain_does_not_change_predictions(run_s: float) -> None:
    cost = make_wide()

    cost.observe(1, 64, run_s * 0.064, wide=True)

    assert cost.run_s(1, 64) == pytest.approx(0.064)


@pytest.mark.parametrize("run_s", [2.0, 0.3])
def test_wide_runs_are_learned_from_until_their_cores_explain_them(run_s: float) -> None:
    cost = make_wide()
    assert cost.wide is not None

    for _ in range(400):
        cost.observe(1, 64, run_s * 0.064, wide=True)

    assert 0.97 * cost.speed * cost.wide.table_s(1, 64) <= run_s * 0.064 <= 1.03 * cost.run_s(1, 64)


def test_narrow_runs_do_not_change_what_width_saves() -> None:
    cost = make_wide(saves=0.6)
    assert cost.wide is not None

    for _ in range(500):
        cost.observe(1, 64, 0.2)

    assert cost.wide.table_s(1, 64) == pytest.approx(0.6 * cost.table_s(1, 64))
    assert cost.table_s(1, 64) > 0.065
    assert cost.widening_saves(1, 64)


def test_the_saving_of_width_is_learned_from_wide_runs() -> None:
    cost = make_wide(saves=0.6)
    narrow_s = {length: 1e-3 * length for length in (64, 1024)}

    for _ in range(30):
        cost.observe(1, 64, 0.98 * narrow_s[64], wide=True)
        cost.observe(1, 1024, 0.6 * narrow_s[1024], wide=True)

    # Where shorter rows no longer gain, longer ones still may.
    assert [cost.widening_saves(1, length) for length in narrow_s] == [False, True]

    for _ in range(10):
        cost.observe(1, 64, 0.6 * narrow_s[64], wide=True)

    assert cost.widening_saves(1, 64)


def test_width_may_save_more_than_was_measured() -> None:
    cost = make_wide(saves=0.95)

    for _ in range(30):
        cost.observe(1, 64, 0.064)
        cost.observe(1, 64, 0.6 * 0.064, wide=True)

    assert cost.widening_saves(1, 64)
    assert cost.run_s(1, 64) == pytest.approx(0.064, rel=0.25)


def test_the_wide_points_are_those_of_the_table() -> None:
    with pytest.raises(ValueError, match=r"wide must have the 2 points of the table, got \[\(1, 8\)\]"):
        CostTable({(1, 8): 1.0, (4, 8): 2.0}, {(1, 8): 0.5})


def test_the_error_of_one_run_is_capped_at_outlier() -> None:
    hit, clamped = proportional(), proportional()

    hit.observe(4, 16, 1e6)
    clamped.observe(4, 16, OUTLIER * clamped.run_s(4, 16))

    assert hit.speed == pytest.approx(clamped.speed)
    assert hit.points() == pytest.approx(clamped.points())
    assert 1 < hit.speed < 1.08


def test_a_run_of_zero_seconds_is_learned_from() -> None:
    cost = proportional()

    cost.observe(4, 16, 0.0)

    assert 0.9 < cost.speed < 1


def test_the_table_changes_only_near_the_observed_shape() -> None:
    cost = proportional()
    before = cost.points()

    for _ in range(20):
        cost.observe(6, 20, 2 * 1e-3 * 120)

    moved = {shape for shape, seconds in cost.points().items() if abs(seconds / before[shape] - 1) > 1e-9}
    assert moved == {(4, 16), (8, 16), (4, 64), (8, 64)}


def test_a_shape_that_alone_is_slow_is_learned_there() -> None:
    cost = proportional()

    for _ in range(600):
        for length in LENGTHS:
            cost.observe(8, length, 8e-3 * length * (3 if length == 64 else 1))

    assert cost.run_s(8, 64) == pytest.approx(3 * 8e-3 * 64, rel=0.1)
    assert cost.run_s(8, 512) == pytest.approx(8e-3 * 512, rel=0.1)


def test_a_point_that_lies_beyond_the_observed_shape_does_not_move_away_from_it() -> None:
    # Below the fewest rows the table extrapolates, with a negative weight of the second point.
    cost = CostTable({(4, 8): 4.0, (16, 8): 16.0})

    cost.observe(1, 8, 2.0)

    assert cost.points()[(16, 8)] == pytest.approx(16.0)
    assert cost.points()[(4, 8)] > 4.0


def test_cached_predictions_are_dropped_with_every_new_version() -> None:
    cost = proportional()
    before = cost.table_s(4, 16)

    while cost.version == 0:
        assert cost.table_s(4, 16) == before
        assert cost.points()[(4, 16)] < before * math.exp(MOVED)
        cost.observe(4, 16, 1.0)

    assert cost.table_s(4, 16) == cost.points()[(4, 16)] > before * math.exp(MOVED)


def test_a_table_made_of_its_points_predicts_the_same() -> None:
    cost = fixed()
    for _ in range(250):
        cost.observe(5, 40, 0.05)

    again = CostTable(cost.points())

    for rows, length in ((1, 1), (5, 40), (64, 512), (100, 1000)):
        assert again.table_s(rows, length) == pytest.approx(cost.table_s(rows, length), rel=1e-12)


def test_points_do_not_include_the_current_speed() -> None:
    cost = proportional()

    for _ in range(30):
        for rows in ROWS:
            for length in LENGTHS:
                cost.observe(rows, length, 2e-3 * rows * length)

    assert cost.speed > 1.8
    assert cost.points()[(4, 16)] < 1.2 * 64e-3


def test_the_largest_shape_is_measured_first() -> None:
    shapes = shapes_to_measure([(8, 64), (32, 64), (128, 16), (512, 3)])

    sizes = [rows * length for rows, length in shapes]
    assert sizes == sorted(sizes, reverse=True)
    assert set(shapes) >= {(1, 8), (64, 8), (8, 8), (3, 512), (1, 512), (4, 128)}


def test_at_most_three_shapes_a_length_are_measured_and_none_above_its_limit() -> None:
    for most in range(1, 70):
        rows_at = [(8, most), (32, max(1, most // 2)), (128, max(1, most // 4)), (512, 1)]

        shapes = shapes_to_measure(rows_at)

        assert len(shapes) == len(set(shapes)) <= 12
        assert all(1 <= rows <= dict(rows_at)[length] for rows, length in shapes)
        assert set(rows_at) <= {(length, rows) for rows, length in shapes}


@pytest.mark.parametrize("most", [1, 2, 15, 16, 17, 63, 64, 1000, 4096])
def test_two_steps_are_one_row_the_most_and_their_geometric_mean(most: int) -> None:
    assert {rows for rows, _ in shapes_to_measure([(8, most)])} == {1, math.isqrt(most), most}


def test_gpu_steps_are_about_4_apart_up_to_4096_rows() -> None:
    for most in (1, 2, 7, 64, 1000, 4000, 4096):
        rows = sorted(rows for rows, _ in shapes_to_measure([(8, most)], GPU_STEPS))

        assert rows[0] == 1
        assert rows[-1] == most
        assert all(high <= 5 * low for low, high in pairwise(rows))


def test_gpu_steps_match_a_cost_that_is_flat_up_to_2000_tokens_within_a_tenth() -> None:
    def law(rows: int, length: int) -> float:
        return 1e-3 + 5e-7 * rows * length

    shapes = shapes_to_measure([(length, 16384 // length) for length in (8, 32, 128, 512)], GPU_STEPS)
    cost = CostTable({shape: law(*shape) for shape in shapes})

    worst = max(abs(cost.run_s(rows, length) / law(rows, length) - 1) for length in (8, 40, 200, 512) for rows in range(1, 16384 // length))
    assert worst < 0.1


def test_predictions_do_not_depend_on_the_cache_of_interpolation_weights() -> None:
    cost = fixed()
    before = [cost.run_s(rows, 77) for rows in (1, 3, 50)]

    for shape in range(PLACED_MAX + 10):
        cost.observe(1 + shape % 64, 1 + shape // 64, cost.run_s(1 + shape % 64, 1 + shape // 64))

    assert [cost.run_s(rows, 77) for rows in (1, 3, 50)] == pytest.approx(before)
    assert len(cost._placed) <= PLACED_MAX
