"""Reads the rows of a part in chunks. A malformed row does not affect others: an ``Unread`` takes its place."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow
from pyarrow import parquet

from sentiment.files.decoding import is_decoded
from sentiment.files.errors import BadFile
from sentiment.files.formats import arrow_values, json_row, record_row, text_row, unique_names
from sentiment.files.reading import Reading, RowsUnsure, Table, key_of
from sentiment.files.records import OpenQuote, Record, bare, delimiter_of, records
from sentiment.files.rows import TEXT, Row, Unread, plain
from sentiment_tools.corpus.sources import Part, open_buffered, shown

# Rows that the scorer plans together.
CHUNK = 1024
# Texts may be long, so the bytes of a chunk are limited too.
CHUNK_BYTES = 2**23
# A text may have 1 MiB, and six times that as JSON escapes, beside other fields.
LINE_BYTES_MAX = 2**24
TOO_LONG = f"the line has more than {LINE_BYTES_MAX} bytes"
TEXTS = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())

Text = str | Unread


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows: positions (byte in files of lines, else row number), texts, and the columns to keep."""

    positions: list[int]
    texts: list[Text]
    kept: Mapping[str, pyarrow.Array]


# A row and its position.
Placed = tuple[int, Row]


def read_part(part: Part, reading: Reading, beside: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield chunks of at most CHUNK rows and about CHUNK_BYTES, in order. Only one chunk is in memory at a time.

    Raises:
        BadFile: the file cannot be read.
    """
    try:
        with open_buffered(part.uri) as stream:
            if part.kind == "parquet":
                yield from _parquet(stream, part, reading.column, beside)
                return
            column, columns, rows = _rows(stream, part, reading, beside)
            for group in _together(rows):
                kept = {
                    name: pyarrow.array([_kept(row.values.get(key)) for _, row in group], pyarrow.string())
                    for name, key in zip(beside, columns, strict=True)
                }
                yield Chunk([position for position, _ in group], [row.text(column) for _, row in group], kept)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadFile(f"{part}: cannot be read: {error}") from error


def _together(rows: Iterable[Placed]) -> Iterator[list[Placed]]:
    group: list[Placed] = []
    size = 0
    for placed in rows:
        group.append(placed)
        size += sum(len(value) for value in placed[1].values.values() if isinstance(value, str))
        if len(group) == CHUNK or size > CHUNK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def check_columns(stream: io.BufferedReader, part: Part, reading: Reading, beside: Mapping[str, str]) -> None:
    """Check that the columns exist, as far as the file has a header.

    Raises:
        BadFile: a column is missing, or the header cannot be read.
        BadSettings: an extra is missing.
    """
    _rows(stream, part, reading, beside)


def _rows(stream: io.BufferedReader, part: Part, reading: Reading, beside: Mapping[str, str]) -> tuple[str, list[str], Iterator[Placed]]:
    """The names of the text's column and of those to keep in the rows of a part, and the rows."""
    if part.whole:
        table = Table(stream, replace(reading, format=part.kind), name=shown(part.uri))
        if table.columns is None:
            # The rows of JSON have keys of their own.
            return reading.column, list(beside), _of_table(table)
        return table.key(reading.column), [table.key(name, option) for name, option in beside.items()], _of_table(table)
    if part.kind == "jsonl":
        return reading.column, list(beside), _rows_of_lines(stream, part, json_row)
    if part.kind == "txt":
        return TEXT, [TEXT] * len(beside), _rows_of_lines(stream, part, text_row)
    table_of = _Delimited(stream, shown(part.uri), part.kind, reading)
    keys = [key_of(table_of.header, name, shown(part.uri), option) for name, option in [(reading.column, "--column"), *beside.items()]]
    return keys[0], keys[1:], table_of.rows(max(part.start, table_of.begin), part.end)


def _of_table(table: Table) -> Iterator[Placed]:
    """The rows of a table with their numbers from 0. What follows an open quote is one row that cannot be read."""
    number = 0
    with table:
        try:
            for row in table:
                yield number, row
                number += 1
        except RowsUnsure as error:
            yield number, Row("", {}, f"{error}: covers the rest of the file")


def record_starts(stream: io.BufferedReader, part: Part, reading: Reading) -> Iterator[int]:
    """The positions of the records of a file of delimited text."""
    for position, _ in _Delimited(stream, shown(part.uri), part.kind, reading).records(0, part.end):
        yield position


class _Delimited:
    """A file of delimited text whose records are read from a position on.

    Attributes:
        header: the names of its columns.
        begin: the position of the first row.
    """

    def __init__(self, stream: io.BufferedReader, name: str, kind: str, reading: Reading) -> None:
        self._stream, self._quotes = stream, reading.quotes
        stream.seek(0)
        first = next(_decoded_lines(stream), "")
        self._delimiter = reading.delimiter or ("\t" if kind == "tsv" else delimiter_of(first, reading.column))
        position, head = next(self.records(0, 1), (0, Record(1, 0, [])))
        if head.error:
            raise BadFile(f"{name}:1: {head.error}")
        self.header = head.fields if reading.header else [str(number) for number in range(1, len(head.fields) + 1)]
        self.begin = stream.tell() if reading.header else position

    def rows(self, start: int, end: int) -> Iterator[Placed]:
        """The rows that begin in bytes [start, end), with the position of each."""
        columns = unique_names(self.header)
        for position, record in self.records(start, end):
            if row := record_row(record, columns, ""):
                yield position, row

    def records(self, start: int, end: int) -> Iterator[tuple[int, Record]]:
        """The records that begin in bytes [start, end), with the position of each."""
        stream = self._stream
        stream.seek(start)
        found = records(_decoded_lines(stream), self._delimiter, quotes=self._quotes)
        while (position := stream.tell()) < end:
            try:
                record = next(found, None)
            except _LongLine as error:
                if error.begun > position:
                    # In a quoted field.
                    yield position, Record(0, 0, [], _to_the_end(stream, position))
                    return
                _skip_line(stream)
                # What has raised an exception gives no more records.
                found = records(_decoded_lines(stream), self._delimiter, quotes=self._quotes)
                yield position, Record(0, 0, [], TOO_LONG)
                continue
            except OpenQuote:
                yield position, Record(0, 0, [], _to_the_end(stream, position))
                return
            if record is None:
                return
            yield position, record


def _to_the_end(stream: io.BufferedReader, position: int) -> str:
    """Why the rest of a file is one row that cannot be read."""
    stream.seek(position)
    lines, end = 0, b"\n"
    while block := stream.read(2**20):
        lines += block.count(b"\n")
        end = block[-1:]
    lines += end != b"\n"
    return (
        f"a quote that opens here is not closed, so nothing tells where the next row begins: covers {lines:,} lines, to the end of the file"
    )


class _LongLine(Exception):
    """The line, which begins at a position, is too long to hold in memory; the stream is in the middle of it."""

    def __init__(self, begun: int) -> None:
        self.begun = begun


def _decoded_lines(stream: io.BufferedReader) -> Iterator[str]:
    while line := stream.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            raise _LongLine(stream.tell() - len(line))
        yield line.decode(errors="surrogateescape").removeprefix("\ufeff" if stream.tell() == len(line) else "")


def _rows_of_lines(stream: io.BufferedReader, part: Part, row_of: Callable[[str, str], Row]) -> Iterator[Placed]:
    """Yield the rows of the lines that begin in the part's bytes, with the position of each."""
    stream.seek(max(0, part.start - 1))
    if part.start:
        _skip_line(stream)
    while (position := stream.tell()) < part.end:
        line = stream.readline(LINE_BYTES_MAX)
        if not line:
            return
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            _skip_line(stream)
            yield position, Row("", {}, TOO_LONG)
        else:
            text = bare(line.decode(errors="surrogateescape"))
            yield position, row_of("", text if position else text.removeprefix("\ufeff"))


def _skip_line(stream: io.BufferedReader) -> None:
    while (line := stream.readline(LINE_BYTES_MAX)) and not line.endswith(b"\n"):
        pass


def _kept(value: object) -> str | None:
    """A value of a column to keep. Lone surrogates, which have no UTF-8, are replaced."""
    text = value if value is None or isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return text if text is None or text.isascii() else text.encode(errors="replace").decode()


def _parquet(stream: io.BufferedReader, part: Part, column: str, beside: Mapping[str, str]) -> Iterator[Chunk]:
    # Without pre-buffering, a column chunk is read while it is decoded, not as a whole.
    with parquet.ParquetFile(stream, buffer_size=2**20, pre_buffer=False) as file:
        first = group = 0
        while first + file.metadata.row_group(group).num_rows <= part.start:
            first += file.metadata.row_group(group).num_rows
            group += 1
        columns = list(dict.fromkeys((column, *beside)))
        rows_each = max(1, min(CHUNK, CHUNK_BYTES * (part.end - part.start) // max(1, part.bytes)))
        for batch in file.iter_batches(rows_each, row_groups=[group], columns=columns, use_threads=False):
            start, end = max(0, part.start - first), min(batch.num_rows, part.end - first)
            if start < end:
                rows = batch.slice(start, end - start)
                kept = {name: rows.column(name) for name in beside}
                yield Chunk(list(range(first + start, first + end)), _texts(rows.column(column), column), kept)
            first += batch.num_rows
            if first >= part.end:
                return


def _texts(found: pyarrow.Array, column: str) -> list[Text]:
    """The strings of a column, which may not all be valid UTF-8."""
    return [
        Unread("is not UTF-8") if isinstance(value, str) and not is_decoded(value) else Row("", {column: value}).text(column)
        for value in arrow_values(found)
    ]
