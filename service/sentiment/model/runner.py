"""A runner: one thread that runs one batch at a time. One with a device lays out the next batch meanwhile, in another thread.

Whatever a batch does, its outcome is reported exactly once: somebody is waiting for it.
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


@dataclass(frozen=True, slots=True)
class Ran:
    """What a batch's run gave: raw logits per row in order, and the seconds it took to pad, to run, and to copy to a device and back.

    ``tokens``: how many were computed, with what was padded. ``overlapped_s``: of ``pad_s``, while another batch ran.
    """

    logits: list[list[float]]
    pad_s: float
    run_s: float
    copy_s: float = 0.0
    tokens: int = 0
    overlapped_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds in which the runner could do nothing else."""
        return self.pad_s - self.overlapped_s + self.copy_s + self.run_s


Outcome = Ran | BaseException
Report = Callable[[Outcome], None]


class _Job:
    """A batch for a runner's thread. It is laid out once, by whichever thread comes first."""

    def __init__(self, classifier: Classifier, rows: Sequence[Row], report: Report) -> None:
        self.report = report
        self.stop = Stop()
        self._classifier = classifier
        self._rows = rows
        self._lock = threading.Lock()
        self._laid_out: Fed | BaseException | None = None
        self._pad_s = 0.0

    def lay_out(self) -> Fed | BaseException:
        """What the graph reads, or why there is none."""
        with self._lock:
            if self._laid_out is None:
                begun = time.perf_counter()
                try:
                    self._laid_out = self._classifier.feeds(self._rows)
                except BaseException as error:  # in whatever thread: the run is to fail with it
                    self._laid_out = error
                self._pad_s = time.perf_counter() - begun
            return self._laid_out

    def run(self) -> Ran:
        """Run it in the calling thread."""
        begun = time.perf_counter()
        feeds = self.lay_out()
        waited_s = time.perf_counter() - begun
        if isinstance(feeds, BaseException):
            raise feeds
        session = self._classifier.session
        laid_out_at = time.perf_counter()
        # A device may be given more rows than there are.
        logits: list[list[float]] = session.run(feeds, self.stop)[: len(self._rows)].tolist()
        run_s = time.perf_counter() - laid_out_at - session.copied_s
        overlapped_s = max(0.0, self._pad_s - waited_s)
        return Ran(logits, self._pad_s, run_s, session.copied_s, feeds["input_ids"].size, overlapped_s)


class Runner:
    """One thread over a classifier's session. ``start`` hands it a batch; the report is called in the runner's thread.

    After a run that raised, a new thread takes the old one's place: nothing that the failed run left in it lives on. But a runner
    with a classifier of its own, on a device, keeps its thread, to which what the device has captured belongs.
    """

    def __init__(self, name: str, niceness: int = 0) -> None:
        """Start the thread.

        Args:
            name: of the runner and its thread.
            niceness: how much the thread gives way to the others of the process where cores are scarce, 0 to 19 (Linux only).
        """
        self.name = name
        # A thread that replaces one of this runner's would inherit that one's.
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0) + niceness
        # What runs its batches; None: the classifier that comes with each of them.
        self.classifier: Classifier | None = None
        # A job says whether another thread has taken this one's place.
        self._jobs: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._beside = ThreadPoolExecutor(1, f"{name}-next")
        self._begin()

    @property
    def ahead(self) -> bool:
        """Whether it gains by taking a batch while one runs: where that leaves the processor to who lays it out."""
        return self.classifier is not None

    def start(self, classifier: Classifier, rows: Sequence[Row], report: Report, ahead: bool = False) -> Callable[[], None]:
        """Run ``rows`` as one batch and call ``report`` with the outcome. The caller sees to it that the runner is free.

        Args:
            classifier: what runs them, unless the runner has one of its own.
            rows: at least one.
            report: called once.
            ahead: it is not free: lay them out now, and run them after the batch that runs.

        Returns:
            What asks this run to end: it fails at the next node of its graph. A kernel that does not return does not hear.
        """
        job = _Job(self.classifier or classifier, rows, report)
        if ahead:
            # Where no thread can be started, the runner's own does it later.
            with contextlib.suppress(RuntimeError):
                self._beside.submit(job.lay_out)
        self._jobs.put(partial(self._batch, job))
        return job.stop.ask

    def call(self, work: Callable[[], T]) -> T:
        """Do something in the runner's thread and wait for it; before the first batch."""
        done: Future[T] = Future()

        def job() -> bool:
            try:
                done.set_result(work())
            except BaseException as error:  # whoever waits gets it
                done.set_exception(error)
            return False

        self._jobs.put(job)
        return done.result()

    def close(self, wait_s: float) -> None:
        """End the thread after the batch it runs; wait for that at most ``wait_s`` seconds, twice that if another takes its place."""
        self._beside.shutdown(wait=False)
        self._jobs.put(None)
        thread = self._thread
        thread.join(wait_s)
        if self._thread is not thread:
            self._thread.join(wait_s)

    def _begin(self) -> None:
        # A daemon: a kernel that never returns cannot be ended from Python and must not keep the process alive.
        thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
        thread.start()
        self._thread = thread

    def _replaced(self) -> bool:
        """Let a new thread take this one's place. False where none can be started: then this one goes on."""
        try:
            self._begin()
            return True
        except RuntimeError:
            return False

    def _loop(self) -> None:
        if sys.platform == "linux":
            # There it concerns the calling thread alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (job := self._jobs.get()) is not None:
            if job():
                return
            del job  # or the last batch would live until the next one comes

    def _batch(self, job: _Job) -> bool:
        outcome: Outcome
        try:
            outcome = job.run()
        except BaseException as error:  # rows wait for this outcome, whatever it is
            outcome = error
        # Before the report, which may bring the next batch. One that takes batches ahead has that already, and the new thread would run it
        # before this one has been reported; and what its device has captured belongs to this thread.
        replaced = isinstance(outcome, BaseException) and not self.ahead and self._replaced()
        job.report(outcome)
        return replaced


def run_batch(classifier: Classifier, rows: Sequence[Row]) -> Ran:
    """Pad and run rows as one batch in the calling thread."""
    return _Job(classifier, rows, lambda _: None).run()
