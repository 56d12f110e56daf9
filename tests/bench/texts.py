"""Texts of the load tester's lengths, counted by a model's own tokenizer: what is measured to the token needs it."""

import random
from collections.abc import Iterable, Sequence

import tokenizers

from sentiment_tools.traffic.lengths import of_quantiles
from sentiment_tools.traffic.texts import clauses


def make_texts(quantiles: Sequence[int], count: int, tokenizer: tokenizers.Tokenizer, seed: int = 1) -> list[str]:
    """Write ``count`` texts with these lengths at traffic.lengths.QUANTILES; the same seed writes the same texts."""
    rng = random.Random(seed)
    return texts_of(of_quantiles(quantiles).spread(count, rng), tokenizer, rng)


def texts_of(lengths: Iterable[int], tokenizer: tokenizers.Tokenizer, rng: random.Random) -> list[str]:
    """Write a text of each of these numbers of tokens."""
    texts = []
    for tokens in lengths:
        words = ""
        pieces = clauses(rng)
        while len(tokenizer.encode(words).ids) < tokens:
            words += next(pieces)
        offsets = tokenizer.encode(words).offsets
        # The last of the ids is [SEP]; the text ends where the wanted last piece ends.
        texts.append(words[: offsets[max(1, tokens - 2)][1]])
    return texts
