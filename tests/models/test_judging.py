"""What counts as an answer, and the answers of others: the labels that a set has, abstaining instead of neutral, VADER's thresholds."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sentiment_models.evaluation.baselines import vader_answers
from sentiment_models.evaluation.judging import judge, present

THREE = ("negative", "positive", "neutral")
TEXTS = ["good", "bad", "plain", "slightly good"]
COMPOUND = {"good": 0.6, "bad": -0.6, "plain": 0.0, "slightly good": 0.04}


@pytest.fixture
def lexicon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word list in the place of VADER's."""

    class Analyzer:
        def polarity_scores(self, text: str) -> dict[str, float]:
            return {"compound": COMPOUND[text]}

    monkeypatch.setitem(sys.modules, "vaderSentiment", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vaderSentiment.vaderSentiment", SimpleNamespace(SentimentIntensityAnalyzer=Analyzer))


def test_on_texts_of_two_labels_the_larger_of_these_is_the_answer() -> None:
    stated = np.array([[0.1, 0.3, 0.6], [0.5, 0.2, 0.3]])

    found = judge(stated, np.array([False, False]), THREE, THREE, present(np.array([0, 1]), 3))

    assert found.answers.tolist() == [1, 0]
    assert found.stated == pytest.approx(np.array([[0.25, 0.75, 0], [5 / 7, 2 / 7, 0]]))


@pytest.mark.parametrize("labels", [[0, 1, 2], [1, 1]])
def test_on_texts_of_all_labels_or_of_one_every_label_counts(labels: list[int]) -> None:
    stated = np.array([[0.1, 0.3, 0.6]])

    found = judge(stated, np.array([False]), THREE, THREE, present(np.array(labels), 3))

    assert found.answers.tolist() == [2]
    assert found.stated.tolist() == stated.tolist()


def test_labels_are_matched_by_name_whatever_their_order() -> None:
    found = judge(np.array([[0.9, 0.1]]), np.array([False]), ("positive", "negative"), THREE, np.ones(3, np.bool_))

    assert found.answers.tolist() == [1]


def test_a_model_without_neutral_answers_it_where_it_abstains_if_the_set_has_it() -> None:
    stated, abstain = np.array([[0.55, 0.45], [0.1, 0.9]]), np.array([True, False])

    assert judge(stated, abstain, THREE[:2], THREE, np.ones(3, np.bool_)).answers.tolist() == [2, 1]
    assert judge(stated, abstain, THREE[:2], THREE, np.array([True, True, False])).answers.tolist() == [0, 1]


def test_the_probability_of_an_answer_that_abstaining_stands_for_is_not_known() -> None:
    stated, abstain = np.array([[0.55, 0.45], [0.1, 0.9]]), np.array([True, False])

    assert judge(stated, abstain, THREE[:2], THREE, np.ones(3, np.bool_)).confidence == pytest.approx([np.nan, 0.9], nan_ok=True)


def test_a_certain_answer_outside_of_the_set_leaves_the_others_finite() -> None:
    found = judge(np.array([[0.0, 0.0, 1.0]]), np.array([False]), THREE, THREE, np.array([True, True, False]))

    assert found.stated.sum() == pytest.approx(1)


@pytest.mark.usefixtures("lexicon")
def test_vader_is_neutral_between_its_thresholds() -> None:
    found = vader_answers(TEXTS, np.array([1, 0, 2, 2]), THREE, np.ones(3, np.bool_))

    assert found is not None
    assert found.tolist() == [1, 0, 2, 2]


@pytest.mark.usefixtures("lexicon")
def test_without_neutral_vader_s_sign_decides_and_a_text_without_its_words_gets_the_commonest_label() -> None:
    found = vader_answers(TEXTS, np.array([1, 0, 0, 0]), THREE, np.array([True, True, False]))

    assert found is not None
    assert found.tolist() == [1, 0, 0, 1]


@pytest.mark.usefixtures("lexicon")
def test_vader_has_no_answer_for_other_labels() -> None:
    assert vader_answers(TEXTS, np.array([0, 1, 0, 1]), ("ham", "spam"), np.ones(2, np.bool_)) is None
