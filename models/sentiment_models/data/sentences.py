"""Where sentences end."""

import re


def split_sentences(text: str) -> list[str]:
    """Cut after full stops, exclamation and question marks before a space; line breaks of HTML count as spaces."""
    return re.split(r"(?<=[.!?])\s+", re.sub(r"(\s|<br\s*/?>)+", " ", text).strip())


def last_sentences(text: str, words_max: int) -> str:
    """Return the last whole sentences of a text that have at most ``words_max`` words together, at least its last words.

    A review's verdict stands at its end, often in an idiom that a classifier of long texts never has to understand.
    """
    kept: list[str] = []
    for sentence in reversed(split_sentences(text)):
        words = sentence.split()
        if kept and len(kept) + len(words) > words_max:
            break
        kept = words + kept
    return " ".join(kept[-words_max:])
