"""Searches for small sets of words that decide the answer."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from sentiment.explain.methods.counterfactuals import Counterfactual, Words, flip, keep
from sentiment.explain.methods.erasure import Answers, Enough, Floats, occlusion, run
from sentiment.explain.methods.target import Target
from tests.core.explain.test_erasure import Model, arbitrary, linear

searches = pytest.mark.parametrize("search", [flip, keep])
# "This is not a good film": positive unless "not" and "good" stand there together.
NOT, GOOD = 2, 4


def negation(kept: Floats) -> list[float]:
    return [0.0, 0.5 + 3 * kept[GOOD] - 6 * kept[GOOD] * kept[NOT]]


def kept_by(search: Callable[..., object], n: int, words: Words) -> Floats:
    chosen = np.isin(np.arange(n), words)
    return (~chosen if search is flip else chosen).astype(float)


def answer(search: Callable[..., object], n: int, words: Words, model: Model) -> int:
    return int(np.argmax(model.logits(kept_by(search, n, words))))


def found_by(
    search: Callable[..., object], model: Model, scores: Floats, label: int, temperature: float = 1.0, rows_budget: int = 256
) -> Counterfactual:
    return run(search(len(scores), scores, label, temperature, Answers(), rows_budget), model)


@searches
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 6])
@pytest.mark.parametrize("seed", range(12))
def test_results_agree_with_trying_all_sets(search: Callable[..., object], n: int, seed: int) -> None:
    model = Model(arbitrary(seed, labels=3))
    whole = answer(flip, n, (), model)

    found = found_by(search, model, np.random.default_rng(seed).normal(size=n), whole, temperature=2.0)

    sets = [words for size in range(n + 1) for words in itertools.combinations(range(n), size)]
    reaching = [words for words in sets if (answer(search, n, words, model) != whole) == (search is flip)]
    smallest = len(reaching[0]) if reaching else math.inf
    assert not found.stopped
    assert found.rows == len(model.asked) <= 256
    assert (found.words is None) <= (smallest > 2)
    assert found.exhaustive_below <= smallest
    if found.words is not None:
        assert found.words in reaching
        assert len(found.words) == smallest or len(found.words) > smallest > 2
        assert found.label == answer(search, n, found.words, model)
        assert found.minimal
        shares = np.exp(np.array(model.logits(kept_by(search, n, found.words))) / 2.0)
        assert found.probability == pytest.approx(shares[found.label] / shares.sum())
        assert not any(tuple(sorted(set(found.words) - {word})) in reaching for word in found.words)


def test_two_redundant_words_must_both_be_removed() -> None:
    model = Model(lambda kept: [0.5, max(kept[3], kept[9])])
    # A ranking that is wrong about both.
    scores = np.array([9.0, 8, 7, 0, 6, 5, 4, 3, 2, 1, -1, -2])

    found = found_by(flip, model, scores, label=1)

    assert (found.words, found.label, found.minimal) == ((3, 9), 0, True)


def test_words_that_are_not_needed_are_dropped_from_a_large_set() -> None:
    needed = (7, 18, 29)
    model = Model(lambda kept: [0.5, kept[list(needed)].max()])
    # The words that are needed come 10th, 20th and 30th in the ranking.
    scores = np.zeros(40)
    order = [word for word in range(40) if word not in needed]
    for place, word in zip((9, 19, 29), needed, strict=True):
        order.insert(place, word)
    scores[order] = np.arange(40, 0, -1)

    found = found_by(flip, model, scores, label=1)

    assert (found.words, found.minimal, found.stopped) == (needed, True, False)
    # Pairs were not all tried, single words were.
    assert found.exhaustive_below == 2


@searches
@pytest.mark.parametrize("n", [31, 32, 33, 100, 400])
def test_the_fewest_words_are_found_in_a_long_text_with_additive_words(search: Callable[..., object], n: int) -> None:
    weights = np.random.default_rng(n).normal(0.1, 1, size=n)
    bias = 3.0 if search is flip else -3.0

    found = found_by(search, Model(linear(weights, bias)), weights, label=1, rows_budget=1000)

    ordered = np.cumsum(np.sort(weights)[::-1])
    left = weights.sum() + bias - ordered if search is flip else bias + ordered
    fewest = 1 + int(np.argmax(left < 0 if search is flip else left > 0))
    assert found.words is not None
    assert len(found.words) == fewest
    assert found.minimal
    assert found.exhaustive_below == min(fewest, 2)


def test_a_flip_for_another_label_finds_the_words_against_it() -> None:
    # The third word makes the answer negative, and the ranking is that for positive.
    model = Model(linear(np.array([1.0, 0.5, -4.0, 0.2])))

    flipped = found_by(flip, model, np.array([1.0, 0.5, -4.0, 0.2]), label=1)
    kept = found_by(keep, model, np.array([1.0, 0.5, -4.0, 0.2]), label=1)

    assert (flipped.words, flipped.label, len(model.batches)) == ((2,), 1, 3)
    assert (kept.words, kept.label) == ((0,), 1)


@searches
@pytest.mark.parametrize("rows_budget", [1, 2, 5, 20, 29, 33, 60, 100])
def test_a_search_never_runs_more_masks_than_its_budget(search: Callable[..., object], rows_budget: int) -> None:
    needed = [3, 14, 25]
    model = Model(lambda kept: [0.5, kept[needed].max()] if search is flip else [0.5, kept[needed].min()])
    scores = np.arange(30.0)

    found = found_by(search, model, scores, label=1, rows_budget=rows_budget)

    assert found.rows == len(model.asked) == rows_budget
    assert found.stopped
    # The ranking reaches the third needed word, the fourth of the text, with its 27th.
    assert (found.words is None) == (rows_budget < 28)
    assert not found.minimal or found.words == (3, 14, 25)


@searches
def test_masks_with_known_logits_are_free(search: Callable[..., object]) -> None:
    model = Model(negation)
    answers = Answers()
    scores = run(occlusion(6, Target(0), answers), model)

    first = run(search(6, scores, 0, 1.0, answers), model)
    again = run(search(6, scores, 0, 1.0, answers, 1), model)

    assert len(set(model.asked)) == len(model.asked) == 7 + first.rows
    assert (again.words, again.rows, again.stopped) == (first.words, 0, False)


def test_a_stopped_search_returns_the_best_set_so_far() -> None:
    model = Model(lambda kept: [0.5, kept[[1, 3]].max()], batches_max=2)

    found = found_by(flip, model, np.array([5.0, 4, 3, 2, 1]), label=1)

    # The whole text, then the prefixes of the ranking.
    assert (found.words, found.label, found.minimal, found.stopped) == ((0, 1, 2, 3), 0, False, True)


def test_a_flip_stopped_before_the_answer_is_known_raises_enough() -> None:
    with pytest.raises(Enough):
        found_by(flip, Model(negation, batches_max=0), np.zeros(6), label=0)
