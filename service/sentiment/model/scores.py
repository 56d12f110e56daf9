"""Logits to a calibrated answer. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer: ``scores`` are in the order of the labels and sum to 1."""

    label: str
    score: float
    scores: tuple[float, ...]
    abstain: bool


def probabilities(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Softmax of ``logits / temperature``; finite for all finite logits.

    Temperature scaling: Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def score(logits: Sequence[float], labels: Sequence[str], temperature: float, abstain_below: float) -> Scored:
    """Make the answer of one row.

    Raises:
        ValueError: a logit is not finite.
    """
    if not all(map(math.isfinite, logits)):
        raise ValueError(f"the logits {list(logits)} are not all finite")
    scores = tuple(probabilities(logits, temperature))
    best = max(range(len(scores)), key=scores.__getitem__)
    return Scored(labels[best], scores[best], scores, scores[best] < abstain_below)
