"""Admission control: predicts how long a row would wait, whether to admit it, and whether a batch would make another row late. Pure.

The model: the rows of a class run in order of their deadlines, on the runner that is free first, at their planned cost. Meanwhile
other classes take their share, at most what they have queued plus what arrives if their recent rate goes on.

At admission predicted waits are multiplied by the ``caution`` of the class. Without it, where the queue is as long as deadlines allow, a
prediction that is right on average admits rows of which half are late; rows that are nearly late run in small batches, which makes later
rows late too. It rises with each admitted row that missed its deadline and falls with each answered one, so that one in fifty misses
(stochastic approximation: Robbins and Monro 1951). It is 1 where predictions hold. Each class has its own: what a caller that floods
misses must not cost the others their places.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Generic

import numpy as np

from sentiment.batching.class_queue import ClassQueue
from sentiment.batching.cost import CostTable
from sentiment.batching.deadlines import Times
from sentiment.batching.ticket import P, Ticket
from sentiment.errors import Refused

# A prediction that ends this close to a deadline counts as late, because of rounding errors.
ROUNDING_S = 1e-6
# The accepted share of missed deadlines among rows admitted behind others, and by how much one miss raises ``caution``.
MISSED = 0.02
CAUTION_RATE = 0.02
# Where rows are still late at this value, something has stalled and a larger margin does not help.
CAUTION_MAX = 3.0
# For how long a refusal holds for other rows of its class and deadline that take as long or longer, such as those of the same batch call.
# Else each of them costs the event loop more than reading a short text does.
REFUSED_S = 0.02


class Forecast(Generic[P]):
    """Predictions from the classes' queues and the running batches. The scheduler reports every change to it."""

    def __init__(self, cost: CostTable, queues: Sequence[ClassQueue[P]], runners: int) -> None:
        self.runners = runners
        self._cost = cost
        self._queues = queues
        # For each busy runner, keyed by the last batch it was given: when its running batch is predicted to end, and the seconds that
        # the last batch takes after that (0 if it is the running one).
        self._busy: dict[Hashable, tuple[float, float]] = {}
        # Of each class the last refusal: what it said, when to retry, the deadline and table seconds of its row, and when it was refused.
        self._refused: dict[ClassQueue[P], tuple[str, float, float, float, float]] = {}

    def room_made(self) -> None:
        """A row was withdrawn, so that another like it may be admitted."""
        self._refused.clear()

    @property
    def idle(self) -> bool:
        """Whether no batch runs. A batch whose callers have all gone still counts as running."""
        return not self._busy

    def begun(self, batch: Hashable, ends_at: float) -> None:
        """Record that a batch starts to run now."""
        self._busy[batch] = ends_at, 0.0

    def follows(self, batch: Hashable, before: Hashable, ends_at: float, seconds: float) -> None:
        """Record that a batch of ``seconds`` will run after ``before``, which is predicted to end at ``ends_at``."""
        self._busy.pop(before, None)
        self._busy[batch] = ends_at, seconds

    def unfollow(self, batch: Hashable, before: Hashable) -> None:
        """Record that a batch will not run; the one ``before`` it still does."""
        ends_at, _ = self._busy.pop(batch)
        self._busy[before] = ends_at, 0.0

    def ended(self, batch: Hashable) -> None:
        """Record that a batch has ended, or will not run."""
        # If another batch follows this one, the entry is already keyed by that one.
        self._busy.pop(batch, None)

    def record_outcome(self, queue: ClassQueue[P], ticket: Ticket[P], in_time: bool) -> None:
        """Adjust the class's ``caution`` for an admitted row of it that was answered in time, or was not."""
        if ticket.ahead_s:
            step = CAUTION_RATE * ((not in_time) - MISSED)
            queue.caution = min(CAUTION_MAX, max(1.0, queue.caution * math.exp(step)))

    def backlog_s(self, now: float) -> float:
        """Predicted seconds until a row that arrives now would start, behind all others."""
        work_s = self._cost.speed * sum(queue.work_s() for queue in self._queues)
        return float(self._start_s(np.array([work_s]), now)[0]) if self.runners else 0.0

    def check(self, queue: ClassQueue[P], alone_s: float, now: float, deadline_at: float) -> float | None:
        """Check whether a row that takes ``alone_s`` table seconds can be admitted.

        Returns:
            Predicted waiting time in seconds; None where the row would be in time even behind all others.

        Raises:
            Refused: the row would be late, or would make a row of its class late that is in time without it.
        """
        if queue in self._refused:
            said, retry_after_s, due_at, least_s, at = self._refused[queue]
            if deadline_at == due_at and alone_s >= least_s and 0 <= now - at < REFUSED_S:
                message = f"a text that takes no longer was refused just now: {said}"
                raise Refused(message, retry_after_s, "backlog", self._cost.speed * alone_s)
        try:
            return self._checked(queue, alone_s, now, deadline_at)
        except Refused as error:
            self._refused[queue] = str(error), error.retry_after_s, deadline_at, alone_s, now
            raise

    def _checked(self, queue: ClassQueue[P], alone_s: float, now: float, deadline_at: float) -> float | None:
        speed = self._cost.speed
        own_s, left_s = speed * alone_s, deadline_at - now
        first_at = min(deadline_at, queue.demand.first_at) if len(queue.demand) else deadline_at
        last_s = max(own_s, speed * queue.dearest_s)
        if now + queue.caution * self._alone_s(now) + own_s / self.runners + last_s + ROUNDING_S <= first_at:
            # Everything that waits could run before the earliest deadline, even row by row.
            return None
        room, due_s, dearest_s = self._due(queue, now)
        place = int(np.searchsorted(room, left_s, "right"))
        # An array of one sum; empty sums to 0 where nothing is due before.
        wait_s = float(self._wait_s(queue, due_s[place - 1 : place].sum(keepdims=True), now).max())
        ahead_s = queue.caution * wait_s
        if ahead_s + own_s + ROUNDING_S > left_s:
            message = f"{ahead_s:.3f} s of work are queued and this text needs {own_s:.3f} s; the deadline leaves {left_s:.3f} s"
            raise Refused(message, ahead_s, "backlog", own_s)
        if place == len(room):
            return wait_s
        # Rows with later deadlines must stay in time. A row that is late anyway, because a prediction was wrong, does not count.
        room, starts_s = room[place:] - dearest_s[place:], due_s[place:] - dearest_s[place:]
        waits_s = queue.caution * self._wait_s(queue, starts_s, now)
        after = room - queue.caution * self._wait_s(queue, starts_s + own_s, now)
        turned = (room >= waits_s) & (after < ROUNDING_S)
        if turned.any():
            message = f"this text would make {turned.sum()} queued deadlines late by up to {-after[turned].min():.3f} s"
            raise Refused(message, float(waits_s[turned].max()), "backlog", own_s)
        return wait_s

    def makes_late(self, queue: ClassQueue[P], batch_s: float, now: float) -> bool:
        """Whether a row of the class would be late if a batch of ``batch_s`` seconds ran next. Also true if it is late anyway."""
        first_s = queue.demand.first_at - now - self._cost.speed * queue.dearest_s
        if self._alone_s(now) + batch_s <= first_s:
            return False
        room, due_s, dearest_s = self._due(queue, now)
        return bool((room - dearest_s - self._wait_s(queue, due_s - dearest_s, now)).min() < batch_s)

    def _due(self, queue: ClassQueue[P], now: float) -> tuple[Times, Times, Times]:
        """For each deadline of a class, in order: seconds left, the work due by it, and the seconds of its most expensive row.

        What may run after rows that run is due by their deadlines.
        """
        deadlines, due_s, dearest_s = queue.demand.curve()
        speed = self._cost.speed
        return deadlines - now, speed * queue.overhead() * due_s, speed * dearest_s

    def _wait_s(self, queue: ClassQueue[P], ahead_s: Times, now: float) -> Times:
        """Seconds until ``ahead_s`` seconds of a class's work have started, with the run time that other classes get meanwhile."""
        until_s = np.maximum(ahead_s, 0.0)
        for other in self._queues:
            # A class without rows now and without recent run time gets nothing.
            if other is not queue and (other.rows or other.use_per_s(now)):
                until_s += self._claim_s(queue, other, ahead_s, now)
        return self._start_s(until_s, now)

    def _claim_s(self, queue: ClassQueue[P], other: ClassQueue[P], ahead_s: Times, now: float) -> Times:
        """Run time that the other class gets before ``ahead_s`` seconds of this one have started."""
        speed = self._cost.speed
        # The other class runs until it has been charged as much as this class when the row's turn comes, to within one batch.
        lead_s = speed * (queue.charged_s - other.charged_s) + np.maximum(ahead_s, 0.0) / queue.share
        first = self._queues.index(other) < self._queues.index(queue)
        its_turn = lead_s >= 0 if first else lead_s > 0
        by_share_s = np.where(its_turn, lead_s * other.share + speed * other.batch_s(), 0.0)
        has_s = speed * other.work_s()
        rate = min(other.share, other.use_per_s(now) * speed / self.runners)
        comes_s = (self._busy_s(now) + ahead_s + has_s) * (rate / (1 - rate)) if rate else 0.0
        return np.minimum(by_share_s, has_s + comes_s)

    def _start_s(self, ahead_s: Times, now: float) -> Times:
        """Seconds until some runner is free, if the runners first share ``ahead_s`` seconds of work.

        Water filling: the level is the minimum over k of (work left on the k runners that are free first + ``ahead_s``) / k. Rows are
        not divisible like water, but whatever their sizes one runner is free by then.
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
        """An upper bound of ``backlog_s``, as if every row ran alone. Cheaper to compute, and enough where there is time."""
        alone_s = 0.0
        for queue in self._queues:
            alone_s += queue.alone_s + queue.begun_s
        return (self._busy_s(now) + self._cost.speed * alone_s) / self.runners

    def _busy_s(self, now: float) -> float:
        return sum(self._left_s(now))

    def _left_s(self, now: float) -> list[float]:
        # An overdue run is expected to take as long again as it is late; the batch that follows it comes after that.
        return [abs(ends_at - now) + behind_s for ends_at, behind_s in self._busy.values()]
