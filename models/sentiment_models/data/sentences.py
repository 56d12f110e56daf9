"""The sentences of texts to train on, by the rule that the server uses."""

import re

from sentiment.model.sentences import sentences

# Of reviews from web pages.
_HTML_BREAK = re.compile(r"<br\s*/?>")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, with single spaces for white space. A line break of HTML is a line break."""
    plain = _HTML_BREAK.sub("\n", text)
    return [" ".join(plain[start:end].split()) for start, end in sentences(plain)]


def last_sentences(text: str, words_max: int) -> str:
    """Return the last whole sentences of a text with at most ``words_max`` words in total, or the last words of a longer last sentence.

    A review often ends with its verdict, in idioms that a classifier trained on whole reviews need not understand.
    """
    kept: list[str] = []
    for sentence in reversed(split_sentences(text)):
        words = sentence.split()
        if kept and len(kept) + len(words) > words_max:
            break
        kept = words + kept
    return " ".join(kept[-words_max:])
