"""A thread that writes what others hand it, so that they never wait for a slow disk or reader."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

# How long a process that exits waits for its last lines.
LAST_LINES_S = 1.0

T = TypeVar("T")


class WritingThread(Generic[T]):
    """Hands lines to ``write`` in a thread. Lines that do not fit in the buffer, or that ``write`` does not write, are dropped and counted.

    Thread-safe.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T]], int],
        on_lost: Callable[[int], None],
        bytes_max: int,
        lines_max: int = 1,
        pause_s: float = 0.0,
    ) -> None:
        """Start the thread.

        Args:
            name: of the thread.
            write: called in the thread with 1 to ``lines_max`` lines; returns how many of them it wrote.
            on_lost: called in the thread, once writing works again, with the number of lines dropped meanwhile.
            bytes_max: limit of the buffer, in the bytes that callers of ``put`` state.
            lines_max: lines that are written at once, at most.
            pause_s: how long to gather more lines after a write, unless the thread is to end.
        """
        self._write = write
        self._on_lost = on_lost
        self._room = bytes_max
        self._lines_max, self._pause_s = lines_max, pause_s
        self._waiting: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        # Lines that were taken into the buffer.
        self.taken = 0
        self.written = 0
        # Lines that were not written, or only in part.
        self.dropped = 0
        self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)
        self._thread.start()

    def put(self, line: T, size: int) -> None:
        """Queue a line of ``size`` bytes and return at once."""
        with self._changed:
            if size > self._room or self._ending:
                self.dropped += 1
            else:
                self._room -= size
                self.taken += 1
                self._waiting.append((line, size))
                self._changed.notify_all()

    @property
    def done(self) -> int:
        """How many of the lines that were taken have left the buffer, written or dropped."""
        with self._changed:
            return self.taken - len(self._waiting)

    def wait_written(self, within_s: float = LAST_LINES_S) -> None:
        """Wait until everything is written, at most ``within_s``: the disk or the reader may hang."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, within_s)

    def end(self, within_s: float = LAST_LINES_S) -> bool:
        """Take no more lines, write those that wait, and end the thread. False if it has not ended within ``within_s``."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        reported = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                lines = list(islice(self._waiting, self._lines_max))
            try:
                written = self._write([line for line, _ in lines])
            except Exception:  # the thread must go on
                written = 0
            with self._changed:
                # Removed only after the write: they take buffer space until then, and ``wait_written`` waits for them.
                for _, size in lines:
                    self._waiting.popleft()
                    self._room += size
                self.written += written
                self.dropped += len(lines) - written
                self._changed.notify_all()
                lost = self.dropped - reported
            if written and lost:
                reported += lost
                # An error must not end this thread. No retry: ``on_lost`` may have written its line before it failed.
                with contextlib.suppress(Exception):
                    self._on_lost(lost)
            if self._pause_s and not self._ending:
                time.sleep(self._pause_s)
