"""Dividing waiting rows into batches: buckets, limits, prices, and the least predicted time."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from sentiment.batching.cost import CostTable
from sentiment.batching.plan import EDGES_MAX, FINE_MAX, NEAR_BEST, BatchLimits, Prices, Span, bucket_by_length, edges, split
from tests.core.batching.test_cost import fixed, proportional, table

LIMITS = BatchLimits(rows=4, tokens=64, scores_bytes=2**20, heads=2)
WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)

Buckets = list[tuple[int, int]]


def partitions(buckets: Buckets) -> Iterator[list[Buckets]]:
    """Every way to divide buckets into contiguous groups."""
    if not buckets:
        yield []
    for size in range(1, len(buckets) + 1):
        for rest in partitions(buckets[size:]):
            yield [buckets[:size], *rest]


def batches_s(rows: int, length: int, size: int, cost: CostTable) -> float:
    """Seconds of batches of ``size`` rows and one with the rest."""
    return sum(cost.table_s(min(size, rows - start), length) for start in range(0, rows, size))


def draw_buckets(rng: random.Random, most: int) -> Buckets:
    lengths = sorted(rng.sample(edges(512), rng.randint(1, most)))
    return [(length, rng.choice([1, 1, 2, 5, 17, 100, 900])) for length in lengths]


def draw_prices(rng: random.Random) -> Prices:
    fixed_s, token_s, square = rng.choice([0.0, 1e-4, 1e-2]), rng.choice([1e-6, 1e-4]), rng.choice([0.0, 1e-3])
    cost = table(lambda rows, length: 1e-9 + fixed_s + token_s * rows * length * (1 + square * length))
    return Prices(cost, BatchLimits(rng.choice([1, 4, 64]), rng.choice([64, 4096]), 2**26, 2))


@pytest.mark.parametrize("length_max", [1, 2, 3, 31, 32, 33, 34, 48, 100, 128, 512, 514, 8192])
def test_buckets_are_few_and_rise_to_the_longest_length(length_max: int) -> None:
    ladder = edges(length_max)

    assert 1 <= len(ladder) <= EDGES_MAX
    assert ladder[-1] == length_max
    assert all(low < high for low, high in pairwise(ladder))


def test_padding_within_a_bucket_is_one_token_up_to_32_and_a_sixth_beyond() -> None:
    bucket_of = bucket_by_length(edges(512))

    for length in range(1, 513):
        edge = bucket_of[length]
        assert length <= edge
        assert edge - length <= (1 if length <= FINE_MAX else edge / 6)


@pytest.mark.parametrize("length_max", [1, 31, 100, 512])
def test_every_length_belongs_to_the_first_edge_that_it_does_not_exceed(length_max: int) -> None:
    ladder = edges(length_max)

    assert bucket_by_length(ladder) == [next(edge for edge in ladder if length <= edge) for length in range(length_max + 1)]


def test_a_batch_keeps_the_limits_of_rows_tokens_and_scores() -> None:
    assert LIMITS.rows_at(8) == 4
    assert LIMITS.rows_at(32) == 2
    assert LIMITS.rows_at(64) == 1
    assert LIMITS.rows_at(1000) == 1
    assert BatchLimits(99, 10**6, 4 * 2 * 100 * 100, 2).rows_at(100) == 1
    assert BatchLimits(99, 10**6, 3 * 4 * 2 * 100 * 100, 2).rows_at(100) == 3


@pytest.mark.parametrize(("rows", "length"), [(2, 1), (2, 8), (3, 8), (4, 16), (64, 512)])
def test_limits_below_a_batch_allow_at_most_half_of_it(rows: int, length: int) -> None:
    lower = WIDE.below(rows * length, rows * length**2)

    assert lower.rows_at(length) == rows // 2
    assert lower.tokens <= rows * length // 2
    assert lower.scores_bytes <= rows * 2 * length**2 * 4 // 2


def test_limits_below_a_batch_never_rise() -> None:
    low = BatchLimits(rows=64, tokens=10, scores_bytes=100, heads=2)

    assert low.below(64 * 512, 64 * 512**2) == low


def test_limits_below_a_batch_allow_half_of_its_attention_scores() -> None:
    lower = WIDE.below(64 * 16, 64 * 16**2)

    # Scores grow with the square of the length: of rows twice as long a quarter fit.
    assert Prices(fixed(1.0, 1e-9), lower).best_rows(32) == 8


def test_one_row_still_runs_below_the_smallest_batch() -> None:
    assert WIDE.below(1, 1).rows_at(512) == 1


@pytest.mark.parametrize("length", [2, 32, 77, 512])
def test_rows_run_alone_where_cost_is_proportional_to_tokens(length: int) -> None:
    assert Prices(proportional(), WIDE).best_rows(length) == 1


def test_batches_are_as_large_as_allowed_where_only_the_fixed_cost_counts() -> None:
    prices = Prices(fixed(1.0, 1e-9), WIDE)

    assert prices.best_rows(8) == 64
    assert prices.best_rows(512) == WIDE.rows_at(512) == 64


def test_a_batch_is_the_smallest_within_2_percent_of_the_least_time_per_row() -> None:
    cost = table(lambda rows, length: 1e-3 + 1e-4 * rows * length)
    prices = Prices(cost, WIDE)

    for length in (4, 16, 64, 256):
        best = prices.best_rows(length)
        least = min(cost.table_s(rows, length) / rows for rows in range(1, 65))
        assert cost.table_s(best, length) / best <= NEAR_BEST * least * 1.001
        # The next smaller size that is considered, by a root of 2, is outside the 2 percent.
        assert best == 1 or cost.table_s(round(best / 2**0.5), length) / round(best / 2**0.5) > NEAR_BEST * least


def test_a_rows_part_of_a_batch_is_that_of_its_scarcest_limit() -> None:
    limits = BatchLimits(rows=10, tokens=1000, scores_bytes=4 * 2 * 400 * 400, heads=2)

    assert limits.part(4) == 1 / 10
    assert limits.part(120) == 120 / 1000
    assert limits.part(200) == 1 / 4
    assert limits.part(800) == 4


def test_the_part_of_the_best_batch_is_that_of_the_largest_where_larger_ones_would_pay() -> None:
    limits = BatchLimits(rows=64, tokens=1000, scores_bytes=2**30, heads=2)

    # 2 rows of 400 fit, but each takes less than half.
    assert Prices(fixed(1.0, 1e-9), limits).part(400) == 0.4
    assert Prices(proportional(), limits).part(400) == 1.0


def test_no_batch_is_larger_than_the_limits() -> None:
    prices = Prices(fixed(), LIMITS)

    for length in range(1, 200):
        assert prices.best_rows(length) <= LIMITS.rows_at(length)


def test_a_group_costs_its_whole_batches_and_the_rest() -> None:
    seed = 2
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(30):
        prices = draw_prices(rng)
        for _ in range(20):
            rows, length = rng.randint(0, 200), rng.randint(1, 512)

            seconds = prices.group_s(rows, length)

            assert seconds == pytest.approx(batches_s(rows, length, prices.best_rows(length), prices.cost))


def test_prices_are_stale_when_the_table_has_moved() -> None:
    cost = proportional()
    prices = Prices(cost, WIDE)
    assert not prices.stale()

    for _ in range(20):
        cost.observe(1, 8, 1.0)

    assert prices.stale()
    assert not Prices(cost, WIDE).stale()


def test_no_other_division_of_the_buckets_takes_less_time() -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        prices, buckets = draw_prices(rng), draw_buckets(rng, 6)

        spans = split(buckets, prices)

        totals = [
            sum(prices.group_s(sum(rows for _, rows in group), group[-1][0]) for group in partition) for partition in partitions(buckets)
        ]
        assert cost_s(spans, buckets, prices) == pytest.approx(min(totals)), (buckets, spans)
        # Again, now that every group's price is cached.
        assert cost_s(split(buckets, prices), buckets, prices) == pytest.approx(min(totals)), buckets


def cost_s(spans: Sequence[Span], buckets: Sequence[tuple[int, int]], prices: Prices) -> float:
    return sum(prices.group_s(sum(rows for _, rows in buckets[span.first : span.last + 1]), buckets[span.last][0]) for span in spans)


def test_groups_cover_all_buckets_in_order() -> None:
    seed = 4
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        prices, buckets = draw_prices(rng), draw_buckets(rng, 30)

        spans = split(buckets, prices)

        covered = [index for span in spans for index in range(span.first, span.last + 1)]
        assert covered == list(range(len(buckets)))


def test_different_lengths_are_padded_together_where_the_fixed_cost_dominates() -> None:
    assert groups([(8, 3), (32, 2), (128, 1)], Prices(fixed(1.0, 1e-9), WIDE)) == [[8, 32, 128]]


def test_different_lengths_stay_apart_where_cost_is_proportional_to_tokens() -> None:
    assert groups([(8, 3), (32, 2), (128, 1)], Prices(proportional(), WIDE)) == [[8], [32], [128]]


def test_a_short_row_does_not_join_a_full_batch_of_long_ones() -> None:
    # 4 long rows fill a batch; a fifth, however short, would make a second one of full length.
    prices = Prices(fixed(1e-3, 1e-4), BatchLimits(4, 2**16, 2**30, 2))

    assert groups([(8, 1), (512, 4)], prices) == [[8], [512]]


def test_no_buckets_give_no_groups() -> None:
    assert split([], Prices(proportional(), WIDE)) == []


def groups(buckets: Buckets, prices: Prices) -> list[Sequence[int]]:
    """The lengths that are padded together."""
    return [[length for length, _ in buckets[span.first : span.last + 1]] for span in split(buckets, prices)]
