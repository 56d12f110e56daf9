"""Shapley values in two steps: sentences among each other, and words in their sentence alone."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, run, shapley
from sentiment.explain.methods.target import Target
from sentiment.explain.methods.two_step import SENTENCE_WORDS_MAX, TwoStepValues, cut, tokens_run, two_step_shapley

Value = Callable[[Masks], float]
SMALL = (range(3), range(3, 4), range(4, 8))
LARGE = tuple(range(start, start + 7) for start in range(0, 49, 7))


def arbitrary(seed: int) -> Value:
    """Every set of words has a value of its own: all words interact."""
    return lambda kept: float(np.random.default_rng([seed, *np.flatnonzero(kept).tolist()]).normal())


def driven(value: Value, batches_max: float = math.inf) -> Callable[[Masks], Floats]:
    """The logits of a model with two labels; the value is that of the second. Raises Enough after ``batches_max`` batches."""
    left = iter(range(int(min(batches_max, 10**9))))

    def logits(masks: Masks) -> Floats:
        if next(left, None) is None:
            raise Enough
        return np.array([[0.0, value(mask)] for mask in masks])

    return logits


def found(sentences: Sequence[range], value: Value, samples: int = 2, seed: int = 0, batches_max: float = math.inf) -> TwoStepValues:
    steps = two_step_shapley(sentences, Target(1), samples, np.random.default_rng(seed), Answers())
    return run(steps, driven(value, batches_max))


def shapley_by_orders(players: Sequence[Sequence[int]], n: int, value: Value) -> list[float]:
    """The definition: the mean over all orders of what a player's words add to those of the players before it."""
    total = [0.0] * len(players)
    for order in itertools.permutations(range(len(players))):
        kept = np.zeros(n, np.bool_)
        for player in order:
            before = value(kept)
            kept[list(players[player])] = True
            total[player] += value(kept) - before
    return [one / math.factorial(len(players)) for one in total]


@pytest.mark.parametrize("seed", range(3))
def test_values_of_few_short_sentences_are_those_of_the_definition(seed: int) -> None:
    value = arbitrary(seed)

    values = found(SMALL, value)

    among = shapley_by_orders(SMALL, 8, value)
    for sentence, share in zip(SMALL, among, strict=True):
        alone = shapley_by_orders([(word,) for word in sentence], 8, value)
        surplus = (share - sum(alone)) / len(sentence)
        assert values.values[list(sentence)] == pytest.approx([one + surplus for one in alone], abs=1e-12)
    assert (values.standard_errors.tolist(), values.permutations, values.valued) == ([0.0] * 8, 0, 3)


@pytest.mark.parametrize("samples", [1, 2, 6])
@pytest.mark.parametrize("sentences", [SMALL, LARGE, LARGE[:1], (range(9), range(9, 10))])
def test_values_sum_to_the_whole_text_minus_the_empty_text(sentences: Sequence[range], samples: int) -> None:
    n, value = sentences[-1].stop, arbitrary(seed=samples)

    values = found(sentences, value, samples)

    assert values.values.sum() == pytest.approx(value(np.ones(n, np.bool_)) - value(np.zeros(n, np.bool_)), abs=1e-9)


def test_a_single_sentence_gets_shapley_values() -> None:
    value = arbitrary(seed=4)

    values = found([range(9)], value, samples=6, seed=3)

    same = run(shapley(9, Target(1), 6, np.random.default_rng(3), Answers().ask), driven(value))
    assert values.values == pytest.approx(same.values, abs=1e-12)
    assert values.standard_errors == pytest.approx(same.standard_errors)
    assert (values.permutations, values.valued) == (same.permutations, 1)


def test_a_text_of_one_word_gets_its_whole_effect() -> None:
    value = arbitrary(seed=5)

    values = found([range(1)], value)

    assert values.values == pytest.approx([value(np.array([True])) - value(np.array([False]))])


def test_words_that_only_add_up_get_their_weights() -> None:
    weights = np.random.default_rng(6).normal(size=LARGE[-1].stop)
    weights[::3] = 0.0

    values = found(LARGE, lambda kept: float(kept @ weights))

    # Words that do nothing get 0.
    assert values.values == pytest.approx(weights, abs=1e-9)


def test_words_of_a_sentence_that_do_the_same_get_the_same() -> None:
    def value(kept: Masks) -> float:
        in_pairs = float(kept[:7].sum() ** 2 + 3 * kept[7:].sum())
        return in_pairs * (1 + float(kept[20]))

    values = found(LARGE, value)

    # An order and its reverse are exact where words interact in pairs.
    assert values.values[:7] == pytest.approx([values.values[0]] * 7)
    assert values.values[7:14] == pytest.approx([values.values[7]] * 7)
    assert abs(values.values[0] - values.values[7]) > 1


def test_no_word_runs_with_another_part_of_its_text_than_whole_sentences() -> None:
    asked: list[Masks] = []

    def value(kept: Masks) -> float:
        asked.append(kept.copy())
        return arbitrary(7)(kept)

    found(LARGE, value, samples=2)

    for kept in asked:
        some = [sentence for sentence in LARGE if kept[list(sentence)].any()]
        parts = [sentence for sentence in some if not kept[list(sentence)].all()]
        assert not parts or some == parts
    assert len({kept.tobytes() for kept in asked}) == len(asked)
    assert sum(int(kept.sum()) for kept in asked) <= tokens_run([(7, 7)] * 7, 2)


def test_standard_errors_are_unknown_after_one_pair_of_orders() -> None:
    value = arbitrary(seed=8)

    one, two = found(LARGE, value, samples=2), found(LARGE, value, samples=4)

    assert one.standard_errors.tolist() == [math.inf] * 49
    assert (two.standard_errors > 0).all()
    assert np.isfinite(two.standard_errors).all()
    assert (one.permutations, two.permutations) == (2, 4)


def test_words_of_the_sentences_with_the_largest_values_come_first_if_time_ends() -> None:
    weights = np.repeat([1.0, -5.0, 3.0, 0.5, -2.0, 4.0, 0.1], 7) + np.linspace(0, 0.5, 49)

    def value(kept: Masks) -> float:
        return float(kept @ weights)

    # A batch for the sentences, and one for the words of each.
    values = found(LARGE, value, batches_max=3)

    assert values.valued == 2
    for sentence, valued in zip(LARGE, (False, True, False, False, False, True, False), strict=True):
        own = values.values[list(sentence)]
        assert own.sum() == pytest.approx(weights[list(sentence)].sum())
        assert own == pytest.approx(weights[list(sentence)] if valued else [own[0]] * 7)


def test_words_that_share_their_sentences_value_have_unknown_standard_errors() -> None:
    # A batch for the sentences, and one for the words of the first.
    values = found(SMALL, arbitrary(1), batches_max=2)

    errors = [set(values.standard_errors[list(sentence)]) for sentence in SMALL]
    assert 1 <= values.valued < 3
    assert sorted(errors, key=max) == [{0.0}] * values.valued + [{math.inf}] * (3 - values.valued)


@pytest.mark.parametrize("batches", [0, 1])
def test_without_time_for_the_words_of_one_sentence_there_is_no_result(batches: int) -> None:
    with pytest.raises(Enough):
        found(LARGE, arbitrary(9), batches_max=batches)


def test_long_sentences_are_cut_into_equal_parts() -> None:
    longest = SENTENCE_WORDS_MAX

    parts = cut([range(2), range(2, 2 + longest), range(2 + longest, 3 + 3 * longest)])

    assert [*itertools.chain(*parts)] == [*range(3 + 3 * longest)]
    assert [len(part) for part in parts] == [2, longest, 27, 27, 27]
