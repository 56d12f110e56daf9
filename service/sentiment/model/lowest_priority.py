"""A thread of the lowest priority, for runs that nobody may be held up by."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable


class LowestPriority:
    """A thread that runs when nothing else wants the core. For work that frees the GIL nearly all of its time."""

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], queue.SimpleQueue[BaseException | None]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Do it there and wait for its end; what it raises is raised here."""
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._inbox.put((work, outcome))
        error = outcome.get()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread after what it does; returns at once."""
        self._inbox.put(None)

    def _loop(self) -> None:
        if hasattr(os, "SCHED_IDLE"):
            # For the calling thread alone, and without privilege; there is no way back.
            with contextlib.suppress(OSError):  # a sandbox may forbid even that: then runs have the usual priority
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while (entry := self._inbox.get()) is not None:
            work, outcome = entry
            try:
                work()
            except BaseException as error:  # somebody waits for this outcome, whatever it is
                outcome.put(error)
            else:
                outcome.put(None)
            del entry, work, outcome  # or what they hold would live until the next ones come
