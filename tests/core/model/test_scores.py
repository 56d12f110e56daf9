"""Logits to a calibrated answer."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sentiment.model.scores import COMBINATIONS, Scored, combine, contrary, probabilities, score, score_windows, unnamed

LABELS = ("negative", "neutral", "positive")
LOGITS = st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=5)
TEMPERATURES = st.floats(0.05, 20)


@given(logits=LOGITS, temperature=TEMPERATURES)
def test_probabilities_are_between_0_and_1_and_sum_to_1(logits: list[float], temperature: float) -> None:
    found = probabilities(logits, temperature)

    assert all(0 <= probability <= 1 for probability in found)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)


@given(logits=LOGITS, temperature=TEMPERATURES, shift=st.floats(-1e4, 1e4))
def test_shifting_all_logits_changes_nothing(logits: list[float], temperature: float, shift: float) -> None:
    shifted = probabilities([logit + shift for logit in logits], temperature)

    # Adding the shift rounds a logit to about 1e-12, which a temperature of 0.05 makes 20 times larger.
    assert shifted == pytest.approx(probabilities(logits, temperature), abs=1e-9)


@given(logits=LOGITS, temperature=TEMPERATURES)
def test_a_larger_logit_never_has_the_smaller_probability(logits: list[float], temperature: float) -> None:
    found = probabilities(logits, temperature)

    assert [found[place] for place in sorted(range(len(logits)), key=logits.__getitem__)] == sorted(found)


@given(logits=LOGITS, colder=TEMPERATURES, warmer=TEMPERATURES)
def test_a_higher_temperature_never_makes_an_answer_surer(logits: list[float], colder: float, warmer: float) -> None:
    assume(colder < warmer)

    assert max(probabilities(logits, warmer)) <= max(probabilities(logits, colder)) + 1e-12


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([-95.0, 3.0], [math.exp(-98), 1.0]),
        ([1e4, -1e4], [1.0, 0.0]),
        ([-1e4, -1e4], [0.5, 0.5]),
        ([3e38, -3e38], [1.0, 0.0]),
        ([0.0, math.log(3)], [0.25, 0.75]),
    ],
)
def test_huge_logits_give_finite_probabilities(logits: list[float], expected: list[float]) -> None:
    assert probabilities(logits) == pytest.approx(expected, rel=1e-9)


def test_logits_are_divided_by_the_temperature() -> None:
    assert probabilities([0.0, 2 * math.log(3)], 2.0) == pytest.approx([0.25, 0.75])
    assert probabilities([0.0, math.log(3) / 2], 0.5) == pytest.approx([0.25, 0.75])


def test_the_answer_is_the_label_of_the_largest_logit_with_its_probability() -> None:
    answer = score([0.0, math.log(2), math.log(5)], LABELS, 1.0, 0.5)

    assert answer.label == "positive"
    assert answer.score == pytest.approx(5 / 8)
    assert answer.scores == pytest.approx((1 / 8, 2 / 8, 5 / 8))


@pytest.mark.parametrize(("logits", "label"), [([1.0, 1.0, 1.0], "negative"), ([0.0, 1.0, 1.0], "neutral"), ([1.0, 0.0, 1.0], "negative")])
def test_a_tie_is_won_by_the_first_label(logits: list[float], label: str) -> None:
    assert score(logits, LABELS, 1.0, 0.0).label == label


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_a_logit_that_is_not_finite_is_never_an_answer(wrong: float, place: int) -> None:
    logits = [0.0, 0.0]
    logits[place] = wrong

    with pytest.raises(ValueError, match="logits must be finite"):
        score(logits, LABELS[:2], 1.0, 0.0)


@pytest.mark.parametrize(("abstain_below", "abstains"), [(0.0, False), (0.24, False), (0.25, False), (0.26, True), (1.0, True)])
def test_an_answer_below_the_threshold_abstains_and_one_at_it_does_not(abstain_below: float, abstains: bool) -> None:
    # One of four alike: exactly 0.25.
    assert score([0.0, 0.0, 0.0, 0.0], "abcd", 1.0, abstain_below).abstain is abstains


def test_the_threshold_is_that_of_the_calibrated_probability() -> None:
    logits = [0.0, 2 * math.log(3)]

    assert score(logits, LABELS[:2], 1.0, 0.8).abstain is False
    assert score(logits, LABELS[:2], 2.0, 0.8).abstain is True


WINDOWS = st.integers(2, 4).flatmap(
    lambda labels: st.lists(st.lists(st.floats(-50, 50), min_size=labels, max_size=labels), min_size=1, max_size=6)
)
rules = pytest.mark.parametrize("rule", COMBINATIONS)


@rules
@given(windows=WINDOWS, temperature=TEMPERATURES)
def test_windows_make_a_distribution_by_every_rule(rule: str, windows: list[list[float]], temperature: float) -> None:
    found = combine(windows, rule, temperature)

    assert len(found) == len(windows[0])
    assert all(0 <= probability <= 1 for probability in found)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)


@rules
@given(logits=LOGITS, temperature=TEMPERATURES, count=st.integers(1, 5))
def test_equal_windows_have_the_answer_of_one(rule: str, logits: list[float], temperature: float, count: int) -> None:
    assert combine([logits] * count, rule, temperature) == pytest.approx(probabilities(logits, temperature), abs=1e-9)


@rules
def test_a_single_window_is_calibrated_like_a_text_that_fits(rule: str) -> None:
    assert score_windows([[-1.0, 2.0, 0.5]], rule, LABELS, 1.7, 0.9) == score([-1.0, 2.0, 0.5], LABELS, 1.7, 0.9)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # Odds of 3, 1 and 1/9 to 1 for the second label.
        ("mean_probability", (0.75 + 0.5 + 0.1) / 3),
        ("mean_logit", 1 / (1 + 3 ** (1 / 3))),
        ("most_confident", 0.1),
        ("ends", (2 * 0.75 + 0.5 + 2 * 0.1) / 5),
    ],
)
def test_each_rule_combines_by_its_definition(rule: str, expected: float) -> None:
    windows = [[0.0, math.log(3)], [0.0, 0.0], [0.0, -math.log(9)]]

    assert combine(windows, rule)[1] == pytest.approx(expected)


def test_windows_are_calibrated_before_probabilities_are_combined_and_after_logits_are() -> None:
    windows = [[0.0, 4.0], [0.0, -2.0]]

    assert combine(windows, "mean_logit", 2.0)[1] == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert combine(windows, "mean_probability", 2.0)[1] == pytest.approx((1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(1))) / 2)


@rules
def test_a_window_that_is_not_finite_is_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match="logits must be finite"):
        score_windows([[0.0, 1.0], [0.0, math.nan]], rule, LABELS[:2], 1.0, 0.5)


# Mixed texts


@given(logits=st.lists(st.floats(-50, 50), min_size=3, max_size=3), mixed=st.floats(-50, 50), temperature=TEMPERATURES)
def test_the_output_for_mixed_texts_leaves_the_answer_as_it_is(logits: list[float], mixed: float, temperature: float) -> None:
    found, plain = score([*logits, mixed], LABELS, temperature, 0.5, 0.5), score(logits, LABELS, temperature, 0.5)

    assert (found.label, found.scores, found.abstain) == (plain.label, plain.scores, plain.abstain)
    assert found.mixed == (probabilities([*logits, mixed], temperature)[-1] >= 0.5)


@pytest.mark.parametrize(("at", "mixed"), [(0.25, True), (0.2501, False)])
def test_a_text_is_mixed_from_the_threshold_on(at: float, mixed: bool) -> None:
    assert score([0.0, 0.0, 0.0, 0.0], LABELS, 1.0, 0.0, at).mixed is mixed


@pytest.mark.parametrize(("mixed", "said"), [(0.1, False), (1.0, False), (1.2, True)])
def test_a_text_that_the_model_cannot_tell_is_mixed_only_if_that_is_likelier_than_not(mixed: float, said: bool) -> None:
    """As of a text in another language, all of whose outputs are about alike."""
    undecided = [0.1, 0.0, 0.0, mixed]

    for found in (score(undecided, LABELS, 1.0, 0.5, 0.1), score_windows([undecided], "mean_logit", LABELS, 1.0, 0.5, 0.1)):
        assert found.abstain
        assert found.mixed is said
    assert score(undecided, LABELS, 1.0, 0.0, 0.1).mixed


@pytest.mark.parametrize("rule", COMBINATIONS)
def test_a_text_in_windows_is_mixed_if_one_of_them_is(rule: str) -> None:
    plain, mixed = [1.0, 0.0, 0.0, -9.0], [0.0, 0.0, 2.0, 9.0]

    assert score_windows([plain, mixed, plain], rule, LABELS, 1.3, 0.0, 0.5).mixed
    assert not score_windows([plain, plain], rule, LABELS, 1.3, 0.0, 0.5).mixed
    without = score_windows([plain[:3], mixed[:3]], rule, LABELS, 1.3, 0.0)
    assert score_windows([plain, mixed], rule, LABELS, 1.3, 0.0, 0.5).scores == without.scores


def test_a_mixed_logit_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(ValueError, match="logits must be finite"):
        score([0.0, 0.0, 0.0, math.nan], LABELS, 1.0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("labels", "abstain", "mixed"),
    [
        (("positive", "negative"), (False, False), True),
        (("POSITIVE", "neutral", "Negative"), (False, False, False), True),
        (("positive", "negative"), (False, True), False),
        (("positive", "neutral"), (False, False), False),
        (("1 star", "5 stars"), (False, False), False),
        ((), (), False),
    ],
)
def test_sentences_are_contrary_if_one_praises_and_another_blames(labels: tuple[str, ...], abstain: tuple[bool, ...], mixed: bool) -> None:
    assert contrary([Scored(label, 0.9, (0.9, 0.1), one) for label, one in zip(labels, abstain, strict=True)]) is mixed


def test_the_answer_for_a_target_that_is_not_named_is_certain() -> None:
    assert unnamed(LABELS, "neutral") == Scored("neutral", 1.0, (0.0, 1.0, 0.0), abstain=False)
