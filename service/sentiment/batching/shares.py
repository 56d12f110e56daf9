"""Which callers have had more than their share of the runners. Pure: time is an argument.

Each caller has two leaky buckets (Turner 1986) that drain at the caller's share of the runners, which all callers that asked of late have
by their weights. What the caller asks for fills the first, and a row that would make it overflow is over the share. A flooder keeps it
full: its rows within the share must not fill half of the runners before the others' rows either, so they are bulk. They fill the second
bucket.
"""

from collections.abc import Mapping
from types import MappingProxyType

from sentiment.batching.ticket import Priority

# The work that a caller may have admitted beyond its share: what a person's calls or a small batch need at once.
BURST_S = 0.1
# What the first bucket holds of what did not get a place, in bursts: so a flooder becomes a caller like others only after it has asked for
# less than its share for some time, and not whenever it waits for its answers. A caller who was over for a moment does at once.
ASKED_BURSTS_MAX = 4
# How often empty buckets are looked for: each costs a look.
LOOK_S = 0.1
# For how long a caller that asked for no more than its share counts as one of the others. Their calls may be few.
WITHIN_S = 60.0


class Shares:
    """The buckets of callers, by number. At most as many as have asked within some bursts."""

    def __init__(self, burst_s: float = BURST_S, weights: Mapping[int, float] = MappingProxyType({})) -> None:
        """Nobody has asked.

        Args:
            burst_s: the work that a caller may have admitted beyond its share, and as much again as bulk.
            weights: of callers, by number, as of now; others have 1.
        """
        self._burst_s, self._weights = burst_s, weights
        # Of all callers that asked of late.
        self._weight = 0.0
        # Work asked for and admitted, each less what has drained, and as of when.
        self._owed: dict[int, tuple[float, float, float]] = {}
        self._looked_at = 0.0
        # The two callers that asked last for no more than their share, and when.
        self._within: list[tuple[int, float]] = []

    @property
    def callers(self) -> int:
        """How many callers have asked of late."""
        return len(self._owed)

    def others_within(self, payer: int, now: float) -> bool:
        """Whether another caller has asked within WITHIN_S for no more than its share."""
        return any(one != payer and now - at <= WITHIN_S for one, at in self._within)

    def ask(self, payer: int, work_s: float, runners: float, now: float) -> Priority:
        """The highest class that a row of ``work_s`` may have. ``runners``: the work that is done in a second."""
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._owed = {one: owed for one, owed in self._owed.items() if max(owed[:2]) > (now - owed[2]) * self._rate(one, runners)}
            self._weight = sum([self.weight_of(one) for one in self._owed])
        if payer not in self._owed:
            self._weight += self.weight_of(payer)
        rate = self._rate(payer, runners)
        asked_s, had_s, at = self._owed.get(payer, (0.0, 0.0, now))
        asked_s, had_s = max(0.0, asked_s - (now - at) * rate), max(0.0, had_s - (now - at) * rate)
        found = Priority.OVER
        if not asked_s or asked_s + work_s <= self._burst_s:
            found = Priority.INTERACTIVE
            self._within = [(payer, now), *(last for last in self._within if last[0] != payer)][:2]
        elif had_s + work_s <= 2 * self._burst_s:
            found = Priority.BULK
        asked_s = max(asked_s, min(asked_s + work_s, ASKED_BURSTS_MAX * self._burst_s))
        self._owed[payer] = asked_s, had_s + work_s if found is not Priority.OVER else had_s, now
        return found

    def _rate(self, payer: int, runners: float) -> float:
        """The caller's share of the work that is done in a second."""
        weight = self.weight_of(payer)
        return runners * weight / max(weight, self._weight)

    def weight_of(self, payer: int) -> float:
        """The caller's weight."""
        return self._weights.get(payer, 1.0)
