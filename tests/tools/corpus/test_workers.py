"""Who gets which part. The workers are threads of this process, which die at parts that the test chooses."""

from collections.abc import Callable
from threading import Event

import pytest

from sentiment_tools.corpus.output import CorpusFailed, Count
from sentiment_tools.corpus.sources import Part
from sentiment_tools.corpus.workers import ATTEMPTS_MAX, NOTHING, SoFar, WorkerDied, score_all
from tests.programs import until

PARTS = [Part(number, "file:///a.txt", "txt", number, number + 1, 10) for number in range(10)]
Answer = Callable[["FakeWorker", Part | None], Count | str]


class FakeWorker:
    """Answers by a function. ``scored``: the parts that it was given, of all workers together."""

    def __init__(self, answer: Answer, scored: list[Part]) -> None:
        self.so_far: SoFar = NOTHING
        self.killed = Event()
        self._answer, self._scored = answer, scored

    def score(self, part: Part | None) -> Count | str:
        assert not self.killed.is_set()
        found = self._answer(self, part)
        if part:
            self._scored.append(part)
        return found

    def kill(self) -> None:
        self.killed.set()


class Run:
    """``score_all`` with such workers. ``shown``: the progress."""

    def __init__(self, *answers: Answer, workers: int = 2) -> None:
        """The first workers that start have these answers, one each, and all after them the last one."""
        self.scored: list[Part] = []
        self.started: list[FakeWorker] = []
        self.shown: list[SoFar] = []
        self._answers = answers
        self._workers = workers

    def all(self) -> "Run":
        score_all(PARTS, self._start, self._workers, lambda *shown: self.shown.append(shown))
        return self

    def _start(self) -> FakeWorker:
        answer = self._answers[min(len(self.started), len(self._answers) - 1)]
        self.started.append(FakeWorker(answer, self.scored))
        return self.started[-1]


def good(worker: FakeWorker, part: Part | None) -> Count:
    return Count(3, 1) if part else Count()


def dying(when: Callable[[Part | None], bool]) -> Answer:
    def answer(worker: FakeWorker, part: Part | None) -> Count:
        if when(part):
            raise WorkerDied("exit code -9")
        return good(worker, part)

    return answer


def test_each_part_is_scored_once_and_all_workers_end() -> None:
    run = Run(good).all()

    assert sorted(run.scored, key=lambda part: part.number) == PARTS
    assert len(run.started) == 2
    assert all(worker.killed.is_set() for worker in run.started)
    assert run.shown[-1] == (Count(30, 10), 100)


def test_there_are_no_more_workers_than_parts() -> None:
    assert len(Run(good, workers=1000).all().started) <= len(PARTS)


def test_a_worker_that_dies_is_replaced_and_its_part_scored_by_another() -> None:
    run = Run(dying(lambda part: part is not None), dying(lambda part: part is not None), good).all()

    assert sorted(run.scored, key=lambda part: part.number) == PARTS
    assert len(run.started) == 4
    assert run.shown[-1] == (Count(30, 10), 100)


def test_a_part_that_four_workers_died_of_is_named_and_the_others_were_not_lost() -> None:
    run = Run(dying(lambda part: part == PARTS[3]))

    with pytest.raises(CorpusFailed) as failed:
        run.all()

    assert str(failed.value) == f"/a.txt, bytes 3 to 4: {ATTEMPTS_MAX} workers died while they scored it: exit code -9"
    assert len(run.started) <= 2 + ATTEMPTS_MAX
    assert all(worker.killed.is_set() for worker in run.started)
    assert set(PARTS) - set(run.scored) <= {PARTS[3], PARTS[-1]}


def test_four_workers_that_die_at_their_start_end_the_run_only_one_after_the_other() -> None:
    dead = dying(lambda part: part is None)
    once = dying(lambda part: part is not None)

    run = Run(*[dead, once] * 3, good, workers=1).all()
    with pytest.raises(CorpusFailed, match=r"^4 workers died while they started, one after the other: exit code -9$"):
        Run(dead, workers=1).all()

    assert sorted(run.scored, key=lambda part: part.number) == PARTS


def test_what_prevents_a_part_ends_the_run_and_its_workers() -> None:
    run = Run(lambda worker, part: "a disk is full" if part else Count())

    with pytest.raises(CorpusFailed, match=r"^a disk is full$"):
        run.all()

    assert all(worker.killed.is_set() for worker in run.started)


def test_a_worker_that_waits_for_a_core_holds_no_part() -> None:
    def waiting(worker: FakeWorker, part: Part | None) -> Count:
        worker.killed.wait()
        raise WorkerDied("killed")

    run = Run(waiting, good).all()

    assert sorted(run.scored, key=lambda part: part.number) == PARTS
    assert run.started[0].killed.is_set()


def test_the_progress_has_parts_that_are_not_done_and_counts_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment_tools.corpus.workers.PROGRESS_EVERY_S", 0.01)

    def half(worker: FakeWorker, part: Part | None) -> Count:
        if part:
            wait_shown()
            worker.so_far = Count(1), 5.0
            wait_shown()
        return good(worker, part)

    def wait_shown() -> None:
        before = len(run.shown)
        # What is shown next may have been computed before.
        until(lambda: len(run.shown) >= before + 2)

    run = Run(half, workers=1)
    run.all()

    sizes = [size for _, size in run.shown]
    assert sorted(set(sizes)) == [5 * half for half in range(2 * len(PARTS) + 1)]
    assert sizes == sorted(sizes)
    assert (Count(4, 1), 15) in run.shown
