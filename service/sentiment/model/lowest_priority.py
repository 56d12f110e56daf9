"""Threads of low priority, for work that must not slow requests down."""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

# Of a model load while requests are served. Far below the runners', but not starved by them, as SCHED_IDLE is on a busy machine.
LOAD_NICENESS = 19
# The fraction of time that a load works while requests are served. Under a CPU quota, priorities alone do not protect requests.
LOAD_SHARE = 0.25
# The interval at which ``check`` is called.
CHECK_INTERVAL_S = 0.1


class LowestPriority:
    """A thread that runs only when its core is otherwise idle. For work that releases the GIL nearly all of the time."""

    def __init__(self, name: str, niceness: int | None = None) -> None:
        """Start the thread. ``niceness``: used in place of the lowest priority, 0 to 19 (Linux only)."""
        self._niceness = niceness
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], queue.SimpleQueue[BaseException | None]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Callable[[], None], check: Callable[[], None] | None = None) -> None:
        """Call ``work`` in that thread, wait for its end, and raise its error.

        ``check`` is called at intervals meanwhile. If it raises, that error is raised at once, and the work continues in its thread.
        """
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._inbox.put((work, outcome))
        while True:
            try:
                error = outcome.get(timeout=None if check is None else CHECK_INTERVAL_S)
                break
            except queue.Empty:
                if check is not None:
                    check()
        if error is not None:
            raise error

    def cpu_s(self) -> float | None:
        """The CPU time of the thread while it has work and is ready to go on; None if it waits for something, or that is not known.

        So of a thread that gets no core it does not rise, and of one that hangs it rises or there is none.
        """
        try:
            found = Path(f"/proc/self/task/{self.thread.native_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        # man 5 proc: fields 3, 14 and 15.
        return sum(map(int, found[11:13])) / os.sysconf("SC_CLK_TCK") if found[0] == "R" else None

    def close(self) -> None:
        """End the thread after its current work. Returns at once."""
        self._inbox.put(None)

    def _loop(self) -> None:
        if self._niceness is not None:
            if sys.platform == "linux":
                # On Linux the priority applies to the calling thread only.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        elif hasattr(os, "SCHED_IDLE"):
            # Applies to the calling thread only. Needs no privilege, but cannot be undone without one.
            with contextlib.suppress(OSError):  # a sandbox may forbid it; the thread then has the usual priority
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while (entry := self._inbox.get()) is not None:
            work, outcome = entry
            try:
                work()
            except BaseException as error:  # raised again in the thread that waits
                outcome.put(error)
            else:
                outcome.put(None)
            del entry, work, outcome  # otherwise they would stay in memory until the next work arrives


class LowPriorityLoad:
    """Runs the heavy parts of a model load in a thread of low priority, with pauses while requests are served. Call it from one thread."""

    def __init__(self, busy: Callable[[], bool], check: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            busy: whether requests are served now; called from any thread.
            check: called before each part and at intervals during it; an error that it raises ends the load.
        """
        self._busy, self._check = busy, check
        self._thread = LowestPriority("load-run", LOAD_NICENESS)

    def __call__(self, work: Callable[[], None]) -> None:
        """Run one part, then pause."""
        self._check()
        begun = time.monotonic()
        self._thread.run(work, self._check)
        ended = time.monotonic()
        rested_at = ended + (ended - begun) * (1 / LOAD_SHARE - 1)
        while self._busy() and (left_s := rested_at - time.monotonic()) > 0:
            time.sleep(min(left_s, CHECK_INTERVAL_S))
            self._check()

    def close(self) -> None:
        """End the thread after its current work. Returns at once."""
        self._thread.close()
