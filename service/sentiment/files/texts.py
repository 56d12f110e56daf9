"""Reads texts from files and writes answers to files, row by row, in bounded memory. Knows neither client nor server."""

import csv
import fcntl
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile, reason
from sentiment.files.output import new_file

READABLE = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
# A field may hold a whole document; the default limit of the csv module is 128 KiB.
csv.field_size_limit(2**26)


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
            return f"was begun with {name} = {before!r}; now it is {now!r}"
    return ""


def read_texts(path: Path, column: str = "text") -> Iterator[str]:
    """Read texts lazily: each line of a .txt file, or the ``column`` of a .tsv or .csv with header, a .jsonl or a .parquet file.

    Raises:
        BadFile: the file cannot be read in this way. Its message names the option --column.
    """
    return _read(path, column, labels=False)


def read_labels(path: Path, column: str) -> Iterator[str]:
    """Read a column of labels, lazily: one string for each text that ``read_texts`` reads, empty for a text without a label.

    A label is a string or a whole number. Null is no label, and neither is a key that a row of a .jsonl lacks.

    Raises:
        BadFile: the file cannot be read in this way. Its message names the option --labels.
    """
    return _read(path, column, labels=True)


def _read(path: Path, column: str, *, labels: bool) -> Iterator[str]:
    kind = path.suffix
    try:
        # First, as a wrong name may have a wrong ending.
        path.stat()
        if kind not in READABLE:
            raise BadFile(f"{path}: the file type must be one of {', '.join(READABLE)}, got {kind!r}")
        if kind == ".parquet":
            yield from _parquet(path, column, labels)
            return
        with path.open("rb") as stream:
            lines = _lines(stream, path)
            yield from (
                map(bare, lines)
                if kind == ".txt"
                else _tab_separated(lines, path, column, labels)
                if kind == ".tsv"
                else _comma_separated(lines, path, column, labels)
                if kind == ".csv"
                else _json_lines(lines, path, column, labels)
            )
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror or error}") from error


def _lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    """Lines with their line ends. Only a line feed ends a line: a text may contain U+2028 or a carriage return."""
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{path}:{number}: not UTF-8: {error.reason}") from error


def bare(line: str) -> str:
    """A line without its line end."""
    return line.removesuffix("\n").removesuffix("\r")


def _tab_separated(lines: Iterator[str], path: Path, column: str, labels: bool) -> Iterator[str]:
    # Not the csv module: it allows a carriage return only in a quoted field, and here nothing is quoted.
    place = place_of(bare(next(lines, "")).split("\t"), path, column, _option(labels))
    for line in lines:
        if fields := bare(line):
            yield field_at(fields.split("\t"), place)


def _comma_separated(lines: Iterator[str], path: Path, column: str, labels: bool) -> Iterator[str]:
    rows = csv.reader(lines)
    try:
        place = place_of(next(rows, []), path, column, _option(labels))
        yield from (field_at(row, place) for row in rows if row)
    except csv.Error as error:
        raise BadFile(f"{path}:{rows.line_num}: not CSV: {error}") from error


def _option(labels: bool) -> str:
    """The option of a command line that names the column."""
    return "--labels" if labels else "--column"


def place_of(header: list[str], path: Path | str, column: str, option: str = "--column") -> int:
    """The index of a column, which ``option`` names.

    Raises:
        BadFile: the header does not have the column.
    """
    if column not in header:
        raise BadFile(f"{path}:1: no column {column!r}; the header has {', '.join(header) or 'none'} (choose with {option})")
    return header.index(column)


def field_at(row: list[str], place: int) -> str:
    """A field of a record; empty if the record is too short."""
    return row[place] if place < len(row) else ""


def _json_lines(lines: Iterator[str], path: Path, column: str, labels: bool) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield _label_of_json(line, column) if labels else str(row_of_json(line, column)[column])
        except BadFile as error:
            raise BadFile(f"{path}:{number}: {error}") from error


def row_of_json(line: str, column: str) -> Mapping[str, object]:
    """The JSON object of a line, whose ``column`` is a string.

    Raises:
        BadFile: it is not; the message does not have the file.
    """
    try:
        row: Mapping[str, object] = json.loads(line)
        text = row[column]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFile(f"expected a JSON object with the key {column!r} (choose with --column): {type(error).__name__}") from error
    if not isinstance(text, str):
        raise BadFile(f"{column!r}: expected a string, got a {type(text).__name__}")
    return row


def _label_of_json(line: str, column: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"expected a JSON object: {type(error).__name__}") from error
    if not isinstance(row, dict):
        raise BadFile(f"expected a JSON object, got a {type(row).__name__}")
    return _label(row.get(column), column)


def _label(value: object, column: str) -> str:
    """A label as a string; empty for none. Its value is not quoted in an error: a wrong column may hold texts.

    Raises:
        BadFile: it is neither a string nor a whole number; the message does not have the file.
    """
    # A column of whole numbers with gaps is one of floats in pandas, where a gap is NaN.
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadFile(f"{column!r} (--labels): expected a string or a whole number, got a {type(value).__name__}")
    return str(value)


def _parquet(path: Path, column: str, labels: bool) -> Iterator[str]:
    try:
        import pyarrow  # noqa: PLC0415  # an extra, loaded only if needed
        from pyarrow import parquet  # noqa: PLC0415  # as above
    except ImportError as error:
        raise BadFile(f"{path}: .parquet needs the parquet extra: pip install 'sentiment-service[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise BadFile(f"{path}: no column {column!r}; it has {', '.join(file.schema_arrow.names)} (choose with {_option(labels)})")
            values = (value for batch in file.iter_batches(1024, columns=[column]) for value in batch.column(0).to_pylist())
            for number, value in enumerate(values, 1):
                if labels:
                    try:
                        yield _label(value, column)
                    except BadFile as error:
                        raise BadFile(f"{path}: row {number}: {error}") from error
                elif not isinstance(value, str | None):
                    raise BadFile(f"{path}: {column!r}: expected a string, got a {type(value).__name__}")
                else:
                    yield value or ""
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not a Parquet file: {error}") from error


class LineOutput:
    """Writes whole lines to ``PATH.part`` and renames it to PATH when complete. Continues an interrupted part.

    Meanwhile ``PATH.part.json`` records the input and options that the lines depend on. Use it as a context manager; only ``complete``
    renames the part. Where PATH is a table made of the lines, that is written as ``PATH.part.new`` and renamed, and the part is removed.

    Attributes:
        lines: the number of lines in the part when it was opened.
    """

    def __init__(self, path: Path, convert: Callable[[Callable[[], Iterator[bytes]], IO[bytes]], None] | None = None) -> None:
        """Open or continue. ``convert``: makes the file of the lines; None: they are the file.

        Raises:
            BadFile: PATH exists, cannot be written, or another process writes to it.
        """
        if not path.name:
            raise BadFile(f"{path}: expected a file, got a folder")
        self.path = path
        self._part = path.with_name(path.name + ".part")
        self._record = path.with_name(path.name + ".part.json")
        self._convert = convert
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
        if self.path.exists():
            raise BadFile(f"{self.path}: exists already; delete it or choose another output")

    def _claim(self) -> None:
        if not claim(self._stream):
            raise BadFile(f"{self._part}: another process writes to it; wait until it ends or choose another output")
        try:
            # Another process may have completed the part since it was opened. The stream is then that of PATH, or of a new part.
            self._refuse_existing()
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

    def begin(self, options: Mapping[str, str], restart: bool = False) -> None:
        """Record the options that the lines depend on or, if the part has lines, check them. Call it before the first write.

        Args:
            options: everything that the lines depend on.
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

    def write(self, line: str) -> None:
        """Append a line, which must not contain a line feed.

        Raises:
            BadFile: the line cannot be written, for example because the disk is full. The lines so far are kept.
        """
        try:
            self._stream.write(line.encode() + b"\n")
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be written: {error.strerror}; repeat the command to continue") from error

    def complete(self) -> None:
        """Flush the part to disk and rename it to PATH."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            if self._convert is None:
                os.replace(self._part, self.path)
            else:
                self._replace_converted(self._convert)
                self._part.unlink()
            self._record.unlink(missing_ok=True)
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be completed: {error.strerror}; repeat the command to continue") from error

    def _replace_converted(self, convert: Callable[[Callable[[], Iterator[bytes]], IO[bytes]], None]) -> None:
        new = self.path.with_name(self.path.name + ".part.new")
        try:
            with new.open("wb") as stream:
                convert(lambda: _whole(self._part), stream)
                stream.flush()
                os.fsync(stream.fileno())
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
