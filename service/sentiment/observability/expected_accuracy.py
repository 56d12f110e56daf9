"""The accuracy that a model expects of its recent answers: the mean of their probabilities over a sliding window. Pure.

A calibrated model is right in 90 % of the answers to which it gives 0.9, so the mean estimates the accuracy without labels. NannyML calls
this confidence-based performance estimation: https://nannyml.readthedocs.io/en/stable/how_it_works/performance_estimation.html
"""

import math
from collections import deque

# Long enough for some hundred texts at one a second, short enough to see a change while it happens.
WINDOW_S = 300
# The window moves in slots of this length: at most 30 of them are kept, however many texts there are.
SLOT_S = 10
SLOTS = WINDOW_S // SLOT_S
# Standard deviations on each side of the mean that hold 95 % of a normal distribution.
Z = 1.959964


class ExpectedAccuracy:
    """The window of one model. ``now`` is an instant of a monotonic clock, never earlier than in the call before."""

    def __init__(self) -> None:
        # The number, texts, sum of probabilities and variance of each slot.
        self._slots: deque[list[float]] = deque(maxlen=SLOTS)

    def add(self, now: float, texts: float, probability: float, variance: float) -> None:
        """Add so many texts. ``probability``: the sum of their winning probabilities p; ``variance``: the sum of p * (1 - p)."""
        number, slots = now // SLOT_S, self._slots
        if not slots or slots[-1][0] != number:
            slots.append([number, 0, 0.0, 0.0])
        slot = slots[-1]
        slot[1] += texts
        slot[2] += probability
        slot[3] += variance

    def texts(self, now: float) -> float:
        """The number of texts in the window."""
        return self._sum(1, now)

    def mean(self, now: float) -> float:
        """The mean of their probabilities; NaN if there are none."""
        texts = self.texts(now)
        return self._sum(2, now) / texts if texts else math.nan

    def interval(self, now: float) -> tuple[float, float]:
        """The 95 % interval of the share of them that is right; NaN if there are none. See ``interval``."""
        return interval(self.texts(now), self._sum(2, now), self._sum(3, now))

    def _sum(self, place: int, now: float) -> float:
        first = now // SLOT_S - SLOTS + 1
        return math.fsum(slot[place] for slot in self._slots if slot[0] >= first)


def interval(texts: float, probability: float, variance: float) -> tuple[float, float]:
    """Return the ends, from 0 to 1, between which the share of right answers lies with at least 95 %, if the probabilities are true.

    It covers sampling alone: how far the share of right ones among these texts may be from the mean of their probabilities by chance. The
    number of right answers is a sum of independent events (Poisson binomial), so its variance is known exactly. The normal distribution
    is widened by half a text on each side, the correction for a number that is whole: without it, few texts or probabilities near 1 get
    too narrow an interval (10 texts of 0.95: 91 %). With it 95 % to 100 % are covered, as the tests compute exactly. Wilson's interval
    would answer another question, what the probability is, given how many were right.

    Args:
        texts: how many there are; without any, both ends are NaN.
        probability: the sum of their winning probabilities p.
        variance: the sum of p * (1 - p).
    """
    if not texts:
        return math.nan, math.nan
    # Rounding may leave a probability of 1 just above it.
    half = Z * math.sqrt(max(0.0, variance)) + 0.5
    return max(0.0, (probability - half) / texts), min(1.0, (probability + half) / texts)
