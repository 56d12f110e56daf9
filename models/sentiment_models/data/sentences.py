"""Split texts into sentences."""

import re


def split_sentences(text: str) -> list[str]:
    """Cut after full stops, exclamation and question marks before a space; line breaks of HTML count as spaces."""
    return re.split(r"(?<=[.!?])\s+", re.sub(r"(\s|<br\s*/?>)+", " ", text).strip())


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
