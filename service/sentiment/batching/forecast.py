"""When work will be done: how long a row would wait, whether it can be let in, and whether a batch would make another late. Pure.

A class's rows are taken to run in order of their deadlines, on whichever runner is free first, at the cost that they are planned to
have. Beside them another class claims its share, at most what it has and what will come if it goes on as of late.

At the door waits count ``caution`` times: a prediction that is right in the mean lets rows in of which half are late where the queue
is as long as their deadlines allow, and rows that are nearly late run in small batches, which makes the next ones late too. It rises
with each row that was let in and had no answer in time and falls with each that had, so that one in fifty misses (stochastic
approximation: Robbins and Monro 1951), and is 1 where predictions hold.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Generic

import numpy as np

from sentiment.batching.class_queue import Lane
from sentiment.batching.cost import CostTable
from sentiment.batching.deadlines import Times
from sentiment.batching.ticket import P, Ticket
from sentiment.errors import Refused

# Predictions that end so close to a deadline are late: what rounding may hide.
ROUNDING_S = 1e-6
# So many of the rows that were let in behind others may miss their deadlines, and one that does raises ``caution`` by so much.
MISSED = 0.02
CAUTION_RATE = 0.02
# Where more are still missed, something stands still that no margin helps.
CAUTION_MAX = 3.0


class Forecast(Generic[P]):
    """Predictions over the classes' queues and the batches that run. The scheduler tells it of these."""

    def __init__(self, cost: CostTable, lanes: Sequence[Lane[P]], runners: int) -> None:
        self.runners = runners
        self._cost = cost
        self._lanes = lanes
        # Of each busy runner, by the last batch that it has been given: when the one that runs is predicted to end, and the seconds that
        # this one needs after it; none where it is the one that runs.
        self._busy: dict[Hashable, tuple[float, float]] = {}
        self.caution = 1.0

    @property
    def idle(self) -> bool:
        """Whether nothing runs. A batch whose rows have all left still does."""
        return not self._busy

    def begun(self, batch: Hashable, ends_at: float) -> None:
        """A batch runs from now on."""
        self._busy[batch] = ends_at, 0.0

    def follows(self, batch: Hashable, before: Hashable, ends_at: float, seconds: float) -> None:
        """A batch of so many seconds runs after the one ``before`` it, which is predicted to end at ``ends_at``."""
        self._busy.pop(before, None)
        self._busy[batch] = ends_at, seconds

    def follows_no_more(self, batch: Hashable, before: Hashable) -> None:
        """A batch will not run; the one ``before`` it still does."""
        ends_at, _ = self._busy.pop(batch)
        self._busy[before] = ends_at, 0.0

    def ended(self, batch: Hashable) -> None:
        """A batch runs no more, or will not."""
        # Of one that another follows the end is in the other's.
        self._busy.pop(batch, None)

    def fared(self, ticket: Ticket[P], in_time: bool) -> None:
        """A row that was let in has its answer, or had none by its deadline."""
        if ticket.ahead_s:
            step = CAUTION_RATE * ((not in_time) - MISSED)
            self.caution = min(CAUTION_MAX, max(1.0, self.caution * math.exp(step)))

    def backlog_s(self, now: float) -> float:
        """Predicted seconds until a row that comes now would start if it went last."""
        work_s = self._cost.speed * sum(lane.work_s() for lane in self._lanes)
        return float(self._start_s(np.array([work_s]), now)[0]) if self.runners else 0.0

    def check(self, lane: Lane[P], alone_s: float, now: float, deadline_at: float) -> float | None:
        """See whether a row of ``alone_s`` table seconds can be let in.

        Returns:
            Seconds that it is predicted to wait; None where it would be in time behind everything.

        Raises:
            Refused: it would finish late, or make a row of its class late that is in time without it.
        """
        speed = self._cost.speed
        own_s, left_s = speed * alone_s, deadline_at - now
        first_at = min(deadline_at, lane.demand.first_at) if lane.rows else deadline_at
        last_s = max(own_s, speed * lane.dearest_s)
        if now + self.caution * self._alone_s(now) + own_s / self.runners + last_s + ROUNDING_S <= first_at:
            # All that waits could run before the earliest deadline, even row by row.
            return None
        room, due_s, dearest_s = self._due(lane, now)
        place = int(np.searchsorted(room, left_s, "right"))
        # An array of one sum, or of none where nothing is due before.
        wait_s = float(self._wait_s(lane, due_s[place - 1 : place].sum(keepdims=True), now).max())
        ahead_s = self.caution * wait_s
        if ahead_s + own_s + ROUNDING_S > left_s:
            message = f"{ahead_s:.3f} s of work are ahead and the deadline leaves {left_s:.3f} s for {own_s:.3f} s"
            raise Refused(message, ahead_s, "backlog", own_s)
        if place == len(room):
            return wait_s
        # Rows with later deadlines must stay in time; one that is late anyway, by a prediction that was wrong, has no veto.
        room, starts_s = room[place:] - dearest_s[place:], due_s[place:] - dearest_s[place:]
        waits_s = self.caution * self._wait_s(lane, starts_s, now)
        after = room - self.caution * self._wait_s(lane, starts_s + own_s, now)
        turned = (room >= waits_s) & (after < ROUNDING_S)
        if turned.any():
            message = f"{turned.sum()} deadlines that wait would be missed by up to {-after[turned].min():.3f} s for this earlier one"
            raise Refused(message, float(waits_s[turned].max()), "backlog", own_s)
        return wait_s

    def makes_late(self, lane: Lane[P], batch_s: float, now: float) -> bool:
        """Whether some row of the class would be late if a batch of ``batch_s`` seconds went next, or is predicted to be anyway."""
        first_s = lane.demand.first_at - now - self._cost.speed * lane.dearest_s
        if self._alone_s(now) + batch_s <= first_s:
            return False
        room, due_s, dearest_s = self._due(lane, now)
        return bool((room - dearest_s - self._wait_s(lane, due_s - dearest_s, now)).min() < batch_s)

    def _due(self, lane: Lane[P], now: float) -> tuple[Times, Times, Times]:
        """Seconds left to each deadline of a class, in order; the work due by it; and the last of that, the dearest row's."""
        deadlines, due_s, dearest_s = lane.demand.curve()
        speed = self._cost.speed
        return deadlines - now, speed * lane.overhead() * due_s, speed * dearest_s

    def _wait_s(self, lane: Lane[P], ahead_s: Times, now: float) -> Times:
        """Seconds until ``ahead_s`` seconds of a class's work have started, with what other classes claim meanwhile."""
        until_s = np.maximum(ahead_s, 0.0)
        for other in self._lanes:
            # A class that has nothing, and had nothing of late, claims nothing.
            if other is not lane and (other.rows or other.use_per_s(now)):
                until_s += self._claim_s(lane, other, ahead_s, now)
        return self._start_s(until_s, now)

    def _claim_s(self, lane: Lane[P], other: Lane[P], ahead_s: Times, now: float) -> Times:
        """Run time that the other class gets before ``ahead_s`` seconds of this one have started."""
        speed = self._cost.speed
        # It goes on until it has been charged as much as this class when its row's turn comes, to within its last batch.
        lead_s = speed * (lane.charged_s - other.charged_s) + np.maximum(ahead_s, 0.0) / lane.share
        first = self._lanes.index(other) < self._lanes.index(lane)
        its_turn = lead_s >= 0 if first else lead_s > 0
        by_share_s = np.where(its_turn, lead_s * other.share + speed * other.batch_s(), 0.0)
        has_s = speed * other.work_s()
        rate = min(other.share, other.use_per_s(now) * speed / self.runners)
        comes_s = (self._busy_s(now) + ahead_s + has_s) * (rate / (1 - rate)) if rate else 0.0
        return np.minimum(by_share_s, has_s + comes_s)

    def _start_s(self, ahead_s: Times, now: float) -> Times:
        """Seconds until a runner is free that has ``ahead_s`` seconds of work to share with the others first.

        Work is poured on the runners like water on uneven ground: the level is the least over the k first to be free of what they
        have and get, divided by k. Rows are no water, but whatever their sizes one runner has dried up by then.
        """
        left_s = sorted(self._left_s(now))
        left_s = [0.0] * (self.runners - len(left_s)) + left_s
        below_s = left_s[0]
        level_s = ahead_s + below_s
        for runners, each_s in enumerate(left_s[1:], 2):
            below_s += each_s
            level_s = np.minimum(level_s, (ahead_s + below_s) / runners)
        return level_s

    def _alone_s(self, now: float) -> float:
        """No less than ``backlog_s`` if every row ran alone: cheaper to tell, and enough where there is time."""
        alone_s = 0.0
        for lane in self._lanes:
            alone_s += lane.alone_s
        return (self._busy_s(now) + self._cost.speed * alone_s) / self.runners

    def _busy_s(self, now: float) -> float:
        return sum(self._left_s(now))

    def _left_s(self, now: float) -> list[float]:
        # A run that should have ended is expected to need as long again as it is late, and what follows it to come after that.
        return [abs(ends_at - now) + behind_s for ends_at, behind_s in self._busy.values()]
