"""What gives way to what on the CPU: a load while others serve, and batches while the event loop is busy."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentiment.batching.plan import BatchLimits
from sentiment.client import Client
from sentiment.errors import CannotServe
from sentiment.lifecycle.loading import NICENESS
from sentiment.lifecycle.warm_up import warm_up
from sentiment.model import lowest_priority
from sentiment.model.classifier import load_classifier
from sentiment.model.lowest_priority import LOAD_NICENESS, LowPriorityLoad
from sentiment.model.session import Session
from sentiment.serving.event_loop import MeasuredLoop
from tests.core.lifecycle.conftest import Exchanging, make_version
from tests.tiny import read_manifest, write_manifest
from tests.virtual_time import VirtualClock

PATIENCE_S = 60


def nothing() -> None:
    return


def idle() -> bool:
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no niceness of its own")
def test_heavy_work_runs_in_a_thread_of_low_priority(root: Path) -> None:
    seen: set[tuple[str, int]] = set()
    load = LowPriorityLoad(idle, nothing)

    def note(work: Callable[[], None]) -> None:
        def noted() -> None:
            seen.add((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
            work()

        load(noted)

    classifier = load_classifier(root / "tiny/1", execute=note)
    table = warm_up(classifier, BatchLimits(8, 128, 2**30, 2), execute=note)

    assert seen == {("load-run", LOAD_NICENESS)}
    assert all(0 < seconds < 10 for seconds in table.points().values())
    load.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no niceness of its own")
def test_batches_have_a_lower_priority_while_the_event_loop_is_busy(
    exchanging: Callable[..., Exchanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    share, own = 0.0, os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(MeasuredLoop, "busy_share", lambda _: share)
    server = exchanging(runners=1)
    seen: list[tuple[str, int]] = []
    run = Session.run

    def noted(session: Session, *given: Any) -> Any:
        seen.append((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, 0) - own))
        return run(session, *given)

    monkeypatch.setattr(Session, "run", noted)

    with Client(server.target) as client:
        for share in (0.0, 0.9, 0.0):  # noqa: B007 - read by the loop
            client.classify("fine")

    assert seen == [("cpu-0", 0), ("cpu-0-nice", NICENESS), ("cpu-0", 0)]


def test_the_cost_of_a_run_is_cpu_time_not_waiting_time(root: Path) -> None:
    """A run that sleeps in the middle is as cheap as one that does not."""
    waits_s = 0.1
    classifier = load_classifier(root / "tiny/1")
    run = classifier.session.run
    classifier.session.run = lambda *given: (time.sleep(waits_s), run(*given))[1]  # type: ignore[method-assign]  # the real one, late
    load = LowPriorityLoad(idle, nothing)

    table = warm_up(classifier, BatchLimits(2, 32, 2**30, 2), measure_s=0, execute=load)

    assert max(table.points().values()) < waits_s / 2
    load.close()


@pytest.mark.parametrize("busy", [True, False])
def test_a_low_priority_load_rests_three_times_as_long_as_it_works_while_others_are_busy(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    clock, done = VirtualClock(), list[str | float]()

    def take(seconds: float) -> None:
        done.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(lowest_priority, "time", SimpleNamespace(monotonic=clock, sleep=take))
    monkeypatch.setattr(lowest_priority, "CHECK_INTERVAL_S", PATIENCE_S)
    load = LowPriorityLoad(lambda: busy, lambda: done.append("check"))

    load(lambda: take(40.0))

    assert done == ["check", 40.0, *([60.0, "check"] * 2 if busy else [])]
    load.close()


def test_an_error_of_check_ends_a_low_priority_load_during_its_work() -> None:
    begun, over = threading.Event(), threading.Event()

    def check() -> None:
        if begun.is_set():
            raise CannotServe("enough")

    def work() -> None:
        begun.set()
        over.wait(PATIENCE_S)

    load = LowPriorityLoad(idle, check)
    with pytest.raises(CannotServe):
        load(work)
    over.set()
    load.close()


def test_an_error_of_the_work_is_raised_in_the_caller() -> None:
    load = LowPriorityLoad(idle, nothing)

    def fail() -> None:
        raise ValueError("in the other thread")

    with pytest.raises(ValueError, match="in the other thread"):
        load(fail)
    load.close()


def test_versions_with_the_same_tokenizer_share_it(root: Path) -> None:
    first, second = load_classifier(root / "tiny/1"), load_classifier(make_version(root, 2))
    path = make_version(root, 3)
    assert first.tokenizer is second.tokenizer

    # A file with other bytes but the same content.
    (path / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes() + b"\n")
    write_manifest(path, read_manifest(path))

    assert load_classifier(path).tokenizer is not first.tokenizer
