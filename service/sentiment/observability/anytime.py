"""A share that is watched as it grows: an interval that holds at all times together, however often it is looked at. Pure."""

import math

# The interval leaves out the true share, at any time, with this probability at most.
ALPHA = 0.05
# A guess of the share, as if these had been seen: the interval holds whatever it is, and is narrowest near it.
HITS, MISSES = 0.5, 49.5
STEPS = 50


class AnytimeShare:
    """The share of hits among what was seen.

    The interval has the shares against which a bet on a mixture of all shares does not win twentyfold (Robbins 1970; Ville's inequality).
    An interval that is made for one look, such as the exact binomial one, would leave the true share out sooner or later.
    """

    def __init__(self) -> None:
        self.seen = self.hits = 0

    def add(self, hit: bool) -> None:
        """Count one more."""
        self.seen += 1
        self.hits += hit

    def interval(self) -> tuple[float, float]:
        """The least and the greatest share that are plausible; 0 and 1 at first."""
        if not self.seen:
            return 0.0, 1.0
        middle = self.hits / self.seen
        return self._edge(middle, 0.0), self._edge(middle, 1.0)

    def _edge(self, inside: float, outside: float) -> float:
        if self._plausible(outside):
            return outside
        for _ in range(STEPS):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if self._plausible(middle) else (inside, middle)
        return outside

    def _plausible(self, share: float) -> bool:
        misses = self.seen - self.hits
        if (share <= 0 and self.hits) or (share >= 1 and misses):
            return False
        seen = (self.hits * math.log(share) if self.hits else 0.0) + (misses * math.log1p(-share) if misses else 0.0)
        mixed = _log_beta(HITS + self.hits, MISSES + misses) - _log_beta(HITS, MISSES)
        return mixed - seen < -math.log(ALPHA)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
