"""The pieces and words of a tokenized text, and their positions in the caller's text. Used by explanations. Pure."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import category

import numpy as np

# Apostrophes and hyphens, which may be inside words.
_LINKS = "'\u2019-\u2010\u2011"
# Accents, joiners and variation selectors belong to the character before them.
_MARKS = {"Mn", "Me", "Mc", "Cf"}
_SKIN = range(0x1F3FB, 0x1F400)
_FEW, _BLOCK = 64, 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece as the tokenizer returns it: code points [start, end) of text ``source``, and the number of its word.

    ``source`` is 0, 1 for the second text of a pair, or None for a special token.
    """

    text: str
    start: int
    end: int
    word: int | None
    source: int | None
    unknown: bool


@dataclass(frozen=True, slots=True)
class Token:
    """One piece that the model reads. ``start`` and ``end`` are code points of its text, both 0 for a special token.

    ``word`` is the index of its word in ``Encoded.words``, -1 for a special token. ``pair``: it belongs to the second text.
    """

    piece: str
    start: int
    end: int
    word: int
    special: bool
    unknown: bool
    pair: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text: its code points [start, end), and its tokens [first, last)."""

    start: int
    end: int
    first: int
    last: int
    pair: bool

    @property
    def tokens(self) -> range:
        """The indices of its tokens."""
        return range(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text or pair as the model reads it, with the words that its tokens form.

    ``unseen``: the parts that the model does not read, as (source, start, end): code points [start, end) of text ``source`` (0, or 1
    for the second of a pair). Empty unless ``truncated``. ``mention``: of the target that the text is read for, as code points
    [start, end) of the text; None without one.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    truncated: bool
    unseen: tuple[tuple[int, int, int], ...] = ()
    mention: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of one text in three units."""

    code_points: tuple[int, int]
    utf16: tuple[int, int]
    utf8: tuple[int, int]


class Units:
    """Converts code point offsets of one text into offsets in UTF-16 code units and UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self._ascii = text.isascii()
        # Cumulative, up to each code point: the extra UTF-16 code units, and the extra UTF-8 bytes.
        codes = np.frombuffer(b"" if self._ascii else text.encode("utf-32-le", "surrogatepass"), np.uint32)
        astral = codes > 0xFFFF
        self._utf16 = np.cumsum(astral)
        self._utf8 = np.cumsum((codes > 0x7F).astype(np.int8) + (codes > 0x7FF) + astral)

    def span(self, start: int, end: int) -> Span:
        """The range of the code points [start, end)."""
        if self._ascii:
            return Span((start, end), (start, end), (start, end))
        utf16, utf8 = (
            (start + (int(more[start - 1]) if start else 0), end + (int(more[end - 1]) if end else 0)) for more in (self._utf16, self._utf8)
        )
        return Span((start, end), utf16, utf8)


def group(texts: Sequence[str], pieces: Sequence[Piece]) -> tuple[tuple[Token, ...], tuple[Word, ...]]:
    """The tokens of pieces, and the words that they form.

    A word is one word of the tokenizer without the punctuation beside it. An apostrophe or hyphen between letters or digits joins its two
    sides: "didn't" and "well-made" are one word each. Accents and joiners that the tokenizer drops belong to the word before them.

    Args:
        texts: the text, and the second one of a pair.
        pieces: in the order in which the model reads them.
    """
    tokens: list[Token] = []
    words: list[Word] = []
    last: Piece | None = None
    for index, piece in enumerate(pieces):
        if piece.source is None:
            tokens.append(Token(piece.text, 0, 0, -1, special=True, unknown=piece.unknown, pair=False))
            last = None
            continue
        text = texts[piece.source]
        start, end = _trimmed(text, piece.start, piece.end)
        pair = piece.source == 1
        if last is not None and last.source == piece.source:
            words[-1] = _with_marks(text, words[-1], start)
        if last is not None and last.source == piece.source and _joined(text, words[-1], start, last.word == piece.word):
            before = words.pop()
            words.append(Word(before.start, max(before.end, end), before.first, index + 1, pair))
        else:
            words.append(Word(start, end, index, index + 1, pair))
        tokens.append(Token(piece.text, start, end, len(words) - 1, special=False, unknown=piece.unknown, pair=pair))
        last = piece
    return tuple(tokens), tuple(_with_marks(texts[word.pair], word, len(texts[word.pair])) for word in words)


def _with_marks(text: str, word: Word, limit: int) -> Word:
    """The word, extended by the dropped accents and joiners after it, which belong to its last character."""
    if word.start == word.end:
        return word
    end = word.end
    while end < limit and _is_mark(text[end]):
        # Long runs are checked in blocks, since a text may consist of nothing else.
        block = set(text[end : min(end + _BLOCK, limit)]) if end - word.end > _FEW else ()
        end = min(end + _BLOCK, limit) if block and all(map(_is_mark, block)) else end + 1
    return word if end == word.end else replace(word, end=end)


@functools.lru_cache(4096)
def _is_mark(sign: str) -> bool:
    return category(sign) in _MARKS


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the white space that some tokenizers include in a piece."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _joined(text: str, word: Word, start: int, same: bool) -> bool:
    """Whether a piece that begins at ``start`` continues a word. ``same``: both are one word for the tokenizer."""
    if start < word.end or word.start == word.end:
        # Several pieces share one character, or the piece before is empty.
        return same
    if start > word.end or start >= len(text):
        return False
    first, place = text[start], start - 1
    while place > word.start and category(text[place]) in _MARKS:
        place -= 1
    before = text[place]
    if category(first) in _MARKS or ord(first) in _SKIN:
        return True
    begins, goes_on = first.isalnum(), before.isalnum()
    opens = goes_on and first in _LINKS and text[start + 1 : start + 2].isalnum()
    closes = begins and before in _LINKS and place > word.start and text[place - 1].isalnum()
    return opens or closes or (same and begins == goes_on)
