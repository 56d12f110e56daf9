"""Texts from standard input, a line each, as they come."""

import os
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import cast

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.standard_streams import is_closed
from sentiment.files.texts import bare

# The argument that means standard input.
STANDARD_INPUT = "-"
BLOCK_BYTES = 2**16
# The limit of a text in a file, too. A server's is lower.
LINE_BYTES_MAX = 2**26
_BOM = b"\xef\xbb\xbf"


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


def standard_input() -> Iterator[list[str]]:
    """Blocks of texts: the lines that are there when a block is asked for, at least one. So a text is answered without waiting for others.

    Bytes that are not UTF-8 become lone surrogates, for which a text is refused by itself.

    Raises:
        BadFile: a line is too long, or standard input cannot be read.
    """
    if is_closed("stdin"):
        raise BadFile("standard input: is closed")
    if sys.stdin.isatty():
        print("Type a text and Enter; Ctrl-D ends.", file=sys.stderr)
    stream = cast(BufferedReader, sys.stdin.buffer)
    # The beginning of a line whose end has not come, and how many lines came before it.
    begun, number = bytearray(), 0
    try:
        while block := stream.read1(BLOCK_BYTES):
            begun += block
            if len(begun) > LINE_BYTES_MAX:
                raise BadFile(f"standard input:{number + 1}: the line has more than {LINE_BYTES_MAX:,} bytes")
            if b"\n" in block:
                *lines, begun = begun.split(b"\n")
                yield [_text(line, number + index) for index, line in enumerate(lines)]
                number += len(lines)
    except OSError as error:
        raise BadFile(f"standard input: cannot be read: {error.strerror or error}") from error
    if begun:
        yield [_text(begun, number)]


def _text(line: bytearray, index: int) -> str:
    return bare((line if index else line.removeprefix(_BOM)).decode(errors="surrogateescape"))
