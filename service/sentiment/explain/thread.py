"""The threads that compute explanations: one for each lane, which lets one explanation after the other go on for a slice.

An explanation is synchronous code that cannot be left in the middle of a call. So each has a thread of its own, which runs only while its
lane waits for it: at any time one explanation of a lane works. It pauses before each run of a graph and after each part. Graphs run in a
thread of the lowest priority, one for each lane.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sentiment.explain.engine import Explainer
from sentiment.explain.methods.evidence import Evidence
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

_NAMES = {Header: "header", AttentionTile: "attention", Neuron: "neuron", Evidence: "evidence", Heads: "heads", WordGeometry: "geometry"}
_NAMES |= dict.fromkeys((Counterfactuals, Without), "counterfactuals")


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
class Job(Entry):
    """One explanation. What it inherits and ``taken`` are guarded by the lock of ``ExplainThreads``; the event loop has the rest."""

    request: ExplanationRequest
    stop: Stop = field(default_factory=Stop)
    slices: Slices | None = None
    error: BaseException | None = None
    # Bytes that were made, and that the reader has taken.
    given: int = 0
    taken: int = 0
    withdrawn: bool = False
    # When its run was told to stop.
    stopped_at: float | None = None


class ExplainThreads:
    """Works on explanations. Its methods may be called from any thread."""

    def __init__(
        self,
        explainer: Explainer,
        places: int,
        on_part: Callable[[Job, Part, str, float], None],
        on_ended: Callable[[Job], None],
        share: Callable[[], float],
    ) -> None:
        """Start the threads of the lanes.

        Args:
            explainer: computes the explanations.
            places: for waiting explanations, in each lane.
            on_part: called with each part, the name under which its time is counted (empty for the summary) and its seconds of work.
            on_ended: called when an explanation has ended, maybe with its ``error``, unless it was withdrawn.
            share: the share of one core for all explanations now, above 0 and at most 1.
        """
        self._explainer, self._on_part, self._on_ended, self._share = explainer, on_part, on_ended, share
        self._turns: Turns[Job] = Turns(places)
        # Guards the turns and the jobs; notified when another may be able to go on.
        self._changed = threading.Condition()
        self._closed = False
        self.threads = [
            threading.Thread(target=self._work, args=(short, LowestPriority("explain-run")), name="explain", daemon=True)
            for short in (True, False)
        ]
        for thread in self.threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def running(self) -> Sequence[Job]:
        """The explanations that work now."""
        return self._turns.running

    def submit(self, job: Job) -> Sequence[Job]:
        """Let an explanation in. Returns those that it displaces, and raises ``NoRoom``, as ``Turns.admit``."""
        with self._changed:
            gone = self._turns.admit(job, time.monotonic(), self._share())
            self._changed.notify_all()
            return gone

    def withdraw(self, job: Job) -> None:
        """End an explanation whose caller has left. If it works now, its run is told to stop. Does nothing if it has ended."""
        with self._changed:
            if job.withdrawn or job not in self._turns:
                return
            job.withdrawn = True
            if job in self.running:
                job.stopped_at = time.monotonic()
                job.stop.ask()
            else:
                self._end(job)
                self._changed.notify_all()

    def took(self, job: Job, part: Part) -> None:
        """The reader has taken a part."""
        with self._changed:
            job.taken += size_of(part)
            if job.behind and job.given - job.taken <= AHEAD_BYTES:
                job.behind = False
                self._changed.notify_all()

    def blocking(self) -> Sequence[Job]:
        """As ``Turns.blocking``."""
        with self._changed:
            return self._turns.blocking()

    def room_s(self, short: bool) -> float:
        """As ``Turns.room_s``."""
        with self._changed:
            return self._turns.room_s(short, time.monotonic(), self._share())

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
            while (job := self._next(short)) is not None:
                ended = True
                try:
                    job.slices = job.slices or Slices(partial(self._explain, job, runs))
                    ended = job.slices.go_on()
                except BaseException as error:  # no thread can be started: the caller waits, and others wait for the lane
                    job.error = error
                with self._changed:
                    self._turns.end(job, time.monotonic(), self._share())
                    told = ended and not job.withdrawn
                    if ended or job.withdrawn:
                        self._end(job)
                if told:
                    self._on_ended(job)
                del job  # otherwise the last explanation stays in memory until the next one begins
        finally:
            runs.close()

    def _next(self, short: bool) -> Job | None:
        """Wait for the next slice. None: the lane is closed."""
        with self._changed:
            while True:
                job, free_at = self._turns.next(short, time.monotonic(), self._share())
                if job is None:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                rest_s = free_at - time.monotonic()
                if rest_s <= 0:
                    break
                self._changed.wait(min(rest_s, REST_S))
            self._turns.begin(job, time.monotonic(), self._share())
            return job

    def _end(self, job: Job) -> None:
        self._turns.drop(job)
        if job.slices is not None:
            job.slices.leave()

    def _explain(self, job: Job, runs: LowestPriority, pause: Callable[[], None]) -> None:
        """Compute an explanation, in its own thread."""
        told_s = 0.0
        try:
            for part in self._explainer.explain(job.request, lambda: self._available_s(job), job.stop, runs.run, pause):
                now = time.monotonic()
                work_s = job.worked_s + now - job.slice_at
                with self._changed:
                    job.given += size_of(part)
                    job.behind = job.given - job.taken > AHEAD_BYTES
                told = replace(part, run_s=work_s, queue_s=now - job.arrived_at - work_s) if isinstance(part, Summary) else part
                self._on_part(job, told, _name(part), work_s - told_s)
                told_s = work_s
                pause()
        except CallerLeft:
            return
        except BaseException as error:  # a caller waits for the outcome, whatever it is
            job.error = error

    def _available_s(self, job: Job) -> float:
        with self._changed:
            return self._turns.available_s(job, time.monotonic() + RESERVE_S, self._share())


def size_of(part: Part) -> int:
    """Bytes of a part; 0 for small parts, which do not matter to a slow reader."""
    return len(part.tile.weights) if isinstance(part, AttentionTile) else 0


def _name(part: Part) -> str:
    """The metric label under which a part's time is counted; empty for the summary."""
    if isinstance(part, Attribution):
        return part.method
    return _NAMES.get(type(part), "")
