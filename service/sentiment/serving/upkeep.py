"""The tasks that a process needs for as long as it serves: watches, links, heartbeats. One that ends by itself ends the process."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from sentiment.errors import SentimentError, TaskEnded
from sentiment.observability.logs import logger


class Upkeep:
    """Owns the tasks of a process. Belongs to one event loop."""

    def __init__(self, broken: asyncio.Event) -> None:
        """``broken`` is set when a task ends that was not stopped. The process is then incomplete: it must drain and be replaced."""
        self._broken = broken
        self._running: dict[asyncio.Task[None], str] = {}
        self._ended: Exception | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run work that never ends by itself. ``name`` is for the log."""
        task = asyncio.create_task(work, name=name)
        self._running[task] = name
        task.add_done_callback(self._has_ended)
        return task

    async def stop(self, *tasks: "asyncio.Task[None]") -> None:
        """Cancel these tasks, or all if none is given, and wait until they have ended."""
        stopped = set(tasks or self._running)
        for task in stopped:
            self._running.pop(task, None)
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)

    def check(self) -> None:
        """Raise if a task has ended by itself.

        Raises:
            TaskEnded: names the first one.
            SentimentError: its own error, if it has said why.
        """
        if self._ended is not None:
            raise self._ended

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        name = self._running.pop(task, None)
        if name is None:
            # It was stopped.
            return
        error = None if task.cancelled() else task.exception()
        known = isinstance(error, SentimentError)
        logger().critical("task_ended", task=name, reason=str(error) if known else "", exc_info=None if known else error)
        if self._ended is None:
            self._ended = error if isinstance(error, SentimentError) else TaskEnded(f"the task '{name}' has ended; replace this process")
        self._broken.set()
