"""The accuracy that a model expects of its recent answers: the mean of their probabilities over a sliding window. Pure.

A calibrated model is right in 90 % of the answers to which it gives 0.9, so the mean estimates the accuracy without labels. NannyML calls
this confidence-based performance estimation: https://nannyml.readthedocs.io/en/stable/how_it_works/performance_estimation.html

A model is calibrated on texts like its references only, so the mean is withheld where the texts of its window are not like them.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sentiment.observability.drift import Drift

# Long enough for some hundred texts at one a second, short enough to see a change while it happens.
WINDOW_S = 300
# The window moves in slots of this length: at most 30 of them are kept, however many texts there are.
SLOT_S = 10
SLOTS = WINDOW_S // SLOT_S
# Standard deviations on each side of the mean that hold 95 % of a normal distribution.
Z = 1.959964
# Texts are compared with the references from this many on. Of fewer, chance makes some windows of ordinary reviews unlike them.
LIKE_TEXTS_MIN = 200
# Texts with a signal further from the references are not like them. Twice the limit of the alert: that one already fires for reviews of
# other things (DVDs, cameras), for which the figure holds. docs/internals/bundle-format.md has the measurement.
UNLIKE_INDEX = 0.5
# Why the figure is withheld.
FEW_TEXTS, NO_REFERENCE, DRIFT = WITHHELD = ("few_texts", "no_reference", "drift")


@dataclass(slots=True)
class _Sums:
    """Of the texts with an answer that does not abstain."""

    texts: float = 0
    probability: float = 0.0
    variance: float = 0.0

    def add(self, texts: float, probability: float, variance: float) -> None:
        self.texts += texts
        self.probability += probability
        self.variance += variance


@dataclass(slots=True)
class _Slot(_Sums):
    """``seen_before``: all texts before this slot, by bin, see Drift."""

    number: float = 0.0
    seen_before: Sequence[float] = ()


class ExpectedAccuracy:
    """The window of one model. ``now`` is an instant of a monotonic clock, never earlier than in the call before."""

    def __init__(self, drift: Drift | None) -> None:
        """``drift``: counts the same texts as this window, each after it was added here. None: there is nothing to compare with."""
        self._drift = drift
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._grown = _Sums()
        # The last judgement, and the texts that it is of.
        self._judged: tuple[Sequence[float], str] = [], ""

    def add(self, now: float, texts: float, probability: float, variance: float) -> None:
        """Add ``texts`` texts. ``probability``: the sum of their winning probabilities p; ``variance``: the sum of p * (1 - p).

        Of texts whose answers abstain add 0.
        """
        number, slots = now // SLOT_S, self._slots
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number=number, seen_before=() if self._drift is None else self._drift.since_start()))
        slots[-1].add(texts, probability, variance)
        self._grown.add(texts, probability, variance)

    def grown(self) -> tuple[float, float, float]:
        """What was added since the last call: texts, probability and variance. For ``add`` in another process."""
        grown, self._grown = self._grown, _Sums()
        return grown.texts, grown.probability, grown.variance

    def texts(self, now: float) -> float:
        """The number of texts in the window, without those whose answers abstain."""
        return sum(slot.texts for slot in self._window(now))

    def withheld(self, now: float) -> str:
        """Why there is no figure: one of WITHHELD; empty if there is one."""
        if self._drift is None:
            return NO_REFERENCE
        window = self._window(now)
        if not window or not self.texts(now):
            return FEW_TEXTS
        seen = [after - before for after, before in zip(self._drift.since_start(), window[0].seen_before, strict=True)]
        if seen != self._judged[0]:
            self._judged = seen, self._judge(self._drift, seen)
        return self._judged[1]

    def mean(self, now: float) -> float:
        """The mean of their probabilities; NaN if it is withheld."""
        return math.nan if self.withheld(now) else math.fsum(slot.probability for slot in self._window(now)) / self.texts(now)

    def interval(self, now: float) -> tuple[float, float]:
        """The 95 % interval of the share of them that is right; NaN if it is withheld. See ``interval``."""
        if self.withheld(now):
            return math.nan, math.nan
        window = self._window(now)
        return interval(self.texts(now), math.fsum(slot.probability for slot in window), math.fsum(slot.variance for slot in window))

    def _window(self, now: float) -> list[_Slot]:
        first = now // SLOT_S - SLOTS + 1
        return [slot for slot in self._slots if slot.number >= first]

    @staticmethod
    def _judge(drift: Drift, seen: Sequence[float]) -> str:
        if drift.texts_of(seen) < LIKE_TEXTS_MIN:
            return FEW_TEXTS
        return DRIFT if drift.fit(seen).above(UNLIKE_INDEX) else ""


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
