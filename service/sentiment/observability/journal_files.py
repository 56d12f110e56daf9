"""The files of a journal: JSON lines in a folder that several processes share, rotated by size and bounded in total.

Each process appends to a file of its own, which it holds locked (``flock``) until it ends the file. A process that begins a file removes
the oldest files that nobody holds, so that those that are left, and the files that are still growing, fit in the limit.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

from sentiment.errors import BadSettings
from sentiment.observability.logs import logger

# The time at which it was begun, the process and its id. The names' order is the files' age. Other files in the folder are left alone.
NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[a-z0-9-]+-\d+\.jsonl")
# However small they are: a server that is restarted again and again begins a file each time.
FILES_MAX = 1024
# Locked by the server that writes to the folder. ``*`` of a shell leaves it out.
LOCK = ".lock"
# For the server's user only.
FILE_MODE, FOLDER_MODE = 0o600, 0o700


@contextlib.contextmanager
def held(folder: str) -> Iterator[Callable[[], None]]:
    """Create a journal's folder if needed, and lock it: two servers in one folder would delete each other's files.

    Yields a function that releases the lock early, for a server that drains. The lock ends with the process, however that ends. The
    processes of a server share the one of their supervisor. ``folder``: empty without a journal.

    Raises:
        BadSettings: another server has it, or it cannot be used.
    """
    with contextlib.ExitStack() as stack:
        if folder and (file := _locked(Path(folder))) is not None:
            stack.callback(os.close, file)
        yield stack.close


def _locked(folder: Path) -> int | None:
    """The locked file; None if the disk is full, which does not stop the start."""
    _check(folder)
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None
        raise _wrong(folder, f"{LOCK} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise _wrong(folder, "another server keeps its journal there; each needs a folder of its own") from error
    return file


class JournalFiles:
    """The files of one process, the last of which grows. Not thread-safe."""

    def __init__(
        self, folder: Path, process: str, processes: int, bytes_max: int, file_bytes_max: int, now: Callable[[], datetime] | None = None
    ) -> None:
        """Check the folder, and create it if it does not exist. The first file is begun with the first line.

        Args:
            folder: holds the files of all processes.
            process: its name, part of the files' names.
            processes: how many processes of this server write, each a file at a time.
            bytes_max: limit of all files together.
            file_bytes_max: limit of a file.
            now: the time, in UTC; None: the system's.

        Raises:
            BadSettings: the folder cannot be used, or the limits do not fit together.
        """
        _check(folder)
        if bytes_max < (processes + 1) * file_bytes_max:
            raise BadSettings(
                f"journal_bytes_max is {bytes_max}; {processes} processes write files of up to {file_bytes_max} bytes "
                f"(journal_file_bytes_max) and one finished file is kept: at least {(processes + 1) * file_bytes_max} are needed"
            )
        self._folder, self._process, self._processes = folder, process, processes
        self._bytes_max, self._file_bytes_max = bytes_max, file_bytes_max
        self._now = now or (lambda: datetime.now(UTC))
        self._file: int | None = None
        self._size = 0
        self._failing = False
        # Whether a line that is longer than a file may be was logged.
        self._too_long = False

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines, each with its line end; returns how many were written. Never raises OSError: what fails is not written."""
        left = [line for line in lines if len(line) <= self._file_bytes_max]
        if len(left) < len(lines) and not self._too_long:
            # Once: a text sets its line's length, and there may be many.
            logger().warning("journal_line_too_long", bytes=max(map(len, lines)), limit=self._file_bytes_max)
            self._too_long = True
        written = 0
        while left:
            room = self._file_bytes_max - self._size
            fitting = sum(size <= room for size in accumulate(map(len, left)))
            if not fitting:
                self.close()
                continue
            written += self._append(b"".join(left[:fitting]))
            left = left[fitting:]
        return written

    def close(self) -> None:
        """End the file that grows, if there is one. A later line begins another."""
        file, self._file, self._size = self._file, None, 0
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _append(self, content: bytes) -> int:
        """Append whole lines; returns how many the disk took, from the first on."""
        done = 0
        try:
            if self._file is None:
                self._file = self._begin()
            file, left = self._file, memoryview(content)
            while done < len(content):
                done += os.write(file, left[done:])
            if os.fstat(file).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed")
        except OSError as error:
            if not self._failing:
                # Once until it works again. The lines are counted, see ``WritingThread``.
                logger().warning("journal_not_written", reason=error.strerror)
            self._failing = True
            return self._keep(content[: content.rfind(b"\n", 0, done) + 1])
        self._failing = False
        self._size += len(content)
        return content.count(b"\n")

    def _keep(self, lines: bytes) -> int:
        """Keep of a failed write these whole lines only; returns their number.

        If that fails too, or the file was removed, the file ends, and none counts. A reader skips a torn last line.
        """
        if self._file is None:
            return 0
        try:
            os.ftruncate(self._file, self._size + len(lines))
            if os.fstat(self._file).st_nlink:
                self._size += len(lines)
                return lines.count(b"\n")
        except OSError:
            pass
        self.close()
        return 0

    def _begin(self) -> int:
        # One process at a time, so that two do not count on the same room.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._make_room()
            name = f"{self._now():%Y%m%dT%H%M%S.%fZ}-{self._process}-{os.getpid()}.jsonl"
            file = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                raise
            return file
        finally:
            os.close(folder)

    def _make_room(self) -> None:
        """Remove the oldest files that nobody writes."""
        ended: list[tuple[Path, int]] = []
        growing = 1
        for path in files_of(self._folder):
            with contextlib.suppress(FileNotFoundError):
                size = _size_if_ended(path)
                if size is None:
                    growing += 1
                else:
                    ended.append((path, size))
        # Of a server that drains too.
        room = self._bytes_max - max(self._processes, growing) * self._file_bytes_max
        if room < 0:
            raise OSError(errno.EDQUOT, f"{growing} processes write to the folder")
        total = sum(size for _, size in ended)
        for place, (path, size) in enumerate(ended):
            if total <= room and len(ended) - place + growing <= FILES_MAX:
                break
            path.unlink(missing_ok=True)
            total -= size


def files_of(folder: Path) -> list[Path]:
    """The files of a journal, the oldest first."""
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))


def by_last_write(folder: Path) -> list[tuple[os.stat_result, Path]]:
    """The files of a journal and what the disk says of them, the one that was written last first.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for path in files_of(folder):
        # Another process may remove it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat(), path))
    return sorted(found, key=lambda one: (one[0].st_mtime, one[1]), reverse=True)


def _size_if_ended(path: Path) -> int | None:
    """The size of a file that nobody writes, in bytes; None if somebody does, or if it is another user's."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file).st_size
    except BlockingIOError:
        return None
    finally:
        os.close(file)


def _wrong(folder: Path, why: str) -> BadSettings:
    return BadSettings(f"journal = {str(folder)!r}: {why}")


def _check(folder: Path) -> None:
    """Find out at the start whether the folder can be used. A full disk does not fail this check; lines are dropped until there is room."""
    try:
        # Several processes may do so at once.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(FOLDER_MODE)
    except OSError as error:
        raise _wrong(folder, f"cannot be created: {error.strerror}") from error
    if not folder.is_dir():
        raise _wrong(folder, "is not a folder")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise _wrong(folder, f"user {os.geteuid()} cannot write there")
    opened = os.open(folder, os.O_RDONLY)
    try:
        # Another process that begins a file holds it for a moment.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise _wrong(folder, f"its disk has no locks (flock): {error.strerror}") from error
    finally:
        os.close(opened)
