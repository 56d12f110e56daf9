"""The sentence with which an explanation begins."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from sentiment.explain.engine.reading import read
from sentiment.explain.methods import phrases as methods
from sentiment.explain.methods.evidence import Verdict
from sentiment.explain.methods.target import Target
from sentiment.explain.parts import Attribution, ExplanationRequest
from sentiment.explain.reason import QUOTED_MAX, reason
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.scores import Scored
from tests.tiny import make_bundle

LABELS = ("negative", "positive", "neutral")
POSITIVE = Scored("positive", 0.7, (0.2, 0.7, 0.1), abstain=False)
TEXT = "the film is bad , but a great and good end"
VALUES = [0.0, 0.0, 0.0, -1.0, -0.1, 0.1, 0.0, 2.0, 0.3, 1.0, 0.0]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return load_classifier(make_bundle(tmp_path_factory.mktemp("bundles")))


def said(
    classifier: Classifier,
    values: Sequence[float] = VALUES,
    text: str = TEXT,
    pair: str | None = None,
    scored: Scored = POSITIVE,
    label: int = 1,
    verdict: Verdict = Verdict.INCONCLUSIVE,
    residual: float = 0.0,
    changing: Sequence[int] = (),
    about: str | None = None,
) -> str:
    request = ExplanationRequest(text, pair)
    encoded = read(classifier, request)
    numbers = np.array(values, np.float64)
    found = Attribution("shapley", numbers, None, None, np.zeros(len(numbers)), residual, 0.0, 0.0, 8, 8)
    changed = "neutral" if changing else None
    return reason(request.texts, encoded, scored, LABELS, Target(label, 0), found, verdict, changing, changed, about)


def test_it_says_the_answer_and_what_speaks_for_and_against_it(classifier: Classifier) -> None:
    assert said(classifier) == "Positive, mostly because of “great and good”; “bad” speaks against it."
    assert said(classifier, [0.1] * 10 + [2.0]) == "Positive, mostly because of “end”."


def test_it_says_if_no_phrase_decides(classifier: Classifier) -> None:
    assert said(classifier, [0.5] * 11) == "Positive, but no single phrase decides that."
    assert said(classifier, [0.0] * 10 + [-1.0]) == "Positive, but no single phrase decides that; “end” speaks against it."


def test_values_that_are_not_to_be_relied_on_are_not_named(classifier: Classifier) -> None:
    assert said(classifier, verdict=Verdict.FLAT) == "Positive; its words together hardly move that."
    assert said(classifier, verdict=Verdict.NOT_FAITHFUL) == "Positive; which words decide that cannot be told."


def test_where_no_phrase_holds_half_it_says_without_which_words_the_answer_changes(classifier: Classifier) -> None:
    even = [0.5] * 11

    assert said(classifier, even, changing=(9,)) == "Positive, and without “good” it would be neutral."
    assert said(classifier, even, changing=(7, 9)) == "Positive, and without “great” and “good” it would be neutral."
    many = "Positive, but no single phrase decides that; without 4 of its 11 words it would be neutral."
    assert said(classifier, even, changing=(1, 3, 7, 9)) == many
    # A phrase that holds half is said as before.
    assert said(classifier, changing=(9,)) == said(classifier)


def test_an_undecided_answer_is_said_to_be_so(classifier: Classifier) -> None:
    undecided = Scored("positive", 0.4, (0.35, 0.4, 0.25), abstain=True)

    assert said(classifier, scored=undecided).startswith("Undecided, most likely positive, mostly because of “great and good”;")


def test_the_answer_towards_a_target_is_said_to_be_so(classifier: Classifier) -> None:
    undecided = Scored("positive", 0.4, (0.35, 0.4, 0.25), abstain=True)

    assert said(classifier, about="the end").startswith("Towards “the end”: positive, mostly because of “great and good”;")
    assert (
        said(classifier, about="e" * 100, verdict=Verdict.FLAT)
        == f"Towards “{'e' * (QUOTED_MAX - 1)}…”: positive; its words together hardly move that."
    )
    assert said(classifier, about="end", scored=undecided).startswith("Towards “end”: undecided, most likely positive, mostly")


def test_of_another_label_than_the_answer_it_says_what_speaks_for_that(classifier: Classifier) -> None:
    negative = Scored("negative", 0.7, (0.7, 0.2, 0.1), abstain=False)

    assert said(classifier, scored=negative) == "Negative; for positive: “great and good”; against it: “bad”."
    assert said(classifier, [0.5] * 11, scored=negative) == "Negative; no single phrase speaks for positive."


def test_quotations_are_as_in_the_text_but_for_white_space_and_length(classifier: Classifier) -> None:
    assert said(classifier, [0.0, 1.0, 1.0], "a  GREAT \t Film") == "Positive, mostly because of “GREAT Film”."
    long = said(classifier, [1.0], "g" * 100)
    assert long == f"Positive, mostly because of “{'g' * (QUOTED_MAX - 1)}…”."


def test_of_a_sentence_too_long_to_quote_the_words_in_a_row_that_say_most_are_quoted(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "SHORT_WORDS_MAX", 7)
    monkeypatch.setattr("sentiment.explain.reason.QUOTED_MAX", 60)
    sentence = "in the first week of march the film was good and great and the end of it was a bad idea."
    count = len(sentence.replace(".", " .").split())

    def quoted(*largest: int, text: str = sentence) -> str:
        values = [3.0 if place in largest else 0.01 for place in range(count)]
        return said(classifier, [*values, *[0.0] * 3], f"{text} A film.")

    assert quoted(9, 11) == "Positive, mostly because of “…of march the film was good and great and the end of it was…”."
    assert quoted(0) == "Positive, mostly because of “in the first week of march the film was good and great and…”."
    assert quoted(19, 20) == "Positive, mostly because of “…film was good and great and the end of it was a bad idea.”."


def test_a_phrase_lies_in_one_text_of_a_pair(classifier: Classifier) -> None:
    assert said(classifier, [0.0, 1.0, 1.0, 0.0], "a good", "great film") == "Positive, mostly because of “good” and “great”."


def test_marks_that_stand_alone_neither_begin_nor_end_a_phrase_but_emoji_and_emoticons_may(classifier: Classifier) -> None:
    assert said(classifier, [0.0, 1.0, 0.9], "a film .") == "Positive, mostly because of “film”."
    assert said(classifier, [0.1, 1.0], "film 🙂") == "Positive, mostly because of “🙂”."
    assert said(classifier, [0.1, 1.0], "film :(") == "Positive, mostly because of “:(”."


def test_a_long_text_is_explained_by_words_where_their_values_do_not_sum(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "SHORT_WORDS_MAX", 7)
    text, values = "A film. " * 3 + "Great end", [0.0] * 6 + [2.0, 0.0]

    assert said(classifier, values, text) == "Positive, mostly because of “Great end”."
    assert said(classifier, values, text, residual=math.nan) == "Positive, mostly because of “Great”."
