"""Whether one attribution can be trusted: what erasing its first words does, against erasing other words. Pure.

Comprehensiveness and sufficiency: DeYoung et al. 2020, "ERASER". Words are erased by the attention mask, among five ways the one
or two that disturb the model least: Hase, Xie and Bansal 2021, "The Out-of-Distribution Problem in Explainability".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Steps, ranked, without
from sentiment.model.scores import probabilities

OPERATOR = "attention_mask"
# 19 others make the best p-value 1/20. A text of WORDS_MIN words has 3; fewer, after ``Enough``, decide nothing.
RANDOM_SETS_MAX = 19
RANDOM_SETS_MIN = 3
# With fewer words, or a text that moves the probability by less, there is nothing to tell a good ranking by.
WORDS_MIN = 4
EFFECT_MIN = 0.05
# Probabilities nearer than that are equal: a row's float32 logits may differ by as much with its batch mates.
TIE = 1e-6


class Verdict(IntEnum):
    """What the evidence says; numbers as in the proto."""

    BETTER_THAN_RANDOM = 1
    INCONCLUSIVE = 2
    NOT_FAITHFUL = 3
    FLAT = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of one attribution on one text, in calibrated probability unless said otherwise.

    ``words``: size of the sets. ``rank``: 1 + the ``random_sets`` that do at least as well. ``random_median``, ``random_mean`` and
    ``random_max``: of their comprehensiveness, 0 if there is no other set. ``empty_text_logit``: of the explained label. ``agreement``:
    Kendall's tau-b with an unrelated attribution, None where there was none.
    """

    method: str
    verdict: Verdict
    comprehensiveness: float
    sufficiency: float
    random_sets: int
    p_value: float
    empty_text_logit: float
    agreement: float | None
    words: int
    rank: int
    random_median: float
    random_mean: float
    random_max: float
    operator: str = OPERATOR


def evidence(
    n: int, scores: Floats, label: int, temperature: float, answers: Answers, *, method: str, seed: int, other: Floats | None = None
) -> Steps[Evidence]:
    """Measure the word ranking of one attribution on the served model.

    With r the first fifth of the words by score, and f the probability of the explained label: comprehensiveness is f(text) -
    f(text without r), sufficiency f(text) - f(r alone). Other sets of as many words are erased too, drawn by ``seed``.

    The words that speak for a label which is not the answer have little to take away from it. For such a label f is therefore the
    probability that it is *not* the answer, and the ranking is turned round: r are the words that speak most against it. With two
    labels and scores that are each other's negative, both labels get the same evidence.

    The verdict is FLAT if f(text) - f(empty text) < EFFECT_MIN or n < WORDS_MIN; BETTER_THAN_RANDOM if no other set does as well;
    NOT_FAITHFUL if the median of the others is better; INCONCLUSIVE otherwise. Asks for at most 4 + RANDOM_SETS_MAX masks.

    Args:
        n: words of the text.
        scores: [n], the larger the more a word speaks for the label.
        label: the explained one.
        temperature: of the calibration.
        answers: what is known of this text.
        method: the attribution's name.
        seed: of the random sets.
        other: scores [n] of an unrelated attribution to compare with; without it there is no agreement.

    Raises:
        Enough: it was thrown before the ranking's own masks had answers; later the random sets so far are the result.
    """
    whole = yield from answers.ask(np.ones((1, n), np.bool_))
    wins = int(whole[0].argmax()) == label
    chosen = tuple(sorted(ranked(scores if wins else -scores)[: -(-n // 5)]))
    erased = without(n, [chosen, *other_word_sets(n, chosen, RANDOM_SETS_MAX, np.random.default_rng(seed))])
    masks = np.concatenate([np.zeros((1, n), np.bool_), ~erased[:1], erased])
    try:
        logits = yield from answers.ask(masks)
    except Enough:
        logits = answers.known(masks)
        if len(logits) < 3:
            raise
    shares = [probabilities(row, temperature)[label] for row in [whole[0], *logits]]
    text, empty, alone, *rest = shares if wins else [1 - share for share in shares]
    own, *others = [text - value for value in rest]
    rank = 1 + sum(value >= own - TIE for value in others)
    flat = n < WORDS_MIN or text - empty < EFFECT_MIN
    return Evidence(
        method=method,
        verdict=Verdict.FLAT if flat else _verdict(own, others, rank),
        comprehensiveness=own,
        sufficiency=text - alone,
        random_sets=len(others),
        # Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero".
        p_value=rank / (len(others) + 1),
        empty_text_logit=float(logits[0, label]),
        # Of a single word there is no order.
        agreement=None if other is None or n < 2 else kendall_tau_b(scores, other),
        words=len(chosen),
        rank=rank,
        random_median=float(np.median(others)) if others else 0.0,
        random_mean=float(np.mean(others)) if others else 0.0,
        random_max=max(others, default=0.0),
    )


def other_word_sets(n: int, chosen: tuple[int, ...], count_max: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Different sets of as many of n words as ``chosen``, which is in rising order; never ``chosen`` itself.

    Returns:
        ``count_max`` random ones, each as likely as any other; all of them if there are no more.
    """
    size = len(chosen)
    if math.comb(n, size) - 1 <= count_max:
        return [words for words in combinations(range(n), size) if words != chosen]
    found: dict[tuple[int, ...], None] = {}
    # At least two are always left, so that this ends: a draw is new with a probability of at least 2 / (count_max + 2).
    while len(found) < count_max:
        words = tuple(sorted(int(word) for word in rng.choice(n, size, replace=False)))
        if words != chosen:
            found[words] = None
    return list(found)


def kendall_tau_b(first: Floats, second: Floats) -> float:
    """Rank agreement in [-1, 1] with ties: Kendall 1945, "The Treatment of Ties in Ranking Problems".

    0 if it is undefined: fewer than two words, or one of the two gives all words the same score. Takes memory for n^2 bytes.
    """
    above = _comparisons(first)
    beside = _comparisons(second)
    untied = math.sqrt(np.count_nonzero(above)) * math.sqrt(np.count_nonzero(beside))
    return float(np.sum(above * beside, dtype=np.int64) / untied) if untied else 0.0


def _comparisons(scores: Floats) -> npt.NDArray[np.int8]:
    """[n, n]: 1 where the row's score is the larger, -1 where the column's is, 0 where they are equal."""
    return (scores[:, None] > scores).astype(np.int8) - (scores[:, None] < scores)


def _verdict(own: float, others: Sequence[float], rank: int) -> Verdict:
    if len(others) < RANDOM_SETS_MIN:
        return Verdict.INCONCLUSIVE
    if rank == 1:
        return Verdict.BETTER_THAN_RANDOM
    return Verdict.NOT_FAITHFUL if own < float(np.median(others)) - TIE else Verdict.INCONCLUSIVE
