"""Standard error of a server, written by a thread of its own: whoever logs never waits for whoever reads."""

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

# Text that waits to be written. A few thousand lines: what comes while a reader is away for a moment.
BYTES_MAX = 2**20
# What a process that ends waits for its last lines.
LAST_LINES_S = 1.0


class LogLines(io.TextIOBase):
    """A text stream whose writes return at once. What finds no room, or cannot be written, is dropped and counted.

    For several threads. ``flush`` waits for nothing: ``wait_written`` does.
    """

    def __init__(self, descriptor: int, on_lost: Callable[[int], None] = lambda _lines: None, bytes_max: int = BYTES_MAX) -> None:
        """Nothing is written yet.

        Args:
            descriptor: what is written to; never closed.
            on_lost: told in the thread that writes, when that goes on, how many were dropped meanwhile.
            bytes_max: what may wait.
        """
        super().__init__()
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._room = bytes_max
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        # What was written last ends within a line.
        self._cut = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines, or parts of them, that were not written."""
        return self._dropped

    def write(self, text: str, /) -> int:
        """Have it written, in one piece if it is short: several processes may share the reader."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if len(line) > self._room:
                self._dropped += 1
            elif line:
                self._room -= len(line)
                self._waiting.append(line)
                self._changed.notify_all()
        return len(text)

    def wait_written(self, within_s: float = LAST_LINES_S) -> None:
        """Wait until all is written, but not for longer than that: the reader may hang."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, within_s)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """It is."""
        return True

    def _write_all(self) -> None:
        told = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting[0]
            written = self._wrote(line)
            with self._changed:
                # Only now: until then it takes its room, and ``wait_written`` waits for it.
                self._waiting.popleft()
                self._room += len(line)
                self._dropped += not written
                self._changed.notify_all()
                lost = self._dropped - told
            if written and lost:
                told += lost
                # Without a thread nobody would write what comes later. Not tried again: it may have written a line before it failed.
                with contextlib.suppress(Exception):
                    self._on_lost(lost)

    def _wrote(self, line: bytes) -> bool:
        """Whether all of it could be written; the next one is tried in any case, for a disk may have room again."""
        left = b"\n" + line if self._cut else line
        size = len(left)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    # Somebody who shares it does not wait for it.
                    select.select([], [self._descriptor], [])
        except Exception:  # whatever it was, the thread goes on
            self._cut = self._cut or len(left) < size
            return False
        self._cut = False
        return True


def take_standard_error(on_lost: Callable[[int], None]) -> LogLines:
    """Let all that Python writes to this process's standard error go through one. If that is closed, nobody reads it."""
    # What has its number now may be another file.
    descriptor = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno()
    sys.stderr = lines = LogLines(descriptor, on_lost)
    return lines
