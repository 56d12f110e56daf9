"""Queue of explanations, separate from classification.

Two lanes, for short and for long explanations, have a thread each that lets one explanation after the other work. Each explanation has a
thread of its own, and each lane one of the lowest priority that runs the graphs. The event loop lets explanations in and gives their parts
to the callers. Graph runs use only CPU time that nothing else needs. Nothing but graph runs may have the lowest priority: a thread that
holds the GIL while it waits for a core blocks the whole process (0.5 s was measured).
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sentiment.errors import Expired, ModelFailed, OutOfMemory, Refused, RequestError, Unavailable
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.prediction import Prediction
from sentiment.explain.parts import ExplanationRequest, Part, Summary
from sentiment.explain.thread import RESERVE_S, ExplainThreads, ExplanationTask
from sentiment.explain.turns import NoRoom
from sentiment.model.lease import InUse
from sentiment.model.tokenizer import INLINE_CHARACTERS_MAX
from sentiment.observability.callers import number_of, twice_the_others
from sentiment.observability.logs import logger
from sentiment.observability.metrics import ModelMetrics

# The shortest retry delay that a refusal gives.
RETRY_S_MIN = 0.1
# A reader that is behind, and slower than this for READ_S, loses its place if another explanation waits for it.
READ_BYTES_PER_S = 2**16
READ_S = 2.0
# The stream ends with a summary this long before the deadline, so that it reaches the client in time. The engine stops a little earlier.
CUT_S = RESERVE_S / 2
HUNG = "an earlier explanation does not stop: this server explains nothing until it does"
DRAINING = "the server is draining"
CUT = "the deadline passed during a run: the parts that are missing were left out"


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """Limits: how many explanations may wait in a lane, and bytes of one explanation, streamed or as part of a ClassifyResponse."""

    calls_max: int
    bytes_max: int
    classify_bytes_max: int = 7 * 2**19


class Explaining:
    """Explains the answers of one classifier. Belongs to one event loop."""

    def __init__(
        self,
        explainer: Explainer,
        metrics: ModelMetrics,
        limits: ExplainLimits,
        share: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        """Start the threads; must be called in the event loop.

        Args:
            explainer: computes the explanations.
            metrics: metrics of the model.
            limits: limits of the queue and of explanations.
            share: the share of one core for explanations now, above 0 and at most 1. The threads call it.
            clock: the event loop's, in seconds. The threads call it.
            rest: see ``ExplainThreads``.
        """
        self._clock = clock
        self.limits = limits
        # Callers that are reading an explanation.
        self.readers = InUse()
        self.explainer = explainer
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        # Those whose callers wait for parts, in order.
        self._tasks: dict[ExplanationTask, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        # The explanation whose run does not end although it was asked to stop.
        self._hung: ExplanationTask | None = None
        self._failure_logged = False
        self._closed = False
        self._tokenizing = ThreadPoolExecutor(1, "explain-tokenize")
        # How many texts of each caller wait for that thread.
        self._longer: Counter[str] = Counter()
        self.threads = ExplainThreads(
            explainer,
            limits.calls_max,
            lambda *part: self._call_on_loop(self._on_part, *part),
            lambda task: self._call_on_loop(self._on_ended, task),
            share,
            clock,
            rest,
        )
        metrics.watch_explanations(lambda: len(self.threads))

    async def explain(self, request: ExplanationRequest, deadline_at: float, caller: str = "") -> AsyncGenerator[Part, None]:
        """Yield an explanation part by part: the header first, the summary last. Closing the iterator withdraws the request.

        Args:
            request: what to explain.
            deadline_at: instant of ``time.monotonic`` by which the summary must be sent. Parts that do not fit are left out.
            caller: who asks; callers share time and places fairly.

        Raises:
            InvalidInput, Unsupported: the request is invalid, or the model does not support it.
            Refused: too many explanations wait, or they leave too little time for this one; or the reader is too slow while others wait.
            Expired: the explanation did not start in time, or a run took too long.
            ModelFailed: the computation failed.
            Unavailable: a thread hangs, or the server is draining.
        """
        with self.readers:
            self._check_open()
            arrived_at = self._clock()
            prediction = await self._predict(request, deadline_at, caller)
            task = self._submit(request, prediction, arrived_at, deadline_at, caller)
            try:
                while (part := await self._next(task)) is not None:
                    yield part
            finally:
                self._withdraw(task)

    def watch(self, stall_s: float) -> None:
        """Detect a hung thread: a run that was asked to stop more than ``stall_s`` seconds ago. All waiting callers then fail.

        A thread that gets no core, since all are busy, does not hang.
        """
        if self._hung is not None:
            if self._hung in self.threads.running:
                return
            self._hung = None
            logger().info("explain_thread_recovered", model=self._metrics.model)
        now = self._clock()
        for task in self.threads.running:
            if task.stopped_at is not None and self.threads.hangs(task, stall_s):
                self._hung = task
                logger().error("explain_thread_hung", model=self._metrics.model, seconds=round(now - task.stopped_at, 1))
                self._fail_all(HUNG)
                return

    def close(self, wait_s: float) -> None:
        """Withdraw all requests and end the threads, waiting at most ``wait_s`` seconds. After ``withdraw_all``: from any thread."""
        if not self._closed:
            self.withdraw_all()
        # What it has still to do is not cancelled: its callers get the reason.
        self._tokenizing.shutdown(wait=False)
        self.threads.close(wait_s)

    def withdraw_all(self) -> None:
        """Withdraw all requests and accept no more. Call it in the event loop."""
        self._closed = True
        self._fail_all(DRAINING)

    def _fail_all(self, why: str) -> None:
        for task in list(self._tasks):
            self._fail(task, Unavailable(why))

    def _fail(self, task: ExplanationTask, error: RequestError) -> None:
        """Give the caller an error instead of the parts that it has not read."""
        while not task.ready.empty():
            task.ready.get_nowait()
        task.ready.put_nowait(error)
        self._withdraw(task)

    def _check_open(self) -> None:
        if self._hung in self.threads.running:
            raise Unavailable(HUNG)
        if self._closed:
            raise Unavailable(DRAINING)

    async def _predict(self, request: ExplanationRequest, deadline_at: float, caller: str) -> Prediction:
        if sum(map(len, request.texts)) <= INLINE_CHARACTERS_MAX:
            return self.explainer.predict(request)
        # Longer texts come to the long lane. A caller that has all its places is refused there: here that costs nothing.
        waiting = sum(task.caller == caller and not task.short and task.started_at is None for task in self._tasks) + self._longer[caller]
        if waiting >= self.limits.calls_max:
            message = f"{waiting} explanations of this caller are waiting; the limit is {self.limits.calls_max}"
            raise self._refused(caller, message, self.threads.room_s(False))
        self._longer[caller] += 1
        try:
            async with asyncio.timeout_at(deadline_at):
                return await self._loop.run_in_executor(self._tokenizing, self.explainer.predict, request)
        except TimeoutError as error:
            raise Expired("the deadline passed before the text was tokenized") from error
        finally:
            self._longer[caller] -= 1
            if not self._longer[caller]:
                del self._longer[caller]

    def _submit(
        self, request: ExplanationRequest, prediction: Prediction, arrived_at: float, deadline_at: float, caller: str
    ) -> ExplanationTask:
        # While the text was tokenized, this may have changed.
        self._check_open()
        task = ExplanationTask(
            caller=caller,
            short=prediction.short,
            heavy=prediction.heavy,
            arrived_at=arrived_at,
            deadline_at=deadline_at,
            work_s=prediction.work_s,
            least_s=prediction.least_s,
            request=request,
        )
        try:
            displaced = self.threads.submit(task)
        except NoRoom as error:
            raise self._refused(caller, str(error), error.retry_after_s, task) from error
        self._tasks[task] = None
        for other in displaced:
            message = "its place or its time is needed for the explanations of other callers, which have fewer of them"
            self._fail(other, self._refused(other.caller, message, self.threads.room_s(other.short), other))
        self._check_readers()
        return task

    def _refused(self, caller: str, message: str, retry_after_s: float, task: ExplanationTask | None = None) -> Refused:
        self._metrics.refused["explanations"]()
        have = Counter(one.caller for one in self._tasks) + self._longer
        # It may not be among them.
        have[caller] += task not in self._tasks
        # As ``Entry.needs_s``: no explanation is refused for needing more than half of what its deadline leaves.
        needs_s = 0.0 if task is None else min(task.least_s, (task.deadline_at - self._clock()) / 2)
        refusal = Refused(message, max(RETRY_S_MIN, retry_after_s), "explanations", needs_s)
        refusal.over_share = twice_the_others(have[caller], have.total(), len(have))
        return refusal

    async def _next(self, task: ExplanationTask) -> Part | None:
        if task.cut:
            return None
        try:
            async with asyncio.timeout_at(task.deadline_at - (CUT_S if task.answered else 0.0)):
                found = await task.ready.get()
        except TimeoutError as error:
            now = self._clock()
            if task.started_at is None:
                reason = f"it waited {now - task.arrived_at:.2f} s in the queue"
            elif task.answered:
                task.cut = True
                return Summary(False, (CUT,), 0, 0, task.worked_s, now - task.arrived_at - task.worked_s)
            else:
                waited_s, works_s = task.started_at - task.arrived_at, now - task.started_at
                reason = f"it started after {waited_s:.2f} s and was not finished {works_s:.2f} s later"
            raise Expired(f"the explanation did not finish within the deadline: {reason}") from error
        if isinstance(found, BaseException):
            raise found
        task.answered = True
        if found is not None:
            self.threads.took(task, found)
            if not task.behind:
                task.behind_since = None
        return found

    def _withdraw(self, task: ExplanationTask) -> None:
        """Stop working for a caller that has left. Does nothing if the explanation has finished."""
        if task in self._tasks:
            del self._tasks[task]
            self._metrics.worked(number_of(task.caller), task.worked_s)
        self.threads.withdraw(task)

    def _check_readers(self) -> None:
        """While another explanation waits for the room of one whose reader is behind: end the one with the slowest, if it is too slow."""
        now = self._clock()
        blocking = [task for task in self.threads.blocking() if task in self._tasks]
        slowest = min(blocking, key=lambda task: _read_bytes_per_s(task, now), default=None)
        if slowest is None:
            return
        if _read_bytes_per_s(slowest, now) < READ_BYTES_PER_S:
            message = f"the caller read less than {READ_BYTES_PER_S} bytes/s for {READ_S:.0f} s while other explanations were waiting"
            self._fail(slowest, self._refused(slowest.caller, message, READ_S, slowest))
        if self._retry_timer is None:
            self._retry_timer = self._loop.call_later(READ_S / 2, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._check_readers()

    def _call_on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop; from the thread."""
        # A closed loop has no caller left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _on_part(self, task: ExplanationTask, part: Part, name: str, seconds: float) -> None:
        """Pass a part on to its caller."""
        if task in self._tasks:
            task.ready.put_nowait(part)
            if task.behind and task.behind_since is None:
                task.behind_since = self._clock(), task.taken
                self._check_readers()
        if name:
            self._metrics.observing.later("explanation", self._metrics.explain_seconds[name], seconds)

    def _on_ended(self, task: ExplanationTask) -> None:
        """Tell the caller that the explanation is complete, or why it failed."""
        if task in self._tasks:
            error = task.error
            if error is not None and not isinstance(error, RequestError):
                logger().error("explain_failed", model=self._metrics.model, characters=len(task.request.text), exc_info=error)
                error = not_computed(error)
            task.ready.put_nowait(error)
        if self.explainer.failure and not self._failure_logged:
            self._failure_logged = True
            logger().error("explain_graph_rejected", model=self._metrics.model, reason=self.explainer.failure)


def _read_bytes_per_s(task: ExplanationTask, now: float) -> float:
    """How fast a reader has been since it fell behind; infinite if it is not behind, or for less than READ_S."""
    if task.behind_since is None or now - task.behind_since[0] < READ_S:
        return float("inf")
    return (task.taken - task.behind_since[1]) / (now - task.behind_since[0])


def not_computed(error: BaseException) -> ModelFailed:
    """The error that the caller gets when the computation failed, not the request."""
    memory = ": not enough memory" if isinstance(error, OutOfMemory) else ""
    return ModelFailed(f"the explanation could not be computed{memory}")
