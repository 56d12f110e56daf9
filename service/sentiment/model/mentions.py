"""Finds where a text names a target. Pure."""

import re
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from unicodedata import category, name, normalize

# Occurrences within longer words, such as "art" in "part", after which a target counts as not named. A novel has some thousand of the most
# common ones; 65,536 take 50 ms.
MISSES_MAX = 2**16
# How the names of characters begin in scripts that are written without spaces between words. Korean has spaces.
UNSPACED = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "MYANMAR", "KHMER")
# What is not ASCII, with the marks on a letter in one piece. Unicode's Stream-Safe Text Format allows 30 of them, and the time that Python
# takes to order them grows with the square of their number.
_NOT_ASCII = re.compile(r"(?=[^\x00-\x7f])[^\W\x00-\x7f]*[^\w\x00-\x7f]{0,32}")


class Mentions:
    """Where one text names targets, in any case of their letters, and whether or not accents are composed with them (NFC, NFD)."""

    def __init__(self, text: str) -> None:
        self._text, self._folded = text, _folded(text)

    def find(self, target: str) -> tuple[int, int] | None:
        """The first mention of a target, as code points [start, end) of the text; None if there is none.

        It begins and ends where words of the text do. In scripts without spaces each letter with its marks does.
        """
        wanted, folded = _folded(target.strip()), self._folded
        at = -1
        for _ in range(MISSES_MAX):
            at = folded.find(wanted, at + 1)
            if at < 0:
                return None
            end = at + len(wanted)
            if not (_in_word(folded, at) or _in_word(folded, end)):
                return self._original(at), self._original(end)
        return None

    def _original(self, offset: int) -> int:
        """The code point of the text at which this offset of the folded text begins. No word begins or ends within a code point."""
        return offset if len(self._text) == len(self._folded) else bisect_right(self._ends, offset)

    @cached_property
    def _ends(self) -> list[int]:
        """Where each code point of the text ends in the folded text."""
        lengths = {sign: len(_folded(sign)) for sign in set(self._text)}
        return list(accumulate(map(lengths.__getitem__, self._text)))


def _folded(text: str) -> str:
    """A text as it is compared, by Unicode's canonical caseless matching. Each code point becomes one or more."""
    return _NOT_ASCII.sub(lambda piece: normalize("NFD", piece[0]), text.casefold())


def _in_word(text: str, place: int) -> bool:
    """Whether a place in a text is between two characters of one word, or before a mark."""
    before, after = text[place - 1 : place], text[place : place + 1]
    return bool(before and after) and (category(after)[0] == "M" or (_joins(after) and _joins(before)))


def _joins(sign: str) -> bool:
    """Whether a character makes words with others: a letter, a mark on one, a digit or a low line, unless its script has no spaces."""
    return sign == "_" or (category(sign)[0] in "LMN" and (sign.isascii() or not name(sign, "").startswith(UNSPACED)))
