"""Edits of a text that turn its sentiment: its words of praise and blame for their opposites of about equal strength."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sentiment_models.data.sentences import split_sentences

ANTONYMS = Path(__file__).parents[1] / "antonyms.tsv"
# A text without this many words of praise or blame says what it says in other words too.
WORDS_MIN = 2
VOWELS = "aeiou"


def edits(text: str) -> Iterator[str]:
    """The edits of a text, the smallest first: of its last sentence, then of all. None if it has fewer than WORDS_MIN such words.

    White space becomes single spaces.
    """
    sentences = split_sentences(text)
    whole, count = turned(" ".join(sentences))
    if count < WORDS_MIN:
        return
    last, found = turned(sentences[-1])
    if 0 < found < count:
        yield " ".join([*sentences[:-1], last])
    yield whole


def turned(text: str) -> tuple[str, int]:
    """The text with all its words of praise and blame turned, and their number. Keeps capitals, and puts ``a`` and ``an`` right."""
    opposites, pattern = _antonyms()

    def turn(found: re.Match[str]) -> str:
        word = found["word"]
        other = _as_written(opposites[word.lower()], word)
        if not found["article"]:
            return other
        return found["article"][0] + "n" * (other[0].lower() in VOWELS) + found["space"] + other

    return pattern.subn(turn, text)


def _as_written(word: str, like: str) -> str:
    return word.upper() if like.isupper() else word[0].upper() + word[1:] if like[0].isupper() else word


@cache
def _antonyms() -> tuple[dict[str, str], "re.Pattern[str]"]:
    opposites: dict[str, str] = {}
    for line in ANTONYMS.read_text(encoding="utf-8").splitlines():
        good, bad = line.split("\t")
        opposites.setdefault(good, bad)
        opposites.setdefault(bad, good)
    words = "|".join(sorted(map(re.escape, opposites), key=len, reverse=True))
    return opposites, re.compile(rf"(?:\b(?P<article>an?)(?P<space>\s+))?(?<![\w-])(?P<word>{words})(?![\w-])", re.IGNORECASE)
