"""How far figures could be off by chance: bootstrap intervals, a test of calibration, tests of two models on the same texts.

Pure functions of arrays and a seed, vectorised over the resamples, in bounded memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentiment_models.evaluation.metrics import Labels, Probabilities, bins_of, calibration_error, class_scores, confusion, wilson

RESAMPLES = 2000
SEED = 20
# Draws that are held at once: 64 MB of them.
DRAWS_MAX = 2**23

Interval = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """How a calibration error compares with what chance alone gives a calibrated model.

    ``p_value``: share of calibrated models of the same stated probabilities whose error is at least as large. Below 0.05
    the model is distinguishable from a calibrated one. ``ece_of_calibrated``: between these lie 95 % of their errors.
    """

    p_value: float
    ece_of_calibrated: Interval


def accuracy_and_f1_intervals(answers: Labels, labels: Labels, classes: int, seed: int = SEED) -> tuple[Interval, Interval]:
    """Return percentile bootstrap intervals of accuracy and macro F1 (Efron 1979); where all rows or none are right, Wilson's of accuracy.

    Both depend on the confusion counts only, and the counts of rows drawn with replacement are multinomial: the resamples
    are drawn as counts, exactly and at no cost that grows with the rows.
    """
    counts = confusion(answers, labels, classes)
    drawn = np.random.default_rng(seed).multinomial(len(labels), counts.ravel() / len(labels), RESAMPLES).reshape(-1, classes, classes)
    accuracy = np.trace(drawn, axis1=1, axis2=2) / len(labels)
    share = np.trace(counts) / len(labels)
    # Resamples of rows that are all alike are all alike, which would read as certainty.
    if share in (0, 1):
        low, high = wilson(np.array(share), np.array(len(labels)))
        return (float(low), float(high)), _interval(class_scores(drawn)[2].mean(axis=1))
    return _interval(accuracy), _interval(class_scores(drawn)[2].mean(axis=1))


def calibration_test(stated: Probabilities, labels: Labels, seed: int = SEED) -> Consistency:
    """Test whether the expected calibration error could be that of a calibrated model.

    Consistency resampling (Broecker and Smith 2007; Vaicenavicius et al. 2019): right labels are drawn from the stated
    probabilities themselves. An answer is then right with the probability that is stated for it, which is all the error sees.
    The error's own bootstrap interval would mislead: chance only ever adds to it.

    Args:
        stated: calibrated probabilities, [rows, labels].
        labels: the right labels, [rows].
        seed: of the draws.
    """
    confidence = stated.max(axis=1)
    observed = calibration_error(confidence, stated.argmax(axis=1) == labels)
    placed = bins_of(confidence)
    # Sorted by bin, so that the sum of a bin is that of a slice.
    order = np.argsort(placed, kind="stable")
    starts = np.flatnonzero(np.diff(placed[order], prepend=-1))
    errors = np.concatenate(
        [
            np.abs(np.add.reduceat(confidence[order] - (drawn < confidence[order]), starts, axis=1)).sum(axis=1)
            for drawn in _uniform(len(labels), seed)
        ]
    )
    errors /= len(labels)
    # 1e-12: an error that differs by rounding alone counts as equal.
    p_value = (1 + int((errors >= observed - 1e-12).sum())) / (1 + RESAMPLES)
    return Consistency(p_value, _interval(errors))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p value of McNemar's test: are the texts that one of two models answers rightly split by a fair coin?"""
    total, least = only_first + only_second, min(only_first, only_second)
    tail = term = 1
    for k in range(least):
        term = term * (total - k) // (k + 1)
        tail += term
    # Whole numbers of any size; a power of floats would overflow.
    return min(1.0, 2 * tail / (1 << total))


def difference_interval(only_first: int, only_second: int, rows: int, seed: int = SEED) -> Interval:
    """Return the paired bootstrap interval of the second model's accuracy less the first's; where no row differs, by the rule of three.

    Args:
        only_first: rows that only the first model answers rightly.
        only_second: rows that only the second does.
        rows: all rows.
        seed: of the resamples.
    """
    if not only_first + only_second:
        # Of a share that was never seen in so many rows 95 % of the possible ones lie below 3 / rows (Hanley and Lippman-Hand 1983).
        return -min(1.0, 3 / rows), min(1.0, 3 / rows)
    shares = np.array([only_first, only_second, rows - only_first - only_second], np.float64) / rows
    drawn = np.random.default_rng(seed).multinomial(rows, shares, RESAMPLES)
    return _interval((drawn[:, 1] - drawn[:, 0]) / rows)


def _uniform(rows: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield numbers from 0 to 1, [some resamples, rows], until all resamples are drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, DRAWS_MAX // rows)
    for start in range(0, RESAMPLES, step):
        yield rng.random((min(step, RESAMPLES - start), rows))


def _interval(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
