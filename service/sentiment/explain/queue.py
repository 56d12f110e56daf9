"""Queue of explanations, separate from classification.

One thread computes explanations; another one, of the lowest priority, runs the graphs. The event loop decides which explanation continues.
The thread works on it until it is finished, its reader falls behind, or another explanation is due. Graph runs use only CPU time that
nothing else needs. Nothing but graph runs may have the lowest priority: a thread that holds the GIL while it waits for a core blocks the
whole process (0.5 s was measured).
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace

from sentiment.errors import Expired, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain.engine import Explainer
from sentiment.explain.parts import ExplanationRequest, Part, Summary
from sentiment.explain.thread import RESERVE_S, ExplainThread, Job, size_of
from sentiment.model.lease import InUse
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics

# Explanations that are started and not yet read to their end; each may hold the attention maps of a long text.
STARTED_MAX = 2
# A reader that is behind, and slower than this for READ_S, loses its place if another explanation waits.
READ_BYTES_PER_S = 2**16
READ_S = 2.0
# The stream ends with a summary this long before the deadline, so that it reaches the client in time. The engine stops a little earlier.
CUT_S = RESERVE_S / 2
CUT = "the deadline passed during a run: the parts that are missing were left out"
# Estimate for an explanation before the first one has finished.
EXPECTED_S = 0.5


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """Limits: how many explanations may wait, and bytes of one explanation, streamed or as part of a ClassifyResponse."""

    calls_max: int
    bytes_max: int
    classify_bytes_max: int = 7 * 2**19


@dataclass(eq=False)
class _Call:
    """A caller that waits for the parts of a job."""

    job: Job
    arrived_at: float
    ready: "asyncio.Queue[Part | BaseException | None]" = field(default_factory=asyncio.Queue)
    started_at: float | None = None
    stop_requested_at: float | None = None
    # Whether the caller received a part, and whether the deadline ended the stream with a summary in place of missing parts.
    answered: bool = False
    cut: bool = False
    # When the reader fell behind, and how many bytes it had read by then.
    behind_since: tuple[float, int] | None = None

    def read_bytes_per_s(self, now: float) -> float:
        """How fast the reader has been since it fell behind; infinite if it is not behind, or for less than READ_S."""
        if self.behind_since is None or now - self.behind_since[0] < READ_S:
            return float("inf")
        return (self.job.taken - self.behind_since[1]) / (now - self.behind_since[0])


class Explaining:
    """Explains the answers of one classifier. Belongs to one event loop."""

    def __init__(
        self, explainer: Explainer, metrics: ModelMetrics, limits: ExplainLimits, share: Callable[[], float] = lambda: 1.0
    ) -> None:
        """Start the threads; must be called in the event loop.

        Args:
            explainer: computes the explanations.
            metrics: metrics of the model.
            limits: limits of the queue and of explanations.
            share: the share of time that the thread may work now, above 0 and at most 1. The thread calls it.
        """
        self.limits = limits
        # Callers that are reading an explanation.
        self.readers = InUse()
        self.explainer = explainer
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()
        self._started: list[_Call] = []
        self._current: _Call | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._slow_average_s = EXPECTED_S
        self._hung = False
        self._failure_logged = False
        self._closed = False
        self._thread = ExplainThread(
            explainer,
            lambda job, part: self._call_on_loop(self._on_part, job, part),
            lambda job, outcome: self._call_on_loop(self._on_paused, job, outcome),
            lambda job: any(call.job is not job and not call.job.behind for call in self._started),
            share,
        )
        metrics.watch_explanations(lambda: len(self._waiting) + len(self._started))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that a request can name, the default first."""
        return self.explainer.methods

    async def explain(self, request: ExplanationRequest, deadline_at: float) -> AsyncGenerator[Part, None]:
        """Yield an explanation part by part: the header first, the summary last. Closing the iterator withdraws the request.

        Args:
            request: what to explain.
            deadline_at: instant of ``time.monotonic`` by which the summary must be sent. Parts that do not fit are left out.

        Raises:
            InvalidInput, Unsupported: the request is invalid, or the model does not support it.
            Refused: too many explanations wait, or they leave no time for this one; or the reader is too slow while others wait.
            Expired: the explanation did not start in time, or a run took too long.
            ModelFailed: the computation failed.
            Unavailable: the thread hangs, or the server is draining.
        """
        with self.readers:
            call = self._submit(request, deadline_at)
            try:
                while (part := await self._next(call)) is not None:
                    yield part
            finally:
                self._withdraw(call)

    def unload(self, for_good: bool = False) -> None:
        """Release the memory of the explain graph once no explanation uses it.

        The next explanation loads the graph again. If it cannot be loaded again, it is kept, unless ``for_good``.
        """
        self.explainer.unload(for_good)

    def watch(self, stall_s: float) -> None:
        """Detect a hung thread: a run that was told to stop more than ``stall_s`` seconds ago. All waiting callers then fail."""
        call = self._current
        if self._hung or call is None or call.stop_requested_at is None:
            return
        seconds = time.monotonic() - call.stop_requested_at
        if seconds > stall_s:
            self._hung = True
            logger().error("explain_thread_hung", model=self._metrics.model, seconds=round(seconds, 1))
            for other in [*self._waiting, *self._started]:
                other.ready.put_nowait(self._hung_error())

    def close(self, wait_s: float) -> None:
        """Withdraw all requests and end the threads, waiting at most ``wait_s`` seconds. After ``withdraw_all``: from any thread."""
        if not self._closed:
            self.withdraw_all()
        self._thread.close(wait_s)

    def withdraw_all(self) -> None:
        """Withdraw all requests and accept no more. Call it in the event loop."""
        self._closed = True
        calls = [*self._waiting, *self._started]
        self._waiting.clear()
        for call in calls:
            call.ready.put_nowait(self._draining())
            self._withdraw(call)

    def _submit(self, request: ExplanationRequest, deadline_at: float) -> _Call:
        if self._hung:
            raise self._hung_error()
        if self._closed:
            raise self._draining()
        now = time.monotonic()
        ahead, left_s = len(self._waiting), max(0.0, deadline_at - now)
        expected_s = self._slow_average_s * (ahead + (self._current is not None))
        if ahead >= self.limits.calls_max:
            # There is room as soon as one explanation has finished.
            raise self._refused(f"{ahead} explanations are waiting; the limit is {self.limits.calls_max}", self._slow_average_s)
        if ahead and expected_s > left_s:
            work = f"{ahead} explanations are waiting, about {expected_s:.1f} s of work"
            raise self._refused(f"{work}; the deadline of this one is in {left_s:.1f} s", expected_s)
        call = _Call(Job(request, deadline_at), now)
        self._waiting.append(call)
        self._start_next()
        return call

    def _refused(self, message: str, retry_after_s: float) -> Refused:
        self._metrics.refused["explanations"]()
        return Refused(message, retry_after_s, "explanations", self._slow_average_s)

    def _draining(self) -> Unavailable:
        return Unavailable("the server is draining")

    def _hung_error(self) -> Unavailable:
        return Unavailable("an earlier explanation does not stop: this server explains nothing until it does")

    async def _next(self, call: _Call) -> Part | None:
        job = call.job
        if call.cut:
            return None
        try:
            async with asyncio.timeout_at(job.deadline_at - (CUT_S if call.answered else 0.0)):
                found = await call.ready.get()
        except TimeoutError as error:
            now = time.monotonic()
            if call.answered and call.started_at is not None:
                call.cut = True
                return Summary(False, (CUT,), 0, 0, now - call.started_at, call.started_at - call.arrived_at)
            if call.started_at is None:
                reason = f"it waited {now - call.arrived_at:.2f} s in the queue"
            else:
                reason = (
                    f"it started after {call.started_at - call.arrived_at:.2f} s and was not finished {now - call.started_at:.2f} s later"
                )
            raise Expired(f"the explanation did not finish within the deadline: {reason}") from error
        if isinstance(found, BaseException):
            raise found
        call.answered = True
        if found is not None:
            job.taken += size_of(found)
            if call.behind_since is not None and not job.behind:
                call.behind_since = None
                self._start_next()
        return found

    def _withdraw(self, call: _Call) -> None:
        """Stop working for a caller that has left. Does nothing if the explanation has finished."""
        job = call.job
        if job.withdrawn:
            return
        job.withdrawn = True
        if call in self._waiting:
            self._waiting.remove(call)
        if job.working:
            call.stop_requested_at = time.monotonic()
            job.stop.ask()
        elif call in self._started:
            self._end(call)
        self._start_next()

    def _end(self, call: _Call) -> None:
        """Free the place and the memory of an explanation."""
        self._started.remove(call)
        # The iterator may hold attention maps.
        call.job.parts = None

    def _start_next(self) -> None:
        """Give the thread its next job, if it is free.

        That is the started explanation with the earliest deadline whose reader keeps up; without one, the first that waits.
        """
        if self._current is not None or self._hung:
            return
        able = [call for call in self._started if not call.job.behind]
        call = min(able, key=lambda call: call.job.deadline_at, default=None)
        if call is None and self._waiting:
            if len(self._started) >= STARTED_MAX:
                self._make_room()
                return
            call = self._waiting.popleft()
            call.started_at = time.monotonic()
            self._started.append(call)
        if call is not None:
            self._current = call
            call.job.working = True
            self._thread.work_on(call.job)

    def _make_room(self) -> None:
        """End the explanation with the slowest reader, if that reader is too slow. Otherwise check again later."""
        now = time.monotonic()
        slowest = min(self._started, key=lambda call: call.read_bytes_per_s(now))
        if slowest.read_bytes_per_s(now) >= READ_BYTES_PER_S:
            if self._retry_timer is None:
                self._retry_timer = self._loop.call_later(READ_S / 2, self._retry)
            return
        while not slowest.ready.empty():
            slowest.ready.get_nowait()
        message = f"the caller read less than {READ_BYTES_PER_S} bytes/s for {READ_S:.0f} s while other explanations were waiting"
        slowest.ready.put_nowait(self._refused(message, self._slow_average_s))
        self._withdraw(slowest)

    def _retry(self) -> None:
        self._retry_timer = None
        self._start_next()

    def _call_on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop; from the thread."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: no caller is left.
            return

    def _on_part(self, job: Job, part: Part) -> None:
        """Pass a part on to its caller."""
        call = self._current
        if call is None or call.job is not job or job.withdrawn:
            return
        if isinstance(part, Summary) and call.started_at is not None:
            part = replace(part, queue_s=call.started_at - call.arrived_at)
        call.ready.put_nowait(part)

    def _on_paused(self, job: Job, outcome: BaseException | bool) -> None:
        """Take the thread back. ``outcome``: whether the explanation has finished, or why it failed."""
        call, self._current = self._current, None
        assert call is not None
        job.working = False
        if self._hung:
            self._hung = False
            logger().info("explain_thread_recovered", model=self._metrics.model)
        self._metrics.observing.later("explanation", self._count_parts, list(job.seconds))
        job.seconds.clear()
        if job.withdrawn:
            self._end(call)
        elif outcome is False:
            if job.behind and call.behind_since is None:
                call.behind_since = time.monotonic(), job.taken
        else:
            if outcome is True:
                self._slow_average_s += 0.1 * (job.worked_s - self._slow_average_s)
            call.ready.put_nowait(None if outcome is True else self._client_error(job, outcome))
            self._end(call)
        if self.explainer.failure and not self._failure_logged:
            self._failure_logged = True
            logger().error("explain_graph_rejected", model=self._metrics.model, reason=self.explainer.failure)
        self._start_next()

    def _count_parts(self, parts: Sequence[tuple[str, float]]) -> None:
        for name, seconds in parts:
            if name:
                self._metrics.explain_seconds[name](seconds)

    def _client_error(self, job: Job, error: BaseException) -> RequestError:
        """The error that the client receives; the log has the details."""
        if isinstance(error, RequestError):
            return error
        logger().error("explain_failed", model=self._metrics.model, characters=len(job.request.text), exc_info=error)
        return not_computed(error)


def not_computed(error: BaseException) -> ModelFailed:
    """What a caller is told of an error that is none of the request."""
    memory = ": not enough memory" if isinstance(error, OutOfMemory) else ""
    return ModelFailed(f"the explanation could not be computed{memory}")
