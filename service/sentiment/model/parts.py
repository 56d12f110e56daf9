"""What the model reads of a text besides the whole: its sentences, and its surroundings of targets. Each part is a row of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sentiment.model.mentions import Mentions
from sentiment.model.sentences import sentences as sentences_of
from sentiment.model.tokenizer import Row, Tokenizer, Windows
from sentiment.model.words import Span, Units

# The search for sentences stops after this many. A megabyte may have 350,000, which take 1.5 s to find, and all other texts that are
# read in a thread would wait. More than any setting lets a server answer, and than an ordinary document has; they take 5 ms.
SENTENCES_COUNTED_MAX = 1024


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a text. ``row``: None for the only one of a text, which the answer to the text answers."""

    span: Span
    tokens: int
    truncated: bool
    row: Row | None


@dataclass(frozen=True, slots=True)
class Target:
    """A target, and where the text names it. ``row``: as read around the mention. Both are None if the text does not name it.

    ``blank``: the model reads nothing of the target itself. Then it cannot be answered.
    """

    name: str
    mention: Span | None
    row: Row | None
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Parted:
    """A text of which parts are answered too. ``rows``: those of the whole, then the sentences', then the targets'.

    ``sentences``: the first ones of ``sentences_total``, which is at most SENTENCES_COUNTED_MAX: that many or more.
    """

    whole: Row | Windows
    sentences: tuple[Sentence, ...]
    sentences_total: int
    targets: tuple[Target, ...]
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """Tokens read of the whole, special tokens included."""
        return self.whole.tokens

    @property
    def truncated(self) -> bool:
        """Whether part of the whole was not read."""
        return self.whole.truncated


Reading = Row | Windows | Parted
"""What the model reads of one text: its ``rows``, which are answered together."""


def whole_of(reading: Reading) -> Row | Windows:
    """What is read of the text as a whole."""
    return reading.whole if isinstance(reading, Parted) else reading


def read_parts(
    tokenizer: Tokenizer, text: str, whole: Row | Windows, sentences_max: int, targets: Sequence[str], target_tokens: int
) -> Parted:
    """Read the parts of a text.

    Args:
        tokenizer: reads them.
        text: has a token at least.
        whole: what is read of the text.
        sentences_max: how many sentences are read, at most SENTENCES_COUNTED_MAX; 0: none, and they are not counted.
        targets: what else the text is read for.
        target_tokens: the most tokens of a target's row, special tokens included.
    """
    units = Units(text)
    sentences, total = _sentences(tokenizer, text, whole, sentences_max, units) if sentences_max else ((), 0)
    found = tuple(_targets(tokenizer, text, whole, targets, target_tokens, units))
    parts = [*(one.row for one in sentences), *(one.row for one in found)]
    return Parted(whole, sentences, total, found, (*whole.rows, *(row for row in parts if row is not None)))


def _sentences(tokenizer: Tokenizer, text: str, whole: Row | Windows, count_max: int, units: Units) -> tuple[tuple[Sentence, ...], int]:
    """The first sentences, and how many there are, counted up to SENTENCES_COUNTED_MAX."""
    spans = sentences_of(text)
    read = _joined(tokenizer, text, list(islice(spans, count_max)))
    total = len(read) + sum(1 for _ in islice(spans, SENTENCES_COUNTED_MAX - len(read)))
    if total == 1:
        (start, end), _ = read[0]
        return (Sentence(units.span(start, end), whole.tokens, whole.truncated, None),), 1
    return tuple(Sentence(units.span(*span), row.tokens, row.truncated, row) for span, row in read), total


def _joined(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], Row]]:
    """Sentences and their rows. One without a token is joined to the one before it, or else to the one after it."""
    rows = tokenizer.encode_many([text[start:end] for start, end in spans])
    joined: list[tuple[int, int]] = []
    empty = [row.tokens <= tokenizer.special_tokens for row in rows]
    for place, (start, end) in enumerate(spans):
        if joined and (empty[place] or all(empty[:place])):
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    if len(joined) < len(spans):
        rows = tokenizer.encode_many([text[start:end] for start, end in joined])
    return list(zip(joined, rows, strict=True))


def _targets(tokenizer: Tokenizer, text: str, whole: Row | Windows, targets: Sequence[str], tokens: int, units: Units) -> Iterator[Target]:
    if not targets:
        return
    fits = whole.rows[0] if len(whole.rows) == 1 and not whole.truncated else None
    mentions = Mentions(text)
    for target, own in zip(targets, tokenizer.encode_many(targets), strict=True):
        blank = own.tokens <= tokenizer.special_tokens
        mention = None if blank else mentions.find(target)
        if mention is None:
            yield Target(target, None, None, blank)
        else:
            yield Target(target, units.span(*mention), tokenizer.encode_target(text, mention, target, tokens, fits))
