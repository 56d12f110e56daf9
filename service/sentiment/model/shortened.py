"""Shortens a text without changing its tokens, so that tokenizing costs in proportion to the tokens, not to the length of the text.

A tokenizer takes 0.3 to 0.5 microseconds a character, however few tokens result. A megabyte of blanks, of accents or of one endless word
occupies a core for half a second and gives one token. This module removes characters that the tokenizer drops, repeated blanks, and
words that become one unknown token. It finds them with NumPy, at about 10 nanoseconds a character.

Knows kinds of characters, not models. ``tokenizer`` calls it for each text that is not plain.
"""

import functools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import tokenizers
from numpy.typing import NDArray

# Kinds of characters.
# Unknown, so it is always kept.
OTHER = 0
# Part of a word. The normalizer keeps it, as one character or more.
WORD = 1
# The normalizer drops it.
DROPPED = 2
# White space: ends a word; several in a row count as one.
BLANK = 3
# Ends a word and is a token of its own: punctuation and Chinese characters.
APART = 4
# The normalizer drops it, but tokens added to the vocabulary contain it, such as joined emoji.
JOINER = 5
# Added to the kind of a character that identifies an added token.
_SIGN = 8

# A word of at most EASY_WORD characters costs no more than its characters. For longer words the cost is quadratic: at each character,
# WordPiece tries every possible end of the piece. TRIES_PER_CHARACTER tries cost as much as one character.
EASY_WORD = 24
TRIES_PER_CHARACTER = 6

# The tokenizer's Unicode tables are older than Python's. Where Unicode 3.2 and Python's version agree, the tokenizer's agrees too.
_OLD = unicodedata.ucd_3_2_0
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_CHINESE = (
    *(range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00)),
    *(range(0x20000, 0x2A6E0), range(0x2A700, 0x2B820), range(0x2B920, 0x2CEB0), range(0x2F800, 0x2FA20)),
)
# Characters that are classified one by one. All others, Hangul and unassigned code points, are parts of words.
_MIXED = (
    *(range(0x3400), range(0x4DC0, 0x4E00), range(0xA000, 0xAC00), range(0xD7A4, 0xD800), range(0xFB00, 0x20000)),
    range(0xE0000, 0xE0200),
)
# Rare letters. The first one that is not in the vocabulary replaces each unknown word.
_RARE = "\u1200\u1401\ua000\u13a0\u1780\u10a0"

Kinds = NDArray[np.uint8]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Heavy:
    """A word [start, end) that costs ``extra`` more than its characters."""

    start: int
    end: int
    extra: int


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text with the same tokens as the original, longer text.

    ``tokens``: a lower bound of their number. ``starts`` and ``ends``: the code points [start, end) of the original that each character
    stands for. ``starts`` is None if nothing was removed; ``ends`` is None if each character stands for one code point.
    """

    text: str
    tokens: int = 0
    heavy: Sequence[Heavy] = ()
    starts: Places | None = None
    ends: Places | None = None

    @property
    def cost(self) -> int:
        """The cost of tokenizing it, in characters of easy words."""
        return len(self.text) + sum(word.extra for word in self.heavy)

    def head(self, cost: int) -> "Shortened":
        """The beginning that costs ``cost``, extended to the end of a heavy word."""
        left = cost
        for word in self.heavy:
            left -= word.extra
            if word.end >= left:
                return self._between(0, word.end)
        return self._between(0, left)

    def tail(self, cost: int) -> "Shortened":
        """The end that costs ``cost``, extended to the start of a heavy word."""
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
        """The same text, if ``offset`` more characters precede the original."""
        if not offset:
            return self
        return replace(self, starts=self._starts() + offset, ends=None if self.ends is None else self.ends + offset)

    def _starts(self) -> Places:
        return np.arange(len(self.text)) if self.starts is None else self.starts

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The code points of the original that the characters [start, end) stand for."""
        if self.starts is None:
            return start, end
        first = int(self.starts[start]) if start < len(self.text) else int(self.starts[-1]) + 1
        if start == end:
            return first, first
        return first, int(self.starts[end - 1]) + 1 if self.ends is None else int(self.ends[end - 1])


# Shortens texts, or parts of them, for one tokenizer. The first and the last word of a part are not certain. For any thread. ``Shortened``
# itself shortens nothing: for a tokenizer of an unknown kind.
Shorten = Callable[[str], Shortened]


class ByKind:
    """Shortens texts by the kinds of their characters."""

    def __init__(self, kinds: Kinds, signs: NDArray[np.bool_], added: int, unknown: "UnknownWords | None" = None) -> None:
        """Args:
        kinds: the kind of each code point.
        signs: whether each code point identifies an added token. Each added token of several characters contains such a sign.
        added: the length of the longest added token, in characters.
        unknown: None if the tokenizer has no words that become one unknown token.
        """
        # One table for both: a look-up of a million characters takes a millisecond.
        self._table = kinds + _SIGN * signs.astype(np.uint8)
        self._added = added
        self._unknown = unknown

    def shorten(self, text: str) -> Shortened:
        """Remove dropped characters, repeated blanks and unknown words."""
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
        """Which characters to keep."""
        signs = kinds >= _SIGN
        plain = kinds & (_SIGN - 1)
        dropped = plain == DROPPED
        keep: NDArray[np.bool_] = ~dropped
        if dropped.any() and signs.any():
            # Without its NUL, "[SE\0P]" would become an added token. So near a sign, the ends of a run of dropped characters are kept.
            keep |= (np.diff(dropped, prepend=False) | np.diff(dropped, append=False)) & _within(signs, self._added)
        for start, end in _runs(plain == JOINER, 2 * self._added):
            keep[start + self._added : end - self._added] = False
        return keep


def _without_unknown(text: str, starts: Places | None, kinds: Kinds, unknown: "UnknownWords", added: int) -> Shortened:
    """Put one character in place of each unknown word."""
    word = kinds == WORD
    apart = kinds == APART
    joined = ~(apart | (kinds == BLANK))
    # Each APART character is a token, and each word that begins after an APART character or a blank has at least one.
    tokens = int(np.count_nonzero(apart)) + int(np.count_nonzero(word[1:] & ~joined[:-1])) + int(word[:1].sum())
    certain = bool(unknown.stand_in) and np.array_equal(word, joined)
    heavy: list[Heavy] = []
    # The removed spans, each with its replacement.
    gaps: list[tuple[int, int, str]] = []
    gone = 0
    for start, end in _runs(joined, EASY_WORD):
        if not (certain or (unknown.stand_in and word[start:end].all())):
            # The word boundaries here are uncertain, but a run of this many WORD characters is an unknown word: remove its middle.
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
    """The words that WordPiece maps to one unknown token: longer than ``length``, or with a character that no vocabulary entry has."""

    length: int
    alphabet: frozenset[str]
    normalizer: tokenizers.normalizers.Normalizer
    stand_in: str

    def lacks_a_character(self, word: str) -> bool:
        """Whether a word has a character that no entry has."""
        return not self.alphabet.issuperset(self.normalizer.normalize_str(word))


def shortener_of(tokenizer: tokenizers.Tokenizer, content: str) -> Shorten:
    """What shortens texts for a tokenizer. It removes only characters that are certain not to affect the tokens.

    Args:
        tokenizer: without padding and truncation.
        content: its tokenizer.json.
    """
    added = list(tokenizer.get_added_tokens_decoder().values())
    if any(token.single_word for token in added):
        # Such a token is recognized only beside certain characters.
        return Shortened
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
            return Shortened
    beside = _with_added(kinds, added)
    if beside is None:
        return Shortened
    return ByKind(*beside, longest, _unknown_words(tokenizer, content, beside[0]) if words else None).shorten


@functools.cache
def bert_kinds(strips_accents: bool) -> Kinds:
    """The kind of each code point for BERT's normalizer and pre-tokenizer; OTHER if it is not certain. Do not modify the result."""
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
    # A character that is decomposed may contain punctuation, as U+2260 does.
    decomposed = unicodedata.decomposition(sign)
    certain = category[0] in "MS" and (old == category or (old == "Cn" and not accent))
    return WORD if certain and (not decomposed or decomposed.startswith("<")) else OTHER


def _silent_kinds(tokenizer: tokenizers.Tokenizer) -> Kinds:
    """The characters that a tokenizer drops or reads as white space. Tries each control character, accent and white space character."""
    known = bert_kinds(True)
    kinds = np.zeros(len(known), np.uint8)
    unknown = {tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")}
    if not unknown.isdisjoint(chain.from_iterable(tokenizer.encode(text).ids for text in ("ab", "a b"))):
        # The trials use these letters, so they must be in the vocabulary.
        return kinds
    candidates = [
        code for code in np.flatnonzero((known == DROPPED) | (known == BLANK)).tolist() if not any(code in codes for codes in _PRIVATE)
    ]
    tried = [_trials(chr(code), known[code] == BLANK) for code in candidates]
    ids = iter([encoding.ids for encoding in tokenizer.encode_batch_fast([text for pairs in tried for pair in pairs for text in pair])])
    for code, pairs in zip(candidates, tried, strict=True):
        # A list, not a generator: all() would stop early and leave pairs in the iterator.
        alike = [next(ids) == next(ids) for _ in pairs]
        if all(alike):
            kinds[code] = known[code]
    return kinds


def _trials(sign: str, blank: bool) -> list[tuple[str, str]]:
    """Pairs of texts that have the same ids if the character is dropped (``blank``: if it is a blank, and several blanks count as one)."""
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
    """Kinds that preserve added tokens, and the signs of those that have several characters.

    The tokenizer searches for added tokens before it normalizes the text. None if one of them could still be lost.
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
                # Any letter that normalizes to one of these may begin or end the token.
                return None
            # Otherwise a word beside the token would include them.
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
        # A superset of the vocabulary's characters, and much faster to collect.
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
    """Which positions have a True at most ``reach`` positions away."""
    counts = np.concatenate(([0], np.cumsum(mask)))
    places = np.arange(len(mask))
    return counts[np.minimum(places + reach + 1, len(mask))] > counts[np.maximum(places - reach, 0)]


def _runs(mask: NDArray[np.bool_], longer_than: int) -> Iterator[tuple[int, int]]:
    """Half-open runs of more than ``longer_than`` True values."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts > longer_than
    yield from zip(starts[long].tolist(), ends[long].tolist(), strict=True)
