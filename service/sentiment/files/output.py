"""Writes the files that a user names: whole or not at all, through links, and into what is not a file. Knows nothing of what it writes."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TextIO, cast

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile, reason
from sentiment.files.standard_streams import need_standard_output

# The path that means standard output.
STANDARD_OUTPUT = Path("-")


@contextmanager
def new_file(path: Path) -> Iterator[Callable[[str | bytes], None]]:
    """As ``new_stream``, but yields a function that writes text, in UTF-8, or bytes.

    Raises:
        BadFile: the output cannot be written; from the function, too. Errors of standard output are left as OSError.
    """
    with new_stream(path) as stream:
        yield lambda content: _write(stream, content.encode() if isinstance(content, str) else content)


@contextmanager
def new_stream(path: Path) -> Iterator[BinaryIO]:
    """Yields a stream for what PATH is to hold. At the end ``PATH.part`` replaces PATH; after an error the part is removed.

    A link is followed: the file that it leads to is replaced, beside which the part lies. A file that is replaced leaves its permissions
    and, as far as the user may, its owner to the new one. What ``replaced`` does not name is written through, at once; its stream may not
    be able to seek, and bytes that were written before an error stay written.

    It is opened at once, so that an output that cannot be written is reported before the work starts. A named pipe waits for its reader.

    Raises:
        BadFile: the output cannot be opened or replaced. Errors of the stream's own methods are left as OSError.
    """
    target = replaced(path)
    if target is None:
        with _through(path) as stream:
            yield stream
        return
    part = target.with_name(target.name + ".part")
    try:
        stream = part.open("wb")
    except OSError as error:
        raise _cannot_write(part, error) from error
    try:
        with stream:
            make_like(stream, target)
            yield stream
            _write(stream, b"")
        try:
            os.replace(part, target)
        except OSError as error:
            raise BadFile(f"{target}: cannot be replaced: {reason(error)}") from error
    finally:
        # Gone already after success.
        part.unlink(missing_ok=True)


def replaced(path: Path) -> Path | None:
    """The regular file, there or yet to be made, that an output at PATH replaces. None: the output is written through.

    Written through are ``-``, the file that standard output or standard error is, devices, pipes and sockets.

    Raises:
        BadFile: PATH is a folder, or cannot be looked at.
    """
    if path == STANDARD_OUTPUT:
        return None
    target = Path(os.path.realpath(path))
    try:
        found = path.stat()
    except FileNotFoundError:
        return target
    except OSError as error:
        raise _cannot_write(path, error) from error
    if stat.S_ISDIR(found.st_mode):
        raise BadFile(f"{path}: expected a file, got a folder")
    # A target that is not there is the old name of an open file, as /dev/fd/3 may have it.
    whole = stat.S_ISREG(found.st_mode) and target.exists() and not any(_is_open_as(number, found) for number in (1, 2))
    return target if whole else None


def is_standard_output(path: Path | None) -> bool:
    """Whether an output at PATH goes to standard output: it is ``-``, or the file that standard output is.

    Not for the null device, in which nothing meets.
    """
    if path is None or path == STANDARD_OUTPUT:
        return path is not None
    try:
        found = path.stat()
        return _is_open_as(1, found) and not os.path.samestat(found, os.stat(os.devnull))
    except OSError:
        return False


def beside(*outputs: Path | None) -> TextIO:
    """Where to print what accompanies these outputs: standard error if one of them goes to standard output, else standard output."""
    return sys.stderr if any(map(is_standard_output, outputs)) else sys.stdout


def refuse_same_file(**paths: Path | None) -> None:
    """Refuse options, by name, that give one file two contents.

    Raises:
        BadSettings: two are the same file, or both standard output.
    """
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        place = STANDARD_OUTPUT if is_standard_output(path) else path and replaced(path)
        if place and (other := seen.setdefault(place, name)) != name:
            raise BadSettings(f"--{other} and --{name} are the same file, {path}")


def _is_open_as(descriptor: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(descriptor))
    except OSError:
        # It is closed.
        return False


@contextmanager
def _through(path: Path) -> Iterator[BinaryIO]:
    """Yields a stream to standard output, which stays open, or to what is at PATH."""
    if is_standard_output(path):
        need_standard_output()
        # What was printed before comes first.
        sys.stdout.flush()
        yield cast(BinaryIO, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        stream = open(path, "wb", opener=_open_through)  # noqa: SIM115  # closed below
    except OSError as error:
        raise _cannot_write(path, error) from error
    with stream:
        yield stream
        _write(stream, b"")


def _open_through(path: str, _flags: int) -> int:
    """Open what is there, and make or empty nothing: Linux refuses O_CREAT for pipes of other users in a shared folder."""
    # A file that is standard error is written on from its end.
    return os.dup(2) if _is_open_as(2, os.stat(path)) else os.open(path, os.O_WRONLY | os.O_NOCTTY)


def make_like(stream: IO[bytes], path: Path) -> None:
    """Give a new file the owner, group and permissions of the file at PATH, if there is one, as far as user and file system allow."""
    try:
        found = path.stat()
    except OSError:
        return
    # Permissions last: a change of the owner removes some.
    for uid, gid in ((found.st_uid, -1), (-1, found.st_gid)):
        with suppress(OSError):
            os.fchown(stream.fileno(), uid, gid)
    with suppress(OSError):
        os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))


def _write(stream: BinaryIO, content: bytes) -> None:
    """Write and flush; a file, to its disk."""
    if stream is getattr(sys.stdout, "buffer", None):
        stream.write(content)
        stream.flush()
        return
    try:
        stream.write(content)
        stream.flush()
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            os.fsync(stream.fileno())
    except OSError as error:
        # Close here and ignore the error: closing tries to write the buffer again.
        with suppress(OSError):
            stream.close()
        raise _cannot_write(stream.name, error) from error


def _cannot_write(shown: str | Path, error: OSError) -> BadFile:
    return BadFile(f"{shown}: cannot be written: {reason(error)}")
