"""Behavioural tests: what they are made of, and that each kind finds what it is there to find."""

import re
from pathlib import Path

import numpy as np
import pytest

from sentiment_models.evaluation.behaviours import Behaviour, Case, applies_to, behaviours, judge, texts

TESTS = behaviours()
LABELS = ("negative", "positive")


def oracle(tests: tuple[Behaviour, ...]) -> dict[str, np.ndarray]:
    """Answers that are right wherever a label is wanted, and the same, unsure ones elsewhere."""
    found = {text: np.array([0.5, 0.5]) for text in texts(tests)}
    for test in tests:
        for case in test.cases:
            if case.wanted in LABELS:
                found[case.texts[0]] = np.array([0.1, 0.9] if case.wanted == "positive" else [0.9, 0.1])
    return found


def one(*cases: Case) -> Behaviour:
    return Behaviour("t", "k", "w", cases)


def test_there_are_enough_tests_and_cases_and_the_same_ones_for_the_same_seed() -> None:
    assert len(TESTS) >= 12
    assert sum(len(test.cases) for test in TESTS) >= 400
    assert {test.kind for test in TESTS} == {"functionality", "invariance", "direction"}
    assert len({test.name for test in TESTS}) == len(TESTS)
    assert behaviours() == TESTS
    assert behaviours(seed=8) != TESTS


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_the_cases_of_a_test_are_balanced_and_have_the_form_of_their_kind(test: Behaviour) -> None:
    wanted = [case.wanted for case in test.cases]

    assert 20 <= len(test.cases) <= 36
    assert set(wanted) == {"functionality": set(LABELS), "direction": {"up", "down"}, "invariance": {"same"}}[test.kind]
    for case in test.cases:
        assert len(case.texts) == len(set(case.texts)) == (1 if test.kind == "functionality" else 2)
    if test.kind == "functionality":
        assert 0.3 <= wanted.count("positive") / len(wanted) <= 0.7


def test_no_text_has_two_correct_labels_and_the_sentence_of_the_specification_is_positive() -> None:
    wanted: dict[str, str] = {}
    for case in (case for test in TESTS if test.kind == "functionality" for case in test.cases):
        assert wanted.setdefault(case.texts[0], case.wanted) == case.wanted, case

    assert wanted["I did not really enjoyed this movie. It was fantastic!"] == "positive"


def test_every_slot_is_filled_and_every_text_is_english() -> None:
    for text in texts(TESTS):
        assert not re.search(r"[{}\0]|  ", text), text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiouAEIOU]", text), text


def test_no_case_is_a_text_that_the_package_offers_for_training() -> None:
    package = Path(__import__("sentiment_models").__file__).parent
    written = "\n".join(path.read_text(encoding="utf-8") for path in [package / "idioms.tsv", *(package / "texts").glob("*.tsv")])
    offered = {re.sub(r"[\W_]+", "", line.partition("\t")[2].lower()) for line in written.splitlines()}

    # What is shorter is a phrase that everybody writes.
    long = {text for text in texts(TESTS) if len(text.split()) > 4}
    assert [text for text in long if re.sub(r"[\W_]+", "", text.lower()) in offered] == []


def test_an_answer_that_is_right_everywhere_fails_nowhere() -> None:
    functionality = tuple(test for test in TESTS if test.kind == "functionality")

    answers = oracle(functionality)
    found = [judge(test, answers, LABELS) for test in functionality]

    assert [test.name for test in found if test.failures] == []
    assert [test.cases for test in found] == [len(test.cases) for test in functionality]


def test_one_answer_to_everything_fails_about_half_of_the_functionality_and_no_invariance() -> None:
    always = {text: np.array([0.3, 0.7]) for text in texts(TESTS)}

    found = {test.name: judge(test, always, LABELS) for test in TESTS}

    for test in TESTS:
        share = found[test.name].failures / len(test.cases)
        assert 0.3 <= share <= 0.7 if test.kind == "functionality" else share == 0, test.name


@pytest.mark.parametrize(
    ("wanted", "before", "after", "failures"),
    [
        ("same", 0.6, 0.9, 0),
        ("same", 0.6, 0.4, 1),
        ("up", 0.6, 0.55, 0),
        ("up", 0.6, 0.45, 1),
        ("up", 0.2, 0.9, 0),
        ("down", 0.6, 0.65, 0),
        ("down", 0.6, 0.75, 1),
        ("down", 0.9, 0.2, 0),
    ],
)
def test_a_pair_fails_when_the_label_changes_or_the_probability_moves_the_wrong_way(
    wanted: str, before: float, after: float, failures: int
) -> None:
    found = {"a": np.array([1 - before, before]), "b": np.array([1 - after, after])}

    assert judge(one(Case(("a", "b"), wanted)), found, LABELS).failures == failures


def test_examples_are_the_surest_failures_with_their_answers() -> None:
    cases = [Case((str(number),), "positive") for number in range(8)]
    found = {str(number): np.array([0.6 + number / 100, 0.4 - number / 100]) for number in range(8)}

    judged = judge(one(*cases), found, LABELS)

    assert judged.failures == 8
    assert [failure.texts[0] for failure in judged.examples] == ["7", "6", "5", "4", "3"]
    assert (judged.examples[0].answers, judged.examples[0].scores) == (("negative",), (0.67,))


def test_a_neutral_label_is_accepted_and_other_labels_are_not() -> None:
    labels = ("negative", "neutral", "positive")

    assert applies_to(labels)
    assert not applies_to(("1 star", "2 stars"))
    assert judge(one(Case(("a",), "positive")), {"a": np.array([0.1, 0.5, 0.4])}, labels).examples[0].answers == ("neutral",)
