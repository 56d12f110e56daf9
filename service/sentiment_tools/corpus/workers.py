"""Distributes the parts of a corpus to workers: processes of this machine, or those of a cluster, which ``cluster`` has.

Texts and answers never pass through here: a worker reads its part from the input and writes the answers to the output. A part that is
scored twice because a worker died gives the same file twice.
"""

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from threading import Thread
from typing import Protocol

import pyarrow

from sentiment.errors import SentimentError
from sentiment.files.errors import BadFile, reason
from sentiment.model.cores import cores_granted
from sentiment.observability import logs
from sentiment.offline import OfflineClassifier
from sentiment_tools.corpus.output import CorpusFailed, Count, Output
from sentiment_tools.corpus.scoring import Job, load, score_part
from sentiment_tools.corpus.sources import Part

# A part that this many workers died of is considered to be the cause.
ATTEMPTS_MAX = 4
PROGRESS_EVERY_S = 1.0
# New interpreters: a fork would copy locks that threads hold.
SPAWN = multiprocessing.get_context("spawn")

SoFar = tuple[Count, float]
"""The rows and bytes of a part that are scored."""
NOTHING: SoFar = Count(), 0.0
Show = Callable[[Count, float], None]


class WorkerDied(Exception):
    """A worker ended before it had answered. The message says how."""


class Worker(Protocol):
    """A process with one core and the bundle.

    Attributes:
        so_far: what it has scored of its part.
    """

    so_far: SoFar

    def score(self, part: Part | None) -> Count | str:
        """Score a part, one at a time; returns its count, or what prevented it. None: only load the bundle.

        Raises:
            WorkerDied: by itself, or by ``kill``.
        """

    def kill(self) -> None:
        """End it at once. For any thread."""


Start = Callable[[Job], Worker]
Workers = AbstractContextManager[tuple[Start, int]]
"""How to start a worker, and how many there are by default."""


def score_all(parts: Sequence[Part], start: Callable[[], Worker], workers: int, show: Show) -> None:
    """Score the parts in any order. ``show`` gets the count and bytes so far, about once a second.

    A worker gets its first part once it has loaded the bundle: in a cluster, it may wait for a core for ever.

    Raises:
        CorpusFailed: a part could not be scored; others may have been.
    """
    left = deque(parts)
    count, size = Count(), 0.0
    deaths: Counter[Part | None] = Counter()
    tasks: dict[Future[Count | str], tuple[Worker, Part | None]] = {}
    workers = min(workers, len(parts))
    with ThreadPoolExecutor(workers) as threads:

        def give(worker: Worker, part: Part | None) -> None:
            # Here and not in its thread, or the part before would count twice for a moment.
            worker.so_far = NOTHING
            tasks[threads.submit(worker.score, part)] = worker, part

        def replace(worker: Worker, part: Part | None, error: WorkerDied) -> None:
            worker.kill()
            deaths[part] += 1
            if deaths[part] == ATTEMPTS_MAX:
                what = "scored it" if part else "started, one after the other"
                raise CorpusFailed(f"{part}: {ATTEMPTS_MAX} workers died while they {what}: {error}".removeprefix("None: ")) from error
            if part:
                left.append(part)
            give(start(), None)

        try:
            for _ in range(workers):
                give(start(), None)
            while left or any(part for _, part in tasks.values()):
                for task in wait(tasks, PROGRESS_EVERY_S, FIRST_COMPLETED).done:
                    worker, part = tasks[task]
                    try:
                        found = task.result()
                    except WorkerDied as error:
                        replace(worker, part, error)
                    else:
                        if isinstance(found, str):
                            raise CorpusFailed(found)
                        if part:
                            count, size = count + found, size + part.bytes
                        else:
                            del deaths[None]
                        if left:
                            give(worker, left.popleft())
                        else:
                            worker.kill()
                    del tasks[task]
                now = [worker.so_far for worker, part in tasks.values() if part]
                show(sum((rows for rows, _ in now), count), sum((done for _, done in now), size))
        finally:
            for worker, _ in tasks.values():
                worker.kill()


class Scorer:
    """Scores parts in a worker's process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loaded: tuple[OfflineClassifier, Output] | None = None

    def score(self, part: Part | None, tell: Callable[[SoFar], object]) -> Count | str:
        """As ``Worker.score``. ``tell`` gets what is scored so far."""
        try:
            if self._loaded is None:
                self._loaded = load(self._job), Output(self._job.output, self._job.question)
            return self._score(part, *self._loaded, tell) if part else Count()
        except BadFile as error:
            return str(error)
        except (SentimentError, OSError) as error:
            return f"{part}: {error}" if part else str(error)

    def _score(self, part: Part, classifier: OfflineClassifier, output: Output, tell: Callable[[SoFar], object]) -> Count:
        total = Count()

        def counted(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            nonlocal total
            for batch in batches:
                total += Count.of(batch)
                if batch.num_rows:
                    share = (batch.column("position")[-1].as_py() - part.start) / (part.end - part.start)
                    tell((total, share * part.bytes))
                yield batch

        output.write_part(part.name, counted(score_part(part, self._job, classifier)))
        return total


def this_machine() -> Workers:
    """Processes of this machine, one for each core granted."""
    return nullcontext((LocalWorker, cores_granted()))


class LocalWorker:
    """A process of this machine, which ends with this one, however that ends."""

    def __init__(self, job: Job) -> None:
        self.so_far = NOTHING
        try:
            self._pipe, pipe = SPAWN.Pipe()
            # Once this copy is closed, the process has the only one, and its death is an end of file.
            with pipe, _uninterrupted():
                self._process = SPAWN.Process(target=_serve, args=(job, pipe), daemon=True)
                self._process.start()
        except OSError as error:
            raise CorpusFailed(f"a worker cannot be started: {reason(error)}") from error

    def score(self, part: Part | None) -> Count | str:
        """As ``Worker``."""
        try:
            self._pipe.send(part)
            while isinstance(found := self._pipe.recv(), tuple):
                self.so_far = found
        except (EOFError, OSError) as error:
            self._process.join()
            raise WorkerDied(f"exit code {self._process.exitcode}") from error
        answer: Count | str = found
        return answer

    def kill(self) -> None:
        """As ``Worker``."""
        self._process.kill()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C, which all processes of a terminal get, wait for the end, and not reach the processes that are started meanwhile."""
    waiting: list[object] = []
    # Where it starts, it unblocks SIGINT.
    resource_tracker.ensure_running()
    # What is blocked is inherited, but keeps no signal from other threads of this process, for which the main thread then handles it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda *caught: waiting.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if waiting:
            signal.raise_signal(signal.SIGINT)


def _serve(job: Job, pipe: Connection) -> None:
    """Score the parts that come through the pipe, until its other end is closed."""
    Thread(target=_end_with_parent, daemon=True).start()
    logs.configure("warning", "text")
    scorer = Scorer(job)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(scorer.score(pipe.recv(), pipe.send))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
