"""Values of a long text in two steps: whole sentences, and their words."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, run
from sentiment.explain.methods.target import Target
from sentiment.explain.methods.two_step import (
    PAIRS_MIN,
    SENTENCE_WORDS_MAX,
    SENTENCE_WORDS_MIN,
    SENTENCES_MAX,
    SentenceValues,
    parted,
    sentence_shapley,
    sentences_alone,
    shared,
    tokens_alone,
    tokens_run,
    words_alone,
)

Value = Callable[[Masks], float]
SMALL = (range(3), range(3, 4), range(4, 8))
LARGE = tuple(range(start, start + 7) for start in range(0, 70, 7))


def arbitrary(seed: int) -> Value:
    """Every set of words has a value of its own: all words interact."""
    return lambda kept: float(np.random.default_rng([seed, *np.flatnonzero(kept).tolist()]).normal())


def of_sentences(seed: int, noise: float = 0.0, sentences: Sequence[range] = LARGE) -> Value:
    """What the sentences say adds up, but for pairs of them, which share what they say."""
    rng = np.random.default_rng(seed)
    weights, pairs = rng.normal(size=len(sentences)), noise * rng.normal(size=(len(sentences), len(sentences)))

    def value(kept: Masks) -> float:
        whole = np.array([kept[list(sentence)].all() for sentence in sentences], float)
        return float(whole @ weights + whole @ pairs @ whole)

    return value


def driven(value: Value, batches_max: float = math.inf) -> Callable[[Masks], Floats]:
    """The logits of a model with two labels; the value is that of the second. Raises Enough after ``batches_max`` batches."""
    left = iter(range(int(min(batches_max, 10**9))))

    def logits(masks: Masks) -> Floats:
        if next(left, None) is None:
            raise Enough
        return np.array([[0.0, value(mask)] for mask in masks])

    return logits


def found(sentences: Sequence[range], value: Value, rows: int = 24, seed: int = 0, batches_max: float = math.inf) -> SentenceValues:
    steps = sentence_shapley(sentences, Target(1), rows, np.random.default_rng(seed), Answers())
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
def test_values_of_few_sentences_are_those_of_the_definition(seed: int) -> None:
    value = arbitrary(seed)

    values = found(SMALL, value)

    assert values.values == pytest.approx(shapley_by_orders(SMALL, 8, value), abs=1e-12)
    assert (values.standard_errors.tolist(), values.rows) == ([0.0] * 3, 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [1, 2, 12, 24, 60])
@pytest.mark.parametrize("seed", range(3))
def test_values_sum_to_the_whole_text_minus_the_empty_text(rows: int, seed: int) -> None:
    value = arbitrary(seed)

    values = found(LARGE, value, rows)

    assert values.values.sum() == pytest.approx(value(np.ones(70, np.bool_)) - value(np.zeros(70, np.bool_)), abs=1e-9)
    assert values.rows == max(12, rows)
    assert len(set(values.standard_errors)) == 1
    assert values.standard_errors[0] > 0


def test_what_only_adds_up_is_found_as_it_is() -> None:
    value = of_sentences(1)
    expected = [value(np.isin(np.arange(70), sentence)) for sentence in LARGE]

    values = found(LARGE, value, 40)

    assert values.values == pytest.approx(expected, abs=0.01)
    assert (values.standard_errors < 0.1).all()


def by_sets(count: int, value: Callable[[tuple[int, ...]], float]) -> list[float]:
    """The definition again, by sets."""
    known = {one: value(one) for size in range(count + 1) for one in itertools.combinations(range(count), size)}

    def adds(one: int, others: tuple[int, ...]) -> float:
        return (known[tuple(sorted((*others, one)))] - known[others]) / math.comb(count - 1, len(others)) / count

    return [sum(adds(one, others) for others in known if one not in others) for one in range(count)]


def test_errors_are_about_those_that_are_stated() -> None:
    """Of sentences whose effect ends: what more of them say changes the answer less."""
    sentences, beyond = LARGE[:9], []
    for seed in range(30):
        weights = np.random.default_rng(seed).normal(size=9)
        expected = by_sets(9, lambda kept: float(4 * np.tanh(weights[[*kept]].sum())))  # noqa: B023 - called at once

        def value(kept: Masks, weights: Floats = weights) -> float:
            return float(4 * np.tanh(sum(weights[place] for place, words in enumerate(sentences) if kept[words.start])))

        values = found(sentences, value, 32, seed)

        beyond += (np.abs(values.values - expected) > 2 * values.standard_errors).tolist()
    assert np.mean(beyond) < 0.12


def test_the_first_estimate_orders_sentences_by_what_they_say_alone() -> None:
    value = of_sentences(3, 0.2)

    first = run(sentences_alone(LARGE, Target(1), Answers()), driven(value))

    alone = [value(np.isin(np.arange(70), sentence)) for sentence in LARGE]
    assert np.argsort(first.values).tolist() == np.argsort(alone).tolist()
    assert first.values.sum() == pytest.approx(value(np.ones(70, np.bool_)))
    assert (first.rows, set(first.standard_errors)) == (0, {math.inf})


def test_whole_sentences_are_run_and_no_set_of_them_twice() -> None:
    asked: list[Masks] = []

    def value(kept: Masks) -> float:
        asked.append(kept.copy())
        return arbitrary(7)(kept)

    found(LARGE, value, 24)

    assert all(kept[list(sentence)].all() or not kept[list(sentence)].any() for kept in asked for sentence in LARGE)
    assert len({kept.tobytes() for kept in asked}) == len(asked)
    lengths = [(7, 7)] * 10
    assert sum(int(kept.sum()) for kept in asked) == tokens_run(lengths, 24) + 70
    assert tokens_alone(lengths) == 70


def test_rows_that_ran_before_time_ended_are_used() -> None:
    # A batch for the sentences alone, and one for each pair of rows.
    assert found(LARGE, arbitrary(9), 24, batches_max=1 + PAIRS_MIN).rows == 2 * PAIRS_MIN
    for batches in range(1 + PAIRS_MIN):
        with pytest.raises(Enough):
            found(LARGE, arbitrary(9), 24, batches_max=batches)


def test_a_sentences_value_is_shared_in_proportion_to_the_weights_of_its_words() -> None:
    weights = np.array([1.0, 0.0, 3.0, 5.0, 1.0, 1.0, 2.0, 0.0])

    words, own = shared(SMALL, np.array([2.0, -1.0, -2.0]), weights)
    nothing, none = shared(SMALL, np.array([3.0, 1.0, 0.0]), np.zeros(8))

    assert words == pytest.approx([0.5, 0, 1.5, -1, -0.5, -0.5, -0.5, -0.5])
    assert own == [True, False, False]
    assert nothing == pytest.approx([1, 1, 1, 1, 0, 0, 0, 0])
    assert none == [False] * 3


def test_without_gradients_words_weigh_what_they_add_to_their_sentence_alone() -> None:
    weights = np.random.default_rng(6).normal(size=70)

    found_weights = run(words_alone(LARGE, Target(1), np.random.default_rng(0), Answers()), driven(lambda kept: float(kept @ weights)))

    assert found_weights == pytest.approx(np.maximum(weights, 0), abs=1e-9)


def test_long_sentences_are_cut_and_of_many_the_short_ones_stand_together() -> None:
    longest, shortest = SENTENCE_WORDS_MAX, SENTENCE_WORDS_MIN

    cut = parted([range(shortest), range(shortest, shortest + longest), range(shortest + longest, shortest + 3 * longest + 1)])
    starts = [0, 2, 4, *(4 + number * shortest for number in range(1, 5)), 5 + 4 * shortest]
    joined = parted([*itertools.starmap(range, itertools.pairwise(starts))])
    few = [range(2), range(2, 4), range(4, 4 + shortest), range(4 + shortest, 5 + shortest), range(5 + shortest, 40)]
    many = parted([range(place * 20, place * 20 + 20) for place in range(40)])

    assert [len(part) for part in cut] == [shortest, longest, 27, 27, 27]
    assert [len(part) for part in joined] == [4, *[shortest] * 3, shortest + 1]
    assert len(many) == SENTENCES_MAX
    for parts in (cut, joined, many):
        assert [*itertools.chain(*parts)] == [*range(parts[-1].stop)]
    assert parted(few) == few
