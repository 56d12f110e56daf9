"""Reads the rows of tables and of lists of texts, lazily and in bounded memory. Knows neither client nor server.

A row of the file is one row here, in order: with its values, or with the reason why it has none. What makes the rows after it unsure,
such as a quote that is not closed, ends the reading with a BadFile that names the line.
"""

import codecs
import itertools
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from sentiment.errors import BadSettings
from sentiment.files import formats
from sentiment.files.decoding import BLOCK_BYTES, COMPRESSED, Lines, LongLine, damage, decoded, opened
from sentiment.files.errors import BadFile
from sentiment.files.records import OpenQuote
from sentiment.files.rows import TEXT, Row, Unread

# By the ending of a file's name.
FORMATS = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
}
# Formats that have to be read from a file, as they begin at its end.
OF_FILES = ("parquet", "xlsx")
READABLE = ", ".join(FORMATS)
# Of a message about columns.
NAMES_SHOWN, NAME_CHARACTERS_SHOWN = 10, 30
# The name of a stream that is of no file; its rows are read as they come.
STREAM = "standard input"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read.

    Attributes:
        column: the column of the texts: its name or, if no column has that name, its number from 1. A .txt has none.
        format: one of the values of FORMATS; empty: by the ending of the name.
        delimiter: of the fields of delimited text, one character; empty: a tab in a .tsv, else found by the header.
        encoding: of text, by Python's name; empty: by the byte order mark, else UTF-8.
        header: whether the first row of a table names the columns. If not, their names are 1, 2, 3 and so on.
        quotes: whether fields of delimited text may be quoted.
        sheet: of an .xlsx; empty: the only one.
    """

    column: str = TEXT
    format: str = ""
    delimiter: str = ""
    encoding: str = ""
    header: bool = True
    quotes: bool = True
    sheet: str = ""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            BadSettings: an option has no such value.
        """
        if self.format and self.format not in FORMATS.values():
            raise BadSettings(f"--format {self.format}: must be one of {', '.join(dict.fromkeys(FORMATS.values()))}")
        if self.delimiter and (len(self.delimiter) > 1 or self.delimiter in '"\r\n'):
            raise BadSettings(f"--delimiter {self.delimiter!r}: must be one character, neither a quote nor a line end")
        try:
            with suppress(UnicodeDecodeError):
                codecs.getincrementaldecoder(self.encoding or "utf-8")("surrogateescape").decode(b" " * 8)
        except (LookupError, ValueError) as error:
            raise BadSettings(f"--encoding {self.encoding}: unknown; use a name such as utf-8, utf-16, cp1252 or shift_jis") from error


def format_of(name: str) -> str:
    """The format of a file by the ending of its name, before .gz or .zst; empty if it is not in FORMATS."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
        if FORMATS.get(path.suffix) in OF_FILES:
            return ""
    return FORMATS.get(path.suffix, "")


class RowsUnsure(BadFile):
    """Nothing tells where the rows after this place begin; those before it are right."""


class Table:
    """The rows of a file, or of a stream. Iterate once. Use it as a context manager, or close it.

    Attributes:
        name: of the file, for messages.
        columns: the names of the columns, the second of equal ones with _2; None where each row has keys of its own (JSON).
    """

    def __init__(
        self, source: Path | BufferedReader, reading: Reading, *, needed: frozenset[str] | None = None, name: str = STREAM
    ) -> None:
        """Open a file and read its header.

        Args:
            source: a path, or a stream, which stays open; that of a file can be sought in.
            reading: how to read it.
            needed: the only columns that are wanted, by name or number; None: all. Only Parquet leaves out the others.
            name: of the file that a stream is of, or STREAM.

        Raises:
            BadFile: it cannot be read.
        """
        self.name = str(source) if isinstance(source, Path) else name
        self._reading, self._needed = reading, needed
        self._stack = ExitStack()
        self._lines: Lines | None = None
        self._number = 0
        try:
            self._format = reading.format or self._by_name(source)
            found = self._open(source)
        except BaseException as error:
            self._stack.close()
            raise self._bad(error) from error
        self._header = found.header
        self.columns = None if found.header is None else tuple(formats.unique_names(found.header))
        self._rows = self._checked(found.rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return next(self._rows)

    @property
    def waits(self) -> bool:
        """Whether the next row may have to be waited for, because no more of a stream was read."""
        return self._lines is not None and self._lines.waits

    def key(self, column: str, option: str = "--column") -> str:
        """The name of the column that ``column`` names or numbers, as the values of a row have it.

        Args:
            column: as ``Reading.column``.
            option: the option of a command line that chooses it, for messages; empty if there is none.

        Raises:
            BadFile: there is no such column, or there are two of the name. Where each row has its own keys, the first row is looked at.
        """
        if self._format == "txt":
            return TEXT
        if self.columns is None or self._header is None:
            first = self._first()
            if first.values and column not in first.values:
                shown = _shown(first.values)
                raise BadFile(f"{self.name}: {first.place}: no key {column!r}; the object has {shown} (choose with {option})")
            return column
        return key_of(self._header, column, self.name, option)

    def has(self, column: str) -> bool:
        """Whether there is a column of this name; where each row has its own keys, whether the first row has it."""
        return column in (self._header if self._header is not None else self._first().values)

    def _first(self) -> Row:
        """The first row, which stays to be read; one without values if the file has no row."""
        first = next(self._rows, None)
        if first is None:
            return Row("", {})
        self._rows = itertools.chain([first], self._rows)
        return first

    def _by_name(self, source: Path | BufferedReader) -> str:
        if isinstance(source, Path):
            # First, as a wrong name may have a wrong ending.
            if stat.S_ISDIR(source.stat().st_mode):
                raise BadFile(f"{self.name}: is a folder; sentiment-batch reads folders")
        elif self.name == STREAM:
            return "txt"
        found = format_of(self.name)
        if not found:
            kinds = f"{READABLE} (text also with {' or '.join(COMPRESSED)})"
            raise BadFile(f"{self.name}: the file type must be one of {kinds}, got {Path(self.name).suffix!r}; or choose with --format")
        return found

    def _open(self, source: Path | BufferedReader) -> formats.Opened:
        reading = self._reading
        if self._format in OF_FILES:
            if self.name == STREAM:
                raise BadFile(f"{STREAM}: {self._format} cannot be read from it; write it to a file")
            if self._format == "xlsx":
                return formats.of_xlsx(source, self.name, reading.sheet, header=reading.header, stack=self._stack)
            return formats.of_parquet(source, self.name, lambda name: self._needed is None or name in self._needed, self._stack)
        pieces = decoded(self._reader(source), reading.encoding)
        if self._format == "json":
            return formats.of_json(pieces)
        self._lines = lines = Lines(pieces)
        if self._format == "txt":
            return formats.of_lines(lines)
        if self._format == "jsonl":
            return formats.of_json_lines(lines)
        delimiter = reading.delimiter or ("\t" if self._format == "tsv" else "")
        return formats.of_delimited(lines, delimiter, reading.column, header=reading.header, quotes=reading.quotes, name=self.name)

    def _reader(self, source: Path | BufferedReader) -> Callable[[], bytes]:
        if isinstance(source, Path) or self.name != STREAM:
            return opened(source, self.name, self._stack)
        return lambda: source.read1(BLOCK_BYTES)

    def _checked(self, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows; an error has the file's name and where it was."""
        try:
            for row in rows:
                self._number += 1
                yield row
        except Exception as error:  # the errors of compression modules have no common class
            raise self._bad(error) from error

    def _bad(self, error: BaseException) -> BaseException:
        """The error with the file's name, if it is one of the file."""
        after = f" after row {self._number}" if self._number else ""
        if isinstance(error, OpenQuote):
            return RowsUnsure(
                f"{self.name}:{error.line}: {error}, so nothing tells where the rows after line {error.begun} begin; close it, or choose "
                "--no-quotes if no field is quoted"
            )
        if isinstance(error, LongLine):
            return RowsUnsure(f"{self.name}:{error.line}: {error}")
        if wrong := damage(error):
            return BadFile(f"{self.name}: {wrong}{after}")
        if isinstance(error, OSError):
            return BadFile(f"{self.name}: cannot be read{after}: {error.strerror or error}")
        if isinstance(error, (ValueError, OverflowError)):
            encoding = "; choose another with --encoding" if isinstance(error, UnicodeError) else ""
            return BadFile(f"{self.name}: {error}{after}{encoding}")
        return error


def key_of(header: Sequence[str], column: str, name: str, option: str) -> str:
    """The name of the column that ``column`` names or numbers, as ``unique_names`` has it.

    ``name`` of the file and ``option`` of the command line are for messages; an empty option if none chooses the column.

    Raises:
        BadFile: there is no such column, or there are two of the name.
    """
    places = [place for place, found in enumerate(header, 1) if found == column]
    if len(places) > 1:
        shown = ", ".join(map(str, places))
        number = f", or give {option} the number of one" if option else ""
        raise BadFile(f"{name}: the columns {shown} are all called {column!r}; rename all but one{number}")
    if places:
        return column
    if re.fullmatch(r"[1-9][0-9]{0,5}", column) and int(column) <= len(header):
        return formats.unique_names(header)[int(column) - 1]
    choose = f" (choose with {option}, or --no-header if it is data)" if option else "; rename the column"
    raise BadFile(f"{name}:1: no column {column!r}; the header has {_shown(header)}{choose}")


def _shown(names: Iterable[str]) -> str:
    """Names for a message, which must not show the texts of a file without a header."""
    found = list(names)
    short = [name if len(name) <= NAME_CHARACTERS_SHOWN else f"{name[:NAME_CHARACTERS_SHOWN]}..." for name in found[:NAMES_SHOWN]]
    more = [f"and {len(found) - NAMES_SHOWN:,} more"] if len(found) > NAMES_SHOWN else []
    return ", ".join([*short, *more]) or "none"


def read_texts(path: Path, column: str = TEXT) -> Iterator[str]:
    """The texts of a file, lazily.

    Raises:
        BadFile: the file, or a row of it, cannot be read.
    """
    with Table(path, Reading(column), needed=frozenset([column])) as table:
        key = table.key(column)
        for row in table:
            text = row.text(key)
            if isinstance(text, Unread):
                raise BadFile(f"{path}: {text.reason}")
            yield text
