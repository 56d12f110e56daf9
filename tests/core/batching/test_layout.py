"""Padded and packed layouts: the cost of rows together, the size of a batch, and its halves."""

import math
import random
from collections.abc import Sequence

import pytest

from sentiment.batching.cost import CostTable
from sentiment.batching.layout import PADDED, Candidates, Layout, Lengths, Packed, Padded
from sentiment.batching.plan import BatchLimits, Prices
from sentiment.batching.ticket import Priority, Ticket
from tests.core.batching.test_cost import fixed, proportional, table

WIDE = BatchLimits(rows=64, tokens=2**16, scores_bytes=2**30, heads=2)
LAYOUTS = [Padded(), Packed()]


def portion(layout: Layout, lengths: Sequence[int], cost: CostTable, limits: BatchLimits = WIDE, within_s: float = math.inf) -> int:
    """How many of these rows make one batch. Checks its shape too."""
    group = Candidates(len(lengths), max(lengths), iter(lengths))
    rows, shape = layout.portion(group, Prices(cost, layout.within(limits)), within_s)
    if isinstance(layout, Packed):
        assert shape == layout.shape(Lengths.of(lengths[:rows]))
    else:
        assert shape == (rows, max(lengths))
    return rows


def draw(rng: random.Random) -> list[int]:
    """Lengths of some rows."""
    mean = rng.choice([5, 40, 300])
    return [min(512, 1 + int(rng.expovariate(1 / mean))) for _ in range(rng.choice([1, 2, 7, 100]))]


def tickets(lengths: Sequence[int]) -> list[Ticket[str]]:
    return [Ticket(length, 0.0, 9.0, "row", Priority.BULK, number, 1.0, 1.0) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed"])
def test_rows_of_one_length_have_their_own_shape(layout: Layout) -> None:
    for rows, length in ((1, 1), (1, 512), (7, 33), (64, 128)):
        assert layout.shape(Lengths.of([length] * rows)) == (rows, length)


def test_padded_rows_cost_as_much_as_the_longest() -> None:
    lengths = Lengths.of([3, 500, 40])

    assert Padded().shape(lengths) == (3, 500)
    assert Padded().computed(lengths) == (1500, 3 * 500**2)


def test_packed_rows_compute_their_tokens_rounded_up_and_their_own_squares() -> None:
    lengths = Lengths.of([3, 500, 40])

    assert Packed(64).computed(lengths) == (576, 9 + 250_000 + 1600)
    assert Packed(1).computed(lengths)[0] == 543


def test_packed_rows_cost_like_equal_rows_with_their_tokens_and_about_their_squares() -> None:
    seed = 1
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        lengths = Lengths.of(draw(rng))

        rows, length = Packed().shape(lengths)

        assert lengths.tokens <= rows * length < lengths.tokens + rows
        # The number of rows is rounded, by at most a third of itself; and their length, by less than a token.
        assert lengths.squares / 1.51 <= rows * length**2 <= 1.51 * lengths.squares * (1 + 1 / length) ** 2


def test_a_packed_batch_is_predicted_by_its_tokens_and_attention() -> None:
    seed = 2
    print(f"seed {seed}")
    rng = random.Random(seed)

    # Attention takes as long as all else at 1,500 tokens: a fifth of the time of a row of 384.
    def law(tokens: float, squares: float) -> float:
        return 1e-4 + 1e-6 * (tokens + squares / 1500)

    cost = table(lambda rows, length: law(rows * length, rows * length**2))
    for _ in range(300):
        lengths = Lengths.of(draw(rng))

        predicted_s = cost.run_s(*Packed().shape(lengths))

        assert predicted_s == pytest.approx(law(lengths.tokens, lengths.squares), rel=0.12)


def test_padded_rows_have_buckets_by_length_and_packed_ones_a_single_one() -> None:
    assert len(Padded().edges(512)) > 1
    assert Packed().edges(512) == [512]


def test_limits_leave_room_for_rounding_of_packed_tokens_and_for_indices_of_padded_scores() -> None:
    limits = BatchLimits(rows=64, tokens=1000, scores_bytes=2**30, heads=2)

    assert Padded().within(limits) == limits
    assert Padded().within(BatchLimits(64, 1000, 2**36, 2)) == BatchLimits(64, 1000, 2**33, 2)
    assert Packed(64).within(limits).tokens == 960
    # With so few tokens rows run alone.
    assert Packed(64).within(BatchLimits(64, 63, 2**30, 2)).rows_at(1) == 1


@pytest.mark.parametrize(("layout", "rows"), [(Padded(), 2), (Packed(), 6)], ids=["padded", "packed"])
def test_the_token_limit_bounds_the_rows_of_a_batch(layout: Layout, rows: int) -> None:
    limits = BatchLimits(rows=64, tokens=512, scores_bytes=2**30, heads=2)

    assert portion(layout, [200, 8, 8, 8, 200, 40, 200], fixed(0.01, 1e-9), limits) == rows


def test_no_packed_batch_breaks_a_limit_for_any_mixture() -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        lengths = draw(rng)
        limits = BatchLimits(rng.choice([1, 4, 64]), rng.choice([64, 1000, 4096]), rng.choice([2**18, 2**24]), 2)

        rows = portion(Packed(), lengths, fixed(0.01, 1e-9), limits)

        tokens, squares = Packed().computed(Lengths.of(lengths[:rows]))
        assert rows == 1 or (rows <= limits.rows and tokens <= limits.tokens and 2 * squares * 4 <= limits.scores_bytes)
        # Attention's workspace counts padding.
        padded = rows * max(lengths[:rows])
        assert rows == 1 or padded <= PADDED * limits.tokens
        assert rows == 1 or 2 * padded * max(lengths[:rows]) * 4 <= limits.scores_bytes


def test_one_long_row_limits_the_short_ones_beside_it() -> None:
    limits = BatchLimits(rows=256, tokens=2048, scores_bytes=2**32, heads=12)

    # 8 x 2,048 / 512 rows with a long one, or as many short ones as come before it.
    assert portion(Packed(), [512] + [2] * 500, fixed(0.01, 1e-9), limits) == 32
    assert portion(Packed(), [2] * 31 + [512] + [2] * 500, fixed(0.01, 1e-9), limits) == 32
    assert portion(Packed(), [2] * 40 + [512] + [2] * 500, fixed(0.01, 1e-9), limits) == 40


def test_no_batch_takes_more_memory_than_the_mixture_of_the_warm_up() -> None:
    seed = 4
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        limits = Packed().within(BatchLimits(rng.choice([4, 64, 256]), rng.choice([1024, 4096]), 2**32, 2))
        mixture = Packed().mixture(limits, 512)
        lengths = draw(rng)

        rows = portion(Packed(), lengths, fixed(0.01, 1e-9), limits)

        assert mixture[0] == max(mixture) == 512
        assert sum(mixture) <= limits.tokens
        assert rows * max(lengths[:rows]) <= len(mixture) * 512
    assert Padded().mixture(BatchLimits(64, 1024, 2**32, 2), 512) == [512, 512]
    # With so few tokens the longest row runs alone.
    assert Packed().mixture(BatchLimits(64, 64, 2**32, 2), 512) == [512]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed"])
def test_a_row_that_breaks_a_limit_by_itself_is_a_batch_alone(layout: Layout) -> None:
    assert portion(layout, [500, 500], fixed(0.01, 1e-9), BatchLimits(64, 128, 2**30, 2)) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed"])
def test_rows_of_one_length_make_a_batch_of_the_best_size(layout: Layout) -> None:
    for cost in (fixed(), proportional(), table(lambda rows, length: 1e-3 + 1e-4 * rows * length)):
        for length in (4, 64, 500):
            assert portion(layout, [length] * 100, cost) == Prices(cost, WIDE).best_rows(length)


def test_a_packed_batch_of_a_mixture_has_about_the_tokens_of_the_best_batches_of_its_lengths() -> None:
    # 20,000 tokens take as long as starting does.
    cost = table(lambda rows, length: 1e-2 + 5e-7 * rows * length)
    limits = BatchLimits(rows=4096, tokens=2**16, scores_bytes=2**40, heads=2)
    mixed = [30, 300] * 1000

    rows = portion(Packed(), mixed, cost, limits)

    best = [Prices(cost, limits).best_rows(length) * length for length in (30, 300)]
    assert min(best) <= sum(mixed[:rows]) <= max(best)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed"])
@pytest.mark.parametrize(("within_s", "rows"), [(0.0005, 1), (0.011, 1), (0.0215, 2), (0.0315, 3), (0.0515, 5), (9.0, 6)])
def test_a_batch_has_the_rows_that_fit_in_its_time_and_at_least_one(layout: Layout, within_s: float, rows: int) -> None:
    # One row takes 11 ms, each further one 10 ms, and more than 6 save nothing.
    assert portion(layout, [100] * 9, fixed(1e-3, 1e-4), within_s=within_s) == rows


def test_a_padded_batch_is_halved_by_length() -> None:
    shorter, longer = Padded().halves(tickets([9, 300, 5, 200, 7]))

    assert [ticket.length for ticket in shorter] == [5, 7]
    assert [ticket.length for ticket in longer] == [9, 200, 300]


def test_the_halves_of_a_packed_batch_have_about_the_same_tokens() -> None:
    seed = 4
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        lengths = draw(rng)

        lighter, heavier = Packed().halves(tickets(lengths))

        assert sorted(ticket.length for ticket in [*lighter, *heavier]) == sorted(lengths)
        assert len(heavier) - len(lighter) in (0, 1)
        surplus = sum(ticket.length for ticket in heavier) - sum(ticket.length for ticket in lighter)
        assert 0 <= surplus <= max(lengths)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["padded", "packed"])
def test_a_single_row_has_no_halves(layout: Layout) -> None:
    lighter, heavier = layout.halves(tickets([8]))

    assert (len(lighter), len(heavier)) == (0, 1)
