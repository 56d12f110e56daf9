"""A runner: the outcome of each batch is reported exactly once, whatever happens."""

import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from sentiment.model.classifier import Classifier
from sentiment.model.runner import Outcome, Ran, Runner, run_batch
from sentiment.model.session import Stop
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row

ROW = Row([2, 5, 3], None, False)
# Long enough for a busy machine; a test that passes never waits so long.
PATIENCE_S = 10


class FakeSession:
    """Returns the sum of the ids of each row, or raises ``failure``. Waits for ``gate`` first."""

    def __init__(self, failure: BaseException | None = None, gate: threading.Event | None = None) -> None:
        self.failure = failure
        self.gate = gate
        self.entered = threading.Event()
        self.threads: list[tuple[str, int]] = []
        self.niceness: list[int] = []
        self.stops: list[Stop | None] = []
        self.copied_s = 0.0

    def run(self, feeds: Feeds, stop: Stop | None = None) -> np.ndarray[Any, Any]:
        self.threads.append((threading.current_thread().name, threading.get_ident()))
        self.niceness.append(os.getpriority(os.PRIO_PROCESS, 0))
        self.stops.append(stop)
        self.entered.set()
        if self.gate:
            assert self.gate.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        return np.asarray(feeds["input_ids"].sum(axis=1, keepdims=True), np.float32)

    def run_wide(self, feeds: Feeds, stop: Stop | None = None) -> np.ndarray[Any, Any]:
        return -self.run(feeds, stop)


class FakeDevice(FakeSession):
    """Returns a filler row as well, and copies for a second."""

    def run(self, feeds: Feeds, stop: Stop | None = None) -> np.ndarray[Any, Any]:
        logits = super().run(feeds, stop)
        self.copied_s = 1.0
        return np.concatenate([logits, [[-1.0]]])


class FakeClassifier(Classifier):
    """A classifier over a fake session."""

    def __init__(self, session: FakeSession, feeds_failure: BaseException | None = None) -> None:
        self.session = session  # type: ignore[assignment]  # the fake
        self._feeds_failure = feeds_failure

    def feeds(self, rows: Sequence[Row]) -> Feeds:
        if self._feeds_failure:
            raise self._feeds_failure
        return pad(rows, ["input_ids"], 0, left=False)


@pytest.fixture
def runner() -> Iterator[Runner]:
    running = Runner("cpu-7")
    yield running
    running.close(PATIENCE_S)


class Outcomes(queue.SimpleQueue[Outcome]):
    """Collects what a runner reports."""

    def next(self) -> Outcome:
        return self.get(timeout=PATIENCE_S)

    def of(self, runner: Runner, session: FakeSession | Classifier) -> Outcome:
        """Run one batch and wait for its outcome."""
        runner.start(session if isinstance(session, Classifier) else FakeClassifier(session), [ROW], self.put)
        return self.next()


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory or the cgroup's limit of processes were used up."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_runners_thread_and_its_replacement_have_a_lower_priority(outcomes: Outcomes) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    running = Runner("cpu-7", 7)
    before = running.call(threading.get_native_id)

    outcomes.of(running, FakeSession(ValueError("bad")))
    after, priority = running.call(threading.get_native_id), running.call(lambda: os.getpriority(os.PRIO_PROCESS, 0))

    running.close(PATIENCE_S)
    assert (after != before, priority) == (True, own + 7)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_nice_batch_has_a_lower_priority_and_the_next_one_has_not(outcomes: Outcomes) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    running, session = Runner("cpu-7", low_priority=Runner("cpu-7-nice", 5)), FakeSession()

    for low in (False, True, False):
        running.start(FakeClassifier(session), [ROW], outcomes.put, low_priority=low)
        assert isinstance(outcomes.next(), Ran)

    assert [niceness - own for niceness in session.niceness] == [0, 5, 0]
    running.close(PATIENCE_S)
    assert not {thread.name for thread in threading.enumerate()} & {"cpu-7", "cpu-7-nice"}


@pytest.mark.parametrize(("wide", "sign"), [(False, 1), (True, -1)])
def test_a_batch_gives_the_logits_of_its_rows_in_order(runner: Runner, outcomes: Outcomes, wide: bool, sign: int) -> None:
    runner.start(FakeClassifier(FakeSession()), [ROW, Row([1], None, False)], outcomes.put, wide=wide)

    outcome = outcomes.next()

    assert isinstance(outcome, Ran)
    assert outcome.logits == [[sign * 10.0], [sign * 1.0]]
    assert outcome.pad_s >= 0
    assert outcome.run_s >= 0


class NoException(BaseException):
    """Like KeyboardInterrupt, not an Exception."""


@pytest.mark.parametrize("failure", [ValueError("bad"), MemoryError(), NoException(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("where", ["pad", "run"])
def test_whatever_a_batch_raises_is_reported_exactly_once(runner: Runner, outcomes: Outcomes, failure: BaseException, where: str) -> None:
    classifier = FakeClassifier(FakeSession(failure)) if where == "run" else FakeClassifier(FakeSession(), failure)

    assert outcomes.of(runner, classifier) is failure

    runner.close(PATIENCE_S)
    assert outcomes.empty()


def test_batches_run_one_at_a_time_in_order_in_the_runners_own_thread(runner: Runner) -> None:
    session = FakeSession()
    reported: list[Outcome] = []
    for number in range(20):
        runner.start(FakeClassifier(session), [Row([number], None, False)], reported.append)

    runner.close(PATIENCE_S)

    assert [outcome.logits[0][0] for outcome in reported if isinstance(outcome, Ran)] == list(range(20))
    assert {name for name, _ in session.threads} == {"cpu-7"}
    assert len({ident for _, ident in session.threads}) == 1


def test_after_a_failed_run_a_new_thread_of_the_same_name_runs_the_next_batches(runner: Runner) -> None:
    """Also after several failures in a row, so that no state of a failed run remains."""
    session, failing, outcomes = FakeSession(), FakeSession(NoException()), Outcomes()
    # Kept until the end, since the system reuses the number of an ended thread.
    threads: list[threading.Thread] = []

    def report(outcome: Outcome) -> None:
        threads.append(threading.current_thread())
        outcomes.put(outcome)

    reported = []
    for fake in (session, failing, failing, session, session):
        runner.start(FakeClassifier(fake), [ROW], report)
        reported.append(outcomes.next())

    assert [type(outcome) for outcome in reported] == [Ran, NoException, NoException, Ran, Ran]
    first, second, third = threads[0], threads[2], threads[3]
    assert len({first, second, third}) == 3
    assert threads == [first, first, second, third, third]
    assert {thread.name for thread in threads} == {"cpu-7"}
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert [thread.is_alive() for thread in (first, second, third)] == [False, False, True]


def test_a_runner_continues_after_a_failed_run_even_if_no_thread_can_be_started(
    runner: Runner, outcomes: Outcomes, no_new_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        reported = [outcomes.of(runner, FakeSession(failure)) for failure in (MemoryError(), None)]
    finally:
        monkeypatch.undo()
        if not runner._thread.is_alive():
            runner._begin()  # so that the fixture can close it

    assert [type(outcome) for outcome in reported] == [MemoryError, Ran]


def test_closing_is_safe_while_a_new_thread_takes_over(runner: Runner, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped run fails just when the server ends."""
    start, starting, go = threading.Thread.start, threading.Event(), threading.Event()

    def start_slowly(thread: threading.Thread) -> None:
        starting.set()
        assert go.wait(PATIENCE_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    runner.start(FakeClassifier(FakeSession(ValueError("bad"))), [ROW], outcomes.put)
    assert starting.wait(PATIENCE_S)

    try:
        runner.close(0)
    finally:
        go.set()

    assert isinstance(outcomes.next(), ValueError)
    runner.close(PATIENCE_S)
    assert not runner._thread.is_alive()


def test_a_stop_applies_to_the_current_run_only(runner: Runner, outcomes: Outcomes) -> None:
    session = FakeSession(gate=threading.Event())
    stop = runner.start(FakeClassifier(session), [ROW], outcomes.put)
    assert session.entered.wait(PATIENCE_S)

    stop()
    assert session.gate is not None
    session.gate.set()
    outcomes.next()
    # A second stop comes after the end of its run.
    stop()
    outcomes.of(runner, session)

    assert [stop is not None and stop.options.terminate for stop in session.stops] == [True, False]


def test_closing_waits_for_the_current_batch_and_ends_the_thread(runner: Runner) -> None:
    gate = threading.Event()
    reported: list[Outcome] = []
    session = FakeSession(gate=gate)
    runner.start(FakeClassifier(session), [ROW], reported.append)
    assert session.entered.wait(PATIENCE_S)

    runner.close(0)
    before = (runner._thread.is_alive(), len(reported))
    gate.set()
    runner.close(PATIENCE_S)

    assert before == (True, 0)
    assert not runner._thread.is_alive()
    assert isinstance(reported[0], Ran)


def test_a_kernel_that_hangs_does_not_keep_the_process_alive(runner: Runner) -> None:
    assert runner._thread.daemon


def test_a_batch_is_freed_when_it_has_ended(runner: Runner, outcomes: Outcomes) -> None:
    """Otherwise the rows of a burst would stay in memory until the next request."""

    class Rows(list[Row]):
        ended = threading.Event()

        def __del__(self) -> None:
            self.ended.set()

    runner.start(FakeClassifier(FakeSession()), Rows([ROW]), outcomes.put)
    outcomes.next()

    assert Rows.ended.wait(PATIENCE_S)


def test_a_batch_in_the_callers_thread_raises_what_the_model_raises() -> None:
    with pytest.raises(ValueError, match="bad"):
        run_batch(FakeClassifier(FakeSession(ValueError("bad"))), [ROW])


def test_filler_rows_of_a_device_are_dropped_and_its_copies_are_timed_separately() -> None:
    ran = run_batch(FakeClassifier(FakeDevice()), [ROW])

    assert ran.logits == [[10.0]]
    assert ran.copy_s == 1.0
    assert ran.total_s == pytest.approx(ran.pad_s + ran.run_s + 1.0)


def test_a_runner_with_its_own_classifier_uses_it_and_keeps_its_thread_after_a_failure(runner: Runner, outcomes: Outcomes) -> None:
    """The captured runs of a device belong to the thread."""
    own, other = FakeSession(ValueError("bad")), FakeSession()
    runner.classifier = FakeClassifier(own)

    first = outcomes.of(runner, other)
    own.failure = None
    second = outcomes.of(runner, other)

    assert [type(first), type(second)] == [ValueError, Ran]
    assert len({ident for _, ident in own.threads}) == 1
    assert other.threads == []


class Device(FakeClassifier):
    """A classifier of a runner's own. Records the threads that lay out its batches."""

    def __init__(self, session: FakeSession, feeds_failure: BaseException | None = None) -> None:
        super().__init__(session, feeds_failure)
        self.laid_out: queue.SimpleQueue[str] = queue.SimpleQueue()

    def feeds(self, rows: Sequence[Row]) -> Feeds:
        self.laid_out.put(threading.current_thread().name)
        return super().feeds(rows)


@pytest.fixture
def gate() -> threading.Event:
    """Opened, it lets the first batch of ``device`` end."""
    return threading.Event()


@pytest.fixture
def device(runner: Runner, outcomes: Outcomes, gate: threading.Event) -> Device:
    """The device of the runner, whose first batch runs already."""
    session = FakeSession(gate=gate)
    device = Device(session)
    runner.classifier = device
    runner.start(device, [ROW], outcomes.put)
    assert session.entered.wait(PATIENCE_S)
    assert device.laid_out.get(timeout=PATIENCE_S) == "cpu-7"
    return device


def test_the_next_batch_of_a_device_is_laid_out_while_one_runs(
    runner: Runner, device: Device, gate: threading.Event, outcomes: Outcomes
) -> None:
    runner.start(device, [Row([1], None, False)], outcomes.put, ahead=True)
    by = device.laid_out.get(timeout=PATIENCE_S)
    early = outcomes.empty()
    gate.set()
    reported = [outcomes.next() for _ in range(2)]

    assert early
    assert by.startswith("cpu-7-next")
    assert [outcome.logits for outcome in reported if isinstance(outcome, Ran)] == [[[10.0]], [[1.0]]]
    assert all(0.0 <= outcome.overlapped_s <= outcome.pad_s for outcome in reported if isinstance(outcome, Ran))
    assert device.laid_out.empty()


def test_time_that_overlaps_another_run_does_not_count_as_the_runners() -> None:
    assert Ran([], 0.3, 0.5, 0.2, 0, overlapped_s=0.25).total_s == pytest.approx(0.75)


def test_a_batch_that_cannot_be_laid_out_ahead_fails_once_and_alone(
    runner: Runner, device: Device, gate: threading.Event, outcomes: Outcomes
) -> None:
    runner.classifier = Device(FakeSession(), MemoryError())

    runner.start(runner.classifier, [ROW], outcomes.put, ahead=True)
    gate.set()
    reported = [outcomes.next() for _ in range(2)]
    runner.close(PATIENCE_S)

    assert [type(outcome) for outcome in reported] == [Ran, MemoryError]
    assert outcomes.empty()


def test_if_no_other_thread_can_be_started_the_runner_lays_out_its_next_batch_itself(
    runner: Runner, device: Device, gate: threading.Event, outcomes: Outcomes, no_new_thread: None
) -> None:
    runner.start(device, [ROW], outcomes.put, ahead=True)
    gate.set()
    reported = [outcomes.next() for _ in range(2)]

    assert [type(outcome) for outcome in reported] == [Ran, Ran]
    assert device.laid_out.get(timeout=PATIENCE_S) == "cpu-7"


def test_a_call_runs_in_the_runners_thread_and_returns_its_result_or_error(runner: Runner) -> None:
    def fail() -> None:
        raise NoException

    assert runner.call(threading.get_ident) == runner._thread.ident
    with pytest.raises(NoException):
        runner.call(fail)
    assert runner.call(lambda: 7) == 7
