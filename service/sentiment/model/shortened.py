"""Shortens a text without changing its tokens, so that a long text costs no more to tokenize than the tokens that are read of it.

A tokenizer takes 0.3 to 0.5 microseconds a character, whatever comes of it: a megabyte of blanks, of accents or of one endless word holds
a core for half a second and gives one token. Here characters that the tokenizer drops, repeated blanks, and words that it reads as one
unknown token are found in NumPy arrays, at about 10 nanoseconds a character.

Knows kinds of characters, and nothing of models. ``tokenizer`` calls it for each text that is not plain.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray

# Kinds of characters.
# Nothing is known of it, so it always stays.
OTHER = 0
# Part of a word. Normalized, it is at least one character.
WORD = 1
# The normalizer drops it.
DROPPED = 2
# White space: it ends a word, and several in a row are read as one.
BLANK = 3
# It ends a word and is a token of its own: punctuation and Chinese characters.
APART = 4
# The normalizer drops it, but tokens that were added to the vocabulary have it, such as joined emoji.
JOINER = 5
# Added to the kind of a sign by which an added token is known.
_SIGN = 8

# A word of so many characters costs no more than its characters do. WordPiece tries every end of a word at each of its characters: so many
# tries cost as much as one character.
EASY_WORD = 24
TRIES_PER_CHARACTER = 6

# The tokenizer's tables of Unicode are older than Python's: where Unicode 3.2 and Python's agree, the tokenizer's does too.
_OLD = unicodedata.ucd_3_2_0
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_CHINESE = (
    *(range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00)),
    *(range(0x20000, 0x2A6E0), range(0x2A700, 0x2B820), range(0x2B920, 0x2CEB0), range(0x2F800, 0x2FA20)),
)
# Characters that are looked at one by one. All others are parts of words: Hangul, and what is not assigned.
_MIXED = (
    *(range(0x3400), range(0x4DC0, 0x4E00), range(0xA000, 0xAC00), range(0xD7A4, 0xD800), range(0xFB00, 0x20000)),
    range(0xE0000, 0xE0200),
)
# Rare letters: the first that the vocabulary lacks stands in for each unknown word.
_RARE = "\u1200\u1401\ua000\u13a0\u1780\u10a0"

Kinds = NDArray[np.uint8]
Places = NDArray[np.intp]


class Shortener(Protocol):
    """Shortens texts for one tokenizer. From any thread."""

    def shorten(self, text: str) -> "Shortened":
        """Shorten a text, or a part that was cut out of one: then do not trust its first and its last word."""
        ...


@dataclass(frozen=True, slots=True)
class Heavy:
    """A word [start, end) that costs as much as its characters and ``extra`` more."""

    start: int
    end: int
    extra: int


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text with the same tokens as a longer one.

    ``tokens``: how many they are at the least. ``starts`` and ``ends``: the code points [start, end) of the longer text that each character
    stands for; ``starts`` is None where nothing was left out, ``ends`` where each stands for one.
    """

    text: str
    tokens: int = 0
    heavy: Sequence[Heavy] = ()
    starts: Places | None = None
    ends: Places | None = None

    @property
    def cost(self) -> int:
        """What it costs to tokenize, in characters of easy words."""
        return len(self.text) + sum(word.extra for word in self.heavy)

    def head(self, cost: int) -> "Shortened":
        """The beginning that costs ``cost``, and the rest of a heavy word."""
        left = cost
        for word in self.heavy:
            left -= word.extra
            if word.end >= left:
                return self._between(0, word.end)
        return self._between(0, left)

    def tail(self, cost: int) -> "Shortened":
        """The end that costs ``cost``, and the rest of a heavy word."""
        left, size = cost, len(self.text)
        for word in reversed(self.heavy):
            left -= word.extra
            if size - word.start >= left:
                return self._between(word.start, size)
        return self._between(max(0, size - left), size)

    def _between(self, start: int, end: int) -> "Shortened":
        if start == 0 and end >= len(self.text):
            return self
        starts = self._starts()[start:end]
        return Shortened(self.text[start:end], starts=starts, ends=None if self.ends is None else self.ends[start:end])

    def moved(self, offset: int) -> "Shortened":
        """The same, where ``offset`` characters precede the longer text."""
        if not offset:
            return self
        return replace(self, starts=self._starts() + offset, ends=None if self.ends is None else self.ends + offset)

    def _starts(self) -> Places:
        return np.arange(len(self.text)) if self.starts is None else self.starts

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The code points of the longer text that some of this one stand for."""
        if self.starts is None:
            return start, end
        first = int(self.starts[start]) if start < len(self.text) else int(self.starts[-1]) + 1
        if start == end:
            return first, first
        return first, int(self.starts[end - 1]) + 1 if self.ends is None else int(self.ends[end - 1])


class Unchanged:
    """Shortens nothing, for a tokenizer of which nothing is known."""

    def shorten(self, text: str) -> Shortened:
        """The text as it is."""
        return Shortened(text)


class ByKind:
    """Shortens texts by the kinds of their characters."""

    def __init__(self, kinds: Kinds, signs: NDArray[np.bool_], added: int, unknown: "UnknownWords | None" = None) -> None:
        """Args:
        kinds: the kind of each code point.
        signs: whether each code point is a sign of an added token: each added token of several characters has one.
        added: how many characters the longest added token has.
        unknown: None where no word is read as one unknown token.
        """
        # One table, for a look-up of a million characters takes a millisecond.
        self._table = kinds + _SIGN * signs.astype(np.uint8)
        self._added = added
        self._unknown = unknown

    def shorten(self, text: str) -> Shortened:
        """Leave out what is dropped, repeated blanks and unknown words."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = self._table.take(codes)
        keep = self._kept(kinds)
        kinds &= _SIGN - 1
        starts: Places | None = None
        if not keep.all():
            starts = np.flatnonzero(keep)
            kinds = kinds.take(starts)
        blank = kinds == BLANK
        repeated = blank[:-2] & blank[1:-1] & blank[2:]
        if repeated.any():
            keep = np.concatenate(([True], ~repeated, [True]))
            starts = np.flatnonzero(keep) if starts is None else starts[keep]
            kinds = kinds[keep]
        if starts is not None:
            text = codes.take(starts).tobytes().decode("utf-32-le", "surrogatepass")
        return (
            Shortened(text, starts=starts) if self._unknown is None else _without_unknown(text, starts, kinds, self._unknown, self._added)
        )

    def _kept(self, kinds: Kinds) -> NDArray[np.bool_]:
        """Which characters are not dropped."""
        signs = kinds >= _SIGN
        plain = kinds & (_SIGN - 1)
        dropped = plain == DROPPED
        keep: NDArray[np.bool_] = ~dropped
        if dropped.any() and signs.any():
            # Without its zero "[SE\0P]" would become an added token, so that near a sign of one the ends of what is dropped stay.
            keep |= (np.diff(dropped, prepend=False) | np.diff(dropped, append=False)) & _within(signs, self._added)
        for start, end in _runs(plain == JOINER, 2 * self._added):
            keep[start + self._added : end - self._added] = False
        return keep


def _without_unknown(text: str, starts: Places | None, kinds: Kinds, unknown: "UnknownWords", added: int) -> Shortened:
    """Put one character in place of each unknown word."""
    word = kinds == WORD
    apart = kinds == APART
    joined = ~(apart | (kinds == BLANK))
    # Each character that stands apart is a token, and each word that begins after such a character or a blank has one.
    tokens = int(np.count_nonzero(apart)) + int(np.count_nonzero(word[1:] & ~joined[:-1])) + int(word[:1].sum())
    certain = bool(unknown.stand_in) and np.array_equal(word, joined)
    heavy: list[Heavy] = []
    # What is left out, and what stands there instead.
    gaps: list[tuple[int, int, str]] = []
    gone = 0
    for start, end in _runs(joined, EASY_WORD):
        if not (certain or (unknown.stand_in and word[start:end].all())):
            # Where words end here is not known, but a word with so many characters in a row is an unknown one: its middle goes.
            for first, last in _runs(word[start:end], unknown.length + 1 + added):
                gaps.append((start + first + unknown.length + 1, start + last - added, ""))
                gone += last - first - unknown.length - 1 - added
        elif end - start > unknown.length or unknown.lacks_a_character(text[start:end]):
            gaps.append((start, end, unknown.stand_in))
            gone += end - start - 1
        else:
            heavy.append(Heavy(start - gone, end - gone, (end - start) ** 2 // 2 // TRIES_PER_CHARACTER))
    if not gaps:
        return Shortened(text, tokens, heavy, starts)
    keep = np.ones(len(text), np.bool_)
    pieces: list[str] = []
    ends_at: list[tuple[int, int]] = []
    done = gone = 0
    for start, end, instead in gaps:
        keep[start + len(instead) : end] = False
        pieces += (text[done:start], instead)
        if instead:
            ends_at.append((start - gone, end if starts is None else int(starts[end - 1]) + 1))
        gone += end - start - len(instead)
        done = end
    starts = np.flatnonzero(keep) if starts is None else starts[keep]
    ends = starts + 1
    for place, end in ends_at:
        ends[place] = end
    return Shortened("".join((*pieces, text[done:])), tokens, heavy, starts, ends)


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """The words that WordPiece reads as one unknown token: longer than ``length``, or with a character that no vocabulary entry has."""

    length: int
    alphabet: frozenset[str]
    normalizer: tokenizers.normalizers.Normalizer
    stand_in: str

    def lacks_a_character(self, word: str) -> bool:
        """Whether a word has a character that no entry has."""
        return not self.alphabet.issuperset(self.normalizer.normalize_str(word))


def shortener_of(tokenizer: tokenizers.Tokenizer, content: str) -> Shortener:
    """The shortener for a tokenizer: one that shortens only what is certain to change no token.

    Args:
        tokenizer: without padding and truncation.
        content: its tokenizer.json.
    """
    added = list(tokenizer.get_added_tokens_decoder().values())
    if any(token.single_word for token in added):
        # Whether such a token is found depends on the characters beside it.
        return Unchanged()
    longest = max((len(token.content) for token in added), default=1)
    normalizer, model = tokenizer.normalizer, tokenizer.model
    bert = isinstance(normalizer, tokenizers.normalizers.BertNormalizer) and normalizer.clean_text and normalizer.handle_chinese_chars
    if bert and isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer):
        strips = normalizer.lowercase if normalizer.strip_accents is None else normalizer.strip_accents
        kinds = bert_kinds(bool(strips))
        words = isinstance(model, tokenizers.models.WordPiece)
    else:
        kinds = _silent_kinds(tokenizer)
        words = False
        if not kinds.any():
            return Unchanged()
    beside = _with_added(kinds, added)
    if beside is None:
        return Unchanged()
    return ByKind(*beside, longest, _unknown_words(tokenizer, content, beside[0]) if words else None)


@functools.cache
def bert_kinds(strips_accents: bool) -> Kinds:
    """The kind of each code point for BERT's normalizer and pre-tokenizer, where it is certain. Not to be written to."""
    kinds = np.full(0x110000, WORD, np.uint8)
    for codes in _PRIVATE:
        kinds[codes.start : codes.stop] = DROPPED
    for codes in _CHINESE:
        kinds[codes.start : codes.stop] = APART
    for code in chain.from_iterable(_MIXED):
        kinds[code] = _kind(chr(code), strips_accents)
    return kinds


def _kind(sign: str, strips_accents: bool) -> int:
    category, old = unicodedata.category(sign), _OLD.category(sign)
    if sign in "\t\n\r" or (category == old and category[0] == "Z"):
        return BLANK
    if sign.isalnum() or category == "Cn":
        return WORD
    accent = category == "Mn"
    if category == "Cc" or (category == "Cf" and old != "Cn") or sign == "\ufffd" or (accent and category == old and strips_accents):
        return DROPPED
    if sign.isascii() or (category[0] == "P" and old[0] == "P"):
        return APART
    # A sign that is decomposed may be punctuation in part, as U+2260 is.
    decomposed = unicodedata.decomposition(sign)
    certain = category[0] in "MS" and (old == category or (old == "Cn" and not accent))
    return WORD if certain and (not decomposed or decomposed.startswith("<")) else OTHER


def _silent_kinds(tokenizer: tokenizers.Tokenizer) -> Kinds:
    """What a tokenizer drops, and what it reads as white space: each control character, accent and white space is tried."""
    known = bert_kinds(True)
    kinds = np.zeros(len(known), np.uint8)
    unknown = {tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")}
    if not unknown.isdisjoint(chain.from_iterable(tokenizer.encode(text).ids for text in ("ab", "a b"))):
        # Beside unknown letters nothing can be told.
        return kinds
    candidates = [
        code for code in np.flatnonzero((known == DROPPED) | (known == BLANK)).tolist() if not any(code in codes for codes in _PRIVATE)
    ]
    tried = [_trials(chr(code), known[code] == BLANK) for code in candidates]
    ids = iter([encoding.ids for encoding in tokenizer.encode_batch_fast([text for pairs in tried for pair in pairs for text in pair])])
    for code, pairs in zip(candidates, tried, strict=True):
        # Not all() of a generator: each pair has to be taken from the iterator.
        alike = [next(ids) == next(ids) for _ in pairs]
        if all(alike):
            kinds[code] = known[code]
    return kinds


def _trials(sign: str, blank: bool) -> list[tuple[str, str]]:
    """Pairs of texts that have the same ids if the sign is dropped, or if it is read as a blank and several blanks as one."""
    if blank:
        beside = (("a", "b"), ("", "a"), ("a", ""))
        return [
            (f"{left}{2 * sign}{right}", f"{left}{times * as_well}{right}")
            for left, right in beside
            for times, as_well in ((9, sign), (2, " "))
        ]
    return [
        (f"{left}{sign}{right}", f"{left}{right}")
        for left, right in (("a", "b"), ("", "a"), ("a", ""), ("a ", "b"), ("", " a"), ("a ", ""))
    ]


def _with_added(kinds: Kinds, added: Iterable[tokenizers.AddedToken]) -> tuple[Kinds, NDArray[np.bool_]] | None:
    """Kinds that keep added tokens, which are looked for before the text is normalized; and the signs of those of several characters.

    None if one could be lost all the same.
    """
    marked, signs = kinds.copy(), np.zeros(len(kinds), np.bool_)
    for token in added:
        codes = np.array([ord(sign) for sign in token.content])
        own = kinds[codes]
        apart = bool(np.isin(own, (APART, OTHER)).any())
        if (token.normalized and not apart) or (own == BLANK).any() or any(end - start > EASY_WORD for start, end in _runs(own == WORD, 0)):
            return None
        letters = np.array([sign.isalnum() for sign in token.content])
        edges = codes[[0, -1]][own[[0, -1]] == WORD]
        if len(edges) and not letters.all():
            if token.normalized:
                # Each letter that is normalized to one of these may begin or end it.
                return None
            # Else a word beside the token would take them along.
            marked[edges] = OTHER
        marked[codes[own == DROPPED]] = JOINER
        marked[codes[(own == WORD) & ~letters]] = OTHER
        own_signs = codes[~letters] if not letters.all() else codes[:1]
        if letters.all() and not apart:
            marked[own_signs] = OTHER
        signs[own_signs] |= len(codes) > 1
    return marked, signs


def _unknown_words(tokenizer: tokenizers.Tokenizer, content: str, kinds: Kinds) -> UnknownWords:
    model, normalizer = tokenizer.model, tokenizer.normalizer
    if "\\u" in content:
        alphabet = frozenset("".join(tokenizer.get_vocab()))
    else:
        # A superset of the vocabulary's characters, and much quicker to find than those.
        there = np.zeros(0x110000, np.bool_)
        there[np.frombuffer(content.encode("utf-32-le"), np.uint32)] = True
        alphabet = frozenset(map(chr, np.flatnonzero(there).tolist()))
    stand_in = next(
        (
            sign
            for sign in _RARE
            if kinds[ord(sign)] == WORD and tokenizer.encode(sign, add_special_tokens=False).tokens == [model.unk_token]
        ),
        "",
    )
    return UnknownWords(model.max_input_chars_per_word, alphabet, normalizer, stand_in)


def _within(mask: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """Which places have a True at most ``reach`` places away."""
    counts = np.concatenate(([0], np.cumsum(mask)))
    places = np.arange(len(mask))
    return counts[np.minimum(places + reach + 1, len(mask))] > counts[np.maximum(places - reach, 0)]


def _runs(mask: NDArray[np.bool_], longer_than: int) -> Iterator[tuple[int, int]]:
    """Half-open runs of True of more than so many."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts > longer_than
    yield from zip(starts[long].tolist(), ends[long].tolist(), strict=True)
