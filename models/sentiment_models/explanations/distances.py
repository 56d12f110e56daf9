"""Distances between answers and between attention weights, and accuracies with intervals. Pure functions of arrays.

Weights are [texts, words] and sum to 1 per text. Two arrays of the same texts may be padded with different numbers of zeros.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.training_findings import Accuracy

Floats = NDArray[np.floating]
Right = NDArray[np.bool_]
"""Whether models with different seeds answer texts correctly, [seeds, texts]."""

# Smaller weights are clipped before the logarithm.
SMALLEST = 1e-9


def divergence(first: Floats, second: Floats) -> float:
    """Return the mean Jensen-Shannon divergence over the texts in nats, from 0 to ln 2 (Lin 1991)."""
    one, other = _alike(first, second)
    middle = (one + other) / 2
    return float((_kl(one, middle) + _kl(other, middle)).mean() / 2)


def kl_divergence(first: Floats, second: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of the first from the second over the texts, in nats."""
    return float(_kl(*_alike(first, second)).mean())


def output_change(first: Floats, second: Floats) -> float:
    """Return the mean total variation distance of probabilities [texts, labels], from 0 to 1."""
    return float(np.abs(first.astype(np.float64) - second).sum(1).mean() / 2)


def agreement(first: Floats, second: Floats) -> float:
    """Return the share of texts with the same answer; arguments are probabilities [texts, labels]."""
    return float((first.argmax(1) == second.argmax(1)).mean())


def compared(right: Mapping[str, Right], pairs: Sequence[tuple[str, str]], seed: int) -> tuple[dict[str, Accuracy], list[Difference]]:
    """Return the accuracy of each kind of model, and the accuracy difference of each pair, first minus second.

    All intervals use the same resamples of texts, so differences are paired by text.

    Args:
        right: by kind of model.
        pairs: the kinds to compare.
        seed: of the resamples.
    """
    means = {name: rows.mean(0) for name, rows in right.items()}
    columns = [*means.values(), *(means[one] - means[other] for one, other in pairs)]
    found = [one for one in paired_intervals(np.stack(columns, 1), seed) if one is not None]
    accuracies = {
        name: Accuracy(mean=one.mean, low=one.low, high=one.high, seeds=tuple(map(float, rows.mean(1))))
        for (name, rows), one in zip(right.items(), found, strict=False)
    }
    return accuracies, found[len(right) :]


def _alike(first: Floats, second: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    most = max(first.shape[1], second.shape[1])
    one, other = (np.pad(weights.astype(np.float64), ((0, 0), (0, most - weights.shape[1]))) for weights in (first, second))
    return one, other


def _kl(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    logs = np.log(np.maximum(first, SMALLEST)) - np.log(np.maximum(second, SMALLEST))
    found: NDArray[np.float64] = (first * logs).sum(1)
    return found
