"""Statistical uncertainty of figures: bootstrap intervals, a calibration test, paired tests of two models.

Pure functions of arrays and a seed, vectorised over the resamples, in bounded memory.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentiment.observability.agreement import wilson
from sentiment_models.evaluation.findings import CalibrationFound
from sentiment_models.evaluation.metrics import Labels, Probabilities, bins_of, calibration_error, confusion, macro_f1

RESAMPLES = 2000
SEED = 20
# Draws in memory at once: 64 MB.
DRAWS_MAX = 2**23

Interval = tuple[float, float]
"""The lower and the upper end of a 95 % interval."""


def accuracy_and_f1_intervals(answers: Labels, labels: Labels, classes: int, seed: int = SEED) -> tuple[Interval, Interval]:
    """Return percentile bootstrap intervals of accuracy and macro F1 (Efron 1979).

    Where all or no rows are correct, the interval of the accuracy is Wilson's. Both figures depend on the confusion counts
    only, and the counts of rows drawn with replacement are multinomial. So the resamples are drawn as counts: exact, at a cost
    that does not grow with the rows.
    """
    counts = confusion(answers, labels, classes)
    drawn = np.random.default_rng(seed).multinomial(len(labels), counts.ravel() / len(labels), RESAMPLES).reshape(-1, classes, classes)
    accuracy = np.trace(drawn, axis1=1, axis2=2) / len(labels)
    share = np.trace(counts) / len(labels)
    # All resamples of all-correct rows are all-correct: the bootstrap interval would have width 0.
    if share in (0, 1):
        return wilson(int(np.trace(counts)), len(labels)), _interval(macro_f1(drawn))
    return _interval(accuracy), _interval(macro_f1(drawn))


def calibration_test(stated: Probabilities, labels: Labels, seed: int = SEED) -> CalibrationFound:
    """Test whether the expected calibration error could be that of a calibrated model.

    Consistency resampling (Broecker and Smith 2007; Vaicenavicius et al. 2019): correct labels are drawn from the predicted
    probabilities. An answer is then correct with exactly its predicted probability, which is all that the error depends on.
    A bootstrap interval of the error itself would mislead, because chance only increases the error.

    Args:
        stated: calibrated probabilities, [rows, labels].
        labels: the correct labels, [rows].
        seed: of the draws.
    """
    confidence = stated.max(axis=1)
    observed = calibration_error(confidence, stated.argmax(axis=1) == labels)
    placed = bins_of(confidence)
    # Sorted by bin, so that each bin is a slice.
    order = np.argsort(placed, kind="stable")
    starts = np.flatnonzero(np.diff(placed[order], prepend=-1))
    errors = np.concatenate(
        [
            np.abs(np.add.reduceat(confidence[order] - (drawn < confidence[order]), starts, axis=1)).sum(axis=1)
            for drawn in _uniform(len(labels), seed)
        ]
    )
    errors /= len(labels)
    # 1e-12: errors that differ only by rounding count as equal.
    p_value = (1 + int((errors >= observed - 1e-12).sum())) / (1 + RESAMPLES)
    low, high = _interval(errors)
    return CalibrationFound(p_value=round(p_value, 5), ece_of_calibrated=(round(low, 5), round(high, 5)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p value of McNemar's test; arguments: texts that only the first or only the second model gets right."""
    total, least = only_first + only_second, min(only_first, only_second)
    tail = term = 1
    for k in range(least):
        term = term * (total - k) // (k + 1)
        tail += term
    # Integers of any size: a float power would overflow.
    return min(1.0, 2 * tail / (1 << total))


def difference_interval(only_first: int, only_second: int, rows: int, seed: int = SEED) -> Interval:
    """Return the paired bootstrap interval of the accuracy difference, second minus first.

    Args:
        only_first: rows that only the first model answers correctly.
        only_second: rows that only the second model answers correctly.
        rows: all rows. If none differs, the interval follows the rule of three.
        seed: of the resamples.
    """
    if not only_first + only_second:
        # Rule of three: an event not seen in n rows has a share below 3 / n with 95 % confidence (Hanley and Lippman-Hand 1983).
        return -min(1.0, 3 / rows), min(1.0, 3 / rows)
    shares = np.array([only_first, only_second, rows - only_first - only_second], np.float64) / rows
    drawn = np.random.default_rng(seed).multinomial(rows, shares, RESAMPLES)
    return _interval((drawn[:, 1] - drawn[:, 0]) / rows)


def f1_difference_interval(first: Labels, second: Labels, labels: Labels, classes: int, seed: int = SEED) -> Interval:
    """Return the paired bootstrap interval of the difference in macro F1, second minus first; all arguments are of the same rows."""
    rng = np.random.default_rng(seed)
    cells = labels * classes + np.stack((first, second))
    drawn = np.empty((RESAMPLES, 2, classes, classes), np.int64)
    for counts in drawn:
        rows = rng.integers(len(labels), size=len(labels))
        for one, its in zip(counts, cells, strict=True):
            one[:] = np.bincount(its[rows], minlength=classes**2).reshape(classes, classes)
    low, high = _interval(np.diff(macro_f1(drawn), axis=1)[:, 0])
    return low, high


def _uniform(rows: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield uniform numbers from 0 to 1, [some resamples, rows], until RESAMPLES are drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, DRAWS_MAX // rows)
    for start in range(0, RESAMPLES, step):
        yield rng.random((min(step, RESAMPLES - start), rows))


def _interval(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
