"""Shapley values in two steps: what each sentence of a long text does to the answer, then what each word does in its sentence. Pure.

The generators are driven as those of ``erasure``. But a sentence without a kept word is deleted, not masked: the text that is run is
shorter, and reads as if the sentence had never been written. Erased words of other sentences are masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, ShapleyValues, Steps, shapley, shapley_rows
from sentiment.explain.methods.target import Target

# Longer sentences are cut: the tokens to run grow with the square of a sentence's length. The longest studied sentence has 41 words.
SENTENCE_WORDS_MAX = 40


@dataclass(frozen=True, slots=True, eq=False)
class TwoStepValues:
    """Values [n] in logits. Up to rounding, they sum to the explained logit for the whole text minus that for the empty text.

    ``standard_errors`` [n]: of sampling; 0 if exact, infinite where unknown. ``permutations``: the least number of orders, of the
    sentences or of the words of one, that values rest on; 0 if all are exact. ``valued``: sentences whose words have values of their own;
    in the others all words have the same.
    """

    values: Floats
    standard_errors: Floats
    permutations: int
    valued: int


def cut(sentences: Sequence[range]) -> list[range]:
    """Sentences with more than SENTENCE_WORDS_MAX words, cut into parts of equal length."""
    parts = []
    for words in sentences:
        count = -(-len(words) // SENTENCE_WORDS_MAX)
        ends = [words.start + len(words) * part // count for part in range(count + 1)]
        parts += [range(start, stop) for start, stop in pairwise(ends)]
    return parts


def two_step_shapley(
    sentences: Sequence[range], target: Target, samples: int, rng: np.random.Generator, answers: Answers
) -> Steps[TwoStepValues]:
    """Distribute the explained logit over the sentences, and each sentence's share over its words.

    Kamijo 2009, "A Two-Step Shapley Value in a Cooperative Game with a Coalition Structure": a sentence gets its Shapley value among the
    sentences. Its words get their Shapley values in the sentence alone, and equal parts of the difference to the sentence's value. So a
    word never runs with more than its sentence. The Owen value, which values words beside all sets of other sentences, takes long rows
    for every word.

    Args:
        sentences: the words of each sentence; together all words of the text, in order.
        target: what is explained.
        samples: number of orders of the sentences, and of the words of each; at least 1, rounded up to an even number.
        rng: samples the orders.
        answers: known logits of this text.

    Raises:
        Enough: if thrown before the words of the sentence with the largest value have values. Later, words of sentences with a small
            value may have none of their own.
    """
    n = sentences[-1].stop
    number = np.repeat(np.arange(len(sentences)), [len(words) for words in sentences])
    among = yield from shapley(len(sentences), target, samples, rng, lambda masks: answers.ask(masks[:, number]))
    sizes = np.array([len(words) for words in sentences])
    values, errors = (among.values / sizes)[number], np.full(n, np.inf)
    sampled, valued = [among.permutations], 0
    for sentence in np.argsort(-np.abs(among.values), kind="stable").tolist():
        words = sentences[sentence]
        try:
            alone = yield from _alone(words, n, target, samples, rng, answers)
        except Enough:
            if not valued:
                raise
            break
        own = slice(words.start, words.stop)
        values[own] += alone.values - alone.values.mean()
        errors[own] = np.hypot(among.standard_errors[sentence] / len(words), alone.standard_errors)
        sampled.append(alone.permutations)
        valued += 1
    return TwoStepValues(values, errors, min(filter(None, sampled), default=0), valued)


def tokens_run(lengths: Sequence[tuple[int, int]], samples: int) -> float:
    """About how many tokens ``two_step_shapley`` runs at most. ``lengths``: words of each sentence, and tokens with the special ones."""
    return tokens_among(lengths, samples) + sum(shapley_rows(words, samples) * tokens for words, tokens in lengths)


def tokens_least(lengths: Sequence[tuple[int, int]]) -> float:
    """About how many it runs at least: with one pair of orders, for the values of the sentences and of the words of any one of them."""
    return tokens_among(lengths, 2) + max(shapley_rows(words, 2) * tokens for words, tokens in lengths)


def tokens_among(lengths: Sequence[tuple[int, int]], samples: int) -> float:
    """About how many of them it runs for the values of the sentences."""
    # An order and its reverse run each set with its complement: their rows have half of the tokens on average.
    return shapley_rows(len(lengths), samples) * sum(tokens for _, tokens in lengths) / 2


def _alone(words: range, n: int, target: Target, samples: int, rng: np.random.Generator, answers: Answers) -> Steps[ShapleyValues]:
    """Shapley values of the words of one sentence, with all others erased."""

    def ask(masks: Masks) -> Steps[Floats]:
        lifted = np.zeros((len(masks), n), np.bool_)
        lifted[:, words.start : words.stop] = masks
        return answers.ask(lifted)

    return shapley(len(words), target, samples, rng, ask)
