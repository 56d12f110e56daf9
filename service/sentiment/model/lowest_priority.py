"""Threads of low priority, for runs that nobody may be held up by."""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

# Of a load beside others: far below the runners' 10, and yet never starved by them, as SCHED_IDLE would be on a busy machine.
LOAD_NICENESS = 19
# The part of the time that a load works while texts are classified: under a CPU quota priorities protect nobody.
LOAD_SHARE = 0.25
# So often it is looked at whether the work is still wanted.
LOOK_S = 0.1


class LowestPriority:
    """A thread that runs when nothing else wants the core. For work that frees the GIL nearly all of its time."""

    def __init__(self, name: str, niceness: int | None = None) -> None:
        """Start it. ``niceness``: in place of the lowest priority, 0 to 19 (Linux only)."""
        self._niceness = niceness
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], queue.SimpleQueue[BaseException | None]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Callable[[], None], check: Callable[[], None] | None = None) -> None:
        """Do it there and wait for its end; what it raises is raised here.

        ``check`` is called again and again meanwhile; what it raises comes out, and the work is left to itself.
        """
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._inbox.put((work, outcome))
        while True:
            try:
                error = outcome.get(timeout=None if check is None else LOOK_S)
                break
            except queue.Empty:
                if check is not None:
                    check()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread after what it does; returns at once."""
        self._inbox.put(None)

    def _loop(self) -> None:
        if self._niceness is not None:
            if sys.platform == "linux":
                # There it concerns the calling thread alone.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        elif hasattr(os, "SCHED_IDLE"):
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


class Beside:
    """Does the heavy parts of a load in a thread of low priority, and rests for those who are served meanwhile. Called from one thread."""

    def __init__(self, busy: Callable[[], bool], check: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            busy: whether others are served now; from any thread.
            check: called before each part and again and again during it; what it raises ends the load.
        """
        self._busy, self._check = busy, check
        self._thread = LowestPriority("load-run", LOAD_NICENESS)

    def __call__(self, work: Callable[[], None]) -> None:
        """Do one part, and rest."""
        self._check()
        begun = time.monotonic()
        self._thread.run(work, self._check)
        ended = time.monotonic()
        rested_at = ended + (ended - begun) * (1 / LOAD_SHARE - 1)
        while self._busy() and (left_s := rested_at - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_S))
            self._check()

    def close(self) -> None:
        """End the thread after what it does; returns at once."""
        self._thread.close()
