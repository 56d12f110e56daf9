"""Erasure of words: the masks that run, and the attributions based on their logits."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, ShapleyValues, occlusion, ranked, run, shapley, without
from sentiment.explain.methods.target import Target


class Model:
    """Returns logits by a function of one mask, records the masks, and raises Enough after ``batches_max`` batches."""

    def __init__(self, logits: Callable[[Floats], list[float]], batches_max: float = math.inf) -> None:
        self.logits = logits
        self.batches_max = batches_max
        self.batches: list[Masks] = []

    def __call__(self, masks: Masks) -> Floats:
        if len(self.batches) >= self.batches_max:
            raise Enough
        self.batches.append(masks.copy())
        return np.array([self.logits(mask.astype(float)) for mask in masks])

    @property
    def asked(self) -> list[tuple[bool, ...]]:
        return [tuple(map(bool, mask)) for batch in self.batches for mask in batch]


def linear(weights: Floats, bias: float = 0.0) -> Callable[[Floats], list[float]]:
    """The second label's logit is the sum of the weights of the words that are kept, the first label's its negative."""
    return lambda kept: [-(kept @ weights + bias), kept @ weights + bias]


def arbitrary(seed: int, labels: int = 2) -> Callable[[Floats], list[float]]:
    """Every set of words has logits of its own: all words interact."""

    def logits(kept: Floats) -> list[float]:
        chosen = sum(1 << place for place in np.flatnonzero(kept).tolist())
        return np.random.default_rng([seed, chosen]).normal(size=labels).tolist()

    return logits


def pairwise(seed: int, n: int) -> Callable[[Floats], list[float]]:
    """Words have effects alone and in pairs."""
    rng = np.random.default_rng(seed)
    alone, pairs = rng.normal(size=n), rng.normal(size=(n, n))
    return lambda kept: [0.0, float(kept @ alone + kept @ pairs @ kept)]


def shapley_by_orders(n: int, label: int, logits: Callable[[Floats], list[float]]) -> Floats:
    """The definition: the mean over all orders of what a word adds to those before it."""
    value = {}
    for kept in itertools.product([0.0, 1.0], repeat=n):
        value[kept] = logits(np.array(kept))[label]
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        kept = [0.0] * n
        for word in order:
            before = value[tuple(kept)]
            kept[word] = 1.0
            total[word] += value[tuple(kept)] - before
    return total / math.factorial(n)


def sampled(n: int, samples: int, model: Model, seed: int = 0, label: int = 1) -> ShapleyValues:
    return run(shapley(n, Target(label), samples, np.random.default_rng(seed), Answers().ask), model)


@pytest.mark.parametrize("n", range(7))
@pytest.mark.parametrize("label", [0, 1])
def test_occlusion_is_the_logit_with_all_words_minus_that_without_one(n: int, label: int) -> None:
    logits = arbitrary(seed=n)

    found = run(occlusion(n, Target(label), Answers()), Model(logits))

    whole = logits(np.ones(n))[label]
    assert found.tolist() == [whole - logits(np.arange(n) != word)[label] for word in range(n)]


def test_a_word_against_the_label_has_a_negative_value() -> None:
    found = run(occlusion(3, Target(1), Answers()), Model(linear(np.array([2.0, -1.5, 0.0]))))

    assert found == pytest.approx([2.0, -1.5, 0.0])


@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("label", [0, 1])
def test_few_words_get_exact_shapley_values(n: int, label: int) -> None:
    model = Model(arbitrary(seed=n))

    found = sampled(n, 10, model, label=label)

    assert found.permutations == 0
    assert found.values == pytest.approx(shapley_by_orders(n, label, model.logits), abs=1e-12)
    assert found.standard_errors.tolist() == [0.0] * n
    assert len(model.asked) == (2**n if n else 0)


def test_sampled_shapley_values_are_within_their_standard_errors() -> None:
    model = Model(arbitrary(seed=3))
    exact = shapley_by_orders(7, 1, model.logits)

    found = sampled(7, 400, model)

    assert found.permutations == 400
    assert 0.01 < found.standard_errors.min() < found.standard_errors.max() < 0.1
    assert (np.abs(found.values - exact) < 4 * found.standard_errors).all()


def test_standard_errors_match_the_spread_of_the_values() -> None:
    answers = Answers()
    model = Model(arbitrary(seed=4))

    found = [run(shapley(6, Target(1), 4, np.random.default_rng(seed), answers.ask), model) for seed in range(600)]

    scatter = np.std([one.values for one in found], axis=0)
    stated = np.sqrt(np.mean([one.standard_errors**2 for one in found], axis=0))
    assert stated / scatter == pytest.approx(np.ones(6), abs=0.15)


def test_one_order_and_its_reverse_are_exact_where_words_interact_in_pairs() -> None:
    model = Model(pairwise(seed=5, n=7))

    found = sampled(7, 2, model)

    assert found.values == pytest.approx(shapley_by_orders(7, 1, model.logits), abs=1e-12)
    # That it is exact cannot be seen from one pair.
    assert found.standard_errors.tolist() == [math.inf] * 7


@pytest.mark.parametrize("samples", [1, 2, 9, 10])
@pytest.mark.parametrize("n", [3, 6, 11])
def test_shapley_values_sum_to_the_whole_text_minus_the_empty_text(n: int, samples: int) -> None:
    model = Model(arbitrary(seed=n))

    found = sampled(n, samples, model)

    assert found.values.sum() == pytest.approx(model.logits(np.ones(n))[1] - model.logits(np.zeros(n))[1], abs=1e-12)
    assert found.permutations == (0 if n == 3 else 2 * math.ceil(samples / 2))


def test_the_same_seed_draws_the_same_orders() -> None:
    model = Model(arbitrary(seed=6))

    first, again, another = (sampled(8, 6, model, seed=seed) for seed in (1, 1, 2))

    assert first.values.tolist() == again.values.tolist() != another.values.tolist()


def test_stopped_sampling_returns_the_pairs_of_orders_so_far() -> None:
    logits = arbitrary(seed=7)
    # The first pair asks for 2 + 2 x 19 masks, in batches of 32 and 8, every other for 38 in two batches: the fifth is of the third pair.
    stopped = sampled(20, 100, Model(logits, batches_max=5))

    assert stopped.permutations == 4
    assert stopped.values.tolist() == sampled(20, 4, Model(logits)).values.tolist()


def test_an_explanation_stopped_without_a_result_raises_enough() -> None:
    with pytest.raises(Enough):
        sampled(20, 100, Model(arbitrary(seed=7), batches_max=1))
    with pytest.raises(Enough):
        run(occlusion(40, Target(1), Answers()), Model(arbitrary(seed=7), batches_max=1))


@pytest.mark.parametrize("rows_max", [1, 7, 32])
def test_no_mask_runs_twice_and_no_batch_is_too_large(rows_max: int) -> None:
    model = Model(arbitrary(seed=8))
    answers = Answers(rows_max)

    run(occlusion(20, Target(1), answers), model)
    run(shapley(20, Target(1), 30, np.random.default_rng(0), answers.ask), model)
    asked = len(model.asked)
    run(occlusion(20, Target(0), answers), model)

    assert len(set(model.asked)) == len(model.asked) == asked == answers.rows
    assert max(len(batch) for batch in model.batches) == rows_max
    assert all(batch.dtype == np.bool_ for batch in model.batches)


def test_logits_are_in_the_order_of_the_masks() -> None:
    model = Model(linear(np.array([1.0, 2.0, 4.0])))
    masks = without(3, [(0,), (), (1, 2), (0,), (0, 1, 2), (1,)])
    answers = Answers(2)
    answers.tell(masks[2:3], np.array([[-1.0, 1.0]]))

    found = run(answers.ask(masks), model)

    assert found[:, 1].tolist() == [6.0, 7.0, 1.0, 6.0, 0.0, 5.0]
    assert model.asked == [(False, True, True), (True, True, True), (False, False, False), (True, False, True)]


def test_logits_stay_known_after_a_stopped_explanation() -> None:
    answers = Answers(4)
    masks = without(6, [(word,) for word in range(6)])
    with pytest.raises(Enough):
        run(answers.ask(masks), Model(linear(np.arange(6.0)), batches_max=1))

    assert answers.known(masks)[:, 1].tolist() == [15.0, 14.0, 13.0, 12.0]
    assert answers.known(masks[4:]).shape == (0, 0)


def test_only_new_masks_count_as_affordable_rows() -> None:
    answers = Answers()
    answers.tell(without(4, [(), (1,)]), np.zeros((2, 2)))
    masks = without(4, [(), (0,), (1,), (0,), (2,), (), (3,)])

    assert [answers.affordable(masks, rows) for rows in range(5)] == [1, 4, 6, 7, 7]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        run(occlusion(3, Target(1), Answers()), Model(lambda kept: [0.0, wrong if kept[0] else 1.0]))


def test_too_few_rows_of_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 4 rows of logits, one per mask, got 3"):
        run(occlusion(3, Target(1), Answers()), lambda masks: np.zeros((3, 2)))


def test_words_are_ranked_by_score_and_ties_by_place() -> None:
    scores = np.random.default_rng(0).integers(3, size=100).astype(float)

    assert ranked(scores) == sorted(range(100), key=lambda word: (-scores[word], word))
