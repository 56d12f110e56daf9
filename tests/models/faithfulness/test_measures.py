"""What erasing in an order is said to do, against sums done by hand and against all orders there are."""

import itertools
import math

import numpy as np
import pytest

from sentiment.explain.methods.erasure import Answers, Floats, Masks, Steps, run
from sentiment.explain.methods.target import Target
from sentiment_models.explanations.measures import BEAM, Erasures, Model, beam_search, erase_in_order, leave_one_out, sizes, tau

MODEL = Model(Target(1), temperature=1.0)


class Fake:
    """A model of words with weights and some pairs of words that only count together; keeps what it was asked."""

    def __init__(self, weights: list[float], pairs: dict[tuple[int, int], float] | None = None) -> None:
        self.weights, self.pairs = np.array(weights), pairs or {}
        self.rows = 0

    def __call__(self, masks: Masks) -> Floats:
        self.rows += len(masks)
        z = masks @ self.weights
        for (first, second), weight in self.pairs.items():
            z = z + weight * (masks[:, first] & masks[:, second])
        return np.stack([np.zeros(len(masks)), z], axis=1)

    def f(self, *kept: int) -> float:
        mask = np.zeros((1, len(self.weights)), np.bool_)
        mask[0, list(kept)] = True
        return 1 / (1 + math.exp(-float(self(mask)[0, 1])))


def erased(fake: Fake, orders: list[list[int]], flips: int = 1, points: int = 40) -> Erasures:
    steps: Steps[Erasures] = erase_in_order(np.array(orders), flips, points, MODEL, Answers())
    return run(steps, fake)


@pytest.mark.parametrize(("n", "expected"), [(1, [1, 1, 1, 1, 1]), (30, [1, 2, 3, 6, 15]), (101, [2, 6, 11, 21, 51])])
def test_a_fraction_is_at_least_a_word_and_rounded_up(n: int, expected: list[int]) -> None:
    assert sizes(n) == expected


def test_comprehensiveness_and_sufficiency_are_those_done_by_hand() -> None:
    fake = Fake([1.0, -2.0, 3.0, 0.5])
    whole = fake.f(0, 1, 2, 3)

    found = erased(fake, [[2, 0, 3, 1]])

    # One word of four at all fractions but the half.
    assert found.comprehensiveness[0] == pytest.approx([whole - fake.f(0, 1, 3)] * 4 + [whole - fake.f(1, 3)])
    assert found.sufficiency[0] == pytest.approx([whole - fake.f(2)] * 4 + [whole - fake.f(0, 2)])
    assert found.aopc == pytest.approx([whole - np.mean([fake.f(0, 1, 3), fake.f(1, 3), fake.f(1), fake.f()])])


def test_the_measures_of_an_order_do_not_depend_on_the_others() -> None:
    fake = Fake([1.0, -2.0, 3.0, 0.5])
    orders = [[2, 0, 3, 1], [1, 3, 0, 2], [0, 1, 2, 3]]

    together = erased(fake, orders, flips=2)

    for place, order in enumerate(orders):
        alone = erased(fake, [order])
        assert together.comprehensiveness[place] == pytest.approx(alone.comprehensiveness[0])
        assert together.sufficiency[place] == pytest.approx(alone.sufficiency[0])
        if place < 2:
            assert together.flip[place] == alone.flip[0]
            assert together.aopc is not None
            assert together.aopc[place] == pytest.approx(alone.aopc)
    assert len(together.flip) == 2


def test_the_flip_is_where_the_answer_first_changes_and_1_where_it_never_does() -> None:
    # The answer is label 1 while the sum is above 0.
    fake = Fake([3.0, 1.0, -2.0, -1.5, 0.2])

    found = erased(fake, [[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [2, 3, 4, 1, 0]], flips=3)

    # Of nothing the sum is 0, and the first label wins a tie.
    assert found.flip.tolist() == [0.2, 0.2, 1.0]


def test_against_another_label_the_flip_is_where_that_wins_whatever_a_third_does() -> None:
    model = Model(Target(1, against=0), temperature=1.0)
    fake = Fake([3.0, 1.0, -2.0])

    def with_a_third(masks: Masks) -> Floats:
        return np.column_stack([fake(masks), np.full(len(masks), 9.0)])

    found = run(erase_in_order(np.array([[1, 0, 2]]), 1, 40, model, Answers()), with_a_third)

    # 2 with all words, 1 without the second.
    assert found.flip.tolist() == [pytest.approx(2 / 3)]


def test_the_flip_of_a_long_text_is_sought_on_a_grid_and_no_further_than_it_is() -> None:
    fake = Fake([0.0] * 99 + [1.0])
    order = [*range(60), 99, *range(60, 99)]

    exact, coarse = (erased(fake, [order], points=points) for points in (100, 10))
    rows = fake.rows
    again = Fake([0.0] * 99 + [1.0])
    erased(again, [[99, *range(99)]], points=10)

    assert exact.flip == pytest.approx([0.61])
    assert coarse.flip == pytest.approx([0.7])
    assert exact.aopc is None
    # The whole, two for each of five sizes, of which one is the flip's first.
    assert again.rows == 11
    assert rows > again.rows


def test_leave_one_out_is_in_probability() -> None:
    fake = Fake([1.0, -2.0, 3.0])

    found = run(leave_one_out(3, MODEL, Answers()), fake)

    assert found == pytest.approx([fake.f(0, 1, 2) - fake.f(1, 2), fake.f(0, 1, 2) - fake.f(0, 2), fake.f(0, 1, 2) - fake.f(0, 1)])


def test_tau_is_undefined_where_all_values_are_equal_or_there_is_one_word() -> None:
    assert tau(np.array([1.0, 2.0]), np.array([3.0, 5.0])) == pytest.approx(1)
    assert tau(np.zeros(3), np.arange(3.0)) is None
    assert tau(np.arange(3.0), np.zeros(3)) is None
    assert tau(np.ones(1), np.ones(1)) is None


def aopc(fake: Fake, order: tuple[int, ...]) -> float:
    n = len(order)
    return fake.f(*range(n)) - float(np.mean([fake.f(*order[size:]) for size in range(1, n + 1)]))


@pytest.mark.parametrize("seed", range(4))
def test_beam_search_finds_the_best_and_the_worst_of_all_orders_of_five_words(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fake = Fake(rng.normal(size=5).tolist(), {(0, 1): 1.5, (2, 4): -2.0})
    every = [aopc(fake, order) for order in itertools.permutations(range(5))]

    # As wide as there are sets of any size, the search leaves nothing out.
    (best, high), (worst, low) = (run(beam_search(5, 10, turned, MODEL, Answers()), fake) for turned in (False, True))

    assert high == pytest.approx(max(every))
    assert low == pytest.approx(min(every))
    assert aopc(fake, tuple(best)) == pytest.approx(high)
    assert aopc(fake, tuple(worst)) == pytest.approx(low)


def test_a_beam_sees_a_pair_that_greedy_removal_does_not() -> None:
    # Either of the first two words keeps the answer: alone neither matters.
    fake = Fake([4.0, 4.0, 1.0, 0.5], {(0, 1): -4.0})

    (greedy, _), (_, high) = (run(beam_search(4, width, False, MODEL, Answers()), fake) for width in (1, BEAM))

    assert greedy[0] == 2
    assert high >= aopc(fake, tuple(greedy))
    assert high == pytest.approx(max(aopc(fake, order) for order in itertools.permutations(range(4))))
