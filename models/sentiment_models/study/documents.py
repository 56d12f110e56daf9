"""Documents for pre-training: read them, lay them out as token ids, cut them into rows of one or two segments.

Knows nothing of torch or of models.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from sentiment_models.data.labelled import read_texts
from sentiment_models.data.sentences import split_sentences
from sentiment_models.errors import BadData
from sentiment_models.study.masking import Ids

Tokenize = Callable[[list[str]], list[list[int]]]
"""Returns the token ids of sentences, without special tokens."""

SENTENCES_AT_ONCE = 10_000


def read_documents(path: Path) -> Iterator[str]:
    """Read the documents of a file, as ``read_texts`` does. Labels are ignored; a second text is a document of its own.

    Raises:
        BadData: the file cannot be used. Names file and line.
    """
    for text in read_texts(path):
        yield from (text,) if isinstance(text, str) else text


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents as token ids in one array, without special tokens.

    ``sentences``, [sentences + 1]: the start of each sentence in ``tokens``, then the end. ``starts``, [documents + 1]: the start of each
    document in ``sentences``, then the end. A sentence over ``sentence_tokens_max`` is cut into several.
    """

    tokens: Ids
    sentences: list[int]
    starts: list[int]

    @classmethod
    def encode(cls, texts: Sequence[str], tokenize: Tokenize, sentence_tokens_max: int) -> "Documents":
        """Lay out texts. A text without a token is left out."""
        tokens: list[NDArray[np.int32]] = []
        sentences, starts = [0], [0]
        for pool in tqdm(list(_pools(texts)), desc="tokenizing", unit="pool", mininterval=5):
            encoded = iter(tokenize([sentence for document in pool for sentence in document]))
            for document in pool:
                for _ in document:
                    ids = next(encoded)
                    tokens.append(np.array(ids, np.int32))
                    end = sentences[-1] + len(ids)
                    sentences += [*range(sentences[-1] + sentence_tokens_max, end, sentence_tokens_max), end] if ids else []
                if len(sentences) - 1 > starts[-1]:
                    starts.append(len(sentences) - 1)
        return cls(np.concatenate(tokens).astype(np.int64) if tokens else np.zeros(0, np.int64), sentences, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


def _pools(texts: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the sentences of documents in pools of limited size, to bound memory."""
    pool: list[list[str]] = []
    size = 0
    for text in texts:
        pool.append(split_sentences(text))
        size += len(pool[-1])
        if size >= SENTENCES_AT_ONCE:
            yield pool
            pool, size = [], 0
    if pool:
        yield pool


@dataclass(frozen=True, slots=True)
class Row:
    """Start and end of a row's segments in ``Documents.tokens``. ``b`` is empty if there is one segment.

    ``follows``: the second segment follows the first in the same document; otherwise it comes from another document.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    follows: bool

    @property
    def tokens(self) -> int:
        """Number of tokens without special tokens."""
        return self.a[1] - self.a[0] + self.b[1] - self.b[0]


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens around segments: ``special[0]``, first segment, ``special[1]``, second segment if any, ``special[-1]``.

    ``types``: the segment id of each of these parts in order; all 0 for a model without segments.
    """

    special: tuple[tuple[int, ...], ...]
    types: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any, count: int) -> "Frame":  # transformers has no one type for its tokenizers
        """Find the special tokens that a fast tokenizer puts around ``count`` segments, 1 or 2."""
        encoded = tokenizer(*"ab"[:count], return_token_type_ids=True)
        special: list[tuple[int, ...]] = [()]
        types = [0]
        owner = None
        for token, kind, its in zip(encoded["input_ids"], encoded["token_type_ids"], encoded.sequence_ids(), strict=True):
            if its is None:
                special[-1] += (token,)
            elif its != owner:
                special.append(())
                types += [kind, kind]
            owner = its if its is not None else owner
            types[-1] = kind
        return cls(tuple(special), tuple(types))

    @property
    def tokens(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.special))

    def lay_out(self, segments: Sequence[Ids]) -> tuple[Ids, Ids]:
        """Put the special tokens around the segments; return token ids and segment ids, both [tokens]."""
        parts: list[Ids] = [np.array(self.special[0], np.int64)]
        for segment, after in zip(segments, self.special[1:], strict=True):
            parts += [segment, np.array(after, np.int64)]
        return np.concatenate(parts), np.repeat(np.array(self.types, np.int64), [len(part) for part in parts])


def segments(documents: Documents, tokens_max: int) -> list[Row]:
    """Pack whole sentences into rows of one segment. A row never holds two documents. Sentences must not exceed ``tokens_max``."""
    rows = []
    sentences = documents.sentences
    for first, last in pairwise(documents.starts):
        begin = first
        while begin < last:
            end = _fill(sentences, begin, last, tokens_max)
            rows.append(Row((sentences[begin], sentences[end]), (0, 0), follows=True))
            begin = end
    return rows


def pairs(documents: Documents, tokens_max: int, rng: random.Random) -> list[Row]:
    """Cut documents into rows of two segments. In half of the rows the second segment follows the first.

    In the other half it comes from another document, and the text that would have followed starts the next row. No row has more than
    ``tokens_max`` tokens; a sentence may have at most half as many.

    Raises:
        BadData: there are fewer than two documents.
    """
    if len(documents) < 2:
        raise BadData(f"sentence pairs need at least 2 documents, got {len(documents)}")
    rows = []
    sentences = documents.sentences
    for number, (first, last) in enumerate(pairwise(documents.starts)):
        begin = sentences[first]
        while begin < sentences[last]:
            inside = bisect_right(sentences, begin, first, last) - 1
            end = sentences[_fill(sentences, inside, last, tokens_max)]
            # A single sentence, such as a document's last, is cut anywhere, so that both kinds of rows stay equally frequent.
            inner = sentences[inside + 1 : bisect_right(sentences, end - 1, inside, last + 1)]
            cut = rng.choice(inner) if inner else rng.randint(begin + 1, end - 1) if end - begin > 1 else end
            if cut == end:
                break
            if rng.random() < 0.5:
                rows.append(Row((begin, cut), (cut, end), follows=True))
                begin = end
            else:
                strange = _elsewhere(documents, number, tokens_max - (cut - begin), rng, whole=bool(inner))
                rows.append(Row((begin, cut), strange, follows=False))
                begin = cut
    return rows


def _fill(sentences: Sequence[int], begin: int, last: int, tokens_max: int) -> int:
    """Return the end of the sentences from ``begin`` that fit, at least one."""
    return max(begin + 1, min(last, bisect_right(sentences, sentences[begin] + tokens_max, begin, last + 1) - 1))


def _elsewhere(documents: Documents, number: int, tokens_max: int, rng: random.Random, *, whole: bool) -> tuple[int, int]:
    """Choose a segment of a document other than ``number``. It starts at a sentence if ``whole``, else anywhere."""
    other = rng.randrange(len(documents) - 1)
    other += other >= number
    first, last = documents.starts[other], documents.starts[other + 1]
    end = documents.sentences[last]
    begin = documents.sentences[rng.randrange(first, last)] if whole else rng.randrange(documents.sentences[first], end)
    return begin, min(end, begin + tokens_max)
