"""Evidence whether an attribution can be trusted."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sentiment.explain.methods.erasure import Answers, Enough, Floats, run
from sentiment.explain.methods.evidence import Evidence, Verdict, evidence, kendall_tau_b, other_word_sets
from sentiment.explain.methods.target import Target
from sentiment.v1 import sentiment_pb2
from tests.core.explain.test_erasure import Model, arbitrary, linear

# The third and the seventh word carry the text.
WEIGHTS = np.array([0.1, -0.1, 1.0, 0.05, 0.0, -0.3, 0.8, 0.15, 0.2, 0.12])


def measured(model: Model, scores: Floats, label: int = 1, temperature: float = 1.0, seed: int = 0, rows_max: int = 32) -> Evidence:
    return run(evidence(len(scores), scores, Target(label), temperature, Answers(rows_max), method="m", seed=seed), model)


def sigmoid(difference: float) -> float:
    return 1 / (1 + math.exp(-difference))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_comprehensiveness_and_sufficiency_are_differences_of_calibrated_probability(temperature: float) -> None:
    found = measured(Model(linear(WEIGHTS, bias=-0.3)), WEIGHTS, temperature=temperature)

    # The logits of the two labels are each other's negative: they differ by twice the sum of the weights.
    text, erased, alone = (sigmoid(2 * (total - 0.3) / temperature) for total in (WEIGHTS.sum(), WEIGHTS.sum() - 1.8, 1.8))
    assert found.words == 2
    assert found.comprehensiveness == pytest.approx(text - erased)
    assert found.sufficiency == pytest.approx(text - alone)
    assert found.empty_text_logit == pytest.approx(-0.3)
    assert (found.method, found.operator) == ("m", "attention_mask")


def test_a_ranking_above_all_random_sets_is_better_than_random() -> None:
    found = measured(Model(linear(WEIGHTS)), WEIGHTS)

    assert found.verdict is Verdict.BETTER_THAN_RANDOM
    assert (found.rank, found.random_sets, found.p_value) == (1, 19, 1 / 20)
    assert found.random_median < found.random_max < found.comprehensiveness


def test_words_without_which_the_answer_only_becomes_surer_are_not_better_than_random() -> None:
    scores = np.array([2.0, 1.0] + [0.0] * 8)

    # Each word that is left out raises the logit, those ranked first by least.
    found = measured(Model(lambda kept: [0.0, 2.0 + ((1 - kept) @ np.where(scores > 0, 0.01, 0.5)) if kept.any() else 0.0]), scores)

    assert found.random_max < found.comprehensiveness < 0
    assert (found.rank, found.verdict) == (1, Verdict.INCONCLUSIVE)


def test_a_ranking_below_the_median_of_random_sets_is_not_faithful() -> None:
    found = measured(Model(linear(WEIGHTS)), -WEIGHTS)

    assert found.verdict is Verdict.NOT_FAITHFUL
    assert (found.rank, found.p_value) == (20, 1.0)
    assert found.comprehensiveness < found.random_median


def test_a_ranking_that_is_only_better_than_most_is_inconclusive() -> None:
    # The second and the third best word: of the 44 other sets the 7 with the best word and one that is not against it do better.
    found = measured(Model(linear(WEIGHTS)), np.array([0, 0, 0, 0, 0, 0, 2.0, 0, 1.0, 0]))

    assert found.verdict is Verdict.INCONCLUSIVE
    assert 1 < found.rank < 10
    assert found.p_value == found.rank / 20


def binomial_tail(count: int, trials: int, chance: float) -> float:
    """The probability of ``count`` or more successes."""
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count, trials + 1))


@pytest.mark.parametrize("n", [*range(1, 13), 20, 41])
def test_a_ranking_by_chance_is_better_than_random_in_at_most_5_percent_of_texts(n: int) -> None:
    """Words add up, and the ranking knows nothing of them. More often than this would have a chance of 1e-6 with an error of 5 %."""
    texts = better = 0
    for seed in range(400):
        rng = np.random.default_rng([n, seed])
        weights = rng.normal(size=n)
        found = measured(Model(linear(weights * np.sign(weights.sum()))), rng.normal(size=n), seed=seed)
        texts += found.verdict is not Verdict.FLAT
        better += found.verdict is Verdict.BETTER_THAN_RANDOM

    assert texts > 200
    assert binomial_tail(better, texts, 0.05) > 1e-6
    assert (better > 0) is (n >= 7)


@pytest.mark.parametrize("n", [7, 8, 12, 20])
def test_a_ranking_better_than_70_percent_of_sets_is_not_faithful_in_at_most_5_percent_of_texts(n: int) -> None:
    weights = np.random.default_rng(n).exponential(size=n)
    sets = sorted(itertools.combinations(range(n), math.ceil(n / 5)), key=lambda words: float(weights[list(words)].sum()))
    scores = np.zeros(n)
    scores[list(sets[math.ceil(0.7 * len(sets))])] = 1

    found = [measured(Model(linear(weights)), scores, temperature=10, seed=seed).verdict for seed in range(400)]

    assert binomial_tail(found.count(Verdict.NOT_FAITHFUL), len(found), 0.05) > 1e-6
    assert Verdict.FLAT not in found


def test_a_ranking_between_the_median_and_the_mean_of_random_sets_is_inconclusive() -> None:
    found = measured(Model(linear(np.array([0.0] * 8 + [0.1, 2.0]))), np.array([0.0] * 8 + [1.0, 0.0]))

    assert found.random_median < found.comprehensiveness < found.random_mean
    assert found.verdict is Verdict.INCONCLUSIVE


def test_random_sets_are_summarised_as_measured() -> None:
    model = Model(arbitrary(seed=1))
    scores = np.array([0.3, 0.1, 0.9, 0.2, 0.5, 0.4])

    found = measured(model, scores)

    def value(left_out: tuple[int, ...]) -> float:
        logits = model.logits(np.array([word not in left_out for word in range(6)], float))
        return sigmoid(logits[label] - logits[1 - label])

    whole = model.logits(np.ones(6))
    label, winner = 1, int(np.argmax(whole))
    sign = 1 if winner == label else -1
    own = (2, 4) if sign == 1 else (1, 3)
    # Six words have 15 sets of two: all the others are tried.
    others = [sign * (value(()) - value(words)) for words in itertools.combinations(range(6), 2) if words != own]
    assert found.comprehensiveness == pytest.approx(sign * (value(()) - value(own)))
    assert found.random_sets == len(others) == 14
    assert found.random_median == pytest.approx(np.median(others))
    assert found.random_mean == pytest.approx(np.mean(others))
    assert found.random_max == pytest.approx(max(others))
    assert found.rank == 1 + sum(other >= found.comprehensiveness for other in others)


@pytest.mark.parametrize("difference", [0.0, 1e-9])
def test_a_tie_counts_against_the_method(difference: float) -> None:
    # Of seven words, 19 of the 20 other pairs are tried.
    weights = np.array([1.0 + difference, 1.0, 1.0, -9.0, -9.0, -9.0, 18.0])

    found = measured(Model(linear(weights)), weights)

    assert (found.rank, found.p_value, found.verdict) == (3, 3 / 20, Verdict.INCONCLUSIVE)


def test_an_answer_that_depends_on_no_word_is_flat() -> None:
    found = measured(Model(lambda kept: [0.0, 3.0]), WEIGHTS)

    assert found.verdict is Verdict.FLAT
    assert found.comprehensiveness == found.sufficiency == 0
    assert found.p_value == 1


@pytest.mark.parametrize(("effect", "flat"), [(0.049, True), (0.051, False)])
def test_a_text_with_a_small_effect_is_flat(effect: float, flat: bool) -> None:
    logit = math.log((0.5 + effect) / (0.5 - effect)) / 2

    found = measured(Model(linear(np.array([0.0, 0.0, 0.0, logit, 0.0, 0.0, 0.0]))), np.arange(7.0))

    assert (found.verdict is Verdict.FLAT) is flat


@pytest.mark.parametrize(("n", "sets"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 14)])
def test_a_text_of_fewer_than_seven_words_is_too_short_to_tell(n: int, sets: int) -> None:
    for scores in (np.arange(n), -np.arange(n)):
        found = measured(Model(linear(1.0 + np.arange(n))), scores)

        assert (found.verdict, found.random_sets) == (Verdict.INCONCLUSIVE, sets)


def test_no_words_are_flat() -> None:
    found = measured(Model(linear(np.zeros(0))), np.zeros(0))

    assert (found.verdict, found.words, found.random_sets, found.p_value) == (Verdict.FLAT, 0, 0, 1)


@pytest.mark.parametrize("n", [*range(41), 512])
def test_the_sets_are_a_fifth_of_the_words_rounded_up(n: int) -> None:
    assert measured(Model(linear(np.zeros(n))), np.zeros(n)).words == math.ceil(Fraction(n, 5))


def test_with_two_labels_the_evidence_is_the_same_for_both() -> None:
    model = Model(linear(WEIGHTS))

    answer, other = measured(model, WEIGHTS, label=1), measured(model, -WEIGHTS, label=0)

    assert other.verdict is answer.verdict is Verdict.BETTER_THAN_RANDOM
    assert other.comprehensiveness == pytest.approx(answer.comprehensiveness)
    assert other.sufficiency == pytest.approx(answer.sufficiency)
    assert other.random_mean == pytest.approx(answer.random_mean)
    assert other.empty_text_logit == -answer.empty_text_logit


def test_for_another_label_the_words_against_it_are_tested() -> None:
    # The fourth and the fifth word take the second label from 1/3 to 1/7 and make the third the answer.
    model = Model(lambda kept: [0.0, 0.0, (kept[3] + kept[4]) / 2 * math.log(5)])

    found = measured(model, np.array([0.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0]), label=1)

    assert found.comprehensiveness == pytest.approx(1 / 3 - 1 / 7)
    assert found.sufficiency == pytest.approx(0, abs=1e-12)
    assert found.verdict is Verdict.BETTER_THAN_RANDOM


def test_the_same_seed_draws_the_same_sets_and_another_one_others() -> None:
    first, again, another = (measured(Model(linear(WEIGHTS)), WEIGHTS, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first.random_mean != another.random_mean


def test_evidence_runs_at_most_23_masks() -> None:
    model = Model(linear(np.ones(50)))

    measured(model, np.arange(50.0))

    assert len(set(model.asked)) == len(model.asked) == 23


def test_stopped_evidence_compares_with_the_random_sets_so_far() -> None:
    # One mask, then batches of five: the empty text, the words alone, the text without them, and two random sets; five more.
    found = measured(Model(linear(WEIGHTS), batches_max=3), WEIGHTS, rows_max=5)

    assert (found.random_sets, found.rank, found.p_value) == (7, 1, 1 / 8)


@pytest.mark.parametrize("random_sets", [0, 1, 18])
def test_evidence_with_fewer_than_19_random_sets_is_inconclusive(random_sets: int) -> None:
    found = measured(Model(linear(WEIGHTS), batches_max=2), WEIGHTS, rows_max=3 + random_sets)

    assert (found.random_sets, found.p_value, found.verdict) == (random_sets, 1 / (random_sets + 1), Verdict.INCONCLUSIVE)
    assert (found.random_median == found.random_mean == found.random_max == 0) is (random_sets == 0)


def test_evidence_stopped_before_its_own_masks_raises_enough() -> None:
    with pytest.raises(Enough):
        measured(Model(linear(WEIGHTS), batches_max=2), WEIGHTS, rows_max=2)


@pytest.mark.parametrize(("n", "size"), [(4, 1), (5, 1), (6, 2), (7, 2), (20, 4), (512, 103)])
def test_other_sets_are_different_and_never_the_chosen_one(n: int, size: int) -> None:
    chosen = tuple(range(size))

    found = other_word_sets(n, chosen, 19, np.random.default_rng(n))

    assert len(found) == len(set(found)) == min(19, math.comb(n, size) - 1)
    assert chosen not in found
    assert all(len(set(words)) == size and list(words) == sorted(words) and 0 <= words[0] <= words[-1] < n for words in found)


def test_other_sets_are_sampled_uniformly() -> None:
    rng = np.random.default_rng(0)

    drawn = Counter(words for _ in range(2000) for words in other_word_sets(7, (2, 5), 10, rng))

    # 20 sets, each drawn with probability 1/2: 1000 times, give or take 22.
    assert len(drawn) == 20
    assert 900 < min(drawn.values()) < max(drawn.values()) < 1100


def tau_b_by_pairs(first: Floats, second: Floats) -> float:
    """Kendall 1945: concordant less discordant pairs over the root of the pairs untied in one times those untied in the other."""
    both = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in itertools.combinations(range(len(first)), 2)]
    untied = [sum(pair[side] != 0 for pair in both) for side in (0, 1)]
    return sum(a * b for a, b in both) / math.sqrt(untied[0] * untied[1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", [3, 1000])
def test_agreement_matches_a_loop_over_all_pairs(seed: int, values: int) -> None:
    first, second = np.random.default_rng(seed).integers(values, size=(2, 30)).astype(float)

    assert kendall_tau_b(first, second) == pytest.approx(tau_b_by_pairs(first, second))


def test_agreement_is_1_with_the_same_order_and_minus_1_with_the_reverse() -> None:
    scores = np.random.default_rng(0).normal(size=512)

    assert kendall_tau_b(scores, np.exp(scores)) == pytest.approx(1)
    assert kendall_tau_b(scores, -scores) == pytest.approx(-1)


@pytest.mark.parametrize("scores", [[], [2.0], [1.0, 1.0, 1.0]])
def test_agreement_that_is_undefined_is_0(scores: list[float]) -> None:
    assert kendall_tau_b(np.array(scores), np.arange(float(len(scores)))) == 0


def test_evidence_gives_the_agreement_with_another_attribution() -> None:
    alone = measured(Model(linear(WEIGHTS)), WEIGHTS)
    other = np.random.default_rng(0).normal(size=len(WEIGHTS))

    found = run(evidence(10, WEIGHTS, Target(1), 1.0, Answers(), method="m", seed=0, other=other), Model(linear(WEIGHTS)))

    assert alone.agreement is None
    assert found == replace(alone, agreement=kendall_tau_b(WEIGHTS, other))
    assert found.agreement not in (None, 0)


def test_verdicts_have_the_values_of_the_proto() -> None:
    assert {f"VERDICT_{verdict.name}": verdict.value for verdict in Verdict} | {"VERDICT_UNSPECIFIED": 0} == dict(
        sentiment_pb2.Verdict.items()
    )
