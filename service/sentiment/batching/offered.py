"""The offered load of a process: the work that callers ask for, over what the process can do. Pure.

Work counts when it is asked for, whether it is done, refused or expires. So the load goes on rising beyond 1, where all is full and waits
and answers say no more. It is what replicas are scaled by.

Runners and each event loop are capacities of their own, and the fullest counts. A loop cannot say more than 1: what it has no time for
is not seen. The models of a process share its runners, on a CPU the cores, so a process has one load.
"""

import math

from sentiment.batching.rate import Rate

# An exponential mean of about a scrape interval: a burst shows in the next scrape or two, and the noise of 100 calls a second is 2 %.
WINDOW_S = 15.0


class OfferedLoad:
    """The load of a process; 1 is full. Belongs to one event loop."""

    def __init__(self) -> None:
        # Set by the models, which all have the same number.
        self.runners = 1
        self._asked, self._ran, self._predicted = Rate(WINDOW_S), Rate(WINDOW_S), Rate(WINDOW_S)
        # Of each process's event loop, its busy share and when that was reported.
        self._loops: dict[str, tuple[float, float]] = {}

    def ask(self, seconds: float, now: float) -> None:
        """A caller asks for work of ``seconds`` of a runner; fewer than 0 are withdrawn."""
        self._asked.add(seconds, now)

    def ran(self, seconds: float, predicted_s: float, now: float) -> None:
        """A batch of any model ran for ``seconds``, which was predicted to take ``predicted_s``."""
        self._ran.add(seconds, now)
        self._predicted.add(predicted_s, now)

    def loop_busy(self, process: str, seconds: float, now: float) -> None:
        """A process's event loop was busy for ``seconds`` since it last reported. Its first report only begins."""
        share, since = self._loops.get(process, (0.0, now))
        if now > since:
            kept = math.exp((since - now) / WINDOW_S)
            share = kept * share + (1 - kept) * min(1.0, seconds / (now - since))
        self._loops[process] = share, now

    def ratio(self, now: float) -> float:
        """The load as of now. It also falls while nobody calls."""
        work = work_ratio(self._asked.per_s(now), self._ran.per_s(now), self._predicted.per_s(now), self.runners)
        return max([work, *(share for share, _ in self._loops.values())])


def work_ratio(asked: float, ran: float, predicted: float, runners: int) -> float:
    """The load of runners, from seconds per second: predicted ones of what was asked, and the real and the predicted ones of what ran."""
    # Predictions are usual times. Where an event loop, neighbours or a quota take the cores away now and then, the mean is far above that.
    slower = ran / predicted if predicted else 1.0
    # Where models compute at once, more runs share the cores than there are runners, and each takes that much longer than it would alone.
    # Predictions have learned it, so what they count must be shared out in the same way.
    return asked * slower / max(runners, ran)
