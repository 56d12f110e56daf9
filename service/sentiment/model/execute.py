"""How heavy work is done: in the calling thread, or in one of low priority (``lowest_priority``). Pure."""

from collections.abc import Callable
from typing import TypeVar

Execute = Callable[[Callable[[], None]], None]
"""Calls what it is given and returns when that has ended; an error comes out of it."""

T = TypeVar("T")


def here(run: Callable[[], None]) -> None:
    """Run it in the calling thread."""
    run()


def result_of(execute: Execute, work: Callable[[], T]) -> T:
    """What ``work`` returns, done by ``execute``."""
    found: list[T] = []
    execute(lambda: found.append(work()))
    return found[0]
