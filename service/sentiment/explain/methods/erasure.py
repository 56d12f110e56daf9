"""What a text's answer becomes when words of it are erased, and two attributions made of that. Pure.

Nothing here runs a model. Each explanation is a generator that yields masks of words, bool [rows, n] for a text of n words
(True: the word is kept; special tokens always are), and is sent the served model's logits for them, float64 [rows, labels];
what it returns is the explanation. Whoever drives it runs the masks where and when there is room, and throws ``Enough`` into it
when time is up.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Masks: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Masks, Floats, Result]

ROWS_MAX = 32
# All sets of so many words fill one batch; sampling would ask for most of them too.
EXACT_WORDS_MAX = 5


class Enough(Exception):
    """Thrown into an explanation when it may ask for nothing more; it returns what it has, or lets this pass if that is nothing."""


def run(steps: Steps[Result], value: Callable[[Masks], Floats]) -> Result:
    """Drive an explanation with a function that answers its masks at once, and that may raise ``Enough``.

    Raises:
        Enough: it ended before there was anything to return.
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
    """The model's logits for the masks of one text, so that its explanations, one after the other, never ask for a mask twice."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        """Ask for at most ``rows_max`` masks at a time, at least 1."""
        self.rows_max = rows_max
        self._logits: dict[bytes, Floats] = {}

    @property
    def rows(self) -> int:
        """How many masks have an answer."""
        return len(self._logits)

    def tell(self, masks: Masks, logits: Floats) -> None:
        """Take the answers of masks, such as that of the whole text when it has been classified already.

        Raises:
            ValueError: there are not as many answers as masks, or one is not finite.
        """
        if len(logits) != len(masks):
            raise ValueError(f"{len(logits)} answers to {len(masks)} masks")
        if not np.isfinite(logits).all():
            raise ValueError("the logits of a masked text are not all finite")
        self._logits.update(zip(_keys(masks), np.array(logits, np.float64), strict=True))

    def ask(self, masks: Masks) -> Steps[Floats]:
        """Ask for those masks that have no answer yet, in their order.

        Args:
            masks: [rows, n], at least one row.

        Returns:
            Logits [rows, labels] of all.

        Raises:
            ValueError: as ``tell``.
        """
        new = self._new(masks)
        for start in range(0, len(new), self.rows_max):
            part = masks[new[start : start + self.rows_max]]
            self.tell(part, (yield part))
        return self.known(masks)

    def known(self, masks: Masks) -> Floats:
        """The logits of the leading masks that have an answer; [0, 0] if the first has none."""
        found = []
        for key in _keys(masks):
            if key not in self._logits:
                break
            found.append(self._logits[key])
        return np.array(found) if found else np.zeros((0, 0))

    def affordable(self, masks: Masks, rows: int) -> int:
        """How many of the leading masks could be asked for if at most ``rows`` of them may be new."""
        new = self._new(masks)
        return new[rows] if len(new) > rows else len(masks)

    def _new(self, masks: Masks) -> list[int]:
        """The rows of masks without an answer, in order; of equal ones the first."""
        rows: dict[bytes, int] = {}
        for row, key in enumerate(_keys(masks)):
            if key not in self._logits:
                rows.setdefault(key, row)
        return list(rows.values())


def ranked(scores: Floats) -> list[int]:
    """The words from the largest score to the smallest, those of equal score in the order of the text."""
    return [int(word) for word in np.argsort(-scores, kind="stable")]


def without(n: int, sets: Sequence[Sequence[int]]) -> Masks:
    """Masks [sets, n] of a text of n words, each without the words of one set."""
    masks = np.ones((len(sets), n), np.bool_)
    for mask, words in zip(masks, sets, strict=True):
        mask[list(words)] = False
    return masks


def occlusion(n: int, label: int, answers: Answers) -> Steps[Floats]:
    """Leave each word out alone: Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure".

    Asks for n + 1 masks. Has nothing to return before the last.

    Returns:
        [n]: the label's logit on the whole text less that without the word; signed, in logits.
    """
    if n == 0:
        return np.zeros(0)
    logits = yield from answers.ask(without(n, [(), *((word,) for word in range(n))]))
    values: Floats = logits[0, label] - logits[1:, label]
    return values


@dataclass(frozen=True, slots=True, eq=False)
class ShapleyValues:
    """Shapley values [n] in logits; they sum to the label's logit on the whole text less that on the empty one, up to rounding.

    ``standard_errors`` [n] are those of sampling: 0 where ``exact``, infinite after a single pair of ``permutations``.
    """

    values: Floats
    standard_errors: Floats
    permutations: int
    exact: bool


def shapley(n: int, label: int, samples: int, rng: np.random.Generator, answers: Answers) -> Steps[ShapleyValues]:
    """Share the label's logit out among the words: Shapley 1953; sampled over orders as Castro, Gomez and Tejada 2009.

    Every order is followed by its reverse (antithetic sampling: Mitchell, Cooper, Frank and Holmes 2022, "Sampling Permutations
    for Shapley Value Estimation"), which makes effects of single words and of pairs exact. A pair of orders asks for at most
    2 (n - 1) masks, beside the whole and the empty text. Up to EXACT_WORDS_MAX words all 2^n sets are asked for instead.

    Args:
        n: words of the text.
        label: whose logit is shared out.
        samples: orders, at least 1; an odd number is raised by one.
        rng: draws the orders.
        answers: what is known of this text.

    Raises:
        Enough: it was thrown before the first pair of orders was complete; later the pairs so far are the result.
    """
    if n <= EXACT_WORDS_MAX:
        values = yield from _exact(n, label, answers)
        return ShapleyValues(values, np.zeros(n), permutations=0, exact=True)
    pairs: list[Floats] = []
    try:
        for _ in range(max(1, (samples + 1) // 2)):
            pair = yield from _pair(rng.permutation(n), label, answers)
            pairs.append(pair)
    except Enough:
        if not pairs:
            raise
    found = np.stack(pairs)
    errors = found.std(axis=0, ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else np.full(n, math.inf)
    return ShapleyValues(found.mean(axis=0), errors, permutations=2 * len(pairs), exact=False)


def _pair(order: npt.NDArray[np.int64], label: int, answers: Answers) -> Steps[Floats]:
    """The mean of what each word adds to the words before it in an order and in its reverse."""
    n = len(order)
    place = np.argsort(order)
    counts = np.arange(n + 1)[:, None]
    # Row i keeps the first i words of the order, row n + 1 + i its last i.
    logits = yield from answers.ask(np.concatenate([place < counts, place >= n - counts]))
    forward, backward = np.diff(logits[: n + 1, label]), np.diff(logits[n + 1 :, label])
    values: Floats = (forward[place] + backward[::-1][place]) / 2
    return values


def _exact(n: int, label: int, answers: Answers) -> Steps[Floats]:
    """The sum over all sets: a word adds v(S + word) - v(S) with weight 1 / (n x (n - 1 over |S|))."""
    if n == 0:
        return np.zeros(0)
    masks = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.bool_)
    logits = yield from answers.ask(masks)
    weights = np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])
    sizes = masks.sum(axis=1)
    # As S + word a set has one word more than S; the clipped sizes are never chosen by where.
    signed = np.where(masks, weights[np.maximum(sizes - 1, 0), None], -weights[np.minimum(sizes, n - 1), None])
    values: Floats = signed.T @ logits[:, label]
    return values


def _keys(masks: Masks) -> list[bytes]:
    return [mask.tobytes() for mask in masks]
