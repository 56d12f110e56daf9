"""Distributes the parts of a corpus to the workers of a Ray cluster, with Ray Data. The only module that knows Ray.

Texts and answers never pass through Ray: a worker reads its part from the input and writes the answers to the output. Ray only carries the
parts' names to the workers and their counts back. A part that is scored twice because a worker died gives the same file twice.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import pyarrow
import ray
import ray.data
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sentiment.errors import BadSettings, SentimentError
from sentiment.model.cores import cores_granted
from sentiment_tools.corpus.output import CorpusFailed, Count, Output
from sentiment_tools.corpus.scoring import Job, load, score_part
from sentiment_tools.corpus.sources import Part

# A part that this many workers died of is considered to be the cause.
ATTEMPTS_MAX = 4
# Ray's object store holds what its own processes exchange, but no texts and answers.
STORE_BYTES = 128 * 2**20
PROGRESS_EVERY_S = 1.0
# A worker that cannot reach the ledger for this long continues without it.
LEDGER_S_MAX = 60.0

Show = Callable[[Count, float], None]


class Ledger:
    """An actor beside the driver that counts how often each part was started, and its progress."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._parts: dict[str, tuple[Count, float]] = {}

    def begin(self, name: str) -> int:
        """Count a start of this part; returns how many there were."""
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self._parts[name] = (Count(), 0.0)
        return self._attempts[name]

    def advance(self, name: str, count: Count, bytes_done: float) -> None:
        """Record a part's progress."""
        self._parts[name] = (count, bytes_done)

    def total(self) -> tuple[Count, float]:
        """Counts and bytes of all parts so far."""
        return sum((count for count, _ in self._parts.values()), Count()), sum(size for _, size in self._parts.values())


class Scorer:
    """A worker: an actor, in a process with one core and the bundle."""

    def __init__(self, job: Job, ledger: Any) -> None:  # a Ray handle
        self._job = job
        self._ledger = ledger
        self._output = Output(job.output, job.question)
        self._classifier: Any = None  # loaded with the first part, which can report a failure

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:  # columns of one row, as Ray Data hands them over
        """Score one part. An error is returned as its ``failure``."""
        row = {name: value[0] for name, value in batch.items()}
        # NumPy's values become Python's.
        part = Part(**{name: value.item() if hasattr(value, "item") else value for name, value in row.items()})
        try:
            count, failure = self._score(part), ""
        except (SentimentError, OSError) as error:
            count, failure = Count(), f"{part}: {error}"
        return {"rows": [count.rows], "bad": [count.bad], "failure": [failure]}

    def _score(self, part: Part) -> Count:
        attempt = 0
        with suppress(GetTimeoutError):
            attempt = ray.get(self._ledger.begin.remote(part.name), timeout=LEDGER_S_MAX)
        if attempt > ATTEMPTS_MAX:
            raise CorpusFailed(f"{ATTEMPTS_MAX} workers died while they scored it")
        if self._classifier is None:
            self._classifier = load(self._job)

        total = Count()

        def counted(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            nonlocal total
            for batch in batches:
                total += Count.of(batch)
                if batch.num_rows:
                    share = (batch.column("position")[-1].as_py() - part.start) / (part.end - part.start)
                    self._ledger.advance.remote(part.name, total, share * part.bytes)
                yield batch

        self._output.write_part(part.name, counted(score_part(part, self._job, self._classifier)))
        self._ledger.advance.remote(part.name, total, float(part.bytes))
        return total


@contextmanager
def cluster(address: str | None, workers: int) -> Iterator[int]:
    """Join the cluster at the address, or start a temporary one on this machine. Yields the number of workers to use.

    Raises:
        BadSettings: there is no cluster at the address.
    """
    # By default, Ray reports usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init(
                address="local", num_cpus=workers or cores_granted(), include_dashboard=False, object_store_memory=STORE_BYTES, **quiet
            )
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadSettings(f"--ray {address or 'local'}: {str(error).splitlines()[0]}") from error
    try:
        yield workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def score_all(parts: Sequence[Part], job: Job, workers: int, show: Show) -> Count:
    """Score the parts in any order; returns their count. ``show`` gets the count and bytes so far, once a second.

    Raises:
        CorpusFailed: a part could not be scored; others may have been.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    beside = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    ledger = ray.remote(Ledger).options(num_cpus=0, scheduling_strategy=beside).remote()
    dataset = ray.data.from_items([asdict(part) for part in parts], override_num_blocks=len(parts)).map_batches(
        Scorer,
        fn_constructor_kwargs={"job": job, "ledger": ledger},
        batch_size=1,
        # One part is scored and one waits, so that a worker is not idle until Ray Data schedules the next.
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts)), max_tasks_in_flight_per_actor=2),
        num_cpus=1,
    )
    total = Count()
    with _watching(ledger, show):
        try:
            for row in dataset.iter_rows():
                if row["failure"]:
                    raise CorpusFailed(row["failure"])
                total += Count(row["rows"], row["bad"])
        except RayError as error:
            raise CorpusFailed(f"a worker failed: {str(error).strip().splitlines()[-1]}") from error
    return total


@contextmanager
def _watching(ledger: Any, show: Show) -> Iterator[None]:  # as in Scorer
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PROGRESS_EVERY_S):
            # A failure only delays the progress line; results come with the parts.
            with suppress(RayError):
                show(*ray.get(ledger.total.remote(), timeout=LEDGER_S_MAX))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LEDGER_S_MAX)
