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


class ExpectedAccuracy:
    """The window of one model. ``now`` is an instant of a monotonic clock, never earlier than in the call before."""

    def __init__(self) -> None:
        # The number, texts and sum of probabilities of each slot.
        self._slots: deque[list[float]] = deque(maxlen=SLOTS)

    def add(self, now: float, texts: float, probability: float) -> None:
        """Add so many texts, whose winning probabilities have this sum."""
        number, slots = now // SLOT_S, self._slots
        if not slots or slots[-1][0] != number:
            slots.append([number, 0, 0.0])
        slot = slots[-1]
        slot[1] += texts
        slot[2] += probability

    def texts(self, now: float) -> float:
        """The number of texts in the window."""
        return self._sum(1, now)

    def mean(self, now: float) -> float:
        """The mean of their probabilities; NaN if there are none."""
        texts = self.texts(now)
        return self._sum(2, now) / texts if texts else math.nan

    def _sum(self, place: int, now: float) -> float:
        first = now // SLOT_S - SLOTS + 1
        return math.fsum(slot[place] for slot in self._slots if slot[0] >= first)
