"""The thread of the lowest priority."""

import os
import threading

import pytest

from sentiment.model.lowest_priority import LowestPriority


def test_what_it_runs_has_the_lowest_priority_and_the_caller_keeps_its_own() -> None:
    lowest = LowestPriority("test")
    seen: list[int] = []

    lowest.run(lambda: seen.append(os.sched_getscheduler(0)))

    assert seen == [os.SCHED_IDLE]
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER
    lowest.close()


def test_what_a_run_raises_is_raised_where_it_was_asked_for() -> None:
    lowest = LowestPriority("test")

    def fails() -> None:
        raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        lowest.run(fails)

    lowest.run(lambda: None)
    lowest.close()
    lowest.thread.join(5)
    assert not lowest.thread.is_alive()


def test_where_the_priority_may_not_be_lowered_it_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    lowest = LowestPriority("test")
    ran = threading.Event()

    lowest.run(ran.set)

    assert ran.is_set()
    lowest.close()
