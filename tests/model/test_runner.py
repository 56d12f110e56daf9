"""A runner: whatever a batch does, its outcome is told exactly once."""

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
# Long enough for a loaded machine; a test that passes never waits so long.
PATIENCE_S = 10


class FakeSession:
    """Gives each row the sum of its ids, or fails as it is told."""

    def __init__(self, failure: BaseException | None = None, gate: threading.Event | None = None) -> None:
        self.failure = failure
        self.gate = gate
        self.entered = threading.Event()
        self.threads: list[tuple[str, int]] = []
        self.stops: list[Stop | None] = []
        self.copied_s = 0.0

    def run(self, feeds: Feeds, stop: Stop | None = None) -> np.ndarray[Any, Any]:
        self.threads.append((threading.current_thread().name, threading.get_ident()))
        self.stops.append(stop)
        self.entered.set()
        if self.gate:
            assert self.gate.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        return np.asarray(feeds["input_ids"].sum(axis=1, keepdims=True), np.float32)


class FakeDevice(FakeSession):
    """One that is given a row more than there are, and copies for a second."""

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


def reported(runner: Runner, classifier: Classifier, rows: Sequence[Row] = (ROW,)) -> Outcome:
    """The outcome of a batch, proven to be the only one by ending the runner."""
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    runner.start(classifier, rows, outcomes.put)
    outcome = outcomes.get(timeout=PATIENCE_S)
    runner.close(PATIENCE_S)
    assert outcomes.empty(), "the outcome was told twice"
    return outcome


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_its_thread_and_the_one_in_its_place_give_way_to_the_others() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    running = Runner("cpu-7", 7)
    before, failing = running.call(threading.get_native_id), FakeClassifier(FakeSession(ValueError("bad")))
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    running.start(failing, [ROW], outcomes.put)
    outcomes.get(timeout=PATIENCE_S)
    threads = {running.call(threading.get_native_id): running.call(lambda: os.getpriority(os.PRIO_PROCESS, 0))}

    running.close(PATIENCE_S)
    assert before not in threads
    assert set(threads.values()) == {own + 7}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_batch_gives_the_logits_of_its_rows_in_order(runner: Runner) -> None:
    outcome = reported(runner, FakeClassifier(FakeSession()), [ROW, Row([1], None, False)])

    assert isinstance(outcome, Ran)
    assert outcome.logits == [[10.0], [1.0]]
    assert outcome.pad_s >= 0
    assert outcome.run_s >= 0


class NoException(BaseException):
    """As KeyboardInterrupt: no Exception, and told all the same."""


@pytest.mark.parametrize("failure", [ValueError("bad"), MemoryError(), NoException(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("where", ["pad", "run"])
def test_whatever_a_batch_raises_is_told_exactly_once(runner: Runner, failure: BaseException, where: str) -> None:
    classifier = FakeClassifier(FakeSession(failure)) if where == "run" else FakeClassifier(FakeSession(), failure)

    assert reported(runner, classifier) is failure


def test_a_runner_goes_on_after_a_batch_that_failed(runner: Runner) -> None:
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    runner.start(FakeClassifier(FakeSession(NoException())), [ROW], outcomes.put)
    first = outcomes.get(timeout=PATIENCE_S)

    runner.start(FakeClassifier(FakeSession()), [ROW], outcomes.put)
    second = outcomes.get(timeout=PATIENCE_S)

    assert isinstance(first, NoException)
    assert isinstance(second, Ran)


def test_batches_run_one_at_a_time_in_order_in_the_runners_own_thread(runner: Runner) -> None:
    session = FakeSession()
    told: list[Outcome] = []
    for number in range(20):
        runner.start(FakeClassifier(session), [Row([number], None, False)], told.append)

    runner.close(PATIENCE_S)

    assert [outcome.logits[0][0] for outcome in told if isinstance(outcome, Ran)] == list(range(20))
    assert {name for name, _ in session.threads} == {"cpu-7"}
    assert len({ident for _, ident in session.threads}) == 1


def test_a_run_that_raised_is_followed_by_runs_on_a_new_thread_of_the_same_name(runner: Runner) -> None:
    """Several failures in a row, too: what a failed run left in its thread lives on in none."""
    session, outcomes = FakeSession(), queue.SimpleQueue[Outcome]()
    failing = FakeSession(ValueError("bad"))
    # Kept until the end: the system gives the number of a thread that is gone to the next one.
    threads: list[threading.Thread] = []

    def report(outcome: Outcome) -> None:
        threads.append(threading.current_thread())
        outcomes.put(outcome)

    told = []
    for fake in (session, failing, failing, session, session):
        runner.start(FakeClassifier(fake), [ROW], report)
        told.append(outcomes.get(timeout=PATIENCE_S))

    assert [type(outcome) for outcome in told] == [Ran, ValueError, ValueError, Ran, Ran]
    first, second, third = threads[0], threads[2], threads[3]
    assert len({first, second, third}) == 3
    assert threads == [first, first, second, third, third]
    assert {thread.name for thread in threads} == {"cpu-7"}
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert [thread.is_alive() for thread in (first, second, third)] == [False, False, True]


def test_a_run_that_raised_is_told_and_followed_by_others_even_where_no_thread_can_be_started(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory or the cgroup's number of processes is used up: just then runs fail, and their rows wait to be told."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    told: list[Outcome] = []
    try:
        for failure in (MemoryError(), None):
            runner.start(FakeClassifier(FakeSession(failure)), [ROW], outcomes.put)
            told.append(outcomes.get(timeout=1))
    except queue.Empty:
        pass
    finally:
        monkeypatch.undo()
        if not runner._thread.is_alive():
            runner._begin()  # so that the fixture can close it

    assert [type(outcome) for outcome in told] == [MemoryError, Ran]


def test_closing_is_safe_while_a_new_thread_takes_over(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that hears its stop fails just when the server ends."""
    start, starting, go = threading.Thread.start, threading.Event(), threading.Event()

    def start_slowly(thread: threading.Thread) -> None:
        starting.set()
        assert go.wait(PATIENCE_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    runner.start(FakeClassifier(FakeSession(ValueError("bad"))), [ROW], outcomes.put)
    assert starting.wait(PATIENCE_S)

    try:
        runner.close(0)
    finally:
        go.set()

    assert isinstance(outcomes.get(timeout=PATIENCE_S), ValueError)
    runner.close(PATIENCE_S)
    assert not runner._thread.is_alive()


def test_a_stop_is_for_the_run_under_way_and_for_no_later_one(runner: Runner) -> None:
    gate = threading.Event()
    session, outcomes = FakeSession(gate=gate), queue.SimpleQueue[Outcome]()
    stop = runner.start(FakeClassifier(session), [ROW], outcomes.put)
    assert session.entered.wait(PATIENCE_S)

    stop()
    gate.set()
    outcomes.get(timeout=PATIENCE_S)
    runner.start(FakeClassifier(session), [ROW], outcomes.put)
    outcomes.get(timeout=PATIENCE_S)

    assert [stop is not None and stop.options.terminate for stop in session.stops] == [True, False]


def test_a_stop_of_a_run_that_has_ended_stops_nothing(runner: Runner) -> None:
    session, outcomes = FakeSession(), queue.SimpleQueue[Outcome]()
    stop = runner.start(FakeClassifier(session), [ROW], outcomes.put)
    outcomes.get(timeout=PATIENCE_S)

    stop()
    runner.start(FakeClassifier(session), [ROW], outcomes.put)
    outcomes.get(timeout=PATIENCE_S)

    assert [stop is not None and stop.options.terminate for stop in session.stops][1] is False


def test_closing_ends_the_thread(runner: Runner) -> None:
    runner.close(PATIENCE_S)

    assert not runner._thread.is_alive()


def test_closing_waits_for_the_batch_that_runs(runner: Runner) -> None:
    gate = threading.Event()
    told: list[Outcome] = []
    session = FakeSession(gate=gate)
    runner.start(FakeClassifier(session), [ROW], told.append)
    assert session.entered.wait(PATIENCE_S)

    runner.close(0)
    before = (runner._thread.is_alive(), len(told))
    gate.set()
    runner.close(PATIENCE_S)

    assert before == (True, 0)
    assert not runner._thread.is_alive()
    assert isinstance(told[0], Ran)


def test_a_kernel_that_never_returns_does_not_keep_the_process(runner: Runner) -> None:
    assert runner._thread.daemon


def test_a_batch_that_has_ended_is_not_kept_in_memory(runner: Runner) -> None:
    """Rows of a burst would otherwise stay until the next text comes."""

    class Rows(list[Row]):
        ended = threading.Event()

        def __del__(self) -> None:
            self.ended.set()

    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    runner.start(FakeClassifier(FakeSession()), Rows([ROW]), outcomes.put)
    outcomes.get(timeout=PATIENCE_S)

    assert Rows.ended.wait(PATIENCE_S)


def test_a_batch_in_the_callers_thread_raises_what_the_model_raises() -> None:
    with pytest.raises(ValueError, match="bad"):
        run_batch(FakeClassifier(FakeSession(ValueError("bad"))), [ROW])


def test_rows_that_a_device_was_given_besides_are_not_answered_and_copies_are_told_apart() -> None:
    ran = run_batch(FakeClassifier(FakeDevice()), [ROW])

    assert ran.logits == [[10.0]]
    assert ran.copy_s == 1.0
    assert ran.total_s == pytest.approx(ran.pad_s + ran.run_s + 1.0)


def test_a_runner_with_a_classifier_of_its_own_runs_that_and_keeps_its_thread_after_a_failure(runner: Runner) -> None:
    """What a device has captured belongs to the thread."""
    own, outcomes = FakeSession(ValueError("bad")), queue.SimpleQueue[Outcome]()
    runner.classifier = FakeClassifier(own)
    other = FakeSession()

    runner.start(FakeClassifier(other), [ROW], outcomes.put)
    first = outcomes.get(timeout=PATIENCE_S)
    own.failure = None
    runner.start(FakeClassifier(other), [ROW], outcomes.put)
    second = outcomes.get(timeout=PATIENCE_S)

    assert isinstance(first, ValueError)
    assert isinstance(second, Ran)
    assert len({ident for _, ident in own.threads}) == 1
    assert other.threads == []


class Device(FakeClassifier):
    """A classifier of a runner's own; notes which threads lay its batches out."""

    def __init__(self, session: FakeSession, feeds_failure: BaseException | None = None) -> None:
        super().__init__(session, feeds_failure)
        self.laid_out: queue.SimpleQueue[str] = queue.SimpleQueue()

    def feeds(self, rows: Sequence[Row]) -> Feeds:
        self.laid_out.put(threading.current_thread().name)
        return super().feeds(rows)


def begin(runner: Runner, session: FakeSession, outcomes: queue.SimpleQueue[Outcome]) -> Device:
    """A device whose first batch runs until its session's gate is opened."""
    device = Device(session)
    runner.classifier = device
    runner.start(device, [ROW], outcomes.put)
    assert session.entered.wait(PATIENCE_S)
    assert device.laid_out.get(timeout=PATIENCE_S) == "cpu-7"
    return device


def test_a_device_has_its_next_batch_laid_out_while_one_runs(runner: Runner) -> None:
    session, outcomes = FakeSession(gate=threading.Event()), queue.SimpleQueue[Outcome]()
    device = begin(runner, session, outcomes)
    assert session.gate is not None

    runner.start(device, [Row([1], None, False)], outcomes.put, ahead=True)
    by = device.laid_out.get(timeout=PATIENCE_S)
    early = outcomes.empty()
    session.gate.set()
    told = [outcomes.get(timeout=PATIENCE_S) for _ in range(2)]

    assert early
    assert by.startswith("cpu-7-next")
    assert [outcome.logits for outcome in told if isinstance(outcome, Ran)] == [[[10.0]], [[1.0]]]
    assert all(0.0 <= outcome.overlapped_s <= outcome.pad_s for outcome in told if isinstance(outcome, Ran))
    assert device.laid_out.empty()


def test_what_overlaps_another_run_is_no_time_of_the_runners() -> None:
    assert Ran([], 0.3, 0.5, 0.2, 0, overlapped_s=0.25).total_s == pytest.approx(0.75)


def test_a_batch_that_cannot_be_laid_out_in_the_other_thread_fails_once_and_alone(runner: Runner) -> None:
    session, outcomes = FakeSession(gate=threading.Event()), queue.SimpleQueue[Outcome]()
    begin(runner, session, outcomes)
    assert session.gate is not None
    runner.classifier = Device(session, MemoryError())

    runner.start(runner.classifier, [ROW], outcomes.put, ahead=True)
    session.gate.set()
    told = [outcomes.get(timeout=PATIENCE_S) for _ in range(2)]
    runner.close(PATIENCE_S)

    assert [type(outcome) for outcome in told] == [Ran, MemoryError]
    assert outcomes.empty()


def test_where_no_other_thread_can_be_started_the_runner_lays_out_its_next_batch_itself(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, outcomes = FakeSession(gate=threading.Event()), queue.SimpleQueue[Outcome]()
    device = begin(runner, session, outcomes)
    assert session.gate is not None

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    runner.start(device, [ROW], outcomes.put, ahead=True)
    session.gate.set()
    told = [outcomes.get(timeout=PATIENCE_S) for _ in range(2)]

    assert [type(outcome) for outcome in told] == [Ran, Ran]
    assert device.laid_out.get(timeout=PATIENCE_S) == "cpu-7"


def test_what_is_called_runs_in_the_runners_thread_and_its_result_or_error_comes_back(runner: Runner) -> None:
    def fail() -> None:
        raise NoException

    assert runner.call(threading.get_ident) == runner._thread.ident
    with pytest.raises(NoException):
        runner.call(fail)
    assert runner.call(lambda: 7) == 7
