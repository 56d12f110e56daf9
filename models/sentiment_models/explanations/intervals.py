"""Paired bootstrap intervals of many differences over the same texts. Pure."""

import numpy as np
from numpy.typing import NDArray

from sentiment_models.explanations.findings import Difference

RESAMPLES = 10_000
# Counts of resampled texts in memory at once: 32 MB.
COUNTS_MAX = 2**22


def paired_intervals(differences: NDArray[np.float64], seed: int) -> list[Difference | None]:
    """Return the mean of each column with its 95 % percentile interval (Efron 1979). All columns share the resamples of texts.

    Args:
        differences: [texts, columns]; nan where undefined, which is left out of its column.
        seed: of the resamples.

    Returns:
        One per column; None for a column without values.
    """
    texts = len(differences)
    there = np.isfinite(differences)
    values = np.where(there, differences, 0.0)
    rng = np.random.default_rng(seed)
    step = max(1, COUNTS_MAX // texts)
    means = []
    for start in range(0, RESAMPLES, step):
        counts = rng.multinomial(texts, np.full(texts, 1 / texts), size=min(step, RESAMPLES - start)).astype(np.float64)
        drawn = counts @ there
        # nan: the resample has no text with a value in this column.
        means.append(np.divide(counts @ values, drawn, out=np.full_like(drawn, np.nan), where=drawn > 0))
    found = np.concatenate(means)
    return [_difference(values[there[:, column], column], found[:, column]) for column in range(differences.shape[1])]


def _difference(values: NDArray[np.float64], means: NDArray[np.float64]) -> Difference | None:
    if not len(values):
        return None
    low, high = np.quantile(means[np.isfinite(means)], (0.025, 0.975))
    return Difference(mean=float(values.mean()), low=float(low), high=float(high), texts=len(values))
