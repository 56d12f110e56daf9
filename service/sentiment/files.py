"""Texts from files and answers to files, a row at a time, in bounded memory. Knows neither client nor server."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from sentiment.errors import SentimentError

READABLE = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
# A field may hold a whole document; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**26)


class BadFile(SentimentError):
    """A file cannot be used; the message names file, line and what is wanted."""


def read_texts(path: Path, column: str = "text") -> Iterator[str]:
    """Read texts lazily: a line each of a .txt, else the ``column`` of a .tsv or .csv with header, a .jsonl or a .parquet.

    Raises:
        BadFile: it cannot be read so.
    """
    kind = path.suffix
    if kind not in READABLE:
        raise BadFile(f"{path}: a {kind or 'nameless'} file; read are {', '.join(READABLE)}")
    number = 0
    try:
        if kind == ".parquet":
            yield from _parquet(path, column)
            return
        # Only a line feed ends a line: a text may hold U+2028 or a carriage return.
        with path.open(encoding="utf-8-sig", newline="" if kind in (".csv", ".tsv") else "\n") as stream:
            rows = (
                _plain(stream)
                if kind == ".txt"
                else _json_lines(stream, path, column)
                if kind == ".jsonl"
                else _table(stream, path, column, kind)
            )
            for text in rows:
                number += 1
                yield text
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: not UTF-8 after text {number}: {error.reason}") from error
    except (OSError, csv.Error) as error:
        raise BadFile(f"{path}: cannot be read after text {number}: {error}") from error


def _plain(stream: IO[str]) -> Iterator[str]:
    return (line.rstrip("\n") for line in stream)


def _table(stream: IO[str], path: Path, column: str, kind: str) -> Iterator[str]:
    rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE) if kind == ".tsv" else csv.DictReader(stream)
    if column not in (rows.fieldnames or ()):
        raise BadFile(f"{path}:1: no column {column!r}; the header has {', '.join(rows.fieldnames or ()) or 'none'} (--column chooses)")
    return (row[column] or "" for row in rows)


def _json_lines(stream: IO[str], path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            text = json.loads(line)[column]
        except (ValueError, KeyError, TypeError) as error:
            raise BadFile(f"{path}:{number}: no object with the key {column!r} (--column chooses): {type(error).__name__}") from error
        if not isinstance(text, str):
            raise BadFile(f"{path}:{number}: {column!r} is a {type(text).__name__}; wanted a string")
        yield text


def _parquet(path: Path, column: str) -> Iterator[str]:
    try:
        from pyarrow import parquet  # noqa: PLC0415  # an extra: loaded only if it is needed
    except ImportError as error:
        raise BadFile(f"{path}: reading .parquet needs the extra: pip install 'sentiment-service[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise BadFile(f"{path}: no column {column!r}; it has {', '.join(file.schema_arrow.names)} (--column chooses)")
            for batch in file.iter_batches(1024, columns=[column]):
                yield from (text or "" for text in batch.column(0).to_pylist())
    except parquet.lib.ArrowException as error:
        raise BadFile(f"{path}: not a Parquet file: {error}") from error


class LineOutput:
    """Whole lines into ``PATH.part``, renamed to PATH when complete. One that was interrupted is continued.

    Use it as a context manager; only ``complete`` renames.
    """

    def __init__(self, path: Path) -> None:
        """Open or continue.

        Raises:
            BadFile: PATH exists already, or cannot be written.
        """
        self.path = path
        self._part = path.with_name(path.name + ".part")
        if path.exists():
            raise BadFile(f"{path}: exists already; delete it or choose another output")
        try:
            self._stream = self._part.open("ab+")
            self.lines = self._keep_whole_lines()
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be written: {error.strerror}") from error

    def _keep_whole_lines(self) -> int:
        """Cut a half-written last line off and count the rest."""
        self._stream.seek(0)
        lines, end = 0, 0
        while block := self._stream.read(2**20):
            last = block.rfind(b"\n")
            if last >= 0:
                lines += block.count(b"\n")
                end = self._stream.tell() - len(block) + last + 1
        self._stream.truncate(end)
        return lines

    def write(self, line: str) -> None:
        """Append a line; what it holds of line feeds must be escaped already.

        Raises:
            BadFile: the disk is full or the like; the lines so far stay.
        """
        try:
            self._stream.write(line.encode() + b"\n")
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be written: {error.strerror}; repeat the command to continue") from error

    def complete(self) -> None:
        """Make it durable and give it its name."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            os.replace(self._part, self.path)
        except OSError as error:
            raise BadFile(f"{self._part}: cannot be completed: {error.strerror}; repeat the command to continue") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._stream.close()
        except OSError as failure:
            if error is None:
                raise BadFile(f"{self._part}: cannot be written: {failure.strerror}; repeat the command to continue") from failure
