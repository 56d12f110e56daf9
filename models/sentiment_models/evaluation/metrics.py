"""Accuracy, macro F1, calibration error, temperature fit and abstain threshold. Pure functions of arrays."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""Raw scores, [rows, labels]."""
Labels = NDArray[np.int64]
"""The index of each row's correct label, [rows]."""
Probabilities = NDArray[np.float64]
"""[rows, labels]; each row sums to 1."""

ECE_BINS = 15
TEMPERATURE_MIN, TEMPERATURE_MAX = 0.05, 20.0
# 60 steps narrow the range of log(temperature) from 6 to 2e-12.
SEARCH_STEPS = 60
# The share of rows that the threshold marks. The cap keeps confident answers unmarked where the model is almost always sure.
ABSTAIN_QUANTILE = 0.015
ABSTAIN_BELOW_MAX = 0.75
# An answer below one half is rather wrong than right. Of two labels none is; of three, the doubt between neutral and a sign fills the
# lowest 1.5 %, and the threshold would let texts in other languages through. With a bundle of three labels, 1.5 % (0.45) mark 89 % of the
# foreign texts of undecided_test.tsv, and one half, which is 5 % of the development texts, 97 %; of the answers below it 51 % are right.
# Many labels share the probability further, so that one half may mark most texts: hence the limit.
ABSTAIN_HALF, ABSTAIN_QUANTILE_MAX = 0.5, 0.05


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of calibrated answers on ``rows`` labelled texts; all but ``rows`` are from 0 to 1."""

    accuracy: float
    macro_f1: float
    ece: float
    rows: int

    def rounded(self) -> dict[str, float]:
        """Return the figures rounded to 5 decimals, for JSON."""
        return {name: round(value, 5) if isinstance(value, float) else value for name, value in asdict(self).items()}


def figures(logits: Logits, labels: Labels, temperature: float = 1.0) -> Figures:
    """Measure ``softmax(logits / temperature)`` against the correct labels."""
    return figures_of(probabilities(logits, temperature), labels)


def figures_of(predicted: Probabilities, labels: Labels) -> Figures:
    """Measure predicted probabilities against the correct labels."""
    answers = predicted.argmax(axis=1)
    right = answers == labels
    return Figures(
        accuracy=float(right.mean()),
        macro_f1=float(macro_f1(confusion(answers, labels, predicted.shape[1]))),
        ece=calibration_error(predicted.max(axis=1), right),
        rows=len(labels),
    )


def probabilities(logits: Logits, temperature: float = 1.0) -> Probabilities:
    """Softmax of ``logits / temperature`` over the last axis."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    result: Probabilities = weights / weights.sum(axis=-1, keepdims=True)
    return result


def stated(logits: Logits, labels: int, temperature: float = 1.0) -> Probabilities:
    """What the service states of rows [rows, logits]: of the first ``labels`` by softmax of these, of further outputs by softmax of all."""
    found = probabilities(logits[:, :labels], temperature)
    return np.concatenate([found, probabilities(logits, temperature)[:, labels:]], axis=1)


def confusion(answers: Labels, labels: Labels, classes: int) -> NDArray[np.int64]:
    """Count the rows by correct label (first axis) and answer, [classes, classes]."""
    return np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes).astype(np.int64)


def class_scores(counts: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return precision, recall and F1 of each class, [..., classes], of confusion counts [..., classes, classes]; 0 where undefined."""
    hits = np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)
    correct, answered = counts.sum(axis=-1), counts.sum(axis=-2)
    return hits / np.maximum(answered, 1), hits / np.maximum(correct, 1), 2 * hits / np.maximum(correct + answered, 1)


def macro_f1(counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """Mean F1, [...], of confusion counts [..., classes, classes].

    Over the classes that are a correct label or an answer, as scikit-learn does it: one that occurs nowhere says nothing of the answers.
    """
    occur = (counts.sum(axis=-1) + counts.sum(axis=-2)) > 0
    found: NDArray[np.float64] = class_scores(counts)[2].sum(axis=-1) / np.maximum(occur.sum(axis=-1), 1)
    return found


def macro_recall(counts: NDArray[np.integer]) -> float:
    """Mean recall of the classes that are a correct label, of confusion counts [classes, classes]."""
    return float(class_scores(counts)[1][counts.sum(axis=-1) > 0].mean())


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = ECE_BINS) -> float:
    """Expected calibration error: mean distance between confidence and accuracy over equal-width bins, weighted by their rows.

    A bin includes its upper edge. Naeini et al. 2015; 15 bins as in Guo et al. 2017.
    """
    found = reliability_bins(confidence, right, bins)
    return sum(one.rows * abs(one.confidence - one.accuracy) for one in found) / len(confidence)


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a reliability diagram: rows whose confidence is above ``low`` and at most ``high``, with their mean figures."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability_bins(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = ECE_BINS) -> list[Bin]:
    """Group rows into the equal-width confidence bins of ``calibration_error``, without empty bins."""
    placed = bins_of(confidence, bins)
    return [
        Bin(
            low=float(index / bins),
            high=float((index + 1) / bins),
            rows=int((placed == index).sum()),
            confidence=float(confidence[placed == index].mean()),
            accuracy=float(right[placed == index].mean()),
        )
        for index in np.unique(placed)
    ]


def bins_of(confidence: NDArray[np.float64], bins: int = ECE_BINS) -> Labels:
    """Return the bin of each row, [rows]; a bin includes its upper edge."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def negative_log_likelihood(logits: Logits, labels: Labels, temperature: float = 1.0, weights: NDArray[np.float64] | None = None) -> float:
    """Mean negative log-likelihood over the rows, in nats. ``weights``: of each row, [rows]; None: equal."""
    scaled = logits.astype(np.float64) / temperature
    top = scaled.max(axis=1)
    log_total = top + np.log(np.exp(scaled - top[:, np.newaxis]).sum(axis=1))
    return float(np.average(log_total - scaled[np.arange(len(labels)), labels], weights=weights))


def fit_temperature(
    logits: Logits, labels: Labels, weights: NDArray[np.float64] | None = None, prior: Callable[[float], float] = lambda _: 0.0
) -> float:
    """Return the temperature from 0.05 to 20 that maximises the likelihood of the correct labels.

    Guo et al. 2017, "On Calibration of Modern Neural Networks". The likelihood has a single peak in 1/temperature, so a
    golden-section search over log(temperature) finds it. ``weights``: of each row, [rows]; None: equal. ``prior``: added to the mean
    negative log-likelihood of a row, of a log(temperature).
    """

    def loss(log: float) -> float:
        return negative_log_likelihood(logits, labels, float(np.exp(log)), weights) + prior(log)

    ratio = (np.sqrt(5.0) - 1) / 2
    low, high = np.log(TEMPERATURE_MIN), np.log(TEMPERATURE_MAX)
    for _ in range(SEARCH_STEPS):
        width = ratio * (high - low)
        left, right = high - width, low + width
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def abstain_threshold(confidence: NDArray[np.float64]) -> float:
    """Return the abstain threshold: the 1.5 % quantile of confidence, or one half if that is more and marks at most 5 %; at most 0.75."""
    least, most = np.quantile(confidence, (ABSTAIN_QUANTILE, ABSTAIN_QUANTILE_MAX))
    return min(max(float(least), min(float(most), ABSTAIN_HALF)), ABSTAIN_BELOW_MAX)


def threshold_within(confidence: NDArray[np.float64], share_max: float) -> float:
    """Return the lowest threshold, to four decimals, that at most ``share_max`` of the rows reach."""
    descending = np.sort(confidence)[::-1]
    first_below = float(descending[int(share_max * len(descending))])
    return min(1.0, (math.floor(first_below * 1e4) + 1) / 1e4)
