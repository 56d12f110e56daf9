"""The words that decide an answer: the search for them, and the test by another way of erasing."""

import itertools

import numpy as np
import pytest

from sentiment.explain.methods.deciding import DecidingWords, Found, compare, rows_most, search
from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, run
from sentiment.explain.methods.evidence import Verdict
from sentiment.explain.methods.target import Target
from tests.core.explain.test_erasure import Model, arbitrary, linear
from tests.core.explain.test_evidence import binomial_tail

TARGET = Target(1)


def known(model: Model, n: int) -> Answers:
    answers, whole = Answers(), np.ones((1, n), np.bool_)
    answers.tell(whole, model(whole))
    return answers


def searched(model: Model, scores: Floats, target: Target = TARGET) -> Found:
    n = len(scores)
    return run(search(n, scores, target, known(model, n)), model)


def test_words_that_decide_together_are_found_though_neither_is_ranked_first() -> None:
    # Either of the first two words is enough; the third is worth something alone.
    model = Model(lambda kept: [0.0, 2.0 * max(kept[0], kept[1]) + 0.5 * kept[2] - 0.1])
    scores = np.array([0.4, 0.3, 0.5, *np.zeros(7)])

    found = searched(model, scores)

    assert found.words == (0, 1)
    assert found.changing == (0, 1, 2)


def test_the_fewest_words_found_that_change_the_answer_are_named() -> None:
    weights = np.array([0.1, 0.2, 1.0, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1])

    assert searched(Model(linear(weights, bias=-1.5)), weights).changing == (2,)
    # Half of the words leave it as it is.
    nothing = searched(Model(linear(weights, bias=2.0)), weights)
    assert (nothing.changing, nothing.logits) == ((), None)


def test_of_a_label_that_is_not_the_answer_the_words_against_it_are_searched() -> None:
    weights = np.array([0.5, -2.0, 0.3, -0.4, 0.0, 0.0, 0.0, 0.1])

    found = searched(Model(linear(weights)), weights)

    assert found.words == (1, 3)
    assert found.changing == (1,)
    assert found.logits is not None
    assert found.logits.argmax() == 1


def test_against_a_label_that_is_not_the_runner_up_no_change_of_the_answer_is_searched() -> None:
    # The answer is the third label; the second is above the first, and words 4 and 5 hold it there.
    model = Model(lambda kept: [0.0, 2.0 * kept[4] + 2.0 * kept[5] - 1.0, 9.0 * kept[0] + 9.0 * kept[1]])
    scores = np.array([0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0])

    found = searched(model, scores, Target(1, against=0))

    assert found.words == (4, 5)
    assert found.changing == ()


@pytest.mark.parametrize("n", [7, 13, 20, 41, 62])
def test_a_search_runs_a_bounded_number_of_rows(n: int) -> None:
    for seed in range(20):
        model = Model(arbitrary(seed))
        answers = known(model, n)
        other = Answers()

        found = run(search(n, np.random.default_rng(seed).normal(size=n), TARGET, answers), model)
        run(compare(n, found, TARGET, 1.0, answers, other, seed), model)

        assert answers.rows - 1 + 2 * other.rows <= rows_most(n)
        assert len(found.words) == -(-n // 5)
        assert len(found.changing) <= max(n // 2, len(found.words))


def of_test(model: Model, found: Found, n: int, seed: int = 0) -> DecidingWords:
    return run(compare(n, found, TARGET, 1.0, known(model, n), Answers(), seed), model)


@pytest.mark.parametrize("n", [7, 8, 10, 14, 20, 41])
def test_words_found_on_noise_are_better_than_random_in_at_most_5_percent_of_texts(n: int) -> None:
    """The way that the words are erased in the test knows nothing of that in the search."""
    texts, better = 400, 0
    for seed in range(texts):
        rng = np.random.default_rng([n, seed])
        noise, weights = rng.normal(size=n), rng.normal(size=n)
        found = searched(Model(linear(noise * np.sign(noise.sum()))), noise)
        better += of_test(Model(linear(weights * np.sign(weights.sum()))), found, n, seed).verdict is Verdict.BETTER_THAN_RANDOM

    assert binomial_tail(better, texts, 0.05) > 1e-6


def test_words_found_on_the_model_are_better_than_random() -> None:
    weights = np.random.default_rng(1).normal(size=20) ** 3
    model = Model(linear(weights * np.sign(weights.sum())))

    deciding = of_test(model, searched(model, np.sign(weights.sum()) * weights), 20)

    assert (deciding.verdict, deciding.rank, deciding.random_sets, deciding.p_value) == (Verdict.BETTER_THAN_RANDOM, 1, 19, 1 / 20)
    assert deciding.comprehensiveness > deciding.random_max >= deciding.random_median
    assert deciding.operator == "mask_token+deletion"


def enough_after(calls: int, model: Model) -> object:
    count = itertools.count(1)

    def value(masks: Masks) -> Floats:
        if next(count) > calls:
            raise Enough
        return model(masks)

    return value


def test_a_search_that_is_stopped_keeps_a_set_of_a_fifth_of_the_words() -> None:
    weights = np.full(10, 0.2)
    model = Model(linear(weights, bias=2.0))

    with pytest.raises(Enough):
        run(search(10, weights, TARGET, known(model, 10)), enough_after(1, model))  # type: ignore[arg-type]
    found = run(search(10, weights, TARGET, known(model, 10)), enough_after(2, model))  # type: ignore[arg-type]

    assert len(found.words) == 2


def test_a_test_that_is_stopped_says_so_by_its_number_of_sets() -> None:
    weights = np.linspace(1, 0, 10)
    model = Model(linear(weights))
    found = searched(model, weights)

    answers = Answers(rows_max=8)
    deciding = run(compare(10, found, TARGET, 1.0, known(model, 10), answers, 0), enough_after(1, model))  # type: ignore[arg-type]

    assert deciding.random_sets == 7
    assert deciding.verdict is Verdict.INCONCLUSIVE
    with pytest.raises(Enough):
        run(compare(10, found, TARGET, 1.0, known(model, 10), Answers(), 0), enough_after(0, model))  # type: ignore[arg-type]
