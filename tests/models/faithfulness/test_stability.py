"""Changes that mean nothing, and how alike scores are before and after."""

import numpy as np
import pytest

from sentiment_models.explanations.rankings import scores
from sentiment_models.explanations.stability import changes, spearman, stability
from sentiment_models.explanations.subject import Subject
from tests.models.faithfulness.conftest import MakeSubject


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a film .", {"case": "A film .", "stop": "a film", "space": "a  film ."}),
        ("A film", {"case": "a film", "stop": "A film.", "space": "A  film"}),
        ("  two words ", {"case": "  Two words ", "stop": "  two words.", "space": "two  words"}),
        ("what ?", {"case": "What ?", "space": "what  ?"}),
        ("well...", {"case": "Well..."}),
        ("电影", {"stop": "电影."}),
        (".", {}),
    ],
)
def test_a_text_gets_only_the_changes_that_are_possible(text: str, wanted: dict[str, str]) -> None:
    assert changes(text) == wanted


def test_spearman_averages_ranks_of_equal_values() -> None:
    first, second = np.array([1.0, 2.0, 2.0, 4.0]), np.array([10.0, 30.0, 20.0, 40.0])

    assert spearman(first, 3 * first) == pytest.approx(1)
    assert spearman(first, -first) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: 4.5 / sqrt(4.5 x 5).
    assert spearman(first, second) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert spearman(first, np.ones(4)) is None
    assert spearman(first[:2], second[:2]) is None


def test_changes_that_the_tokenizer_removes_are_listed_and_not_measured(subject: Subject) -> None:
    reading = subject.read("the film was not good .")
    found = scores(subject, reading, reading.target())

    shifts, unseen = stability(subject, reading, found, seed=0)

    assert shifts.keys() == {name for name in found if name not in ("uniform", "position_first", "position_last")}
    for shift in shifts.values():
        # What is not seen cannot move: a 1 would say that something was shown to be stable.
        assert shift.keys() == {"stop"}
        assert -1 <= shift["stop"] <= 1
    assert unseen == ("case", "space")
    assert any(shift["stop"] < 0.999 for shift in shifts.values())


def test_case_is_measured_if_the_tokenizer_keeps_it(make_subject: MakeSubject) -> None:
    subject = make_subject("roberta")
    reading = subject.read("the film was not good")

    shifts, unseen = stability(subject, reading, scores(subject, reading, reading.target()), seed=0)

    assert "case" not in unseen
    assert any(shift.get("case", 1) < 1 for shift in shifts.values())


def test_of_a_pair_the_last_text_is_changed(subject: Subject) -> None:
    reading = subject.read(("good film", "the end was bad ."))

    shifts, unseen = stability(subject, reading, scores(subject, reading, reading.target()), seed=0)

    assert {*shifts["occlusion"], *unseen} == {"case", "stop", "space"}
