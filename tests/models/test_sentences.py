"""Sentences of training data, and the last sentences of a text."""

import pytest

from sentiment_models.data.sentences import last_sentences, split_sentences


def test_sentences_of_a_review_end_at_its_html_line_breaks_and_have_single_spaces() -> None:
    text = " It is 3.5  stars<br /><br>Really!  Is\tit? yes "

    assert split_sentences(text) == ["It is 3.5 stars", "Really!", "Is it?", "yes"]


def test_a_text_of_white_space_has_no_sentences() -> None:
    assert split_sentences(" <br/> ") == []


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("One two three. Four five! Six?", "Four five! Six?"),
        ("One two three.<br /><br />Four.  Five.", "Four. Five."),
        ("no end to these words", "to these words"),
        ("", ""),
    ],
)
def test_the_tail_is_the_last_whole_sentences_or_the_last_words(text: str, tail: str) -> None:
    assert last_sentences(text, words_max=3) == tail
