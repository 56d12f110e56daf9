"""Standard input, output and error of a command. The process that started it may have closed some, or they cannot be written."""

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sentiment.errors import SentimentError
from sentiment.files.errors import DISK_FULL, BadFile, reason

# What the encoding of standard output does not have becomes an escape of JSON, which keeps the value where it is JSON.
ESCAPES = "sentiment-escapes"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "of output only"
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPES, _escaped)


class ReaderGone(SentimentError):
    """The reader of standard output has ended, as ``head`` does. The command ends without a message."""


class _Messages(io.TextIOWrapper):
    """Standard error. What cannot be written, for example because the disk is full, is dropped: it does not end the command."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


@contextmanager
def standard_streams() -> Iterator[None]:
    """Runs a command with standard streams that it can use, and checks at the end that all it printed was written.

    Standard streams that are closed are opened on the null device, for child processes too. Otherwise the next file or socket would get
    their number, and what others write to standard error would go there. ``is_closed`` remembers them. Characters that the encoding of
    standard output does not have are printed as escapes.

    Raises:
        BadFile: standard output cannot be written; or it is closed and --help or the like has printed to it.
        ReaderGone: standard output is a pipe that nobody reads any more.
    """
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPES)
    try:
        try:
            yield
        except SystemExit as exiting:
            if exiting.code:
                raise
            # Of --help and the like, which have printed.
            need_standard_output()
            _flush()
            raise
        _flush()
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        # Code that writes files reports their errors itself.
        if error.errno not in DISK_FULL or error.filename is not None:
            raise
        raise _cannot_write(error) from error
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Otherwise the interpreter would try to write the buffer again when it ends, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def need_standard_output(*elsewhere: object) -> None:
    """Raise if standard output was closed and the results go nowhere else. Call it before the work.

    Args:
        elsewhere: options that send the results to files; one that is set is enough.

    Raises:
        BadFile: standard output is closed.
    """
    if is_closed("stdout") and not any(elsewhere):
        raise BadFile("standard output: is closed; redirect it, for example to a file")


def is_closed(name: str) -> bool:
    """Whether a standard stream, by its name in ``sys``, was closed when the process started."""
    return getattr(sys, f"__{name}__") is None


def _open_closed() -> None:
    # In this order each gets its own number, which is the lowest that is free.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
            os.set_inheritable(getattr(sys, name).fileno(), True)
    # Not where it is replaced, for example by a test.
    given = sys.__stderr__
    if given is not None and sys.stderr is given:
        raw = open(given.fileno(), "wb", closefd=False)  # noqa: SIM115  # as above
        sys.stderr = _Messages(raw, given.encoding, "backslashreplace", line_buffering=True)


def _flush() -> None:
    # Here, where an error can be reported, and not when the interpreter ends.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(error) from error


def _cannot_write(error: OSError) -> BadFile:
    return BadFile(f"standard output: cannot be written: {reason(error)}")
