"""The thread of lowest priority."""

import os
import threading

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
