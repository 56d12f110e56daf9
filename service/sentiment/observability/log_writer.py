"""Writes a server's standard error in a thread, so that logging never waits for a slow reader."""

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

# Limit of the buffered text: a few thousand lines, enough for a reader that pauses briefly.
BYTES_MAX = 2**20
# How long a process that exits waits for its last lines.
LAST_LINES_S = 1.0


class LogLines(io.TextIOBase):
    """A text stream whose writes return at once. Lines that do not fit in the buffer, or cannot be written, are dropped and counted.

    Thread-safe. ``flush`` does nothing; use ``wait_written``.
    """

    def __init__(self, descriptor: int, on_lost: Callable[[int], None] = lambda _lines: None, bytes_max: int = BYTES_MAX) -> None:
        """Start the writing thread.

        Args:
            descriptor: file descriptor to write to; never closed.
            on_lost: called in the writing thread, once writing works again, with the number of lines dropped meanwhile.
            bytes_max: limit of the buffered text.
        """
        super().__init__()
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._room = bytes_max
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        # Whether the last write ended in the middle of a line.
        self._cut = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines that were not written, or only in part."""
        return self._dropped

    def write(self, text: str, /) -> int:
        """Queue the text. A short text is written with one call, because several processes may share the reader."""
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
        """Wait until everything is written, at most ``within_s``: the reader may hang."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, within_s)

    def fileno(self) -> int:
        """The file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Always True."""
        return True

    def _write_all(self) -> None:
        reported = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting[0]
            written = self._wrote(line)
            with self._changed:
                # Removed only after the write: it takes buffer space until then, and ``wait_written`` waits for it.
                self._waiting.popleft()
                self._room += len(line)
                self._dropped += not written
                self._changed.notify_all()
                lost = self._dropped - reported
            if written and lost:
                reported += lost
                # An error must not end this thread. No retry: ``on_lost`` may have written its line before it failed.
                with contextlib.suppress(Exception):
                    self._on_lost(lost)

    def _wrote(self, line: bytes) -> bool:
        """Write the line; returns whether all of it was written. After a failure, the next line is tried: a disk may have room again."""
        left = b"\n" + line if self._cut else line
        size = len(left)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    # Another process that shares the descriptor made it non-blocking.
                    select.select([], [self._descriptor], [])
        except Exception:  # the thread must go on
            self._cut = self._cut or len(left) < size
            return False
        self._cut = False
        return True


def take_standard_error(on_lost: Callable[[int], None]) -> LogLines:
    """Replace ``sys.stderr`` by a LogLines. If standard error is closed, the lines go to /dev/null."""
    # The descriptor 2 of a closed standard error may be another file by now.
    descriptor = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno()
    sys.stderr = lines = LogLines(descriptor, on_lost)
    return lines
