"""The threads that compute explanations: one for each lane, which lets one explanation after the other go on for a slice.

An explanation is synchronous code that cannot be left in the middle of a call. So each has a thread of its own, which runs only while its
lane waits for it: at any time one explanation of a lane works. It pauses before each run of a graph and after each part. Graphs run in a
thread of the lowest priority, one for each lane.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sentiment.explain.engine import Explainer
from sentiment.explain.methods.deciding import DecidingWords
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.parts import (
    AttentionTile,
    Attribution,
    Counterfactuals,
    ExplanationRequest,
    Header,
    Heads,
    Neuron,
    Part,
    Summary,
    Without,
    WordGeometry,
)
from sentiment.explain.turns import Entry, Turns
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.session import Stop

# How many bytes may be ready that the reader has not taken: enough to hide a network round trip.
AHEAD_BYTES = 2**20
# Reserved before the deadline, so that the summary reaches the client in time.
RESERVE_S = 0.05
# Longest single wait while a lane rests: its share may have changed.
REST_S = 0.05

_NAMES = {Header: "header", AttentionTile: "attention", Neuron: "neuron", WordGeometry: "geometry", Evidence: "evidence"}
_NAMES |= {DecidingWords: "deciding"} | dict.fromkeys((Counterfactuals, Without), "counterfactuals") | {Heads: "heads"}
# The parts of explanations whose time is measured: an attribution by its method, any other by its kind.
TIMED = (*METHODS, *dict.fromkeys(_NAMES.values()))


class CallerLeft(BaseException):
    """Ends the code of an explanation whose caller has left."""


class Slices:
    """Runs a function in a thread of its own, a slice at a time: from ``go_on`` to the next call of the ``pause`` that it is given."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        """Start the thread; ``work`` waits for ``go_on``. It must not raise."""
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = self._left = False
        threading.Thread(target=self._run, args=(work,), name="explain-one", daemon=True).start()

    def go_on(self) -> bool:
        """Run a slice. Returns whether the function has returned."""
        self._go.release()
        self._paused.acquire()
        return self._ended

    def leave(self) -> None:
        """Let ``pause`` raise ``CallerLeft`` instead of another slice. Returns at once."""
        self._left = True
        self._go.release()

    def _run(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._go.acquire()
        if not self._left:
            work(self._pause)
        self._ended = True
        self._paused.release()

    def _pause(self) -> None:
        self._paused.release()
        self._go.acquire()
        if self._left:
            raise CallerLeft


@dataclass(eq=False, kw_only=True)
class ExplanationTask(Entry):
    """One explanation, and its caller.

    The lock of ``ExplainThreads`` guards what it inherits, ``given``, ``taken``, ``withdrawn``, ``stopped_at`` and ``stopped_cpu_s``.
    ``ready`` and what follows belong to the event loop.
    """

    request: ExplanationRequest
    stop: Stop = field(default_factory=Stop)
    slices: Slices | None = None
    error: BaseException | None = None
    # Bytes that were made, and that the reader has taken.
    given: int = 0
    taken: int = 0
    withdrawn: bool = False
    # When its run was asked to stop, and the CPU time of its thread then, if it was ready to go on.
    stopped_at: float | None = None
    stopped_cpu_s: float | None = None
    # What the caller has not read yet; None at its end.
    ready: "asyncio.Queue[Part | BaseException | None]" = field(default_factory=asyncio.Queue)
    # Whether the caller received a part, and whether the deadline ended the stream with a summary in place of missing parts.
    answered: bool = False
    cut: bool = False
    # When the reader fell behind, and how many bytes it had read by then.
    behind_since: tuple[float, int] | None = None


class ExplainThreads:
    """Works on explanations. Its methods may be called from any thread."""

    def __init__(
        self,
        explainer: Explainer,
        places: int,
        on_part: Callable[[ExplanationTask, Part, str, float], None],
        on_ended: Callable[[ExplanationTask], None],
        share: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        """Start the threads of the lanes.

        Args:
            explainer: computes the explanations.
            places: for waiting explanations, in each lane.
            on_part: called with each part, the name under which its time is counted (empty for the summary) and its seconds of work.
            on_ended: called when an explanation has ended, maybe with its ``error``, unless it was withdrawn.
            share: the share of one core for all explanations now, above 0 and at most 1.
            clock: in seconds.
            rest: waits for a change, at most the given number of seconds of ``clock``.
        """
        self._clock, self._rest = clock, rest
        self._explainer, self._on_part, self._on_ended, self._share = explainer, on_part, on_ended, share
        self._turns: Turns[ExplanationTask] = Turns(places)
        # Guards the turns and the tasks; notified when another may be able to go on.
        self._changed = threading.Condition()
        self._closed = False
        self._runs = {short: LowestPriority("explain-run") for short in (True, False)}
        self.threads = [threading.Thread(target=self._work, args=one, name="explain", daemon=True) for one in self._runs.items()]
        for thread in self.threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def running(self) -> Sequence[ExplanationTask]:
        """The explanations that work now."""
        return self._turns.running

    def submit(self, task: ExplanationTask) -> Sequence[ExplanationTask]:
        """Let an explanation in. Returns those that it displaces, and raises ``NoRoom``, as ``Turns.admit``."""
        with self._changed:
            gone = self._turns.admit(task, self._clock(), self._share())
            self._changed.notify_all()
            return gone

    def withdraw(self, task: ExplanationTask) -> None:
        """End an explanation whose caller has left. If it runs now, its run is asked to stop. Does nothing if it has ended."""
        with self._changed:
            if task.withdrawn or task not in self._turns:
                return
            task.withdrawn = True
            if task in self.running:
                task.stopped_at, task.stopped_cpu_s = self._clock(), self._runs[task.short].cpu_s()
                task.stop.ask()
            else:
                self._end(task)
                self._changed.notify_all()

    def hangs(self, task: ExplanationTask, stall_s: float) -> bool:
        """Whether its run was asked to stop more than ``stall_s`` seconds ago and goes on, although its thread had a core meanwhile."""
        if task.stopped_at is None or (waited_s := self._clock() - task.stopped_at) <= stall_s:
            return False
        now_s = self._runs[task.short].cpu_s()
        return task.stopped_cpu_s is None or now_s is None or now_s - task.stopped_cpu_s > waited_s / 2

    def took(self, task: ExplanationTask, part: Part) -> None:
        """The reader has taken a part."""
        with self._changed:
            task.taken += size_of(part)
            if task.behind and task.given - task.taken <= AHEAD_BYTES:
                task.behind = False
                self._changed.notify_all()

    def blocking(self) -> Sequence[ExplanationTask]:
        """As ``Turns.blocking``."""
        with self._changed:
            return self._turns.blocking()

    def room_s(self, short: bool) -> float:
        """As ``Turns.room_s``."""
        with self._changed:
            return self._turns.room_s(short, self._clock(), self._share())

    def close(self, wait_s: float) -> None:
        """End as soon as no explanation is left; wait at most ``wait_s`` seconds for that."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        ends_at = time.monotonic() + wait_s
        for thread in self.threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def _work(self, short: bool, runs: LowestPriority) -> None:
        try:
            while (task := self._next(short)) is not None:
                ended = True
                try:
                    task.slices = task.slices or Slices(partial(self._explain, task, runs))
                    ended = task.slices.go_on()
                except BaseException as error:  # no thread can be started: the caller waits, and others wait for the lane
                    task.error = error
                with self._changed:
                    self._turns.end(task, self._clock(), self._share())
                    told = ended and not task.withdrawn
                    if ended or task.withdrawn:
                        self._end(task)
                if told:
                    self._on_ended(task)
                del task  # otherwise the last explanation stays in memory until the next one begins
        finally:
            runs.close()

    def _next(self, short: bool) -> ExplanationTask | None:
        """Wait for the next slice. None: the lane is closed."""
        with self._changed:
            while True:
                task, free_at = self._turns.next(short, self._clock(), self._share())
                if task is None:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                rest_s = free_at - self._clock()
                if rest_s <= 0:
                    break
                self._rest(self._changed, min(rest_s, REST_S))
            self._turns.begin(task, self._clock(), self._share())
            return task

    def _end(self, task: ExplanationTask) -> None:
        self._turns.drop(task)
        if task.slices is not None:
            task.slices.leave()

    def _explain(self, task: ExplanationTask, runs: LowestPriority, pause: Callable[[], None]) -> None:
        """Compute an explanation, in its own thread."""
        told_s = 0.0
        try:
            for part in self._explainer.explain(task.request, lambda: self._available_s(task), task.stop, runs.run, pause):
                now = self._clock()
                work_s = task.worked_s + now - task.slice_at
                with self._changed:
                    task.given += size_of(part)
                    task.behind = task.given - task.taken > AHEAD_BYTES
                told = replace(part, run_s=work_s, queue_s=now - task.arrived_at - work_s) if isinstance(part, Summary) else part
                self._on_part(task, told, _name(part), work_s - told_s)
                told_s = work_s
                pause()
        except CallerLeft:
            return
        except BaseException as error:  # a caller waits for the outcome, whatever it is
            task.error = error

    def _available_s(self, task: ExplanationTask) -> float:
        with self._changed:
            return self._turns.available_s(task, self._clock() + RESERVE_S, self._share())


def size_of(part: Part) -> int:
    """Bytes of a part; 0 for small parts, which do not matter to a slow reader."""
    return len(part.tile.weights) if isinstance(part, AttentionTile) else 0


def _name(part: Part) -> str:
    """The metric label under which a part's time is counted; empty for the reason and the summary, which take none."""
    if isinstance(part, Attribution):
        return part.method
    return _NAMES.get(type(part), "")
