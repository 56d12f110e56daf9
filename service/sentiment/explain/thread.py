"""The thread that works on explanations, one at a time, and has their runs done at the lowest priority."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sentiment.explain.engine import Explainer
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.parts import Asked, AttentionTile, Attribution, Counterfactuals, Header, Heads, Neuron, Part, Without
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.session import Stop

# What an explanation may be ahead of its reader: enough that nobody waits for a network's round trip.
AHEAD_BYTES = 2**20
# Kept of the time that is left, for the summary's way to the client.
RESERVE_S = 0.05
# A rest is cut into so much, to hear that it need not go on.
REST_S = 0.05

_NAMES = {Header: "header", AttentionTile: "attention", Neuron: "neuron", Evidence: "evidence", Heads: "heads"}
_NAMES |= dict.fromkeys((Counterfactuals, Without), "counterfactuals")


@dataclass(eq=False)
class Job:
    """One explanation under way.

    The thread alone touches ``parts``, ``given`` (bytes), ``worked_s`` and ``seconds`` (of each part, by its name) while ``working``, the
    event loop the rest.
    """

    asked: Asked
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
        """Whether its reader has too much to read."""
        return self.given - self.taken > AHEAD_BYTES


Gave = Callable[[Job, Part], None]
Worked = Callable[[Job, BaseException | bool], None]


class ExplainThread:
    """Works on the job that it is given, until that is done, its reader is behind, or others want a turn."""

    def __init__(self, explainer: Explainer, gave: Gave, worked: Worked, others: Callable[[Job], bool], share: Callable[[], float]) -> None:
        """Start.

        Args:
            explainer: does the work.
            gave: told each part, in this thread.
            worked: told that the thread is free again, with whether the explanation is done or why it failed; in this thread.
            others: whether another explanation wants a turn; asked after each part.
            share: the part of its time that it may work now, above 0 and at most 1; it rests for the others. Asked again and again.
        """
        self._explainer, self._gave, self._worked, self._others, self._share = explainer, gave, worked, others, share
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._runs = LowestPriority("explain-run")
        self._rested_at = 0.0
        self.thread = threading.Thread(target=self._loop, name="explain", daemon=True)
        self.thread.start()

    def work_on(self, job: Job) -> None:
        """Go on with a job. The caller sees to it that the thread is free."""
        self._inbox.put(job)

    def close(self, wait_s: float) -> None:
        """End after the job at hand; wait for that at most ``wait_s`` seconds."""
        self._inbox.put(None)
        self.thread.join(wait_s)

    def _loop(self) -> None:
        try:
            self._work()
        finally:
            # Not before: a job whose run nobody does would wait for it for ever.
            self._runs.close()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            outcome: BaseException | bool
            begun = time.monotonic()
            try:
                outcome = self._advance(job)
            except BaseException as error:  # somebody waits for this outcome, whatever it is
                outcome = error
            job.worked_s += time.monotonic() - begun
            self._worked(job, outcome)
            del job, outcome  # or the last explanation would live until the next one comes

    def _advance(self, job: Job) -> bool:
        """Whether the explanation is done."""
        self._rested_at = begun = time.monotonic()
        if job.parts is None:
            job.parts = self._explainer.explain(job.asked, lambda: self._left_s(job), job.stop, self._runs.run)
        while not job.withdrawn:
            part = next(job.parts, None)
            if part is None:
                return True
            now = time.monotonic()
            job.seconds.append((_name(part), now - begun))
            begun = now
            job.given += size_of(part)
            self._gave(job, part)
            if job.behind or self._others(job):
                return False
        return True

    def _left_s(self, job: Job) -> float:
        """Seconds that the explanation may still take; asked between runs, and rests if it has to."""
        ends_at = job.deadline_at - RESERVE_S
        begun = time.monotonic()
        worked_s = begun - self._rested_at
        while not job.withdrawn:
            rest_s = min(begun + worked_s * (1 / self._share() - 1), ends_at) - time.monotonic()
            if rest_s <= 0:
                break
            time.sleep(min(rest_s, REST_S))
        self._rested_at = time.monotonic()
        # Of that the rest will be rested.
        return (ends_at - self._rested_at) * self._share()


def size_of(part: Part) -> int:
    """Bytes of a part, as far as they matter to a reader who is slow."""
    return len(part.tile.weights) if isinstance(part, AttentionTile) else 0


def _name(part: Part) -> str:
    """How a part's time is counted; empty for the summary, which takes none."""
    if isinstance(part, Attribution):
        return part.method
    return _NAMES.get(type(part), "")
