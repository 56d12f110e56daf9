"""A runner: one thread that runs one batch at a time. A runner with a device also prepares the next batch, in a second thread.

The outcome of each batch is reported exactly once, whatever happens: the callers of its rows wait for it.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sentiment.model.classifier import Classifier
from sentiment.model.session import Fed, Stop
from sentiment.model.tokenizer import Row

T = TypeVar("T")
# How long to wait for the end of an idle runner.
WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a batch: the raw logits of each row, in order, and the seconds of padding, running, and copying to and from a device.

    ``tokens``: the number of computed tokens, padding included. ``overlapped_s``: the part of ``pad_s`` in which another batch ran.
    """

    logits: list[list[float]]
    pad_s: float
    run_s: float
    copy_s: float = 0.0
    tokens: int = 0
    overlapped_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds in which this batch occupied the runner."""
        return self.pad_s - self.overlapped_s + self.copy_s + self.run_s


Outcome = Ran | BaseException
Report = Callable[[Outcome], None]


class _Batch:
    """A batch for a runner's thread. The first thread that calls ``lay_out`` does it, once."""

    def __init__(self, classifier: Classifier, rows: Sequence[Row], wide: bool) -> None:
        self.stop = Stop()
        self._classifier = classifier
        self._rows = rows
        self._wide = wide
        self._lock = threading.Lock()
        self._laid_out: Fed | BaseException | None = None
        self._pad_s = 0.0

    def lay_out(self) -> Fed | BaseException:
        """The inputs of the graph, or the error of laying them out."""
        with self._lock:
            if self._laid_out is None:
                begun = time.perf_counter()
                try:
                    self._laid_out = self._classifier.feeds(self._rows)
                except BaseException as error:  # raised by ``run``, in the runner's thread
                    self._laid_out = error
                self._pad_s = time.perf_counter() - begun
            return self._laid_out

    def run(self) -> Ran:
        """Run the batch in the calling thread."""
        begun = time.perf_counter()
        feeds = self.lay_out()
        waited_s = time.perf_counter() - begun
        if isinstance(feeds, BaseException):
            raise feeds
        session = self._classifier.session
        laid_out_at = time.perf_counter()
        # A device session may have added filler rows.
        run = session.run_wide if self._wide else session.run
        logits: list[list[float]] = run(feeds, self.stop)[: len(self._rows)].tolist()
        run_s = time.perf_counter() - laid_out_at - session.copied_s
        overlapped_s = max(0.0, self._pad_s - waited_s)
        return Ran(logits, self._pad_s, run_s, session.copied_s, feeds["input_ids"].size, overlapped_s)


class Runner:
    """One thread that runs batches. ``start`` hands it a batch; the report is called in the runner's thread.

    After a failed run a new thread replaces the old one, so that no thread-local state of the failed run remains. A runner with a
    classifier of its own, on a device, keeps its thread, since the device's captured runs belong to it.
    """

    def __init__(self, name: str, niceness: int = 0, low_priority: "Runner | None" = None) -> None:
        """Start the thread.

        Args:
            name: of the runner and its thread.
            niceness: added to the niceness of the process, 0 to 19 (Linux only).
            low_priority: runs the batches of low priority in its own thread, because a thread may lower its priority but not raise it
                again. It is closed with this runner.
        """
        self.name = name
        self._low_priority = low_priority
        # Computed once: a replacement thread would inherit the niceness of the thread it replaces.
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0) + niceness
        # Runs all batches of this runner; None: each batch brings its classifier.
        self.classifier: Classifier | None = None
        # A job returns whether another thread has replaced this one.
        self._jobs: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._beside = ThreadPoolExecutor(1, f"{name}-next")
        self._begin()

    @property
    def ahead(self) -> bool:
        """Whether it accepts a second batch while one runs. Useful only on a device, where the CPU is free to lay the batch out."""
        return self.classifier is not None

    def start(
        self,
        classifier: Classifier,
        rows: Sequence[Row],
        report: Report,
        ahead: bool = False,
        wide: bool = False,
        low_priority: bool = False,
    ) -> Callable[[], None]:
        """Run ``rows`` as one batch and call ``report`` with the outcome. Call it only when the runner is free, unless ``ahead``.

        Args:
            classifier: runs the rows, unless the runner has a classifier of its own.
            rows: at least one.
            report: called once.
            ahead: the runner is busy: lay the rows out now, and run them after the current batch.
            wide: on idle cores too: see ``Session.run_wide``.
            low_priority: lower than that of the event loop, if the runner has a thread for that.

        Returns:
            A function that stops this run: it fails before the next node of its graph. A kernel that hangs cannot be stopped.
        """
        if low_priority and self._low_priority is not None:
            return self._low_priority.start(classifier, rows, report, ahead, wide)
        batch = _Batch(self.classifier or classifier, rows, wide)
        if ahead:
            # If no thread can be started, the runner's own thread lays the rows out later.
            with contextlib.suppress(RuntimeError):
                self._beside.submit(batch.lay_out)
        self._jobs.put(partial(self._run, batch, report))
        return batch.stop.ask

    def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in the runner's thread and wait for its result. Only before the first batch."""
        done: Future[T] = Future()

        def job() -> bool:
            try:
                done.set_result(work())
            except BaseException as error:  # raised again in the calling thread
                done.set_exception(error)
            return False

        self._jobs.put(job)
        return done.result()

    def close(self, wait_s: float = WAIT_S) -> None:
        """End the thread after its current batch. Waits at most ``wait_s`` seconds, or twice that if another thread replaces it."""
        self._beside.shutdown(wait=False)
        self._jobs.put(None)
        thread = self._thread
        thread.join(wait_s)
        if self._thread is not thread:
            self._thread.join(wait_s)
        if self._low_priority is not None:
            self._low_priority.close(wait_s)

    def _begin(self) -> None:
        # A daemon thread: Python cannot end a kernel that hangs, and it must not keep the process alive.
        thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
        thread.start()
        self._thread = thread

    def _replaced(self) -> bool:
        """Start a thread that replaces this one. Returns False if none can be started; this one then continues."""
        try:
            self._begin()
            return True
        except RuntimeError:
            return False

    def _loop(self) -> None:
        if sys.platform == "linux":
            # On Linux the priority applies to the calling thread only.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (job := self._jobs.get()) is not None:
            if job():
                return
            del job  # otherwise this batch would stay in memory until the next one arrives

    def _run(self, batch: _Batch, report: Report) -> bool:
        outcome: Outcome
        try:
            outcome = batch.run()
        except BaseException as error:  # the callers of the rows wait for the outcome
            outcome = error
        # Before the report, since the report may hand over the next batch. A runner with a device keeps its thread: it may have the next
        # batch already, which a new thread would run before this one is reported, and its captured runs belong to this thread.
        replaced = isinstance(outcome, BaseException) and not self.ahead and self._replaced()
        report(outcome)
        return replaced


def run_batch(classifier: Classifier, rows: Sequence[Row], wide: bool = False) -> Ran:
    """Pad and run rows as one batch in the calling thread; ``wide``: on idle cores too."""
    return _Batch(classifier, rows, wide).run()
