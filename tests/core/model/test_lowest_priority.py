"""The thread of lowest priority."""

import os
import sys
import threading
import time
from collections.abc import Callable

import pytest

from sentiment.model.lowest_priority import LowestPriority


def test_work_has_the_lowest_priority_and_the_caller_keeps_its_own(idle: int) -> None:
    lowest = LowestPriority("test")
    seen: list[int] = []

    lowest.run(lambda: seen.append(os.sched_getscheduler(0)))

    assert seen == [idle]
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER
    lowest.close()


def test_an_error_of_the_work_is_raised_in_the_caller() -> None:
    lowest = LowestPriority("test")

    def fails() -> None:
        raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        lowest.run(fails)

    lowest.run(lambda: None)
    lowest.close()
    lowest.thread.join(5)
    assert not lowest.thread.is_alive()


@pytest.mark.usefixtures("idle")
def test_work_runs_even_if_the_priority_cannot_be_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    lowest = LowestPriority("test")
    ran = threading.Event()

    lowest.run(ran.set)

    assert ran.is_set()
    lowest.close()


def soon(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell a thread's state in /proc")
def test_a_thread_that_computes_has_cpu_time_and_one_that_waits_has_none() -> None:
    # The usual priority: a busy machine gives it a core.
    thread, computed, free = LowestPriority("test", niceness=0), threading.Event(), threading.Event()

    def works() -> None:
        while not computed.is_set():
            sum(range(1000))
        free.wait(60)

    caller = threading.Thread(target=thread.run, args=(works,))
    caller.start()
    soon(lambda: (thread.cpu_s() or 0.0) > 0)
    first = thread.cpu_s() or 0.0
    soon(lambda: (thread.cpu_s() or 0.0) > first)
    computed.set()
    soon(lambda: thread.cpu_s() is None)
    free.set()
    caller.join()
    thread.close()
