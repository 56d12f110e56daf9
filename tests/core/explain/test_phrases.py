"""Which phrases an explanation names, from the values of the words."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.explain.methods.phrases import SHORT_WORDS_MAX, WORDS_MAX, Phrases, phrases

#       The acting was not good at all , but I loved the soundtrack .
FILM = [0.0, -0.1, -0.3, -0.8, -0.5, -0.4, -0.5, -0.2, 0.1, 0.3, 2.4, 0.1, 0.5, 0.1]


def found(values: Sequence[float], error: float = 0.0, sentences: Sequence[range] | None = None, blank: Sequence[int] = ()) -> Phrases:
    return phrases(np.array(values), np.full(len(values), error), sentences or [range(len(values))], blank)


def test_neighbouring_words_with_large_values_of_one_sign_are_a_phrase() -> None:
    # "loved the soundtrack" loses "the soundtrack", which adds less than its two places take; "not good at all" is whole.
    assert found(FILM) == Phrases((range(10, 11),), (range(3, 7),))


def test_the_fewest_phrases_that_hold_most_of_what_speaks_for_the_label_are_named() -> None:
    apart = [range(word, word + 1) for word in range(5)]
    assert found([0.8, 1.0, 0.0, 0.9, 0.0], sentences=apart).towards == (range(1, 2), range(3, 4))
    # One that holds most is not alone if another says nearly as much.
    assert found([1.0, 0.0, 0.9, 0.0, 0.0], sentences=apart).towards == (range(1), range(2, 3))
    assert found([1.0, 0.0, 0.7, 0.0, 0.0], sentences=apart).towards == (range(1),)
    assert found([1.0] * WORDS_MAX + [-2.0, 0.9]).towards == (range(WORDS_MAX),)
    # Half of it takes more than two.
    assert found([1.0] * 5, sentences=apart).towards == ()


def test_a_text_of_many_phrases_is_read() -> None:
    values = [(-1) ** place * (5000 - place) / 5000 for place in range(5000)]

    assert found(values).against == (range(1, 2),)


def test_a_phrase_has_few_words() -> None:
    assert found([1.0] * WORDS_MAX).towards == (range(WORDS_MAX),)
    assert found([1.0] * (WORDS_MAX + 1)) == Phrases()


def test_values_within_two_standard_errors_of_zero_count_as_zero() -> None:
    assert found([0.9, 0.0, -0.9], error=0.5) == Phrases()
    assert found([1.1, 0.0, -1.1], error=0.5) == Phrases((range(1),), (range(2, 3),))
    assert found([1.1, 0.0, -1.1], error=np.inf) == Phrases()


def test_what_says_little_against_the_label_is_not_named() -> None:
    assert found([1.0, 0.0, -0.19]) == Phrases((range(1),), ())


def test_no_phrase_begins_or_ends_with_a_blank_word_or_crosses_a_sentence() -> None:
    assert found([1.0, 0.8, 0.7, 0.5, 0.0, 0.0], blank=[0, 3]).towards == (range(1, 3),)
    # What is left says nothing.
    assert found([2.0, -0.1, 2.0], blank=[0, 2]) == Phrases()
    assert found([0.1, 1.0, 0.4, 0.1], sentences=[range(2), range(2, 4)]).towards == (range(1, 2),)


def test_a_word_that_says_much_of_the_other_side_ends_a_phrase() -> None:
    assert found([-2.0, 1.0, -2.0]) == Phrases((range(1, 2),), (range(2, 3),))


def test_of_a_long_text_whole_sentences_are_named() -> None:
    words = SHORT_WORDS_MAX + 3
    sentences = [range(10), range(10, 20), range(20, words)]
    values = [0.01] * 10 + [0.3] * 10 + [-0.2] * (words - 20)

    assert found(values, sentences=sentences) == Phrases((range(10, 20),), (range(20, words),))
    # The errors of words may be shares of one of their sentence: of ten with 0.16 each it is 1.6 at most.
    assert found(values, 0.16, sentences) == Phrases()
    # One sentence, or values that do not sum: words are named.
    assert found([0.0] * (words - 1) + [1.0]).towards == (range(words - 1, words),)
    assert phrases(np.array([0.0] * (words - 1) + [1.0]), np.zeros(words), sentences, summed=False).towards == (range(words - 1, words),)


@pytest.mark.parametrize("values", [[], [0.0], [0.0] * 60])
def test_where_nothing_moves_the_answer_nothing_is_named(values: list[float]) -> None:
    assert found(values) == Phrases()


@given(st.lists(st.floats(-3, 3), max_size=60), st.floats(0, 1))
def test_phrases_are_disjoint_and_hold_what_they_claim(values: list[float], error: float) -> None:
    sentences = [range(start, min(start + 7, len(values))) for start in range(0, len(values), 7)]
    clear = [value if abs(value) > 2 * error else 0.0 for value in values]

    said = phrases(np.array(values), np.full(len(values), error), sentences, summed=False)

    named = [word for one in (*said.towards, *said.against) for word in one]
    assert len(named) == len(set(named))
    assert all(any(one[0] in words and one[-1] in words for words in sentences) for one in (*said.towards, *said.against))
    assert all(sum(clear[word] for word in one) < 0 for one in said.against)
    assert len(said.towards) <= 2
    assert sum(map(len, said.towards)) <= WORDS_MAX
    if said.towards:
        assert sum(clear[word] for one in said.towards for word in one) >= 0.5 * sum(max(0.0, value) for value in clear) - 1e-9
