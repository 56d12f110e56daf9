"""Explanations beside classification: a queue of their own, one thread that works on them, and one of the lowest priority for the graphs.

The event loop decides which explanation goes on; the thread works on that until it is done, its reader is behind or another wants a turn,
and has the runs of the graphs done when nothing else wants the core. Only runs are worth that, and only they bear it: a thread of the
lowest priority that held the GIL while it waits for a core would hold up everything (half a second was seen).
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from sentiment.errors import Expired, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain.engine import Explainer
from sentiment.explain.parts import Asked, Part, Summary
from sentiment.explain.thread import RESERVE_S, ExplainThread, Job, size_of
from sentiment.model.lease import InUse
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics

# Explanations that are begun and not read to their end; each may hold the attention of a long text.
BEGUN_MAX = 2
# A reader that is behind and slower than that for so long loses its place to one that waits.
READ_BYTES_PER_S = 2**16
READ_S = 2.0
# So long before the deadline what has come is all, for the summary's way to the client; the engine stops a little before.
CUT_S = RESERVE_S / 2
CUT = "time was up in the middle of a run: what does not stand above was left out"
# What an explanation is thought to take before one was given.
EXPECTED_S = 0.5


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """How many explanations may wait, and the bytes of one that is streamed or part of a ClassifyResponse."""

    calls_max: int
    bytes_max: int
    classify_bytes_max: int = 7 * 2**19


@dataclass(eq=False)
class _Call:
    """Somebody who waits for a job's parts."""

    job: Job
    arrived_at: float
    ready: "asyncio.Queue[Part | BaseException | None]" = field(default_factory=asyncio.Queue)
    begun_at: float | None = None
    asked_to_end_at: float | None = None
    # Whether a part was given, and whether a summary took the place of what was missing when time was up.
    answered: bool = False
    cut: bool = False
    # When its reader fell behind, and what that had taken by then.
    behind_since: tuple[float, int] | None = None

    def read_bytes_per_s(self, now: float) -> float:
        """How fast its reader has been since it fell behind; infinite if it has not, or not for READ_S."""
        if self.behind_since is None or now - self.behind_since[0] < READ_S:
            return float("inf")
        return (self.job.taken - self.behind_since[1]) / (now - self.behind_since[0])


class Explaining:
    """Explains one classifier's answers. Lives on one event loop."""

    def __init__(
        self, explainer: Explainer, metrics: ModelMetrics, limits: ExplainLimits, share: Callable[[], float] = lambda: 1.0
    ) -> None:
        """Start the threads; must be called in the event loop.

        Args:
            explainer: does the work.
            metrics: of the model.
            limits: of the queue and of answers.
            share: the part of the time that the thread may work now, above 0 and at most 1; asked by the thread.
        """
        self.limits = limits
        # Whoever reads an explanation, to its end.
        self.readers = InUse()
        self._explainer = explainer
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()
        self._begun: list[_Call] = []
        self._current: _Call | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._slow_average_s = EXPECTED_S
        self._hangs = False
        self._told_failure = False
        self._closed = False
        self._thread = ExplainThread(
            explainer,
            lambda job, part: self._tell(self._gave, job, part),
            lambda job, outcome: self._tell(self._worked, job, outcome),
            lambda job: any(call.job is not job and not call.job.behind for call in self._begun),
            share,
        )
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
            Refused: too many wait, or what waits leaves it no time; or its reader is too slow while others wait.
            Expired: its turn did not come in time, or a run lasted too long.
            ModelFailed: it could not be computed.
            Unavailable: the thread hangs, or the server drains.
        """
        with self.readers:
            call = self._submit(asked, deadline_at)
            try:
                while (part := await self._next(call)) is not None:
                    yield part
            finally:
                self._withdraw(call)

    def unload(self, for_good: bool = False) -> None:
        """Give the explain graph's memory back, once no explanation needs it. The next one loads it again, and if it could not it stays,
        unless ``for_good``.
        """
        self._explainer.unload(for_good)

    def watch(self, stall_s: float) -> None:
        """Find a thread that does not come back, although asked to end ``stall_s`` ago: nobody is kept waiting for it."""
        call = self._current
        if self._hangs or call is None or call.asked_to_end_at is None:
            return
        seconds = time.monotonic() - call.asked_to_end_at
        if seconds > stall_s:
            self._hangs = True
            logger().error("explaining_hangs", model=self._metrics.model, seconds=round(seconds, 1))
            for other in [*self._waiting, *self._begun]:
                other.ready.put_nowait(self._hanging())

    def close(self, wait_s: float) -> None:
        """Withdraw everything and end the threads; wait for that at most ``wait_s`` seconds. After ``withdraw_all`` from any thread."""
        if not self._closed:
            self.withdraw_all()
        self._thread.close(wait_s)

    def withdraw_all(self) -> None:
        """Withdraw everything and take nothing more; in the event loop."""
        self._closed = True
        calls = [*self._waiting, *self._begun]
        self._waiting.clear()
        for call in calls:
            call.ready.put_nowait(self._draining())
            self._withdraw(call)

    def _submit(self, asked: Asked, deadline_at: float) -> _Call:
        if self._hangs:
            raise self._hanging()
        if self._closed:
            raise self._draining()
        now = time.monotonic()
        ahead, left_s = len(self._waiting), max(0.0, deadline_at - now)
        expected_s = self._slow_average_s * (ahead + (self._current is not None))
        if ahead >= self.limits.calls_max:
            # There is room as soon as one is done.
            raise self._refused(f"{ahead} explanations wait; the limit is {self.limits.calls_max}", self._slow_average_s)
        if ahead and expected_s > left_s:
            raise self._refused(f"{ahead} explanations wait, about {expected_s:.1f} s of work; {left_s:.1f} s are left", expected_s)
        call = _Call(Job(asked, deadline_at), now)
        self._waiting.append(call)
        self._go_on()
        return call

    def _refused(self, message: str, retry_after_s: float) -> Refused:
        self._metrics.refused["explanations"]()
        return Refused(message, retry_after_s, "explanations", self._slow_average_s)

    def _draining(self) -> Unavailable:
        return Unavailable("the server is draining")

    def _hanging(self) -> Unavailable:
        return Unavailable("an earlier explanation was asked to end and has not: nothing is explained here until it does")

    async def _next(self, call: _Call) -> Part | None:
        job = call.job
        if call.cut:
            return None
        try:
            async with asyncio.timeout_at(job.deadline_at - (CUT_S if call.answered else 0.0)):
                found = await call.ready.get()
        except TimeoutError as error:
            now = time.monotonic()
            if call.answered and call.begun_at is not None:
                call.cut = True
                return Summary(False, (CUT,), 0, 0, now - call.begun_at, call.begun_at - call.arrived_at)
            if call.begun_at is None:
                reason = f"it waited {now - call.arrived_at:.2f} s for its turn"
            else:
                reason = f"it was begun after {call.begun_at - call.arrived_at:.2f} s and not done {now - call.begun_at:.2f} s later"
            raise Expired(f"no whole explanation within the deadline: {reason}") from error
        if isinstance(found, BaseException):
            raise found
        call.answered = True
        if found is not None:
            job.taken += size_of(found)
            if call.behind_since is not None and not job.behind:
                call.behind_since = None
                self._go_on()
        return found

    def _withdraw(self, call: _Call) -> None:
        """Nobody reads it any more. Harmless when it is over."""
        job = call.job
        if job.withdrawn:
            return
        job.withdrawn = True
        if call in self._waiting:
            self._waiting.remove(call)
        if job.working:
            call.asked_to_end_at = time.monotonic()
            job.stop.ask()
        elif call in self._begun:
            self._end(call)
        self._go_on()

    def _end(self, call: _Call) -> None:
        """Give its place and its memory to the next."""
        self._begun.remove(call)
        # Its attention may be held in there.
        call.job.parts = None

    def _go_on(self) -> None:
        """Give the thread something to do, if it is free: of those begun the most urgent whose reader keeps up, or who waits first."""
        if self._current is not None or self._hangs:
            return
        able = [call for call in self._begun if not call.job.behind]
        call = min(able, key=lambda call: call.job.deadline_at, default=None)
        if call is None and self._waiting:
            if len(self._begun) >= BEGUN_MAX:
                self._make_room()
                return
            call = self._waiting.popleft()
            call.begun_at = time.monotonic()
            self._begun.append(call)
        if call is not None:
            self._current = call
            call.job.working = True
            self._thread.work_on(call.job)

    def _make_room(self) -> None:
        """End the explanation with the slowest reader, if that is too slow; look again later."""
        now = time.monotonic()
        slowest = min(self._begun, key=lambda call: call.read_bytes_per_s(now))
        if slowest.read_bytes_per_s(now) >= READ_BYTES_PER_S:
            if self._look_again is None:
                self._look_again = self._loop.call_later(READ_S / 2, self._looked_again)
            return
        while not slowest.ready.empty():
            slowest.ready.get_nowait()
        message = f"less than {READ_BYTES_PER_S} bytes/s were read for {READ_S:.0f} s while other explanations wait"
        slowest.ready.put_nowait(self._refused(message, self._slow_average_s))
        self._withdraw(slowest)

    def _looked_again(self) -> None:
        self._look_again = None
        self._go_on()

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        """From the thread to the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    def _gave(self, job: Job, part: Part) -> None:
        """A part has come."""
        call = self._current
        if call is None or call.job is not job or job.withdrawn:
            return
        if isinstance(part, Summary) and call.begun_at is not None:
            part = replace(part, queue_s=call.begun_at - call.arrived_at)
        call.ready.put_nowait(part)

    def _worked(self, job: Job, outcome: BaseException | bool) -> None:
        """The thread is free again. ``outcome``: whether the explanation is done, or why it failed."""
        call, self._current = self._current, None
        assert call is not None
        job.working = False
        if self._hangs:
            self._hangs = False
            logger().info("explaining_again", model=self._metrics.model)
        for name, seconds in job.seconds:
            if name:
                self._metrics.explain_seconds[name](seconds)
        job.seconds.clear()
        if job.withdrawn:
            self._end(call)
        elif outcome is False:
            if job.behind and call.behind_since is None:
                call.behind_since = time.monotonic(), job.taken
        else:
            if outcome is True:
                self._slow_average_s += 0.1 * (job.worked_s - self._slow_average_s)
            call.ready.put_nowait(None if outcome is True else self._told(job, outcome))
            self._end(call)
        if self._explainer.failure and not self._told_failure:
            self._told_failure = True
            logger().error("explain_graph_passed_over", model=self._metrics.model, reason=self._explainer.failure)
        self._go_on()

    def _told(self, job: Job, error: BaseException) -> RequestError:
        """What the client is told; the log says all."""
        if isinstance(error, RequestError):
            return error
        logger().error("explain_failed", model=self._metrics.model, characters=len(job.asked.text), exc_info=error)
        memory = ": it needs more memory than there is" if isinstance(error, OutOfMemory) else ""
        return ModelFailed(f"the explanation could not be computed{memory}")
