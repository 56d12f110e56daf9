"""Explanations beside classification: a queue of their own, one thread that works on them, and one of the lowest priority for the graphs.

The event loop decides which explanation goes on; the first thread works on one until it is done or its reader is behind, and has the
second run the graphs, when nothing else wants the core. Only runs are worth that, and only they bear it: a thread of the lowest
priority that held the GIL while it waits for a core would hold up everything (half a second was seen).
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace

from sentiment.errors import Expired, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain.evidence import Evidence
from sentiment.explain.parts import Asked, AttentionTile, Attribution, Counterfactuals, Header, Heads, Neuron, Part, Summary
from sentiment.explainer import Explainer
from sentiment.logs import logger
from sentiment.metrics import ModelMetrics
from sentiment.model.lowest_priority import LowestPriority
from sentiment.model.session import Stop

# What an explanation may be ahead of its reader: enough that nobody waits for a network's round trip.
AHEAD_BYTES = 2**20
# Explanations that are begun and not read to their end; each may hold the attention of a long text.
BEGUN_MAX = 2
# A reader that takes nothing for so long loses its place to one that waits.
READ_NOTHING_S = 2.0
# Kept of the time that is left, for the summary's way to the client.
RESERVE_S = 0.05
# Under a CPU quota the lowest priority protects nobody: what this thread uses is missing elsewhere. While texts are classified it
# then takes this share of one core.
QUOTA_SHARE = 0.1
REST_S_MAX = 0.5

_NAMES = {Header: "header", AttentionTile: "attention", Neuron: "neuron", Evidence: "evidence", Heads: "heads"}


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """How many explanations may wait, and the bytes of one that is streamed or part of a ClassifyResponse."""

    calls_max: int
    bytes_max: int
    classify_bytes_max: int = 7 * 2**19


@dataclass(eq=False)
class _Job:
    """One explanation. The thread alone touches ``parts`` while ``working``; ``given`` is the thread's, ``taken`` the loop's."""

    asked: Asked
    deadline_at: float
    arrived_at: float
    stop: Stop
    ready: "asyncio.Queue[Part | BaseException | None]"
    parts: Iterator[Part] | None = None
    begun_at: float = 0.0
    read_at: float = 0.0
    given: int = 0
    taken: int = 0
    working: bool = False
    withdrawn: bool = False
    asked_at: float | None = None
    seconds: list[tuple[str, float]] = field(default_factory=list)

    @property
    def behind(self) -> bool:
        """Whether its reader has too much to read."""
        return self.given - self.taken > AHEAD_BYTES


class Explaining:
    """Explains one classifier's answers. Lives on one event loop."""

    def __init__(
        self,
        explainer: Explainer,
        metrics: ModelMetrics,
        limits: ExplainLimits,
        busy: Callable[[], bool] = lambda: False,
        under_quota: bool = False,
    ) -> None:
        """Start the thread; must be called in the event loop.

        Args:
            explainer: does the work.
            metrics: of the model.
            limits: of the queue and of answers.
            busy: whether texts are being classified; asked by the thread.
            under_quota: the cores are granted by a quota.
        """
        self.limits = limits
        self._explainer = explainer
        self._metrics = metrics
        self._busy = busy
        self._under_quota = under_quota
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._begun: list[_Job] = []
        self._current: _Job | None = None
        self._slow_average_s = 0.5
        self._hangs = False
        self._told_failure = False
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._runs = LowestPriority("explain-run")
        self._worked_since = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="explain", daemon=True)
        self._thread.start()
        metrics.watch_explanations(lambda: len(self._waiting) + len(self._begun))

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be asked for, the default first."""
        return self._explainer.methods

    async def explain(self, asked: Asked, deadline_at: float) -> AsyncGenerator[Part, None]:
        """Give an explanation part by part: the header first, the summary last. Closing the iterator withdraws it.

        Args:
            asked: what to explain.
            deadline_at: instant of ``time.monotonic`` by which the summary must be there; what there is no time for is left out.

        Raises:
            InvalidInput, Unsupported: it cannot be explained so.
            Refused: too many wait, or what waits leaves it no time; or its reader takes nothing while others wait.
            Expired: its turn did not come in time, or a run lasted too long.
            ModelFailed: it could not be computed.
            Unavailable: the thread hangs.
        """
        job = self._submit(asked, deadline_at)
        try:
            while (part := await self._next(job)) is not None:
                yield part
        finally:
            self._withdraw(job)

    def watch(self, stall_s: float) -> None:
        """Find a thread that does not come back, although asked to end ``stall_s`` ago. It cannot be ended: explanations are over."""
        job = self._current
        if job is not None and job.asked_at is not None and time.monotonic() - job.asked_at > stall_s and not self._hangs:
            self._hangs = True
            logger().error("explaining_hangs", model=self._metrics.model, seconds=round(time.monotonic() - job.begun_at, 1))
            for other in [*self._waiting, *self._begun]:
                other.ready.put_nowait(self._hanging())

    def close(self, wait_s: float) -> None:
        """Withdraw everything and end the thread; wait for that at most ``wait_s`` seconds."""
        for job in [*self._waiting, *self._begun]:
            job.ready.put_nowait(Unavailable("the server is draining"))
            self._withdraw(job)
        self._inbox.put(None)
        self._thread.join(wait_s)
        self._runs.close()

    def _submit(self, asked: Asked, deadline_at: float) -> _Job:
        if self._hangs:
            raise self._hanging()
        now = time.monotonic()
        ahead = len(self._waiting)
        expected_s = self._slow_average_s * (ahead + (self._current is not None))
        if ahead >= self.limits.calls_max:
            raise Refused(f"{ahead} explanations wait; the limit is {self.limits.calls_max}", expected_s, "explanations")
        if ahead and expected_s > deadline_at - now:
            message = f"{ahead} explanations wait, about {expected_s:.1f} s of work; {max(0.0, deadline_at - now):.1f} s are left"
            raise Refused(message, expected_s, "explanations", self._slow_average_s)
        job = _Job(asked, deadline_at, now, Stop(), asyncio.Queue())
        self._waiting.append(job)
        self._go_on()
        return job

    def _hanging(self) -> Unavailable:
        return Unavailable("a run of an earlier explanation does not end: this server explains no more until it is replaced")

    async def _next(self, job: _Job) -> Part | None:
        job.read_at = time.monotonic()
        try:
            async with asyncio.timeout_at(job.deadline_at):
                found = await job.ready.get()
        except TimeoutError as error:
            reason = "the last run lasted too long" if job.begun_at else f"{len(self._waiting)} explanations were waiting"
            raise Expired(f"no explanation within the deadline: {reason}") from error
        if isinstance(found, BaseException):
            raise found
        if found is not None:
            job.taken += _size(found)
            if job in self._begun and not job.working:
                self._go_on()
        return found

    def _withdraw(self, job: _Job) -> None:
        """Nobody reads it any more. Harmless when it is over."""
        if job.withdrawn:
            return
        job.withdrawn = True
        if job in self._waiting:
            self._waiting.remove(job)
        if job.working:
            job.asked_at = time.monotonic()
            job.stop.ask()
        elif job in self._begun:
            self._end(job)
        self._go_on()

    def _end(self, job: _Job) -> None:
        """Give its place and its memory to the next."""
        self._begun.remove(job)
        # Its attention may be held in there.
        job.parts = None

    def _go_on(self) -> None:
        """Give the thread something to do, if it is free."""
        if self._current is not None or self._hangs:
            return
        job = next((job for job in self._begun if not job.behind), None)
        if job is None and self._waiting:
            if len(self._begun) >= BEGUN_MAX:
                self._make_room()
                return
            job = self._waiting.popleft()
            job.begun_at = time.monotonic()
            self._begun.append(job)
        if job is not None:
            self._current = job
            job.working = True
            self._inbox.put(job)

    def _make_room(self) -> None:
        """End the explanation whose reader has taken nothing for longest, now or as soon as it has been long enough."""
        slowest = min(self._begun, key=lambda job: job.read_at)
        left_s = slowest.read_at + READ_NOTHING_S - time.monotonic()
        if left_s > 0:
            self._loop.call_later(left_s, self._go_on)
            return
        while not slowest.ready.empty():
            slowest.ready.get_nowait()
        message = f"nothing was read for {READ_NOTHING_S:.0f} s while other explanations wait"
        slowest.ready.put_nowait(Refused(message, self._slow_average_s, "explanations"))
        self._withdraw(slowest)

    def _gave(self, job: _Job, part: Part) -> None:
        """In the event loop: a part has come."""
        if job.withdrawn:
            return
        if isinstance(part, Summary):
            part = replace(part, queue_s=job.begun_at - job.arrived_at)
        job.ready.put_nowait(part)

    def _worked(self, job: _Job, outcome: BaseException | bool) -> None:
        """In the event loop: the thread is free again. ``outcome``: whether the explanation is done, or why it failed."""
        self._current = None
        job.working = False
        for name, seconds in job.seconds:
            self._metrics.explain_seconds[name](seconds)
        job.seconds.clear()
        if job.withdrawn:
            self._end(job)
        elif outcome is not False:
            self._slow_average_s += 0.1 * (time.monotonic() - job.begun_at - self._slow_average_s)
            job.ready.put_nowait(None if outcome is True else self._told(job, outcome))
            self._end(job)
        if self._explainer.failure and not self._told_failure:
            self._told_failure = True
            logger().error("explain_graph_passed_over", model=self._metrics.model, reason=self._explainer.failure)
        self._go_on()

    def _told(self, job: _Job, error: BaseException) -> RequestError:
        """What the client is told; the log says all."""
        if isinstance(error, RequestError):
            return error
        logger().error("explain_failed", model=self._metrics.model, characters=len(job.asked.text), exc_info=error)
        memory = ": it needs more memory than there is" if isinstance(error, OutOfMemory) else ""
        return ModelFailed(f"the explanation could not be computed{memory}")

    def _work(self) -> None:
        """The thread."""
        while (job := self._inbox.get()) is not None:
            outcome: BaseException | bool
            try:
                outcome = self._advance(job)
            except BaseException as error:  # somebody waits for this outcome, whatever it is
                outcome = error
            self._tell(self._worked, job, outcome)
            del job, outcome  # or the last explanation would live until the next one comes

    def _advance(self, job: _Job) -> bool:
        """Work on an explanation until it is done (True) or its reader is behind (False)."""
        if job.parts is None:
            job.parts = self._explainer.explain(job.asked, lambda: self._left_s(job), job.stop, self._runs.run)
        self._worked_since = begun = time.monotonic()
        for part in job.parts:
            now = time.monotonic()
            job.seconds += [(name, now - begun) for name in [_name(part)] if name]
            begun = now
            job.given += _size(part)
            self._tell(self._gave, job, part)
            if job.behind and not job.withdrawn:
                return False
            if job.withdrawn:
                return True
        return True

    def _left_s(self, job: _Job) -> float:
        """Seconds that the explanation may still take; asked between runs."""
        if self._under_quota and self._busy():
            rest_s = (time.monotonic() - self._worked_since) * (1 / QUOTA_SHARE - 1)
            time.sleep(max(0.0, min(rest_s, REST_S_MAX, job.deadline_at - RESERVE_S - time.monotonic())))
            self._worked_since = time.monotonic()
        return job.deadline_at - RESERVE_S - time.monotonic()

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return


def _size(part: Part) -> int:
    return len(part.tile.weights) if isinstance(part, AttentionTile) else 0


def _name(part: Part) -> str:
    """How a part's time is counted; empty for the summary, which takes none."""
    if isinstance(part, Attribution):
        return part.method
    return "counterfactuals" if isinstance(part, Counterfactuals) else _NAMES.get(type(part), "")
