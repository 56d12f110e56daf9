"""One replica in virtual time: the server's scheduler, its runners and the event loop between them. Pure.

The event loop is one thread: events wait for their turn there, so time in the scheduler never goes back. Where runners use all cores,
the loop takes its time from one of them.
"""

import math
from dataclasses import dataclass
from random import Random

from sentiment.batching.cost import CostTable
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority
from sentiment.errors import Expired, Refused
from sentiment.planning.machine import ANSWER_PART, BATCH_PART, PACE_S, REQUEST_PART, Machine
from sentiment.planning.outcome import Fate, Ledger


@dataclass(slots=True, eq=False)
class _Run:
    batch: Batch[int]
    started_at: float
    ends_at: float


class Replica:
    """A simulated server. ``next_at`` is the instant of its next event, infinite if there is none."""

    def __init__(self, machine: Machine, queue_rows_max: int, seed: int | str, ledger: Ledger) -> None:
        self.next_at = math.inf
        # Predicted seconds of unfinished work, which a balancer may compare.
        self.ahead_s = 0.0
        self.busy_s = 0.0
        self.batches = 0
        self._machine = machine
        self._length_max = machine.length_max
        self._request_s, self._answered_s = REQUEST_PART * machine.loop_s, ANSWER_PART * machine.loop_s
        # One half with the request, the other with the answer.
        self._beside_s = machine.beside_s / 2
        # One half to decide and start a batch, the other to notice its end.
        self._half_s = BATCH_PART / 2 * machine.loop_s
        self._truth = CostTable(machine.points)
        self._cost = CostTable(machine.points)
        self._scheduler: Scheduler[int] = Scheduler(
            self._cost, machine.limits, machine.runners, queue_rows_max, machine.length_max, layout=machine.layout
        )
        self._ledger = ledger
        self._rng = Random(seed)
        self._runs: list[_Run] = []
        self._free = machine.runners
        self._loop_free_at = 0.0
        # The end of the run that ended last.
        self._ended_at = -math.inf
        self._wake_at: float | None = None
        self._slowed = [machine.slowed(running) for running in range(machine.runners + 1)]
        self._cores = machine.shared_cores

    def ask(self, number: int, at: float, length: int, deadline_at: float, priority: Priority) -> None:
        """A request arrives with a text of ``length`` tokens; longer texts than the longest row are truncated."""
        machine = self._machine
        now = self._work(at, self._request_s + machine.token_s * length, self._beside_s)
        try:
            ticket = self._scheduler.add(min(length, self._length_max), now, deadline_at, number, priority)
        except Expired:
            self._ledger.ended(number, Fate.EXPIRED)
        except Refused:
            self._ledger.ended(number, Fate.REFUSED)
        else:
            self.ahead_s += ticket.alone_s
            if self._free:
                self._step(now)
            elif self._wake_at is None or deadline_at < self._wake_at:
                self._wake_at = deadline_at
        self._look()

    def advance(self) -> None:
        """Process the event at ``next_at``."""
        at = self.next_at
        run = min(self._runs, key=_ends_at, default=None)
        if run is not None and run.ends_at <= at:
            self._end(run)
        else:
            self._wake_at = None
            self._step(max(at, self._loop_free_at))
        self._look()

    def _look(self) -> None:
        next_at = math.inf if self._wake_at is None else self._wake_at
        for run in self._runs:
            next_at = min(next_at, run.ends_at)
        self.next_at = next_at

    def _work(self, at: float, loop_s: float, beside_s: float = 0.0) -> float:
        """Let the event loop work for ``loop_s`` from ``at`` on, or as soon as it is free. Returns when it has finished."""
        now = self._loop_free_at = max(at, self._loop_free_at) + loop_s
        runs = self._runs
        if len(runs) >= self._cores:
            self._rng.choice(runs).ends_at += loop_s + beside_s
        return now

    def _step(self, now: float) -> None:
        step = self._scheduler.step(now, self._free)
        for ticket in (*step.expired, *step.hopeless):
            if not ticket.started_at:
                self.ahead_s -= ticket.alone_s
            self._ledger.ended(ticket.payload, Fate.EXPIRED)
        for batch in step.batches:
            self._begin(batch, now)
        self._wake_at = step.wake_at

    def _begin(self, batch: Batch[int], now: float) -> None:
        noise = self._machine.noise
        now = self._work(now, self._half_s)
        self._crowd(now, len(self._runs) + 1)
        run_s = self._truth.table_s(*batch.shape) * self._slowed[len(self._runs) + 1]
        if pace := self._machine.pace:
            run_s *= pace[int(now / PACE_S) % len(pace)]
        if not self._runs and self._machine.rested_s:
            run_s += self._machine.after_pause_s(now - self._ended_at)
        if noise:
            run_s *= math.exp(self._rng.gauss(-noise * noise / 2, noise))
        self._runs.append(_Run(batch, now, now + run_s))
        self._free -= 1
        self.batches += 1

    def _crowd(self, now: float, running: int) -> None:
        """Adjust the ends of all runs, because from now on ``running`` runners run."""
        ratio = self._slowed[running] / self._slowed[len(self._runs)]
        if ratio != 1.0:
            for run in self._runs:
                # The event loop may lag behind: some runs may have ended already, and some may have begun since.
                since = max(now, run.started_at)
                if run.ends_at > since:
                    run.ends_at = since + (run.ends_at - since) * ratio

    def _end(self, run: _Run) -> None:
        self._crowd(run.ends_at, len(self._runs) - 1)
        self._runs.remove(run)
        self._free += 1
        self._ended_at = run.ends_at
        run_s = run.ends_at - run.started_at
        self.busy_s += run_s
        now = self._work(run.ends_at, self._half_s)
        for ticket in run.batch.tickets:
            self.ahead_s -= ticket.alone_s
        answered = self._scheduler.finish(run.batch, now, run_s)
        if self._scheduler.rows_waiting:
            self._step(now)
        for ticket in answered:
            self._ledger.answered(ticket.payload, self._work(now, self._answered_s, self._beside_s))


def _ends_at(run: _Run) -> float:
    return run.ends_at
