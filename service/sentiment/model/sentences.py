"""Splits a text into sentences: a small splitter for texts with punctuation. Pure."""

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """The sentences of a text, in order, as code points [start, end) without the white space around them.

    Together they cover all of the text but white space.
    """
    found = []
    for start, end in pairwise([*sentence_starts(text), len(text)]):
        sentence = text[start:end]
        if not sentence.isspace() and sentence:
            found.append((end - len(sentence.lstrip()), start + len(sentence.rstrip())))
    return found


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
