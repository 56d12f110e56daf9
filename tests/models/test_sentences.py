"""Ends of sentences, and the last sentences of a text."""

import pytest

from sentiment_models.data.sentences import last_sentences, split_sentences


def test_sentences_end_before_spaces_and_at_no_abbreviated_number() -> None:
    assert split_sentences(" It is 3.5 stars.<br /><br />Really!  Is it? yes ") == ["It is 3.5 stars.", "Really!", "Is it?", "yes"]


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
