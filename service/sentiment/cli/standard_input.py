"""Rows from standard input, as they come."""

import os
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import cast

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading, Table
from sentiment.files.rows import TEXT, Unread
from sentiment.files.standard_streams import is_closed

# The argument that means standard input.
STANDARD_INPUT = "-"


def reads_standard_input(texts: list[str], what: str) -> bool:
    """Whether the texts come from standard input: they are ``-``, or there are none and it is a pipe or a file.

    Raises:
        BadSettings: there are none, and standard input is a terminal, a device or closed; or there are more than ``-``. ``what``: the
            arguments to give instead.
    """
    if texts:
        if STANDARD_INPUT in texts and len(texts) > 1:
            raise BadSettings("give either texts or - for standard input")
        return texts == [STANDARD_INPUT]
    if not _is_piped():
        raise BadSettings(f"no text: give {what}, or pipe texts in, one a line")
    return True


def _is_piped() -> bool:
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        # Closed, or no file.
        return False


def is_typed() -> bool:
    """Whether the texts are typed at a terminal that shows the answers: the user sees at once which text has none."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def standard_input(reading: Reading) -> Table:
    """The rows of standard input, as they come: of the format that ``reading`` has, else a text a line.

    Raises:
        BadFile: it is closed, or is not a table of that format.
    """
    if is_closed("stdin"):
        raise BadFile("standard input: is closed")
    if sys.stdin.isatty():
        print("Type a text and Enter; Ctrl-D ends.", file=sys.stderr)
    return Table(cast(BufferedReader, sys.stdin.buffer), reading)


def standard_texts() -> Iterator[str | Unread]:
    """The texts of standard input, a line each.

    Raises:
        BadFile: as ``standard_input``.
    """
    with standard_input(Reading(format="txt")) as table:
        yield from (row.text(TEXT) for row in table)
