"""The thread that computes explanations, one at a time. A second thread of the lowest priority runs the graphs."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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
    Without,
    WordGeometry,
)
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.session import Stop

# How many bytes may be ready that the reader has not taken: enough to hide a network round trip.
AHEAD_BYTES = 2**20
# Reserved before the deadline, so that the summary reaches the client in time.
RESERVE_S = 0.05
# Longest single sleep while resting, so that a withdrawn job ends soon.
REST_S = 0.05

_NAMES = {Header: "header", AttentionTile: "attention", Neuron: "neuron", Evidence: "evidence", Heads: "heads", WordGeometry: "geometry"}
_NAMES |= dict.fromkeys((Counterfactuals, Without), "counterfactuals")


@dataclass(eq=False)
class Job:
    """One explanation in progress.

    While ``working``, only the thread uses ``parts``, ``given`` (bytes), ``worked_s`` and ``seconds`` (per part, by name). The event loop
    uses the rest.
    """

    request: ExplanationRequest
    deadline_at: float
    stop: Stop = field(default_factory=Stop)
    parts: Iterator[Part] | None = None
    given: int = 0
    taken: int = 0
    worked_s: float = 0.0
    working: bool = False
    withdrawn: bool = False
    seconds: list[tuple[str, float]] = field(default_factory=list)

    @property
    def behind(self) -> bool:
        """Whether the reader has more than AHEAD_BYTES left to read."""
        return self.given - self.taken > AHEAD_BYTES


OnPart = Callable[[Job, Part], None]
OnPaused = Callable[[Job, BaseException | bool], None]


class ExplainThread:
    """Works on one job until it is finished, its reader falls behind, or another explanation is due."""

    def __init__(
        self, explainer: Explainer, on_part: OnPart, on_paused: OnPaused, others_due: Callable[[Job], bool], share: Callable[[], float]
    ) -> None:
        """Start the threads.

        Args:
            explainer: computes the explanations.
            on_part: called with each part, in this thread.
            on_paused: called when the thread is free again, with whether the explanation has finished or why it failed; in this thread.
            others_due: whether another explanation is due; called after each part.
            share: the share of time that the thread may work now, above 0 and at most 1; called between runs. It rests the other time.
        """
        self._explainer, self._on_part, self._on_paused, self._others_due, self._share = explainer, on_part, on_paused, others_due, share
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._runs = LowestPriority("explain-run")
        self._rested_at = 0.0
        self.thread = threading.Thread(target=self._loop, name="explain", daemon=True)
        self.thread.start()

    def work_on(self, job: Job) -> None:
        """Start or continue a job. The thread must be free."""
        self._inbox.put(job)

    def close(self, wait_s: float) -> None:
        """End after the current job; wait at most ``wait_s`` seconds for that."""
        self._inbox.put(None)
        self.thread.join(wait_s)

    def _loop(self) -> None:
        try:
            self._work()
        finally:
            # Not earlier: a job would wait forever for its run.
            self._runs.close()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            outcome: BaseException | bool
            begun = time.monotonic()
            try:
                outcome = self._advance(job)
            except BaseException as error:  # a caller waits for the outcome, whatever it is
                outcome = error
            job.worked_s += time.monotonic() - begun
            self._on_paused(job, outcome)
            del job, outcome  # otherwise the last explanation stays in memory until the next one starts

    def _advance(self, job: Job) -> bool:
        """Work on a job. Returns whether the explanation has finished."""
        self._rested_at = begun = time.monotonic()
        if job.parts is None:
            job.parts = self._explainer.explain(job.request, lambda: self._left_s(job), job.stop, self._runs.run)
        while not job.withdrawn:
            part = next(job.parts, None)
            if part is None:
                return True
            now = time.monotonic()
            job.seconds.append((_name(part), now - begun))
            begun = now
            job.given += size_of(part)
            self._on_part(job, part)
            if job.behind or self._others_due(job):
                return False
        return True

    def _left_s(self, job: Job) -> float:
        """Seconds of work that the explanation has left. Called between runs; rests first if the thread has used its share."""
        ends_at = job.deadline_at - RESERVE_S
        begun = time.monotonic()
        worked_s = begun - self._rested_at
        while not job.withdrawn:
            rest_s = min(begun + worked_s * (1 / self._share() - 1), ends_at) - time.monotonic()
            if rest_s <= 0:
                break
            time.sleep(min(rest_s, REST_S))
        self._rested_at = time.monotonic()
        # The thread rests for the remaining share.
        return (ends_at - self._rested_at) * self._share()


def size_of(part: Part) -> int:
    """Bytes of a part; 0 for small parts, which do not matter to a slow reader."""
    return len(part.tile.weights) if isinstance(part, AttentionTile) else 0


def _name(part: Part) -> str:
    """The metric label under which a part's time is counted; empty for the summary."""
    if isinstance(part, Attribution):
        return part.method
    return _NAMES.get(type(part), "")
