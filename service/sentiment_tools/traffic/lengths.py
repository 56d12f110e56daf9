"""Distributions of text lengths in tokens, including the two special tokens: built in, one fixed length, or taken from a file."""

import bisect
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.reading import read_texts

# The quantiles at which the tables below give tokens, counted with BERT's uncased WordPiece tokenizer.
QUANTILES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
# SST-2 dev (sentences) and IMDB test (reviews).
SHORT = (4, 10, 12, 16, 19, 21, 24, 27, 30, 34, 40, 44, 51, 55)
LONG = (29, 81, 109, 152, 169, 191, 216, 248, 296, 390, 536, 716, 1034, 1284)
SPECIAL_TOKENS = 2
LENGTH_MIN, LENGTH_MAX = 3, 100_000
# The most texts read from a file; more would not change the distribution.
FILE_TEXTS_MAX = 100_000
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")

Table = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths: tables of (quantile, tokens), all with the same probability.

    Between two quantiles lengths are spread evenly.
    """

    tables: tuple[Table, ...]

    @property
    def mean(self) -> float:
        """Mean tokens."""
        return sum(map(_mean, self.tables)) / len(self.tables)

    @property
    def longest(self) -> int:
        """The most tokens of a draw."""
        return round(max(table[-1][1] for table in self.tables))

    def at(self, share: float) -> int:
        """The length at the quantile ``share``, 0 to 1. A uniform ``share`` gives a draw of the distribution."""
        place = min(share, 1.0) * len(self.tables)
        which = min(int(place), len(self.tables) - 1)
        table = self.tables[which]
        upper = max(1, bisect.bisect_left(table, place - which, key=lambda point: point[0]))
        (low, shorter), (high, longer) = table[upper - 1], table[upper]
        part = (place - which - low) / (high - low)
        return round(shorter * (1 - part) + longer * part)

    def draw(self, rng: random.Random) -> int:
        """Draw one length in tokens."""
        return self.at(rng.random())

    def spread(self, count: int, rng: random.Random) -> list[int]:
        """``count`` lengths in random order, spread evenly over the quantiles, so that even a few have about the distribution's mean."""
        drawn = [self.at((index + rng.random()) / count) for index in range(count)]
        rng.shuffle(drawn)
        return drawn


def _mean(table: Table) -> float:
    return sum((high - low) * (shorter + longer) / 2 for (low, shorter), (high, longer) in itertools.pairwise(table))


def of_quantiles(tokens: Sequence[int]) -> Lengths:
    """The distribution with these tokens at QUANTILES."""
    return Lengths((tuple(zip(QUANTILES, tokens, strict=True)),))


def of_lengths(tokens: Sequence[int]) -> Lengths:
    """The distribution of measured lengths, at least one."""
    found = sorted(tokens)
    if len(found) == 1:
        found *= 2
    return Lengths((tuple((index / (len(found) - 1), float(length)) for index, length in enumerate(found)),))


SST2 = of_quantiles(SHORT)
IMDB = of_quantiles(LONG)
MIXED = Lengths((*SST2.tables, *IMDB.tables))
BUILT_IN = {"sst2": SST2, "imdb": IMDB, "mixed": MIXED}


def count_words(text: str) -> int:
    """Count words and punctuation marks. BERT's tokenizers never join two of them in one token."""
    return len(_WORD_OR_MARK.findall(text))


def first_words(text: str, count: int) -> str:
    """The text up to the end of its ``count``-th word or mark, or all of it."""
    last = next(itertools.islice(_WORD_OR_MARK.finditer(text), count - 1, None), None)
    return text[: last.end()] if last else text


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of an English text without a tokenizer: words, marks and the two special tokens.

    Too low for real reviews, because a rare word is several tokens.
    """
    return count_words(text) + SPECIAL_TOKENS


def parse_built_in(text: str) -> Lengths | None:
    """The distribution named ``sst2``, ``imdb`` or ``mixed``, or a fixed number of tokens; None for any other text.

    Raises:
        BadSettings: the number is out of range.
    """
    if not text.isdecimal():
        return BUILT_IN.get(text)
    if not LENGTH_MIN <= int(text) <= LENGTH_MAX:
        raise BadSettings(f"length must be {LENGTH_MIN} to {LENGTH_MAX:,} tokens, got {text}")
    return of_lengths([int(text)])


def parse_lengths(text: str, column: str = "text") -> Lengths:
    """Parse a distribution: ``sst2``, ``imdb``, ``mixed`` (half of each), a number of tokens, or a file.

    The file has texts or numbers of tokens, one per line.

    Raises:
        BadSettings: the value is not one of these, or the file has no text.
    """
    built_in = parse_built_in(text)
    if built_in is not None:
        return built_in
    lines = itertools.islice(texts_of_file(text, column, "lengths"), FILE_TEXTS_MAX)
    return of_lengths([int(line) if line.isdecimal() and len(line) < 7 else estimate_tokens(line) for line in lines])


def texts_of_file(name: str, column: str, what: str) -> Iterator[str]:
    """The texts of a file, at least one. ``what``: the texts or their lengths, which might be chosen otherwise.

    Raises:
        BadSettings: there is no such file, it cannot be read, or it has no text.
    """
    path = Path(name)
    if not path.is_file():
        raise BadSettings(f"unknown {what} {name!r}; use sst2, imdb, mixed, a number of tokens or a file")
    try:
        texts = read_texts(path, column)
        if (first := next(texts, None)) is None:
            raise BadSettings(f"{path}: the file has no text")
        yield first
        yield from texts
    except BadFile as error:
        raise BadSettings(str(error)) from error
