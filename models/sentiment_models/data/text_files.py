"""Open text files, and describe what is wrong with one: line, problem and what to do."""

import csv
import gzip
import io
import zlib
from pathlib import Path

from sentiment_models.errors import BadData

# 70 times the longest film review. A longer text is probably a file without line ends and would take gigabytes to tokenize.
TEXT_CHARACTERS_MAX = 2**20

UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error)
"""The exceptions of reading a text file; ``unreadable`` describes them."""

_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip"}


def open_text(path: Path) -> io.TextIOWrapper:
    """Open a text file, gzip-compressed or not, in UTF-8 with or without a byte order mark."""
    # Only a line feed ends a line, because a text may hold U+2028 or a carriage return.
    return io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="" if ".csv" in path.suffixes else "\n")


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def bare(line: str) -> str:
    """Return a line without its end, which is LF or Windows' CR LF."""
    return line.removesuffix("\n").removesuffix("\r")


def check_text(text: str, where: str) -> None:
    """Check that a text is fit for a tokenizer.

    Args:
        text: the text.
        where: file and line.

    Raises:
        BadData: the text is empty, too long, or holds a NUL or half of a surrogate pair.
    """
    if not text.strip():
        raise BadData(f"{where}: the text is empty; delete the line")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadData(f"{where}: the text must have at most {TEXT_CHARACTERS_MAX} characters, got {len(text)}; cut it or delete the line")
    if "\0" in text:
        raise BadData(f"{where}: the text has a NUL character; delete it, or if the file is UTF-16, convert it: {_convert('UTF-16')}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: the text has half of a surrogate pair; write both halves or the character itself") from error


def unreadable(path: Path, line: int, error: BaseException) -> BadData:
    """Return an error that says why the file could not be read beyond ``line``."""
    if isinstance(error, UnicodeDecodeError):
        return BadData(_not_utf8(path, line))
    if isinstance(error, csv.Error):
        # Line 1 is the header, which is not counted as an example.
        return BadData(f"{path}:{max(line, 1) + 1}: not valid CSV: {error}; look for an open quote")
    read = f"{path}: cannot be read" + (f" after line {line}" if line else "")
    if isinstance(error, EOFError | zlib.error):
        return BadData(f"{read}: damaged or truncated ({error}); download or copy it again")
    if isinstance(error, gzip.BadGzipFile):
        return BadData(f"{read}: {error}; if the file is not compressed, rename it without .gz")
    return BadData(f"{read}: {getattr(error, 'strerror', None) or error}")


def _not_utf8(path: Path, line: int) -> str:
    """Find the line by reading again, because the text is decoded in blocks."""
    with _open(path) as stream:
        head = stream.read(2)
    with _open(path) as stream:
        wrong = (number for number, content in enumerate(stream, 1) if not _is_utf8(content))
        where = f"{path}:{next(wrong, line)}"
    kind = _MARKS.get(head, "WINDOWS-1252")
    if kind == "gzip":
        return f"{where}: gzip-compressed, not UTF-8 text; rename the file to .gz"
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
