"""Writes a server's standard error in a thread, so that logging never waits for a slow reader."""

import io
import os
import select
import sys
from collections.abc import Callable, Sequence

from sentiment.observability.writing_thread import LAST_LINES_S, WritingThread

# Limit of the buffered text: a few thousand lines, enough for a reader that pauses briefly.
BYTES_MAX = 2**20


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
        # Whether the last write ended in the middle of a line.
        self._cut = False
        # One line a write: several processes may share the reader.
        self._thread = WritingThread("log", self._wrote, on_lost, bytes_max)

    @property
    def dropped(self) -> int:
        """Lines that were not written, or only in part."""
        return self._thread.dropped

    def write(self, text: str, /) -> int:
        """Queue the text. A short text is written with one call, because several processes may share the reader."""
        line = text.encode(errors="backslashreplace")
        if line:
            self._thread.put(line, len(line))
        return len(text)

    def wait_written(self, within_s: float = LAST_LINES_S) -> None:
        """Wait until everything is written, at most ``within_s``: the reader may hang."""
        self._thread.wait_written(within_s)

    def fileno(self) -> int:
        """The file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Always True."""
        return True

    def _wrote(self, lines: Sequence[bytes]) -> int:
        """Write the line; returns whether all of it was written. After a failure, the next line is tried: a disk may have room again."""
        (line,) = lines
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
    """Replace ``sys.stderr`` by a LogLines."""
    sys.stderr = lines = LogLines(sys.stderr.fileno(), on_lost)
    return lines
