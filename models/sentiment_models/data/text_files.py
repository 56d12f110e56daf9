"""Other people's text files: opened, and what is wrong with one told with its line and what to do about it."""

import csv
import gzip
import io
import zlib
from pathlib import Path

from sentiment_models.errors import BadData

# 70 times the longest film review: what is longer is no text but a file without line ends, and costs gigabytes to tokenize.
TEXT_CHARACTERS_MAX = 2**20

UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error)
"""What reading a text file raises; ``unreadable`` tells it."""

_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip"}


def open_text(path: Path) -> io.TextIOWrapper:
    """Open a text file, gzip-compressed or not, in UTF-8 with or without a byte order mark."""
    # A text may hold U+2028 or a carriage return: only a line feed ends a line.
    return io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="" if ".csv" in path.suffixes else "\n")


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def bare(line: str) -> str:
    """A line without its end, which Windows writes as carriage return and line feed."""
    return line.removesuffix("\n").removesuffix("\r")


def check_text(text: str, where: str) -> None:
    """Refuse a text that no tokenizer should be given.

    Args:
        text: what was read.
        where: file and line.

    Raises:
        BadData: it is empty, too long, or holds what is no character.
    """
    if not text.strip():
        raise BadData(f"{where}: the text is empty; delete the line")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadData(f"{where}: the text has {len(text)} characters; the limit is {TEXT_CHARACTERS_MAX}: cut it or delete the line")
    if "\0" in text:
        raise BadData(f"{where}: a NUL character in the text; delete it, or if the file is UTF-16: {_convert('UTF-16')}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: half of a surrogate pair in the text; write the character whole") from error


def unreadable(path: Path, line: int, error: BaseException) -> BadData:
    """Tell why a file could be read no further than ``line``."""
    if isinstance(error, UnicodeDecodeError):
        return BadData(_not_utf8(path, line))
    if isinstance(error, csv.Error):
        # Its first line is the header, which is no example.
        return BadData(f"{path}:{max(line, 1) + 1}: not CSV: {error}; is a quote left open there?")
    read = f"{path}: cannot be read" + (f" after line {line}" if line else "")
    if isinstance(error, EOFError | zlib.error):
        return BadData(f"{read}: damaged or cut off ({error}); fetch it again")
    if isinstance(error, gzip.BadGzipFile):
        return BadData(f"{read}: {error}; if it is not compressed, name it without .gz")
    return BadData(f"{read}: {getattr(error, 'strerror', None) or error}")


def _not_utf8(path: Path, line: int) -> str:
    """Text is decoded in blocks: which line is wrong tells a second look."""
    with _open(path) as stream:
        head = stream.read(2)
    with _open(path) as stream:
        wrong = (number for number, content in enumerate(stream, 1) if not _is_utf8(content))
        where = f"{path}:{next(wrong, line)}"
    kind = _MARKS.get(head, "WINDOWS-1252")
    if kind == "gzip":
        return f"{where}: not UTF-8 but gzip; name it .gz"
    perhaps = "perhaps Latin-1 or Windows-1252" if kind == "WINDOWS-1252" else kind
    return f"{where}: not UTF-8, {perhaps}; convert it: {_convert(kind)}"


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _convert(kind: str) -> str:
    return f"iconv -f {kind} -t UTF-8"
