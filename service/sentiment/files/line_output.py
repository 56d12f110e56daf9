"""Lines that are written one after the other, so that an interrupted run can go on; complete, they become a file."""

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile, reason
from sentiment.files.output import make_like, new_file, replaced


def claim(file: int | IO[bytes]) -> bool:
    """Lock an open file or folder until it is closed. Returns False if another process holds the lock.

    Returns True on a file system without locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # For example, a folder on NFS.
        return True
    return True


def difference(recorded: Mapping[str, object], current: Mapping[str, object]) -> str:
    """The first option whose recorded value differs from the current one, as a message; empty if there is none. Both are plain JSON."""
    for name in sorted({*recorded, *current}):
        before, now = recorded.get(name), current.get(name)
        if before != now:
            return f"was begun with {name} = {_shown(before)}; now it is {_shown(now)}"
    return ""


def _shown(value: object) -> str:
    return repr(value) if value else "not given"


class LineOutput:
    """Writes whole lines to ``PATH.part`` and renames it to PATH when complete. Continues an interrupted part.

    Meanwhile ``PATH.part.json`` records the input and options that the lines depend on. Use it as a context manager; only ``complete``
    renames the part. A symbolic link is followed: the file that it names is written.

    Attributes:
        lines: the number of lines in the part when it was opened.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Open or continue. ``overwrite``: a file of this name is replaced in the end.

        Raises:
            BadFile: PATH exists, cannot be written or is not a regular file, or another process writes to it.
        """
        target = replaced(path)
        if target is None:
            raise BadFile(f"{path}: is not a regular file; use - for standard output")
        self._overwrite = overwrite
        self.path = path = target
        self._part = path.with_name(path.name + ".part")
        self._record = path.with_name(path.name + ".part.json")
        try:
            self._refuse_existing()
            self._stream = self._part.open("ab+")
            try:
                self._claim()
                self.lines = self._keep_whole_lines()
            except BaseException:
                self._stream.close()
                raise
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be written: {reason(error)}") from error

    def _refuse_existing(self) -> None:
        if self.path.exists() and not self._overwrite:
            raise BadFile(f"{self.path}: exists already; replace it with --overwrite, or choose another output")

    def _claim(self) -> None:
        if not claim(self._stream):
            raise BadFile(f"{self._part}: another process writes to it; wait until it ends or choose another output")
        try:
            # Another process may have completed the part since it was opened. The stream is then that of PATH, or of a new part.
            self._refuse_existing()
            if not (self._part.exists() and os.path.samestat(os.fstat(self._stream.fileno()), self._part.stat())):
                raise BadFile(f"{self._part}: another process has just completed it; repeat the command to replace {self.path}")
        except BadFile:
            self._part.unlink(missing_ok=True)
            raise

    def _keep_whole_lines(self) -> int:
        """Remove a half-written last line and count the other lines."""
        self._stream.seek(0)
        lines, end = 0, 0
        while block := self._stream.read(2**20):
            last = block.rfind(b"\n")
            if last >= 0:
                lines += block.count(b"\n")
                end = self._stream.tell() - len(block) + last + 1
        self._stream.truncate(end)
        return lines

    def begin(self, options: Mapping[str, object], restart: bool = False) -> None:
        """Record the options that the lines depend on or, if the part has lines, check them. Call it before the first write.

        Args:
            options: everything that the lines depend on, as plain JSON.
            restart: drop the existing lines.

        Raises:
            BadSettings: the lines were written with other options.
            BadFile: the record cannot be written.
        """
        if restart:
            self.lines = 0
            self._stream.truncate(0)
        if not self.lines:
            with new_file(self._record) as write:
                write(json.dumps(options) + "\n")
            return
        try:
            recorded = json.loads(self._record.read_bytes())
            differs = difference(recorded, options)
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise self.other(
                f"has {self.lines} lines, but {self._record.name}, which records their input and options, cannot be read"
            ) from error
        if differs:
            raise self.other(differs)

    def kept(self) -> Iterator[bytes]:
        """The lines that were in the part when it was opened."""
        yield from itertools.islice(_whole(self._part), self.lines)

    def other(self, fact: str, line: int = 0) -> BadSettings:
        """The error of a part that does not match the current input or options. ``line``: the first line that differs, from 1."""
        place = f"{self._part}:{line}" if line else f"{self._part}"
        return BadSettings(f"{place}: {fact}; use --restart to start over, or another --output to keep this one")

    def write(self, line: str, *, at_once: bool = False) -> None:
        """Append a line, which must not contain a line feed. ``at_once``: not with others later; for lines that cost more than a write.

        Raises:
            BadFile: the line cannot be written, for example because the disk is full. The lines so far are kept.
        """
        try:
            self._stream.write(line.encode() + b"\n")
            if at_once:
                self._stream.flush()
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be written: {error.strerror}; repeat the command to continue") from error

    def whole(self) -> Iterator[bytes]:
        """All lines of the part."""
        self._stream.flush()
        return _whole(self._part)

    def complete(self, write: Callable[[IO[bytes]], None] | None = None) -> None:
        """Flush the part to disk and rename it to PATH.

        Args:
            write: writes the file that is made of the lines. It is written as ``PATH.part.new`` and renamed, and the part is removed.
                None: the lines are the file.

        Raises:
            BadFile: it cannot be written. The part is kept.
        """
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            if write is None:
                make_like(self._stream, self.path)
                os.replace(self._part, self.path)
            else:
                self._replace_by(write)
                self._part.unlink()
            self._record.unlink(missing_ok=True)
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be completed: {error.strerror}; repeat the command to continue") from error
        except BadFile as error:
            raise BadFile(f"{self.path}: {error}; the answers are in {self._part}, an object a line") from error

    def _replace_by(self, write: Callable[[IO[bytes]], None]) -> None:
        new = self.path.with_name(self.path.name + ".part.new")
        try:
            with new.open("wb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
                make_like(stream, self.path)
            os.replace(new, self.path)
        finally:
            # Gone already after success. On a full disk this makes room.
            new.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with self._stream:
                self._stream.flush()
                # An empty part is removed. After ``complete`` the part is gone.
                if self._part.exists() and not self._part.stat().st_size:
                    self._part.unlink()
                    self._record.unlink(missing_ok=True)
        except OSError as failure:
            if error is None:
                raise BadFile(f"{self._part}: cannot be written: {failure.strerror}; repeat the command to continue") from failure


def _whole(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from stream
