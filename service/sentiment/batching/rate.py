"""A decaying average of what happens. Pure."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Rate:
    """Amounts, each weighted by exp(-age / ``window_s``). Their sum divided by ``window_s`` is a rate per second."""

    window_s: float
    sum: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        """Add what happens now."""
        self.sum, self.at = self.decayed(now) + amount, now

    def decayed(self, now: float) -> float:
        """The sum as of now."""
        return self.sum * math.exp((self.at - now) / self.window_s)

    def per_s(self, now: float) -> float:
        """The rate as of now."""
        return self.decayed(now) / self.window_s
