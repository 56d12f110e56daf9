"""Turns logits into a calibrated answer. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Labels that have a meaning to the server, in any case of their letters.
POSITIVE, NEGATIVE, NEUTRAL = "positive", "negative", "neutral"
# Of a text that the model cannot tell, such as one in another language, all outputs are about alike, and each may be above a low
# threshold. One that praises and blames in equal shares abstains too, but says so clearly.
MIXED_IF_ABSTAINS = 0.5


@dataclass(slots=True)
class Scored:
    """An answer. ``scores`` are in the order of the labels and sum to 1. ``mixed``: the text has both positive and
    negative sentiment.
    """

    label: str
    score: float
    scores: tuple[float, ...]
    abstain: bool
    mixed: bool = False


def probabilities(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Softmax of ``logits / temperature``; finite for all finite logits.

    Temperature scaling: Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def score(
    logits: Sequence[float], labels: Sequence[str], temperature: float, abstain_below: float, mixed_at: float | None = None
) -> Scored:
    """The answer for the logits of one row.

    ``mixed_at``: the least probability of a mixed text, whose logit follows those of the labels; None if there is none. If the answer
    abstains, it is at least MIXED_IF_ABSTAINS.

    Raises:
        ValueError: a logit is not finite.
    """
    _check_finite(logits)
    if mixed_at is None:
        return _answer(tuple(probabilities(logits, temperature)), labels, abstain_below)
    found = _answer(tuple(probabilities(logits[: len(labels)], temperature)), labels, abstain_below)
    found.mixed = _mixed(probabilities(logits, temperature)[-1], found.abstain, mixed_at)
    return found


def score_windows(
    windows: Sequence[Sequence[float]],
    rule: str,
    labels: Sequence[str],
    temperature: float,
    abstain_below: float,
    mixed_at: float | None = None,
) -> Scored:
    """The answer for one text from the logits of its windows, in their order. ``rule`` is a key of COMBINATIONS.

    The text is mixed if a window is. ``mixed_at``: as in ``score``.

    Raises:
        ValueError: a logit is not finite.
    """
    for logits in windows:
        _check_finite(logits)
    found = _answer(tuple(combine([logits[: len(labels)] for logits in windows], rule, temperature)), labels, abstain_below)
    if mixed_at is not None:
        found.mixed = _mixed(max(probabilities(logits, temperature)[-1] for logits in windows), found.abstain, mixed_at)
    return found


def _mixed(probability: float, abstain: bool, mixed_at: float) -> bool:
    return probability >= (max(mixed_at, MIXED_IF_ABSTAINS) if abstain else mixed_at)


def unnamed(labels: Sequence[str], neutral: str) -> Scored:
    """The answer, by rule, for a target that the text does not name."""
    return Scored(neutral, 1.0, tuple(float(label == neutral) for label in labels), abstain=False)


def contrary(sentences: Sequence[Scored]) -> bool:
    """Whether one sentence is positive and another is negative, neither of which abstains."""
    found = {one.label.casefold() for one in sentences if not one.abstain}
    return {POSITIVE, NEGATIVE} <= found


def combine(windows: Sequence[Sequence[float]], rule: str, temperature: float = 1.0) -> list[float]:
    """One distribution over the labels from the logits of a text's windows. For a single window, all rules give the same."""
    return COMBINATIONS[rule](windows, temperature)


def _mean_probability(windows: Sequence[Sequence[float]], temperature: float) -> list[float]:
    return _weighted([probabilities(logits, temperature) for logits in windows], [1.0] * len(windows))


def _mean_logit(windows: Sequence[Sequence[float]], temperature: float) -> list[float]:
    return probabilities(_weighted(windows, [1.0] * len(windows)), temperature)


def _most_confident(windows: Sequence[Sequence[float]], temperature: float) -> list[float]:
    return max((probabilities(logits, temperature) for logits in windows), key=max)


def _ends(windows: Sequence[Sequence[float]], temperature: float) -> list[float]:
    found = [probabilities(logits, temperature) for logits in windows]
    inner = [1.0] * (len(found) - 2)
    return _weighted(found, [2.0, *inner, 2.0] if len(found) > 1 else [1.0])


def _weighted(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """The weighted mean of each column."""
    total = math.fsum(weights)
    return [math.fsum(weight * value for weight, value in zip(weights, column, strict=True)) / total for column in zip(*rows, strict=True)]


COMBINATIONS: dict[str, Callable[[Sequence[Sequence[float]], float], list[float]]] = {
    "mean_probability": _mean_probability,
    "mean_logit": _mean_logit,
    "most_confident": _most_confident,
    "ends": _ends,
}
"""The rules that combine the windows of a text.

mean_probability: the mean of the calibrated probabilities. mean_logit: the mean of the logits, then calibrated. most_confident: the window
with the highest calibrated probability. ends: as mean_probability, but the first and the last window count twice.
"""


def _check_finite(logits: Sequence[float]) -> None:
    # A sum is finite only if all its terms are. Logits come from fp32, so their sum does not overflow.
    if not math.isfinite(sum(logits)):
        raise ValueError(f"logits must be finite, got {list(logits)}")


def _answer(scores: tuple[float, ...], labels: Sequence[str], abstain_below: float) -> Scored:
    best = max(scores)
    return Scored(labels[scores.index(best)], best, scores, best < abstain_below)
