"""Text to token ids. A huge text is cut before it is tokenized, in a way that changes no id of a single text.

What is read of a text that does not fit is cut out of the ids of the whole text, never tokenized anew.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tokenizers

from sentiment.errors import BadBundle
from sentiment.model.long_texts import head_end, tail_start, window_spans
from sentiment.model.words import Encoded, Piece, Token, group

# Its own thread pool would take the cores from the runners; read by the library at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# English needs about 4.7 characters a token: at 8, hardly a text that fits the model is cut, and one that does not costs
# at most about twice the tokens that are read.
CUT_CHARACTERS_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenized text as the model reads it. ``type_ids`` is None where all are 0."""

    ids: Sequence[int]
    type_ids: Sequence[int] | None
    truncated: bool

    @property
    def tokens(self) -> int:
        """Tokens with the special ones."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Windows:
    """One long text in overlapping rows, in order.

    ``tokens`` counts each token of the text that is in some row once, and the special tokens of one row; ``truncated``: the text
    goes on after the last row.
    """

    rows: tuple[Row, ...]
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Content:
    """Tokens of a text without special ones and the word of each; ids and types of those that the template puts around them.

    ``pieces``: the tokens as explanations see them; none unless they were asked for.
    """

    ids: list[int]
    words: list[int | None]
    before: list[int]
    after: list[int]
    types_before: list[int]
    types_after: list[int]
    pieces: list[Piece] = field(default_factory=list)

    def between(self, start: int, end: int) -> "_Content":
        """Some of the tokens, with the same around them."""
        return replace(self, ids=self.ids[start:end], words=self.words[start:end], pieces=self.pieces[start:end])

    def row(self, ids: list[int], truncated: bool) -> Row:
        """A row of these ids of the text."""
        typed = any(self.types_before) or any(self.types_after)
        types = [*self.types_before, *[0] * len(ids), *self.types_after] if typed else None
        return Row([*self.before, *ids, *self.after], types, truncated)


class Tokenizer:
    """The bundle's tokenizer. All methods may be called from any thread: truncation is set once and never changed."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Load tokenizer.json.

        Raises:
            BadBundle: the file is no tokenizer.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises bare Exception
            raise BadBundle(f"{path}: not a tokenizer: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._cut = CUT_CHARACTERS_PER_TOKEN * max_tokens
        self.max_tokens = max_tokens
        self.special_tokens = self._tokenizer.num_special_tokens_to_add(False)
        # Of a single text only special tokens may have another type than 0, as the last one of XLNet.
        self._typed = any(self._tokenizer.encode("").type_ids)
        self.pad_id = self._id_of("[PAD]", "<pad>") or 0
        self._unknown_id = self._id_of("[UNK]", "<unk>")

    def _id_of(self, *names: str) -> int | None:
        """The id of the first of these tokens that there is."""
        return next((int(found) for name in names if (found := self._tokenizer.token_to_id(name)) is not None), None)

    def encode(self, text: str, pair: str | None = None) -> Row:
        """Tokenize one text or pair into at most ``max_tokens`` ids, the first ones of the text.

        The work is bounded by what is read, not by the text: only a text of white space or of endless words is read on.
        """
        encoding, truncated = self._encoding(text, pair)
        return Row(encoding.ids, encoding.type_ids if self._typed or pair is not None else None, truncated)

    def encode_explained(self, text: str, pair: str | None = None, head: int | None = None) -> Encoded:
        """The row of ``encode``, or with ``head`` that of ``encode_head_tail``, and where its tokens and words stand in the texts.

        Args:
            text: the text; with ``head`` one that does not fit.
            pair: the second text; none with ``head``.
            head: as by ``encode_head_tail``.
        """
        if head is not None:
            return self._explained_head_tail(text, head)
        encoding, truncated = self._encoding(text, pair)
        texts = [text] if pair is None else [text, pair]
        tokens, words = group(texts, self._pieces(encoding))
        typed = self._typed or pair is not None
        unseen = tuple(_rests(texts, tokens)) if truncated else ()
        return Encoded(tuple(encoding.ids), tuple(encoding.type_ids) if typed else None, tokens, words, truncated, unseen)

    def _explained_head_tail(self, text: str, head: int) -> Encoded:
        first, last = self._head_tail(text, head, explained=True)
        row = first.row(first.ids + last.ids, True)
        before, after = (
            [Piece(self._tokenizer.id_to_token(token) or "", 0, 0, None, None, False) for token in special]
            for special in (first.before, first.after)
        )
        # The tail's words are counted anew: none of them is one of the head's.
        tail = [replace(piece, word=None if piece.word is None else -1 - piece.word) for piece in last.pieces]
        tokens, words = group([text], [*before, *first.pieces, *tail, *after])
        gap = (0, first.pieces[-1].end if first.pieces else 0, tail[0].start if tail else len(text))
        return Encoded(tuple(row.ids), None if row.type_ids is None else tuple(row.type_ids), tokens, words, True, (gap,))

    def _pieces(self, encoding: tokenizers.Encoding, start: int = 0) -> list[Piece]:
        """The tokens of an encoding; ``start``: where in the text what was encoded begins."""
        return [
            Piece(piece, start + first, start + end, word, None if special else source, token == self._unknown_id)
            for piece, (first, end), word, source, special, token in zip(
                encoding.tokens,
                encoding.offsets,
                encoding.word_ids,
                encoding.sequence_ids,
                encoding.special_tokens_mask,
                encoding.ids,
                strict=True,
            )
        ]

    def _encoding(self, text: str, pair: str | None) -> tuple[tokenizers.Encoding, bool]:
        """What is read of a text or pair, and whether something is not."""
        if pair is not None:
            far = 4 * self._cut
            encoding = self._tokenizer.encode(text[:far], pair[:far])
            return encoding, bool(encoding.overflowing) or max(len(text), len(pair)) > far
        cut = self._cut
        while cut < len(text):
            encoding = self._tokenizer.encode(text[:cut])
            if _complete_before_last_word(encoding):
                return encoding, True
            cut *= 2
        encoding = self._tokenizer.encode(text)
        return encoding, bool(encoding.overflowing)

    def encode_many(self, texts: Sequence[str]) -> list[Row]:
        """Tokenize texts; the same rows as ``encode`` one by one, about a sixth cheaper, and other threads run meanwhile."""
        if any(len(text) > self._cut for text in texts):
            return [self.encode(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        if self._typed:
            return [Row(encoding.ids, encoding.type_ids, bool(encoding.overflowing)) for encoding in encodings]
        return [Row(encoding.ids, None, bool(encoding.overflowing)) for encoding in encodings]

    def encode_windows(self, text: str, size: int, stride: int, count_max: int) -> Windows:
        """Read a text in windows of at most ``size`` tokens with the special ones, as ``window_spans`` places them.

        Args:
            text: what is read, no further than ``count_max`` windows reach; the work is bounded by that as in ``encode``.
            size: more than the special tokens, at most ``max_tokens``.
            stride: tokens from a window's beginning to the next one's, at most those of the text in a window.
            count_max: the most windows.
        """
        room = size - self.special_tokens
        # One more than they can reach, so that the last one too ends between words.
        read = self._first(text, room + (count_max - 1) * stride + 1)
        spans = window_spans(read.words, room, stride, count_max)
        last = spans[-1][1]
        truncated = last < len(read.ids)
        rows = tuple(read.row(read.ids[start:end], truncated) for start, end in spans)
        return Windows(rows, last + self.special_tokens, truncated)

    def encode_head_tail(self, text: str, head: int) -> Row:
        """Read the first ``head`` tokens of a text and the last ones, as many as fit, up to and from a break between words.

        Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?"

        Args:
            text: one that does not fit: its row of ``encode`` is truncated. What lies between need not be tokenized.
            head: fewer than the tokens of a text that fit.
        """
        first, last = self._head_tail(text, head, explained=False)
        return first.row(first.ids + last.ids, True)

    def _head_tail(self, text: str, head: int, explained: bool) -> tuple[_Content, _Content]:
        tail = self.max_tokens - self.special_tokens - head
        first = self._first(text, head + 1, explained)
        last = self._last(text, tail + 1, explained)
        return first.between(0, head_end(first.words, head)), last.between(tail_start(last.words, tail), len(last.ids))

    def _first(self, text: str, wanted: int, explained: bool = False) -> _Content:
        """The first ``wanted`` tokens, or all if there are fewer."""
        cut = CUT_CHARACTERS_PER_TOKEN * wanted
        while True:
            read = self._content(text[:cut], 0, explained)
            whole = cut >= len(text)
            # The cut can have changed nothing before the last word.
            sure = len(read.ids) if whole else _beyond_first_word(read.words[::-1])
            if sure >= wanted or whole:
                return read.between(0, min(sure, wanted))
            cut *= 2

    def _last(self, text: str, wanted: int, explained: bool = False) -> _Content:
        """The last ``wanted`` tokens, or all if there are fewer."""
        cut = CUT_CHARACTERS_PER_TOKEN * wanted
        while True:
            read = self._content(text[-cut:], max(0, len(text) - cut), explained)
            whole, count = cut >= len(text), len(read.ids)
            sure = count if whole else _beyond_first_word(read.words)
            if sure >= wanted or whole:
                return read.between(count - min(sure, wanted), count)
            cut *= 2

    def _content(self, text: str, start: int, explained: bool) -> _Content:
        # Other threads run during encode_batch, and stand still during encode.
        encoding = self._tokenizer.encode_batch([text])[0]
        # Marks what the template adds, and no special token that the text itself spells out.
        mask = encoding.special_tokens_mask
        before = next((place for place, special in enumerate(mask) if not special), self.special_tokens)
        after = self.special_tokens - before
        ids: list[int] = []
        words: list[int | None] = []
        pieces: list[Piece] = []
        for part in (encoding, *encoding.overflowing):
            own = slice(before, len(part.ids) - after)
            ids += part.ids[own]
            words += part.word_ids[own]
            if explained:
                pieces += self._pieces(part, start)[own]
        end = len(mask) - after
        types = encoding.type_ids
        return _Content(ids, words, encoding.ids[:before], encoding.ids[end:], types[:before], types[end:], pieces)


def _rests(texts: Sequence[str], tokens: Sequence[Token]) -> Iterator[tuple[int, int, int]]:
    """What follows the last token of each text, unless it is white space."""
    for source, text in enumerate(texts):
        end = max((token.end for token in tokens if not token.special and token.pair == bool(source)), default=0)
        if not text[end:].isspace() and end < len(text):
            yield source, end, len(text)


def _complete_before_last_word(encoding: tokenizers.Encoding) -> bool:
    """Whether everything that was kept comes before the last word of the cut text, the only one the cut can have changed."""
    if not encoding.overflowing:
        return False
    kept = [word for word in encoding.word_ids if word is not None]
    rest = [word for word in encoding.overflowing[-1].word_ids if word is not None]
    return bool(kept) and bool(rest) and kept[-1] < rest[-1]


def _beyond_first_word(words: Sequence[int | None]) -> int:
    """How many tokens are not of the first one's word."""
    return next((len(words) - place for place, word in enumerate(words) if word != words[0]), 0)


# By content. Reading one holds up every other thread for a tenth to a third of a second, and versions of a model mostly have the same.
_shared: weakref.WeakValueDictionary[tuple[str, int], Tokenizer] = weakref.WeakValueDictionary()


def tokenizer_of(path: Path, max_tokens: int, sha256: str) -> Tokenizer:
    """The tokenizer of a file, the same for all files of this content. ``sha256``: of the file, which has been checked.

    Raises:
        BadBundle: the file is no tokenizer.
    """
    found = _shared.get((sha256, max_tokens))
    if found is None:
        found = _shared[sha256, max_tokens] = Tokenizer(path, max_tokens)
    return found
