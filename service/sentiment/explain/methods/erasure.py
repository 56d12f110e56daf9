"""Answers of a text with words erased, and two attributions based on them: occlusion and Shapley values. Pure.

Nothing here runs a model. Each explanation is a generator. It yields word masks, bool [rows, n] for a text of n words (True: the word is
kept; special tokens always are). It receives the served model's logits for them, float64 [rows, labels], and returns the explanation. The
driver runs the masks when there is capacity, and throws ``Enough`` into the generator when time runs out.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.target import Target

Masks: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Masks, Floats, Result]
Ask: TypeAlias = Callable[[Masks], Steps[Floats]]

ROWS_MAX = 32
# All 2^5 sets fit one batch; sampling would run most of them too.
EXACT_WORDS_MAX = 5


class Enough(Exception):
    """Thrown into an explanation to stop it. The explanation returns what it has, or lets this exception pass if it has nothing."""


def run(steps: Steps[Result], value: Callable[[Masks], Floats]) -> Result:
    """Drive an explanation with a function that returns the logits of masks, or raises ``Enough``.

    Raises:
        Enough: the explanation was stopped before it had a result.
    """
    try:
        masks = next(steps)
        while True:
            try:
                logits = value(masks)
            except Enough as enough:
                masks = steps.throw(enough)
            else:
                masks = steps.send(logits)
    except StopIteration as end:
        result: Result = end.value
        return result


class Answers:
    """Cache of the model's logits for the masks of one text. Explanations of the text share it, so that no mask runs twice."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        """``rows_max``: maximum masks per batch, at least 1."""
        self.rows_max = rows_max
        self._logits: dict[bytes, Floats] = {}

    @property
    def rows(self) -> int:
        """How many masks have known logits."""
        return len(self._logits)

    def tell(self, masks: Masks, logits: Floats) -> None:
        """Store the logits of masks, for example of the whole text after its classification.

        Raises:
            ValueError: the numbers of masks and logits differ, or a logit is not finite.
        """
        if len(logits) != len(masks):
            raise ValueError(f"expected {len(masks)} rows of logits, one per mask, got {len(logits)}")
        if not np.isfinite(logits).all():
            raise ValueError("the logits of a masked text must be finite")
        self._logits.update(zip(_keys(masks), np.array(logits, np.float64), strict=True))

    def ask(self, masks: Masks) -> Steps[Floats]:
        """Yield those masks that have no logits yet, in their order.

        Args:
            masks: [rows, n], at least one row.

        Returns:
            Logits [rows, labels] of all masks.

        Raises:
            ValueError: as in ``tell``.
        """
        new = self._new(masks)
        for start in range(0, len(new), self.rows_max):
            part = masks[new[start : start + self.rows_max]]
            self.tell(part, (yield part))
        return self.known(masks)

    def known(self, masks: Masks) -> Floats:
        """The known logits of the leading masks, up to the first without; [0, 0] if that is the first."""
        found = []
        for key in _keys(masks):
            if key not in self._logits:
                break
            found.append(self._logits[key])
        return np.array(found) if found else np.zeros((0, 0))

    def affordable(self, masks: Masks, rows: int) -> int:
        """How many leading masks can be run if at most ``rows`` of them may be new."""
        new = self._new(masks)
        return new[rows] if len(new) > rows else len(masks)

    def _new(self, masks: Masks) -> list[int]:
        """Indices of masks without known logits, in order; of equal masks the first."""
        rows: dict[bytes, int] = {}
        for row, key in enumerate(_keys(masks)):
            if key not in self._logits:
                rows.setdefault(key, row)
        return list(rows.values())


def ranked(scores: Floats) -> list[int]:
    """Word indices by descending score; words with equal scores in text order."""
    return [int(word) for word in np.argsort(-scores, kind="stable")]


def without(n: int, sets: Sequence[Sequence[int]]) -> Masks:
    """Masks [sets, n] of a text of n words; each erases the words of one set."""
    masks = np.ones((len(sets), n), np.bool_)
    for mask, words in zip(masks, sets, strict=True):
        mask[list(words)] = False
    return masks


def occlusion(n: int, target: Target, answers: Answers) -> Steps[Floats]:
    """Erase each word alone: Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure".

    Runs n + 1 masks, and has no result before the last.

    Returns:
        [n]: the explained logit for the whole text minus that without the word; signed.
    """
    if n == 0:
        return np.zeros(0)
    logits = yield from answers.ask(without(n, [(), *((word,) for word in range(n))]))
    explained = target.logit(logits)
    values: Floats = explained[0] - explained[1:]
    return values


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values [n] in logits. Up to rounding, they sum to the explained logit for the whole text minus that for the empty text.

    ``standard_errors`` [n]: of sampling; 0 of exact values, infinite after a single pair of ``permutations``.
    """

    values: Floats
    standard_errors: Floats
    permutations: int


def shapley(n: int, target: Target, samples: int, rng: np.random.Generator, ask: Ask) -> Steps[ShapleyValues]:
    """Distribute the explained logit over the words: Shapley 1953, with orders sampled as in Castro, Gomez and Tejada 2009.

    Each order is followed by its reverse (antithetic sampling: Mitchell, Cooper, Frank and Holmes 2022, "Sampling Permutations for Shapley
    Value Estimation"), which makes the effects of single words and of pairs exact. A pair of orders runs at most 2 (n - 1) masks, besides
    the whole and the empty text. Up to EXACT_WORDS_MAX words, all 2^n sets are run instead.

    Args:
        n: number of words of the text.
        target: what is explained.
        samples: number of orders, at least 1; rounded up to an even number.
        rng: samples the orders.
        ask: yields the masks whose logits are not known yet, as ``Answers.ask``, and returns the logits of all.

    Raises:
        Enough: if thrown before the first pair of orders is complete. Later the result uses the pairs so far.
    """
    if n <= EXACT_WORDS_MAX:
        values = yield from _exact(n, target, ask)
        return ShapleyValues(values, np.zeros(n), permutations=0)
    pairs: list[Floats] = []
    try:
        for _ in range(max(1, (samples + 1) // 2)):
            pair = yield from _pair(rng.permutation(n), target, ask)
            pairs.append(pair)
    except Enough:
        if not pairs:
            raise
    found = np.stack(pairs)
    errors = found.std(axis=0, ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else np.full(n, math.inf)
    return ShapleyValues(found.mean(axis=0), errors, permutations=2 * len(pairs))


def first_estimate(n: int, target: Target, answers: Answers) -> Steps[Floats]:
    """A cheap estimate of Shapley values: the mean of what a word does to the whole text and what it does alone.

    Exact if words act alone and in pairs. What is missing to the sum of Shapley values is shared equally. Runs 2 n + 2 masks, as a pair of
    orders; agrees with the values like two or three pairs (docs/internals/explanation-study.md), and is not random.

    Raises:
        Enough: if thrown before the last masks are known.
    """
    whole, empty = np.ones((1, n), np.bool_), np.zeros((1, n), np.bool_)
    alone = np.eye(n, dtype=np.bool_)
    explained = target.logit((yield from answers.ask(np.concatenate([whole, empty, ~alone, alone]))))
    values = (explained[0] - explained[2 : n + 2] + explained[n + 2 :] - explained[1]) / 2
    shared: Floats = values + (explained[0] - explained[1] - values.sum()) / n
    return shared


def shapley_rows(n: int, samples: int) -> int:
    """How many masks ``shapley`` runs at most."""
    return int(2**n) if n <= EXACT_WORDS_MAX else 2 + 2 * (n - 1) * ((samples + 1) // 2)


def _pair(order: npt.NDArray[np.int64], target: Target, ask: Ask) -> Steps[Floats]:
    """The contribution of each word to the words before it, averaged over an order and its reverse."""
    n = len(order)
    place = np.argsort(order)
    counts = np.arange(n + 1)[:, None]
    # Row i keeps the first i words of the order, row n + 1 + i its last i.
    logits = yield from ask(np.concatenate([place < counts, place >= n - counts]))
    explained = target.logit(logits)
    forward, backward = np.diff(explained[: n + 1]), np.diff(explained[n + 1 :])
    values: Floats = (forward[place] + backward[::-1][place]) / 2
    return values


def _exact(n: int, target: Target, ask: Ask) -> Steps[Floats]:
    """The sum over all sets: a word adds v(S + word) - v(S) with weight 1 / (n x (n - 1 over |S|))."""
    if n == 0:
        return np.zeros(0)
    masks = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.bool_)
    logits = yield from ask(masks)
    weights = np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])
    sizes = masks.sum(axis=1)
    # A set that has the word counts as S + word, with |S| one smaller. Clipped sizes are never selected.
    signed = np.where(masks, weights[np.maximum(sizes - 1, 0), None], -weights[np.minimum(sizes, n - 1), None])
    values: Floats = signed.T @ target.logit(logits)
    return values


def _keys(masks: Masks) -> list[bytes]:
    return [mask.tobytes() for mask in masks]
