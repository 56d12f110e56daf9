"""Text to token ids. The work is bounded by the tokens that a row can hold, not by the length of the text; no id changes.

``shortened`` first removes characters that do not affect the tokens. Then the beginning of the text is tokenized, and more of it if
that gave too few tokens. Truncation selects from the token ids of the text; it never cuts the text before it is tokenized.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

import tokenizers

from sentiment.errors import BadBundle
from sentiment.model.foreign import Fragments, is_foreign
from sentiment.model.known_words import known_words_of
from sentiment.model.long_texts import head_end, pair_shares, span_around, tail_start, window_spans
from sentiment.model.shortened import EASY_WORD, Shortened, shortener_of
from sentiment.model.words import Encoded, Piece, Token, group

# The library's own thread pool would compete with the runners for cores. It reads this variable at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The characters of text that are tokenized first for each token needed. English has about 4.7 characters a token. With 8, nearly every
# text that fits the model is tokenized at once, and a longer text costs at most about twice the tokens that are read.
CUT_CHARACTERS_PER_TOKEN = 8
# The cost limit of a text, in characters of plain text (0.3 to 0.5 microseconds each); twice the cost of the first attempt, if that is
# greater. Text beyond it is not read, even if it gave too few tokens.
CUT_CHARACTERS_MAX = 2**15
# Factors of the cost after an attempt that gave too few tokens.
GROWTH_MIN, GROWTH_MAX = 2, 16
# Factor of the tokens read of both texts of a pair, to find the longer one when both go on after the first attempt.
PAIR_GROWTH = 4
# Factor of the characters passed to the shortener when it leaves too few. Shortening costs a hundredth of tokenizing.
SHORTEN_GROWTH = 4
# Longer texts, and texts with words that are slow to tokenize, are tokenized in a thread. A text of this length blocks the event loop for
# 0.2 ms, or 2 ms if all its words are new.
INLINE_CHARACTERS_MAX = 2048


@dataclass(slots=True)
class Row:
    """One tokenized text as the model reads it. ``type_ids`` is None if all are 0.

    Not frozen, as creating a frozen object takes five times as long; nobody changes it.
    """

    ids: Sequence[int]
    type_ids: Sequence[int] | None
    truncated: bool

    @property
    def tokens(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.ids)

    @property
    def rows(self) -> tuple["Row"]:
        """Itself: a text in one row is read as other texts are in several."""
        return (self,)

    def part(self, head: int, tail: int) -> "Row":
        """Its first ``head`` and last ``tail`` tokens, of more."""
        types = None if self.type_ids is None else [*self.type_ids[:head], *self.type_ids[-tail:]]
        return Row([*self.ids[:head], *self.ids[-tail:]], types, self.truncated)


@dataclass(frozen=True, slots=True)
class Windows:
    """One long text as overlapping rows, in order.

    ``tokens`` counts each token of the text that is in any row once, plus the special tokens of one row. ``truncated``: the text
    continues after the last row. ``unknown``: how many of its tokens are not in the vocabulary.
    """

    rows: tuple[Row, ...]
    tokens: int
    truncated: bool
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """The special tokens of the template: before the first text, between the two texts of a pair, and after the last text.

    ``ids`` and ``types`` have one list for each of these positions; ``text_types`` has the type of each text.
    """

    ids: tuple[list[int], ...]
    types: tuple[list[int], ...]
    text_types: tuple[int, ...]

    @classmethod
    def of(cls, encoding: tokenizers.Encoding) -> "_Frame":
        """The frame of an encoding of one or two texts. Each text has at least one token, and none spells a special token."""
        ids: list[list[int]] = [[]]
        types: list[list[int]] = [[]]
        text_types: list[int] = []
        tokens = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
        for token, kind, source, special in tokens:
            if special:
                ids[-1].append(token)
                types[-1].append(kind)
            elif source == len(text_types):
                ids.append([])
                types.append([])
                text_types.append(kind)
        return cls(tuple(ids), tuple(types), tuple(text_types))

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def typed(self) -> bool:
        """Whether a token has a type other than 0. In a single text only special tokens may have one, such as XLNet's last token."""
        return any(map(any, self.types)) or any(self.text_types)

    def row(self, texts: Sequence[Sequence[int]], truncated: bool) -> Row:
        """The row made of the tokens of each text."""
        ids, types = [*self.ids[0]], [*self.types[0]]
        for own, own_type, around, around_types in zip(texts, self.text_types, self.ids[1:], self.types[1:], strict=True):
            ids += [*own, *around]
            types += [*[own_type] * len(own), *around_types]
        return Row(ids, types if self.typed else None, truncated)


@dataclass(frozen=True, slots=True)
class _Content:
    """Tokens of a text without special tokens, and the word of each. ``more``: the text has tokens that are not in here.

    ``pieces``: the tokens with their offsets; empty unless the caller needs them for an explanation.
    """

    ids: list[int]
    words: list[int | None]
    more: bool
    pieces: list[Piece] = field(default_factory=list)

    def between(self, start: int, end: int) -> "_Content":
        """The tokens [start, end)."""
        more = self.more or start > 0 or end < len(self.ids)
        return _Content(self.ids[start:end], self.words[start:end], more, self.pieces[start:end])


class Tokenizer:
    """A bundle's tokenizer. All methods may be called from any thread."""

    def __init__(self, path: Path, max_tokens: int, content: str | None = None) -> None:
        """Load tokenizer.json. ``content``: of the file, if it has been read; ``path`` is then only for the error.

        Raises:
            BadBundle: the file is not a tokenizer.
        """
        try:
            self._load(path.read_text(encoding="utf-8") if content is None else content, max_tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the Rust side raises bare Exception, and its panics are not even that
            raise BadBundle(f"{path}: not a tokenizer: {error}") from error

    def _load(self, content: str, max_tokens: int) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(content)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._single = _Frame.of(self._tokenizer.encode("a"))
        self._pair = _Frame.of(self._tokenizer.encode("a", "a"))
        self._shorten = shortener_of(self._tokenizer, content)
        # A single text is read word by word if its tokenizer does so and its row has no types.
        self._words = None if self._single.typed else known_words_of(self._tokenizer)
        self._added_characters = max((len(token.content) for token in self._tokenizer.get_added_tokens_decoder().values()), default=0)
        self._room = max_tokens - self._single.tokens
        self._plain_max = CUT_CHARACTERS_PER_TOKEN * max_tokens
        self.max_tokens = max_tokens
        self.special_tokens = self._single.tokens
        self.pad_id = self._id_of("[PAD]", "<pad>") or 0
        # The token that stands for a hidden one in pre-training; padding in a vocabulary without it.
        self.mask_id = self._id_of("[MASK]", "<mask>") or self.pad_id
        unknown = self._id_of("[UNK]", "<unk>")
        # No token has a negative id.
        self._unknown_id = -1 if unknown is None else unknown
        model = self._tokenizer.model
        words = isinstance(model, tokenizers.models.WordPiece)
        self._fragments = Fragments(self._tokenizer.id_to_token, self._unknown_id, model.continuing_subword_prefix) if words else None

    def unknown_tokens(self, reading: Row | Windows) -> int:
        """How many tokens of a text are not in the vocabulary."""
        return reading.unknown if isinstance(reading, Windows) else reading.ids.count(self._unknown_id)

    @property
    def has_fragments(self) -> bool:
        """Whether its tokens tell fragments of words: it is a WordPiece."""
        return self._fragments is not None

    def fragments(self, reading: Row | Windows) -> tuple[int, int]:
        """How many of a text's first tokens are fragments of words, and how many are words; (0, 0) without ``has_fragments``."""
        return (0, 0) if self._fragments is None else self._fragments.count(reading.rows[0].ids)

    def is_foreign(self, reading: Row | Windows) -> bool:
        """Whether a text seems to be in another script or language than the vocabulary; False without ``has_fragments``."""
        return is_foreign(*self.fragments(reading))

    def _id_of(self, *names: str) -> int | None:
        """The id of the first of these tokens that is in the vocabulary."""
        return next((int(found) for name in names if (found := self._tokenizer.token_to_id(name)) is not None), None)

    def is_plain(self, text: str) -> bool:
        """Whether a text can be tokenized whole at a cost in proportion to its characters.

        It must have at most 8 characters per token of a row, and no word longer than EASY_WORD.
        """
        return len(text) <= EASY_WORD or (len(text) <= self._plain_max and all(len(word) <= EASY_WORD for word in text.split()))

    def encode_short(self, text: str, characters_max: int = INLINE_CHARACTERS_MAX) -> Row | None:
        """The row of ``encode`` if the text has at most this many characters and costs no more than they do; else None. Holds the GIL."""
        if len(text) > characters_max:
            return None
        row = self._by_words(text)
        return self._whole([text])[0] if row is None and self.is_plain(text) else row

    def encode(self, text: str, pair: str | None = None) -> Row:
        """Tokenize one text or pair into at most ``max_tokens`` ids, the first ones. In a pair the longer text is truncated first.

        The work is bounded by the tokens that are read, not by the length of the text. Words are read with the GIL held, whole texts by the
        library without it.
        """
        if pair is not None:
            read, truncated = self._read_pair(text, pair)
            return self._pair.row([one.ids for one in read], truncated)
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Row]:
        """Tokenize texts into the same rows as ``encode``. The GIL is free while the library reads whole texts."""
        rows = [self._by_words(text) for text in texts]
        plain = [place for place, row in enumerate(rows) if row is None and self.is_plain(texts[place])]
        for place, row in zip(plain, self._whole([texts[place] for place in plain]), strict=True):
            rows[place] = row
        return [self._read_first(text) if row is None else row for text, row in zip(texts, rows, strict=True)]

    def _by_words(self, text: str) -> Row | None:
        """The row of a text that can be read word by word; of a long text, the words that surely fill the row."""
        if self._words is None:
            return None
        short = text if len(text) <= self._plain_max else text[: self._plain_max].rpartition(" ")[0]
        ids = self._words.read(short)
        if ids is None or (short is not text and len(ids) <= self._room):
            return None
        before, after = self._single.ids
        return Row([*before, *ids[: self._room], *after], None, len(ids) > self._room)

    def _read_first(self, text: str) -> Row:
        read = self._outer(text, self._room + 1).between(0, self._room)
        return self._single.row([read.ids], read.more)

    def _whole(self, texts: Sequence[str]) -> list[Row]:
        """The rows of plain texts, by the library."""
        return [self._row(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)] if texts else []

    def _row(self, encoding: tokenizers.Encoding) -> Row:
        ids = encoding.ids
        if len(ids) <= self.max_tokens:
            return Row(ids, encoding.type_ids if self._single.typed else None, False)
        before = len(self._single.ids[0])
        return self._single.row([ids[before : before + self._room]], True)

    def encode_explained(self, text: str, pair: str | None = None, head: int | None = None) -> Encoded:
        """The row of ``encode`` (with ``head``: of ``encode_head_tail``), and the positions of its tokens and words in the texts.

        Args:
            text: the text; with ``head`` it must be longer than a row.
            pair: the second text; must be None with ``head``.
            head: see ``encode_head_tail``.
        """
        if head is not None:
            return self._explained_head_tail(text, head)
        if pair is not None:
            read, truncated = self._read_pair(text, pair, explained=True)
            return self._explained(self._pair, [text, pair], read, truncated)
        first = self._outer(text, self._room + 1, explained=True).between(0, self._room)
        return self._explained(self._single, [text], [first], first.more)

    def _explained(self, frame: _Frame, texts: Sequence[str], read: Sequence[_Content], truncated: bool) -> Encoded:
        row = frame.row([one.ids for one in read], truncated)
        special = [[Piece(self._tokenizer.id_to_token(token) or "", 0, 0, None, None, False) for token in ids] for ids in frame.ids]
        pieces = special[0]
        for source, (one, around) in enumerate(zip(read, special[1:], strict=True)):
            pieces += [*(piece if piece.source is None else replace(piece, source=source) for piece in one.pieces), *around]
        tokens, words = group(texts, pieces)
        unseen = tuple(_rests(texts, tokens)) if truncated else ()
        return Encoded(tuple(row.ids), None if row.type_ids is None else tuple(row.type_ids), tokens, words, truncated, unseen)

    def _explained_head_tail(self, text: str, head: int) -> Encoded:
        first, last = self._head_tail(text, head, explained=True)
        # Negative numbers keep the words of the tail apart from those of the head.
        tail = [replace(piece, word=None if piece.word is None else -1 - piece.word) for piece in last.pieces]
        read = _Content(first.ids + last.ids, [], True, first.pieces + tail)
        gap = (0, first.pieces[-1].end if first.pieces else 0, tail[0].start if tail else len(text))
        return replace(self._explained(self._single, [text], [read], True), unseen=(gap,))

    def encode_windows(self, text: str, size: int, stride: int, count_max: int) -> Windows:
        """Read a text in windows of at most ``size`` tokens, special tokens included, placed by ``window_spans``.

        Args:
            text: read as far as ``count_max`` windows reach; the work is bounded by that, as in ``encode``.
            size: greater than the number of special tokens, at most ``max_tokens``.
            stride: tokens from the start of a window to the start of the next; at most ``size`` less the special tokens.
            count_max: the greatest number of windows.
        """
        room = size - self.special_tokens
        # One token more than the windows can reach, so that the last window can also end between words.
        read = self._outer(text, room + (count_max - 1) * stride + 1)
        spans = window_spans(read.words, room, stride, count_max)
        last = spans[-1][1]
        truncated = read.between(0, last).more
        rows = tuple(self._single.row([read.ids[start:end]], truncated) for start, end in spans)
        return Windows(rows, last + self.special_tokens, truncated, read.ids[:last].count(self._unknown_id))

    def encode_head_tail(self, text: str, head: int) -> Row:
        """Read the first ``head`` tokens of a text, and as many of its last tokens as still fit. Both parts are cut between words.

        Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?"

        Args:
            text: longer than a row: ``encode`` truncates it. Its middle is not tokenized.
            head: less than the number of text tokens in a row.
        """
        first, last = self._head_tail(text, head)
        return self._single.row([first.ids + last.ids], True)

    def _head_tail(self, text: str, head: int, explained: bool = False) -> tuple[_Content, _Content]:
        tail = self._room - head
        first = self._outer(text, head + 1, explained)
        last = self._outer(text, tail + 1, explained, from_end=True)
        # Fewer tokens than requested are there only when the cost limit was reached.
        first_end = head_end(first.words, head) if len(first.ids) > head else len(first.ids)
        last_start = tail_start(last.words, tail) if len(last.ids) > tail else 0
        return first.between(0, first_end), last.between(last_start, len(last.ids))

    def encode_target(self, text: str, mention: tuple[int, int], target: str, size: int, whole: Row | None) -> Row:
        """Read a target, as the second text of a pair, with the part of the text around its mention, cut between words.

        Args:
            text: the part is the whole text if that fits.
            mention: code points [start, end) of the text.
            target: read to half of the row at most.
            size: the most tokens of the row, special tokens included.
            whole: the text's own row, if it is not truncated.
        """
        own, room = self._target(target, size)
        if self._fits(whole, room):
            before = len(self._single.ids[0])
            return self._pair.row([whole.ids[before : before + whole.tokens - self.special_tokens], own.ids], False)
        return self._pair.row([self._around(text, mention, room).ids, own.ids], True)

    def encode_explained_target(self, text: str, mention: tuple[int, int], target: str, size: int, whole: Row | None) -> Encoded:
        """The row of ``encode_target``, and the positions of its tokens and words in the text.

        The tokens of the target are special, and so are those of the mention: without them the row asks something else.
        """
        own, room = self._target(target, size, explained=True)
        fits = self._fits(whole, room)
        read = self._outer(text, self._room + 1, explained=True) if fits else self._around(text, mention, room, explained=True)
        start, end = (0, len(text)) if fits else (read.pieces[0].start, read.pieces[-1].end) if read.pieces else (0, 0)
        unseen = tuple((0, *rest) for rest in ((0, start), (end, len(text))) if text[slice(*rest)].strip())
        named = [replace(piece, source=None) if _overlap((piece.start, piece.end), mention) else piece for piece in read.pieces]
        asked = [replace(piece, source=None) for piece in own.pieces]
        found = self._explained(self._pair, [text], [replace(read, pieces=named), replace(own, pieces=asked)], not fits)
        return replace(found, unseen=unseen, mention=mention)

    def _target(self, target: str, size: int, explained: bool = False) -> tuple[_Content, int]:
        """The tokens of a target in its row of ``size`` tokens, and how many of the text have room beside them."""
        room = size - self._pair.tokens
        own = self._outer(target, room // 2, explained)
        return own, room - len(own.ids)

    def _fits(self, whole: Row | None, room: int) -> TypeGuard[Row]:
        return whole is not None and whole.tokens - self.special_tokens <= room

    def _around(self, text: str, mention: tuple[int, int], room: int, explained: bool = False) -> _Content:
        """At most ``room`` tokens around a mention. The work is bounded by them."""
        start, end = mention
        reach = CUT_CHARACTERS_PER_TOKEN * room
        first, last = max(0, start - reach), min(len(text), end + reach)
        # From and to white space, if there is some: a part of a word has other tokens.
        first = next((place for place in range(first, start) if text[place].isspace()), first) if first else 0
        last = next((place for place in range(last, end, -1) if text[place - 1].isspace()), last) if last < len(text) else last
        short = replace(self._shorten(text[first:last]), heavy=()).moved(first)
        encoding, words = self._read(short)
        spans = [short.span(*place) for place in encoding.offsets]
        begin = next((place for place, (_, until) in enumerate(spans) if until > start), len(spans))
        stop = next((place for place, (at, _) in enumerate(spans[begin:], begin) if at >= end), len(spans))
        low, high = span_around(words, begin, stop, room)
        return self._content(encoding, words, short, low, high, True, explained)

    def _read_pair(self, text: str, pair: str, explained: bool = False) -> tuple[list[_Content], bool]:
        """The tokens of each text of a pair that are in its row, and whether the texts have more.

        Neither counts as longer if both go on after the last attempt.
        """
        room = self.max_tokens - self._pair.tokens
        for wanted in (room + 1, PAIR_GROWTH * room):
            read = [self._outer(one, wanted, explained) for one in (text, pair)]
            first, second = (len(one.ids) for one in read)
            # Two that have as many tokens so far may still be of different lengths.
            if first != second or not any(one.more for one in read):
                break
        cut = [one.between(0, share) for one, share in zip(read, pair_shares(first, second, room), strict=True)]
        return cut, any(one.more for one in cut)

    def _outer(self, text: str, wanted: int, explained: bool = False, from_end: bool = False) -> _Content:
        """The first ``wanted`` tokens, ``from_end`` the last ones, or all if there are fewer."""
        cost = CUT_CHARACTERS_PER_TOKEN * wanted
        most = max(CUT_CHARACTERS_MAX, 2 * cost)
        while True:
            short, whole = self._part(text, wanted, cost, cost == most, from_end)
            encoding, words = self._read(short)
            final = whole or cost == most
            sure = len(words) if final else self._sure(encoding, words, len(short.text), from_end)
            if final or sure >= wanted:
                count = min(sure, wanted)
                start = len(words) - count if from_end else 0
                return self._content(encoding, words, short, start, start + count, not whole or sure > wanted, explained)
            # Costs more, as too few tokens were found.
            cost = min(most, cost * min(GROWTH_MAX, max(GROWTH_MIN, -(-3 * wanted // (2 * sure + 1)))))

    def _sure(self, encoding: tokenizers.Encoding, words: list[int | None], size: int, from_end: bool) -> int:
        """How many tokens of a part of ``size`` characters are sure: the cut may have changed the word, or an added token, beside it."""
        if from_end:
            from_cut = zip((start for start, _ in encoding.offsets), words, strict=True)
        else:
            from_cut = zip((size - end for _, end in reversed(encoding.offsets)), reversed(words), strict=True)
        beside = words[0 if from_end else -1] if words else None
        unsure = (place for place, (away, word) in enumerate(from_cut) if away >= self._added_characters and word != beside)
        return len(words) - next(unsure, len(words))

    def _part(self, text: str, wanted: int, cost: int, final: bool, from_end: bool) -> tuple[Shortened, bool]:
        """The beginning or the end of a text that costs about ``cost``, shortened, and whether it is the whole text.

        ``final``: this is the last attempt; the extra cost of long words is ignored.
        """
        if self.is_plain(text):
            return Shortened(text), True
        size = cost
        while True:
            offset = max(0, len(text) - size) if from_end else 0
            short = self._shorten(text[offset : offset + size])
            if final:
                short = replace(short, heavy=())
            # The words at the two cuts are not certain.
            if size >= len(text) or short.cost >= cost or short.tokens > wanted + 2 + self._added_characters:
                part = short.tail(cost) if from_end else short.head(cost)
                return part.moved(offset), size >= len(text) and part is short
            size *= SHORTEN_GROWTH

    def _read(self, short: Shortened) -> tuple[tokenizers.Encoding, list[int | None]]:
        # encode_batch releases the GIL; encode does not.
        encoding = self._tokenizer.encode_batch([short.text], add_special_tokens=False)[0]
        return encoding, encoding.word_ids

    def _content(
        self, encoding: tokenizers.Encoding, words: list[int | None], short: Shortened, start: int, end: int, more: bool, explained: bool
    ) -> _Content:
        ids = encoding.ids[start:end]
        words = words[start:end]
        if not explained:
            return _Content(ids, words, more)
        pieces = [
            Piece(piece, *short.span(*place), word, 0, token == self._unknown_id)
            for piece, place, word, token in zip(encoding.tokens[start:end], encoding.offsets[start:end], words, ids, strict=True)
        ]
        return _Content(ids, words, more, pieces)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _rests(texts: Sequence[str], tokens: Sequence[Token]) -> Iterator[tuple[int, int, int]]:
    """The spans after the last token of each text, unless they are white space."""
    for source, text in enumerate(texts):
        end = max((token.end for token in tokens if not token.special and token.pair == bool(source)), default=0)
        if not text[end:].isspace() and end < len(text):
            yield source, end, len(text)


# By content. Loading a tokenizer holds the GIL for 0.1 to 0.3 seconds, and most versions of a model share one.
_shared: weakref.WeakValueDictionary[tuple[str, int], Tokenizer] = weakref.WeakValueDictionary()


def tokenizer_of(path: Path, max_tokens: int, sha256: str, content: str | None = None) -> Tokenizer:
    """The tokenizer of a file, shared by all files with the same content.

    ``sha256``: the verified digest of the file; ``content``: its content, if it has been read.

    Raises:
        BadBundle: the file is not a tokenizer.
    """
    found = _shared.get((sha256, max_tokens))
    if found is None:
        found = _shared[sha256, max_tokens] = Tokenizer(path, max_tokens, content)
    return found
