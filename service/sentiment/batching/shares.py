"""Which callers have had more than their share of the runners. Pure: time is an argument.

Each caller has a leaky bucket (Turner 1986): admitted work fills it, and it drains at the caller's share of the runners, which all callers
with a bucket that is not empty have in equal parts. A row that would make it overflow is over the share.
"""

# The work that a caller may have admitted beyond its share: what a person's calls or a small batch need at once.
BURST_S = 0.1
# How often empty buckets are looked for: each costs a look.
LOOK_S = 0.1


class Shares:
    """The buckets of callers, by number. At most as many as have had work admitted within some BURST_S."""

    def __init__(self) -> None:
        # Seconds of work, and as of when.
        self._owed: dict[int, tuple[float, float]] = {}
        self._looked_at = 0.0

    @property
    def callers(self) -> int:
        """How many callers have asked of late."""
        return len(self._owed)

    def over(self, payer: int, work_s: float, runners: int, now: float) -> bool:
        """Whether a row of ``work_s`` predicted seconds is over the caller's share; if not, it fills the bucket."""
        rate = runners / max(1, len(self._owed))
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._owed = {one: (owed_s, at) for one, (owed_s, at) in self._owed.items() if owed_s > (now - at) * rate}
            rate = runners / max(1, len(self._owed))
        owed_s, at = self._owed.get(payer, (0.0, now))
        owed_s = max(0.0, owed_s - (now - at) * rate)
        over = owed_s > 0 and owed_s + work_s > BURST_S
        self._owed[payer] = (owed_s if over else owed_s + work_s), now
        return over
