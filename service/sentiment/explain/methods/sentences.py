"""Finds the sentence of each token: a small sentence splitter for texts with punctuation. Pure."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Encoded

Codes = npt.NDArray[np.uint32]
Places = npt.NDArray[np.intp]

# An end mark with closing quotes and brackets, before white space or the end of the text. Chinese and Japanese marks need no space.
# Possessive quantifiers: linear time even for a text of a million full stops.
_END = re.compile(r"[.!?\u2026]++[\"'\u2019\u201d\u00bb)\]]*+(?=\s|$)|[\u3002\uff01\uff1f]++[\u300d\u300f\u201d\uff09]*+")
# End marks. NumPy finds them first: a regular expression search over the whole text would hold the GIL until its end.
_MARKS = tuple(np.array([ord(sign) for sign in signs], np.uint32) for signs in (".!?\u2026", "\u3002\uff01\uff1f"))
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], np.uint32)
# Positions converted at a time, so that other threads can run in between: converting a million at once takes 20 ms.
_SOME = 4096
_BEFORE = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]+$")
_ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "cf", "no", "fig", "inc", "ltd", "jr", "sr"))
# "no." is an abbreviation only before a number.
_BEFORE_DIGITS = frozenset(("no", "fig"))


def sentence_starts(text: str, until: int | None = None) -> list[int]:
    """Offsets in code points at which sentences start; the first is 0. White space belongs to the sentence before it.

    ``until``: starts after this code point may be missing.
    """
    codes = np.frombuffer(text[:until].encode("utf-32-le", "surrogatepass"), np.uint32)
    starts, end = [0], 0
    for place in _in_turns(_marks(codes)):
        mark = _END.match(text, place) if place >= end else None
        if mark is not None:
            end = mark.end()
            if end < len(text) and not _abbreviates(text, mark):
                starts.append(end)
    starts += (end for end in _in_turns(_empty_lines(codes)) if end < len(text))
    return sorted(starts)


def sentence_numbers(encoded: Encoded, texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The sentence number of each token, [tokens]; -1 for special tokens. The second text of a pair continues the count of the first."""
    untils = [max((token.start for token in encoded.tokens if token.pair == bool(pair)), default=0) for pair in range(len(texts))]
    starts = [sentence_starts(text, until) for text, until in zip(texts, untils, strict=True)]
    before = [0, len(starts[0])]
    numbers = [-1 if token.special else before[token.pair] + bisect_right(starts[token.pair], token.start) - 1 for token in encoded.tokens]
    return np.array(numbers, np.int64)


def sentence_words(encoded: Encoded, texts: Sequence[str]) -> list[range]:
    """The words of each sentence, by word index. Sentences of which the model reads no word are left out."""
    numbers = sentence_numbers(encoded, texts)
    of_words = np.array([numbers[word.first] for word in encoded.words], np.int64)
    starts = [0, *(np.flatnonzero(np.diff(of_words)) + 1).tolist(), len(of_words)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def _marks(codes: Codes) -> Places:
    """Offsets of end marks; of several in a row the first."""
    found = np.zeros(len(codes), np.bool_)
    for signs in _MARKS:
        marks = np.isin(codes, signs)
        marks[1:] &= ~marks[:-1]
        found |= marks
    return np.flatnonzero(found)


def _empty_lines(codes: Codes) -> Places:
    """Offsets of the ends of empty lines; of several in a row the last."""
    lines = np.flatnonzero(codes == ord("\n"))
    written = np.cumsum(~np.isin(codes, _SPACES))[lines]
    # Only white space between this line break and the one before.
    empty = np.diff(written, prepend=-1) == 0
    last = empty & ~np.append(empty[1:], False)
    ends: Places = lines[last] + 1
    return ends


def _in_turns(places: Places) -> Iterator[int]:
    """Yields the offsets in chunks, so that other threads run in between."""
    return (place for start in range(0, len(places), _SOME) for place in places[start : start + _SOME].tolist())


def _abbreviates(text: str, mark: re.Match[str]) -> bool:
    """Whether a full stop belongs to an abbreviation or an initial."""
    if mark.group() != ".":
        return False
    # Abbreviations are short: 16 code points before the mark are enough.
    found = _BEFORE.search(text[max(0, mark.start() - 16) : mark.start()])
    if found is None:
        return False
    word = found.group()
    if word.lower() in _BEFORE_DIGITS:
        return text[mark.end() : mark.end() + 16].lstrip()[:1].isdigit()
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")
