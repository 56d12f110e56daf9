"""Where heavy work runs: in the calling thread, or in a thread of low priority (``lowest_priority``)."""

from collections.abc import Callable
from typing import TypeVar

Execute = Callable[[Callable[[], None]], None]
"""Calls the function that it is given and returns when that has returned. Raises what the function raises."""

T = TypeVar("T")


def here(run: Callable[[], None]) -> None:
    """Call ``run`` in the calling thread."""
    run()


def result_of(execute: Execute, work: Callable[[], T]) -> T:
    """The result of ``work``, called by ``execute``."""
    found: list[T] = []
    execute(lambda: found.append(work()))
    return found[0]
