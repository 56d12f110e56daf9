"""Workers on the machines of a Ray cluster. The only module that knows Ray, which carries parts and counts only."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray
from ray.exceptions import GetTimeoutError, RayError

from sentiment.errors import BadSettings
from sentiment_tools.corpus.output import Count
from sentiment_tools.corpus.scoring import Job
from sentiment_tools.corpus.sources import Part
from sentiment_tools.corpus.workers import NOTHING, PROGRESS_EVERY_S, Scorer, SoFar, Start, WorkerDied


@contextmanager
def cluster(address: str) -> Iterator[tuple[Start, int]]:
    """Join the cluster at the address; its workers are one for each of its cores.

    Raises:
        BadSettings: there is no cluster at the address.
    """
    # By default, Ray reports usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadSettings(f"--ray {address}: {_lines(error)[0]}") from error
    try:
        yield RayWorker, max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


class Actor:
    """What runs on the worker's machine. Its two methods run in threads of their own."""

    def __init__(self, job: Job) -> None:
        self._scorer = Scorer(job)
        self._so_far = NOTHING

    def score(self, part: Part | None) -> Count | str:
        """As ``Worker.score``."""
        self._tell(NOTHING)
        return self._scorer.score(part, self._tell)

    def so_far(self) -> SoFar:
        """What it has scored of its part."""
        return self._so_far

    def _tell(self, so_far: SoFar) -> None:
        self._so_far = so_far


class RayWorker:
    """An actor on one core of the cluster."""

    def __init__(self, job: Job) -> None:
        self.so_far = NOTHING
        self._actor = ray.remote(Actor).options(num_cpus=1, max_concurrency=2).remote(job)

    def score(self, part: Part | None) -> Count | str:
        """As ``Worker``."""
        try:
            found = self._actor.score.remote(part)
            # Without a part it may not have begun: questions would pile up.
            while part and not ray.wait([found], timeout=PROGRESS_EVERY_S)[0]:
                with suppress(GetTimeoutError):
                    self.so_far = ray.get(self._actor.so_far.remote(), timeout=PROGRESS_EVERY_S)
            answer: Count | str = ray.get(found)
        except RayError as error:
            raise WorkerDied(_lines(error)[-1]) from error
        return answer

    def kill(self) -> None:
        """As ``Worker``."""
        ray.kill(self._actor)


def _lines(error: Exception) -> list[str]:
    """The lines of an error's text; without one, its class."""
    return str(error).strip().splitlines() or [type(error).__name__]
