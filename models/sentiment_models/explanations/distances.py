"""How far answers and attention lie apart, and how far that could be chance. Pure functions of arrays.

Weights are [texts, words]; those of a text sum to 1, and two arrays of the same texts may end in another number of zeros.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.training_findings import Accuracy

Floats = NDArray[np.floating]
Right = NDArray[np.bool_]
"""Whether models that differ in their seed answer texts rightly, [seeds, texts]."""

# A weight below it has no logarithm worth having.
SMALLEST = 1e-9


def divergence(first: Floats, second: Floats) -> float:
    """Jensen-Shannon divergence in nats, the mean over the texts: from 0 to ln 2 (Lin 1991)."""
    one, other = _alike(first, second)
    middle = (one + other) / 2
    return float((_kl(one, middle) + _kl(other, middle)).mean() / 2)


def kl_divergence(first: Floats, second: Floats) -> float:
    """Kullback-Leibler divergence of the first from the second in nats, the mean over the texts."""
    return float(_kl(*_alike(first, second)).mean())


def output_change(first: Floats, second: Floats) -> float:
    """Total variation distance of probabilities, [texts, labels], the mean over the texts: from 0 to 1."""
    return float(np.abs(first.astype(np.float64) - second).sum(1).mean() / 2)


def agreement(first: Floats, second: Floats) -> float:
    """The share of texts with one answer by probabilities, [texts, labels]."""
    return float((first.argmax(1) == second.argmax(1)).mean())


def compared(right: Mapping[str, Right], pairs: Sequence[tuple[str, str]], seed: int) -> tuple[dict[str, Accuracy], list[Difference]]:
    """The accuracy of each kind of model, and of each pair the first's less the second's, all over the same resamples of texts.

    Args:
        right: by kind.
        pairs: kinds whose difference is wanted: what a text is hard for counts for both.
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
