"""Values of a long text in two steps: what each sentence does to the answer, shared among its words. Pure.

The generators are driven as those of ``erasure``. But a sentence that is left out is deleted, not masked: the text that is run is shorter,
and reads as if the sentence had never been written.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sentiment.explain.methods.erasure import EXACT_WORDS_MAX, Answers, Enough, Floats, Masks, Steps, shapley
from sentiment.explain.methods.target import Target

# Longer sentences are cut: their values would tell little.
SENTENCE_WORDS_MAX = 40
# Of many, shorter ones stand together with their neighbours, and so do the shortest of more: values of fewer parts have smaller errors.
SENTENCE_WORDS_MIN, SENTENCES_MAX = 10, 16
# What a sentence does beside others, of what it does alone: about as much in reviews of 512 tokens.
BESIDE = 0.25
# Parts of the pairs of rows of which each is left out once, to see how far values vary. Fewer pairs say less than the sentences alone.
PARTS = PAIRS_MIN = 6
# How much sentences may differ from what they do alone, relative to the noise of a pair of rows: the variances to choose from.
RATIOS = np.geomspace(1e-2, 1e2, 25)


@dataclass(frozen=True, slots=True, eq=False)
class SentenceValues:
    """Values [sentences] in logits, which sum to the explained logit of the whole text minus that of the empty text.

    ``standard_errors``: 0 if exact, infinite where unknown, otherwise one for all sentences. ``rows``: of random halves of the sentences
    that they rest on; 0 if exact.
    """

    values: Floats
    standard_errors: Floats
    rows: int


def parted(sentences: Sequence[range]) -> list[range]:
    """The parts of a text that are valued: sentences. Long ones are cut into equal parts, and short ones joined with their neighbours."""
    parts: list[range] = []
    for words in sentences:
        count = -(-len(words) // SENTENCE_WORDS_MAX)
        ends = [words.start + len(words) * part // count for part in range(count + 1)]
        parts += [range(start, stop) for start, stop in pairwise(ends)]
    # Few parts have exact values, however short they are.
    while len(parts) > EXACT_WORDS_MAX:
        sizes = [len(one) + len(other) for one, other in pairwise(parts)]
        short = [place for place in range(len(sizes)) if min(len(parts[place]), len(parts[place + 1])) < SENTENCE_WORDS_MIN]
        if not short and len(parts) <= SENTENCES_MAX:
            break
        place = min(short or range(len(sizes)), key=sizes.__getitem__)
        parts[place : place + 2] = [range(parts[place].start, parts[place + 1].stop)]
    return parts


def sentences_alone(sentences: Sequence[range], target: Target, answers: Answers) -> Steps[SentenceValues]:
    """A first estimate of the values: by what each sentence does to an empty text. Its rows are the shortest.

    Raises:
        Enough: if thrown before all is known.
    """
    explained = target.logit((yield from answers.ask(_lifted(_ends_and_alone(len(sentences)), sentences))))
    alone = explained[2:] - explained[1]
    values: Floats = BESIDE * (alone - alone.mean()) + (explained[0] - explained[1]) / len(alone)
    return SentenceValues(values, np.full(len(alone), np.inf), 0)


def sentence_shapley(
    sentences: Sequence[range], target: Target, rows: int, rng: np.random.Generator, answers: Answers
) -> Steps[SentenceValues]:
    """Estimate the Shapley values of the sentences.

    A Shapley value is the mean, over the numbers of other sentences kept, of what the sentence adds to them. With none it is what the
    sentence does alone, and exact. The rest is a regression: a random half of the sentences less the other half is a sum of what each
    adds, with its sign, and noise (Covert and Lee 2021, "Improving KernelSHAP", on pairs). Values are drawn towards a multiple of what each
    sentence does alone; that multiple, and how strongly, are those under which the rows are likeliest (empirical Bayes). The standard error
    is that of a jackknife, whose variance is the mean over sentences. Texts of few sentences have exact values.

    Args:
        sentences: the words of each sentence; together all words of the text, in order.
        target: what is explained.
        rows: of random halves, each different; see ``rows_run``.
        rng: samples the halves.
        answers: known logits of this text.

    Raises:
        Enough: if thrown before there are PAIRS_MIN pairs of rows. Later the result uses the pairs so far.
    """
    count = len(sentences)
    if count <= EXACT_WORDS_MAX:
        exact = yield from shapley(count, target, rows, rng, lambda masks: answers.ask(_lifted(masks, sentences)))
        return SentenceValues(exact.values, exact.standard_errors, 0)
    explained = target.logit((yield from answers.ask(_lifted(_ends_and_alone(count), sentences))))
    alone, whole = explained[2:] - explained[1], float(explained[0] - explained[1])
    halves: dict[bytes, Masks] = {}
    found: list[float] = []
    try:
        while len(found) < rows_run(count, rows) // 2:
            half = rng.permutation(count) < count // 2
            if half.tobytes() in halves or (~half).tobytes() in halves:
                continue
            pair = target.logit((yield from answers.ask(_lifted(np.stack([half, ~half]), sentences))))
            halves[half.tobytes()] = half
            found.append(float(pair[0] - pair[1]))
    except Enough:
        if len(found) < PAIRS_MIN:
            raise
    signs, sums = np.where([*halves.values()], 1.0, -1.0), np.array(found)

    def without(left_out: Sequence[int]) -> Floats:
        kept = np.delete(np.arange(len(sums)), left_out)
        # Of what a sentence adds to all other numbers of sentences, the sum over sentences is known.
        beside = _regression(signs[kept], sums[kept], alone, (count * whole - alone.sum()) / (count - 1))
        values: Floats = (alone + (count - 1) * beside) / count
        return values

    varied = np.array([without(range(part, len(sums), PARTS)) for part in range(PARTS)])
    error = math.sqrt((PARTS - 1) * float(varied.var(axis=0).mean()))
    return SentenceValues(without(()), np.full(count, error), 2 * len(found))


def rows_run(count: int, rows: int) -> int:
    """How many rows of random halves of ``count`` sentences are run if ``rows`` are wanted: those of PAIRS_MIN pairs at least; an even
    number; 0 if the values are exact.
    """
    halves = math.comb(count, count // 2)
    wanted = 2 * max(PAIRS_MIN, (rows + 1) // 2)
    return 0 if count <= EXACT_WORDS_MAX else min(wanted, halves if count % 2 == 0 else 2 * halves)


def shared(sentences: Sequence[range], values: Floats, weights: Floats) -> tuple[Floats, list[bool]]:
    """Values of words [n] that sum to those of their sentences, and for each sentence whether its words have values of their own.

    A sentence above 0 is shared in proportion to the ``weights`` [n] of its words, which are not negative; others are shared equally.
    """
    found, own = np.empty(len(weights)), []
    for words, value in zip(sentences, values.tolist(), strict=True):
        part = weights[words.start : words.stop]
        own.append(bool(value > 0 and part.sum() > 0))
        found[words.start : words.stop] = value * part / part.sum() if own[-1] else value / len(words)
    return found, own


def words_alone(sentences: Sequence[range], target: Target, rng: np.random.Generator, answers: Answers) -> Steps[Floats]:
    """Weights of words [n]: what each adds to its sentence alone, by one pair of orders, or 0 if it takes something away.

    Raises:
        Enough: if thrown before the words of all sentences are known.
    """
    n, found = sentences[-1].stop, []
    for words in sentences:

        def ask(masks: Masks, words: range = words) -> Steps[Floats]:
            alone = np.zeros((len(masks), n), np.bool_)
            alone[:, words.start : words.stop] = masks
            return answers.ask(alone)

        values = yield from shapley(len(words), target, 2, rng, ask)
        found.append(np.maximum(values.values, 0.0))
    weights: Floats = np.concatenate(found)
    return weights


def tokens_run(lengths: Sequence[tuple[int, int]], rows: int) -> float:
    """About how many tokens ``sentence_shapley`` runs. ``lengths``: words of each sentence, and tokens with the special ones."""
    count = len(lengths)
    halves = 2**count - count - 2 if count <= EXACT_WORDS_MAX else rows_run(count, rows)
    return tokens_alone(lengths) + max(0, halves) * sum(tokens for _, tokens in lengths) / 2


def tokens_alone(lengths: Sequence[tuple[int, int]]) -> float:
    """About how many ``sentences_alone`` runs besides the whole text."""
    return sum(tokens for _, tokens in lengths)


def _ends_and_alone(count: int) -> Masks:
    ends = np.array([[True], [False]]).repeat(count, axis=1)
    return np.concatenate([ends, np.eye(count, dtype=np.bool_)])


def _lifted(masks: Masks, sentences: Sequence[range]) -> Masks:
    """Masks of words, of masks of sentences."""
    return np.repeat(masks, [len(words) for words in sentences], axis=1)


def _regression(signs: Floats, found: Floats, prior: Floats, total: float) -> Floats:
    """Values [m] that sum to ``total``, of k sums ``found`` of values with ``signs`` [k, m] and noise.

    Values vary around a multiple of ``prior``. The multiple and the variances are those of the largest marginal likelihood.
    """
    m = signs.shape[1]
    # Values are an equal part of the total each, and something that sums to 0.
    basis = np.linalg.svd(np.eye(m) - 1 / m)[0][:, : m - 1]
    x, y, around = signs @ basis, found - signs.sum(axis=1) * total / m, basis.T @ prior
    best = (-np.inf, 0.0, 0.0)
    for ratio in RATIOS.tolist():
        root = np.linalg.cholesky(np.eye(len(y)) + ratio * x @ x.T)
        seen, expected = np.linalg.solve(root, y), np.linalg.solve(root, x @ around)
        multiple = float(expected @ seen / max(expected @ expected, 1e-12))
        variance = max(float(np.mean((seen - multiple * expected) ** 2)), 1e-12)
        likelihood = -len(y) / 2 * math.log(variance) - float(np.log(np.diag(root)).sum())
        best = max(best, (likelihood, ratio, multiple))
    _, ratio, multiple = best
    left = np.linalg.solve(x.T @ x + np.eye(m - 1) / ratio, x.T @ (y - multiple * x @ around))
    values: Floats = total / m + basis @ (multiple * around + left)
    return values
