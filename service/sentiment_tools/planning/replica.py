"""One replica in virtual time: the server's scheduler, its runners and the event loops between them. Pure.

An event loop is one thread: events wait for their turn there, so time in the scheduler never goes back. With front ends a call passes the
loop of one of them, the executor's loop, a run, and both loops again; without, the executor is the only loop. Where runners use all cores,
the loops take their time from one of them; where loops outnumber the cores, they slow each other.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from random import Random

from sentiment.batching.cost import CostTable
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.ticket import Batch, Priority, State
from sentiment.errors import Expired, Refused
from sentiment_tools.planning.machine import PACE_S, Machine
from sentiment_tools.planning.outcome import Fate, Ledger, Spent

# As the server's event loop measures it.
SHARE_WINDOW_S = 0.1


@dataclass(slots=True, eq=False)
class _Loop:
    """An event loop: when it has done what it was given, and the core seconds of all that."""

    free_at: float = 0.0
    work_s: float = 0.0
    # Instant and ``work_s`` at the start of the current window, and the busy share of the last one.
    window: tuple[float, float] = (0.0, 0.0)
    share: float = 0.0

    def busy_share(self, now: float) -> float:
        """As ``MeasuredLoop.busy_share``."""
        begun_at, work_s = self.window
        if now - begun_at >= SHARE_WINDOW_S:
            self.share = min(1.0, (self.work_s - work_s) / (now - begun_at))
            self.window = now, self.work_s
        return self.share


@dataclass(slots=True, eq=False)
class _Call:
    """A call, and the loop that takes and answers it. ``known``: it needs no run. ``waits``: its row waits for a run."""

    number: int
    length: int
    deadline_at: float
    priority: Priority
    taker: _Loop
    known: bool = False
    # The tokens of the whole, if ``length`` are those of a part, and whether that suffices.
    then: int = 0
    suffices: bool = False
    payer: int = 0
    waits: bool = True


@dataclass(slots=True, eq=False)
class _Run:
    batch: Batch[_Call]
    started_at: float
    ends_at: float


class Replica:
    """A simulated server. ``next_at`` is the instant of its next event, infinite if there is none."""

    def __init__(self, machine: Machine, queue_rows_max: int, seed: int | str, ledger: Ledger) -> None:
        self.next_at = math.inf
        # Predicted seconds of unfinished work, which a balancer may compare.
        self.ahead_s = 0.0
        self._machine = machine
        self._length_max = machine.length_max
        self._turns = machine.turns
        # One half with the request, the other with the answer.
        self._beside_s = machine.beside_s / 2
        self._truth = CostTable(machine.points)
        self._cost = CostTable(machine.points)
        self._scheduler: Scheduler[_Call] = Scheduler(
            self._cost, machine.limits, machine.runners, queue_rows_max, machine.length_max, layout=machine.layout
        )
        self._ledger = ledger
        self._rng = Random(seed)
        self._runs: list[_Run] = []
        self._runs_s, self._cores_s, self._batches, self._rows = 0.0, 0.0, 0, 0
        self._asked_s = self._predicted_s = 0.0
        self._free = machine.runners
        self._executor = _Loop()
        front_ends = [_Loop() for _ in range(machine.front_ends)]
        self._loops = [self._executor, *front_ends]
        # The loops that take calls, and the chance that spreads connections among them.
        self._takers = front_ends or [self._executor]
        self._spread = Random(f"connections {seed}")
        # Which texts end early.
        self._early = Random(f"early {seed}")
        # Whose answer is known.
        self._known = Random(f"known {seed}")
        # Who asks.
        self._payers = Random(f"callers {seed}")
        # What front ends and executor have sent each other: a heap of the instant, a number and what happens on arrival.
        self._sent: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        # The end of the run that ended last.
        self._ended_at = -math.inf
        self._wake_at: float | None = None
        # Whether the next batch is held until ``_wake_at``.
        self._holds = False
        self._slowed = [machine.slowed(running) for running in range(machine.runners + 1)]
        self._cores = machine.shared_cores
        # The cores that a run takes: none on a device, and a part where runners share them.
        self._run_cores = 0.0 if machine.packed else min(1.0, machine.shared_cores / machine.runners)

    @property
    def spent(self) -> Spent:
        """What the replica has spent so far."""
        busiest_s = max(loop.work_s for loop in self._takers)
        loops_s = busiest_s, self._executor.work_s
        return Spent(self._runs_s, self._batches, self._rows, *loops_s, self._cores_s, self._asked_s, self._predicted_s)

    def ask(self, number: int, at: float, length: int, deadline_at: float, priority: Priority) -> None:
        """A request arrives with a text of ``length`` tokens; longer texts than the longest row are truncated."""
        call = _Call(number, min(length, self._length_max), deadline_at, priority, self._spread.choice(self._takers))
        call.known = self._known.random() < self._machine.known
        callers = self._machine.callers
        call.payer = self._payers.randint(1, callers) if callers > 1 else callers
        if self._machine.parts(call.length):
            call.length, call.then, call.suffices = self._machine.part, call.length, self._early.random() < self._machine.early
        at = self._work(call.taker, at, self._turns.request_s + self._machine.token_s * length, self._beside_s)
        if call.taker is self._executor:
            self._admit(call, at)
        else:
            self._send(at, lambda at: self._admit(call, self._work(self._executor, at, self._turns.row_s)))
        self._look()

    def advance(self) -> None:
        """Process the event at ``next_at``."""
        at = self.next_at
        run = min(self._runs, key=attrgetter("ends_at"), default=None)
        if run is not None and run.ends_at <= at:
            self._end(run)
        elif self._sent and self._sent[0][0] <= at:
            at, _, arrive = heapq.heappop(self._sent)
            arrive(at)
        else:
            self._wake_at = None
            self._step(max(at, self._executor.free_at))
        self._look()

    def _look(self) -> None:
        next_at = math.inf if self._wake_at is None else self._wake_at
        if self._sent:
            next_at = min(next_at, self._sent[0][0])
        for run in self._runs:
            next_at = min(next_at, run.ends_at)
        self.next_at = next_at

    def _send(self, at: float, arrive: Callable[[float], None]) -> None:
        """Send something to another process at ``at``. What is sent later by an idler process may arrive earlier."""
        heapq.heappush(self._sent, (at, next(self._numbers), arrive))

    def _work(self, loop: _Loop, at: float, loop_s: float, beside_s: float = 0.0) -> float:
        """Let a loop work for ``loop_s`` core seconds from ``at`` on, or as soon as it is free. Returns when it has finished.

        Loops go before runs, whose threads have a lower priority where a loop is busy: they share the idle cores, and take the rest from
        a run.
        """
        loop.work_s += loop_s
        self._cores_s += loop_s + beside_s
        running = 0 if self._machine.packed else len(self._runs)
        if running + len(self._loops) > self._cores:
            busy = 1 + sum(other.free_at > at for other in self._loops if other is not loop)
            taken, idle = min(busy, self._cores), max(0, self._cores - running)
            if running and idle < taken:
                lost_s = (loop_s + beside_s) * (1 - idle / taken)
                self._rng.choice(self._runs).ends_at += lost_s
                self._cores_s -= lost_s * self._run_cores
            loop_s *= busy / taken
        loop.free_at = max(at, loop.free_at) + loop_s
        return loop.free_at

    def _admit(self, call: _Call, now: float) -> None:
        if call.known:
            self._answer(call, now)
            return
        self._asked_s += self._scheduler.work_s(call.length, call.then)
        try:
            ticket = self._scheduler.add(call.length, now, call.deadline_at, call, call.priority, then=call.then, payer=call.payer)
        except Expired:
            self._ledger.ended(call.number, Fate.EXPIRED)
        except Refused:
            self._ledger.ended(call.number, Fate.REFUSED)
        else:
            self.ahead_s += ticket.alone_s
            if self._free:
                self._step_or_hold(now)
            elif self._wake_at is None or call.deadline_at < self._wake_at:
                self._wake_at = call.deadline_at

    def _step_or_hold(self, now: float) -> None:
        """Start batches, unless a device's next one is held for the executor's sake."""
        hold_s = self._scheduler.hold_s(self._executor.busy_share(now), now) if self._machine.packed else 0.0
        if not hold_s:
            self._step(now)
        elif not self._holds:
            self._holds = True
            self._wake_at = now + hold_s

    def _step(self, now: float) -> None:
        self._holds = False
        step = self._scheduler.step(now, self._free)
        for ticket in (*step.expired, *step.hopeless):
            if ticket.payload.waits:
                self.ahead_s -= ticket.alone_s
            self._ledger.ended(ticket.payload.number, Fate.EXPIRED)
        for batch in step.batches:
            self._begin(batch, now)
        self._wake_at = step.wake_at

    def _begin(self, batch: Batch[_Call], now: float) -> None:
        noise = self._machine.noise
        now = self._work(self._executor, now, self._turns.batch_s)
        self._crowd(now, len(self._runs) + 1)
        run_s = self._truth.table_s(*batch.shape) * self._slowed[len(self._runs) + 1]
        if pace := self._machine.pace:
            run_s *= pace[int(now / PACE_S) % len(pace)]
        if not self._runs and self._machine.rested_s:
            run_s += self._machine.after_pause_s(now - self._ended_at)
        if noise:
            run_s *= math.exp(self._rng.gauss(-noise * noise / 2, noise))
        for ticket in batch.tickets:
            ticket.payload.waits = False
        self._runs.append(_Run(batch, now, now + run_s))
        self._free -= 1
        self._batches += 1
        self._rows += len(batch.tickets)

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
        self._runs_s += run_s
        self._predicted_s += run.batch.predicted_s
        self._cores_s += run_s * self._run_cores
        now = self._work(self._executor, run.ends_at, self._turns.batch_s)
        for ticket in run.batch.tickets:
            self.ahead_s -= ticket.alone_s
        unsettled = [ticket for ticket in run.batch.tickets if ticket.then and not ticket.payload.suffices]
        answered = self._scheduler.finish(run.batch, now, run_s, unsettled)
        for ticket in unsettled:
            if ticket.state is State.WAITING:
                ticket.payload.waits = True
                self.ahead_s += ticket.alone_s
        if self._scheduler.rows_waiting:
            self._step_or_hold(now)
        for ticket in answered:
            self._answer(ticket.payload, now)

    def _answer(self, call: _Call, now: float) -> None:
        if call.taker is self._executor:
            self._answered(call, now)
        else:
            self._send(self._work(self._executor, now, self._turns.row_s), partial(self._answered, call))

    def _answered(self, call: _Call, at: float) -> None:
        self._ledger.answered(call.number, self._work(call.taker, at, self._turns.answer_s, self._beside_s))
