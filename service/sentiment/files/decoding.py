"""Bytes of files and streams as text: compression, byte order marks, encodings and lines, in bounded memory."""

import codecs
import gzip
import io
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

from sentiment.errors import BadSettings

COMPRESSED = (".gz", ".zst")
BLOCK_BYTES = 2**16
# As many characters that are right UTF-8 do not stand in another encoding by chance.
UTF8_CHARACTERS_MIN = 3
# The limit of a text's line, too. A server's is lower.
LINE_CHARACTERS_MAX = 2**26
# Longer ones first: UTF-32 begins as UTF-16 does.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = ((b"\x1f\x8b", ".gz, or pipe it through zcat"), (b"\x28\xb5\x2f\xfd", ".zst, or pipe it through zstdcat"))
# Bytes that are not of the encoding are decoded to these (surrogateescape).
_NOT_DECODED = re.compile("[\udc80-\udcff]")

# Gives the next bytes: those that are there, at least one; none at the end.
Read = Callable[[], bytes]


def opened(source: Path | BufferedReader, name: str, stack: ExitStack) -> Read:
    """Open a file, which may be compressed with gzip or zstd by the ending of its name, until the stack is closed.

    Raises:
        BadSettings: zstd is not installed.
        OSError: the file cannot be opened.
    """
    stream: IO[bytes] = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
    kind = Path(name).suffix.lower()
    if kind == ".gz":
        inflated: Any = stack.enter_context(gzip.GzipFile(fileobj=stream))
    elif kind == ".zst":
        inflated = stack.enter_context(_zstd(stream, name))
    else:
        return lambda: stream.read(BLOCK_BYTES)
    # ``read`` would lose what it has when it comes to damage.
    return lambda: inflated.read1(BLOCK_BYTES)


def _zstd(stream: IO[bytes], name: str) -> IO[bytes]:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd  # noqa: PLC0415  # loaded only if needed
        else:
            from backports import zstd  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise BadSettings(f"{name}: .zst needs the extra files: pip install 'sentiment-service[files]'") from error
    return cast(IO[bytes], zstd.open(stream, "rb"))


def damage(error: BaseException) -> str:
    """What is wrong with a file whose bytes cannot be decompressed; empty if the error is another."""
    if isinstance(error, gzip.BadGzipFile | zlib.error | EOFError) or type(error).__name__ == "ZstdError":
        return f"cannot be decompressed: {error}"
    return ""


def decoded(read: Read, encoding: str = "") -> Iterator[str]:
    """The text in pieces, without its byte order mark.

    Bytes that are not of the encoding become lone surrogates, for which ``is_decoded`` is false.

    Args:
        read: gives the bytes.
        encoding: Python's name of it; empty: by the byte order mark, else UTF-8.

    Raises:
        ValueError: it is UTF-16 without a byte order mark, compressed, or no text.
        UnicodeError: a unit of UTF-16 or the like is incomplete; what follows it cannot be decoded.
    """
    head = read()
    # No further than a mark goes on: somebody may be typing.
    while head and any(len(head) < len(mark) and mark.startswith(head) for mark, _ in _MARKS) and (block := read()):
        head += block
    if to_do := next((to_do for begin, to_do in _PACKED if head.startswith(begin) and not encoding), ""):
        raise ValueError(f"is compressed; rename it to {to_do}")
    # Text of other encodings has none. What lacks a mark and has them is UTF-16 or no text.
    if b"\0" in head[:4] and not encoding and not any(head.startswith(mark) for mark, _ in _MARKS):
        raise ValueError("has NUL characters at its beginning; if it is UTF-16, choose --encoding utf-16-le or utf-16-be")
    mark, found = next(((mark, name) for mark, name in _MARKS if head.startswith(mark)), (b"", "utf-8"))
    decoder = codecs.getincrementaldecoder(encoding or found)("surrogateescape")
    other = _Utf8() if encoding and _is_of_one_byte(encoding) else None
    # A named encoding reads its mark itself, or as U+FEFF.
    block = head if encoding else head[len(mark) :]
    first = True
    while block:
        if other is not None and other.has(block):
            raise ValueError(f"is UTF-8, not {encoding}; leave --encoding out, and convert other files that need it")
        piece = decoder.decode(block)
        yield piece.removeprefix("\ufeff") if first else piece
        first = first and not piece
        block = read()
    if piece := decoder.decode(b"", final=True):
        yield piece


def _is_of_one_byte(encoding: str) -> bool:
    """Whether a byte is a character, so that UTF-8 can be read by it too, as other characters."""
    try:
        return len(b"\xe9".decode(encoding)) == 1
    except UnicodeError:
        return False


class _Utf8:
    """Looks whether bytes are UTF-8 with characters beyond ASCII, which text of another encoding is not."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
        self._beyond = 0

    def has(self, block: bytes) -> bool:
        """Whether it is so, after this block too."""
        if self._decoder is None:
            return False
        try:
            self._beyond += sum(not sign.isascii() for sign in self._decoder.decode(block))
        except UnicodeDecodeError:
            self._decoder = None
        return self._decoder is not None and self._beyond >= UTF8_CHARACTERS_MIN


def is_decoded(text: str) -> bool:
    """Whether all bytes of the text were of its encoding."""
    return text.isascii() or not _NOT_DECODED.search(text)


class LongLine(Exception):
    """A line is too long to be held in memory."""

    def __init__(self, line: int) -> None:
        """``line``: its number, from 1."""
        super().__init__(f"the line has more than {LINE_CHARACTERS_MAX:,} characters")
        self.line = line


class Lines(Iterator[str]):
    r"""Lines with their line ends. Only a line feed ends a line: a text may contain U+2028 or a carriage return.

    >>> list(Lines(iter(["one\ntw", "o"])))
    ['one\n', 'two']
    """

    def __init__(self, pieces: Iterator[str]) -> None:
        """``pieces``: of the text."""
        self._pieces = pieces
        self._ready: deque[str] = deque()
        self._begun: list[str] = []
        self._characters = 0
        self._number = 0

    @property
    def waits(self) -> bool:
        """Whether the next line has to be read first."""
        return not self._ready

    def __next__(self) -> str:
        """The next line.

        Raises:
            LongLine: it has more than LINE_CHARACTERS_MAX characters.
            ValueError: the text has carriage returns but no line feeds, so that its lines are not told apart.
        """
        while not self._ready:
            piece = next(self._pieces, None)
            if piece is None:
                if not self._begun:
                    raise StopIteration
                if not self._number and "\r" in "".join(self._begun).rstrip("\r"):
                    raise ValueError("has carriage returns but no line feeds; convert its line ends to LF or CR LF")
                self._ready.append("".join(self._begun))
                self._begun = []
                break
            first, *others = io.StringIO(piece, newline="\n").readlines() or [""]
            self._begun.append(first)
            self._characters += len(first)
            if self._characters > LINE_CHARACTERS_MAX:
                raise LongLine(self._number + 1)
            if first.endswith("\n"):
                self._ready.append("".join(self._begun))
                self._begun, self._characters = [], 0
                if others and not others[-1].endswith("\n"):
                    self._begun = [others.pop()]
                    self._characters = len(self._begun[0])
                self._ready.extend(others)
        self._number += 1
        return self._ready.popleft()
