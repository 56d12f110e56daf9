"""Finds the sentence of each token. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sentiment.model.sentences import sentence_starts
from sentiment.model.words import Encoded


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
