"""Writes a server's standard error in a thread, so that logging never waits for a slow reader."""

import io
import os
import select
from collections.abc import Callable, Sequence

from sentiment.observability.writing_thread import WritingThread

# Limit of the buffered text: a few thousand lines, enough for a reader that pauses briefly.
BYTES_MAX = 2**20


class LogLines(io.TextIOBase):
    """A text stream whose writes return at once. Lines that do not fit in the buffer, or cannot be written, are dropped and counted.

    Thread-safe. ``flush`` does nothing; use ``thread.wait_written``.
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
        self.thread = WritingThread("log", self._wrote, on_lost, bytes_max)

    def write(self, text: str, /) -> int:
        """Queue the text. A short text is written with one call, because several processes may share the reader."""
        line = text.encode(errors="backslashreplace")
        if line:
            self.thread.put(line, len(line))
        return len(text)

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
