"""Evidence whether an attribution can be trusted: compares erasing its top words with erasing other words. Pure.

Comprehensiveness and sufficiency: DeYoung et al. 2020, "ERASER". Words are erased with the attention mask, which is among the operators
that disturb the model least: Hase, Xie and Bansal 2021, "The Out-of-Distribution Problem in Explainability".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Steps, ranked, without
from sentiment.explain.methods.target import Target

OPERATOR = "attention_mask"
# Of 20 sets, one chosen by chance is the best in 5 % of texts. With fewer there is no verdict: that error would be larger.
RANDOM_SETS_MAX = 19
# With a smaller effect of the text on the probability, rankings cannot be compared.
EFFECT_MIN = 0.05
# Probabilities that differ by less are equal: a row's float32 logits may vary that much with the other rows of its batch.
TIE = 1e-6


class Verdict(IntEnum):
    """Verdict of the evidence. Values are those of the proto.

    At every length, BETTER_THAN_RANDOM is wrong in at most 5 %: that is how often a random ranking gets it. NOT_FAITHFUL is wrong in at
    most 5 %, too: that is how often a ranking that beats 70 % of all sets of the same size gets it.
    """

    BETTER_THAN_RANDOM = 1
    INCONCLUSIVE = 2
    NOT_FAITHFUL = 3
    FLAT = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of one attribution on one text, in calibrated probability unless stated otherwise.

    ``words``: size of each set. ``rank``: 1 + the number of the ``random_sets`` that do at least as well. ``random_median``,
    ``random_mean`` and ``random_max``: of the comprehensiveness of these sets; 0 without such sets. ``empty_text_logit``: the
    explained logit. ``agreement``: Kendall's tau-b with an unrelated attribution; None without one.
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
    n: int, scores: Floats, target: Target, temperature: float, answers: Answers, *, method: str, seed: int, other: Floats | None = None
) -> Steps[Evidence]:
    """Measure the word ranking of one attribution on the served model.

    Let r be the top fifth of the words by score, and f the probability of the target. Comprehensiveness is f(text) - f(text
    without r); sufficiency is f(text) - f(r alone). Random sets of the same size are erased for comparison.

    If the label does not win, removing words that support it has little effect. Then f is 1 minus that probability, and the ranking is
    reversed: r are the words that speak most against the label. Two labels against each other with opposite scores get the same evidence,
    as do the labels of a model that has two.

    The verdict is FLAT if f(text) - f(empty text) < EFFECT_MIN; INCONCLUSIVE with fewer than RANDOM_SETS_MAX other sets, which a text
    of fewer than 7 words does not have; BETTER_THAN_RANDOM if comprehensiveness is above 0 and no other set does as well; NOT_FAITHFUL
    if the median of the other sets is better; otherwise INCONCLUSIVE. Runs at most 4 + RANDOM_SETS_MAX masks.

    Args:
        n: number of words of the text.
        scores: [n]; a larger score means more support for the label.
        target: what is explained.
        temperature: of the calibration.
        answers: known logits of this text.
        method: name of the attribution.
        seed: of the random sets.
        other: scores [n] of an unrelated attribution, to compute the agreement; None for no agreement.

    Raises:
        Enough: if thrown before the logits of the ranking's own masks are known. Later the result uses the random sets so far.
    """
    whole = yield from answers.ask(np.ones((1, n), np.bool_))
    wins = target.wins(whole[0])
    chosen = tuple(sorted(ranked(scores if wins else -scores)[: -(-n // 5)]))
    erased = without(n, [chosen, *other_word_sets(n, chosen, RANDOM_SETS_MAX, np.random.default_rng(seed))])
    masks = np.concatenate([np.zeros((1, n), np.bool_), ~erased[:1], erased])
    try:
        logits = yield from answers.ask(masks)
    except Enough:
        logits = answers.known(masks)
        if len(logits) < 3:
            raise
    shares = [target.probability(row, temperature) for row in [whole[0], *logits]]
    text, empty, alone, *rest = shares if wins else [1 - share for share in shares]
    own, *others = [text - value for value in rest]
    rank = rank_of(own, others)
    flat = text - empty < EFFECT_MIN
    return Evidence(
        method=method,
        verdict=Verdict.FLAT if flat else verdict_of(own, others),
        comprehensiveness=own,
        sufficiency=text - alone,
        random_sets=len(others),
        # Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero".
        p_value=rank / (len(others) + 1),
        empty_text_logit=float(target.logit(logits[0])),
        # A single word has no order.
        agreement=None if other is None or n < 2 else kendall_tau_b(scores, other),
        words=len(chosen),
        rank=rank,
        random_median=float(np.median(others)) if others else 0.0,
        random_mean=float(np.mean(others)) if others else 0.0,
        random_max=max(others, default=0.0),
    )


def other_word_sets(n: int, chosen: tuple[int, ...], count_max: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Different sets of the same size as ``chosen`` (ascending indices of n words), without ``chosen`` itself.

    Returns:
        ``count_max`` sets, sampled uniformly; all sets if there are no more.
    """
    size = len(chosen)
    if math.comb(n, size) - 1 <= count_max:
        return [words for words in combinations(range(n), size) if words != chosen]
    found: dict[tuple[int, ...], None] = {}
    # This ends, because at least two sets are left: a sample is new with a probability of at least 2 / (count_max + 2).
    while len(found) < count_max:
        words = tuple(sorted(int(word) for word in rng.choice(n, size, replace=False)))
        if words != chosen:
            found[words] = None
    return list(found)


def kendall_tau_b(first: Floats, second: Floats) -> float:
    """Rank agreement in [-1, 1] with ties: Kendall 1945, "The Treatment of Ties in Ranking Problems".

    0 if undefined: with fewer than two words, or if one of the two gives all words the same score. Needs n^2 bytes of memory.
    """
    above = _comparisons(first)
    beside = _comparisons(second)
    untied = math.sqrt(np.count_nonzero(above)) * math.sqrt(np.count_nonzero(beside))
    return float(np.sum(above * beside, dtype=np.int64) / untied) if untied else 0.0


def _comparisons(scores: Floats) -> npt.NDArray[np.int8]:
    """[n, n]: 1 if the row's score is larger, -1 if the column's is, 0 if they are equal."""
    return (scores[:, None] > scores).astype(np.int8) - (scores[:, None] < scores)


def rank_of(own: float, others: Sequence[float]) -> int:
    """1 + the number of other sets that move the answer at least as much."""
    return 1 + sum(value >= own - TIE for value in others)


def verdict_of(own: float, others: Sequence[float]) -> Verdict:
    """The verdict on a set of words that moves the answer by ``own``, and ``others`` of as many words by so much."""
    if len(others) < RANDOM_SETS_MAX:
        return Verdict.INCONCLUSIVE
    if rank_of(own, others) == 1 and own > TIE:
        return Verdict.BETTER_THAN_RANDOM
    return Verdict.NOT_FAITHFUL if own < float(np.median(others)) - TIE else Verdict.INCONCLUSIVE
