"""The end of a drain: requests that are still in progress fail, and their callers get the error."""

import asyncio
from types import TracebackType

from sentiment.errors import Unavailable


class Grace:
    """A context for the work of a request, in a task of its own: a cancellation after ``ended`` is set becomes Unavailable."""

    def __init__(self) -> None:
        self.ended = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.ended and kind is asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None, "work is done in a task"
            task.uncancel()
            raise Unavailable("the server has stopped before the answer was complete") from error
