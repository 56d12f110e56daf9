"""Reads the rows of a part in chunks. A malformed row does not affect others: an ``Unread`` takes its place."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow
from pyarrow import parquet

from sentiment.corpus.sources import Part, open_buffered, shown
from sentiment.files.errors import BadFile
from sentiment.files.texts import bare, field_at, place_of, row_of_json

# Rows that the scorer plans together.
CHUNK = 1024
# Texts may be long, so the bytes of a chunk are limited too.
CHUNK_BYTES = 2**23
# A text may have 1 MiB, and six times that as JSON escapes, beside other fields.
LINE_BYTES_MAX = 2**24
TOO_LONG = f"the line has more than {LINE_BYTES_MAX} bytes"
TEXTS = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
# Bytes that are not UTF-8 are decoded to these (surrogateescape).
ESCAPED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Unread:
    """A row without a readable text. The reason never quotes the row."""

    reason: str


Text = str | Unread


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows: positions (row number in Parquet, byte in other files), texts, and the columns to keep."""

    positions: list[int]
    texts: list[Text]
    kept: Mapping[str, pyarrow.Array]


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    text: Text
    kept: Sequence[str | None]


def read_part(part: Part, column: str, keep: Sequence[str]) -> Iterator[Chunk]:
    """Yield chunks of at most CHUNK rows and about CHUNK_BYTES, in order. Only one chunk is in memory at a time.

    Raises:
        BadFile: the file cannot be read.
    """
    try:
        with open_buffered(part.uri) as stream:
            if part.kind == ".parquet":
                yield from _parquet(stream, part, column, keep)
                return
            for rows in _together(_rows(stream, part, column, keep)):
                kept = {name: pyarrow.array([_clean(row.kept[i]) for row in rows], pyarrow.string()) for i, name in enumerate(keep)}
                yield Chunk([row.position for row in rows], [row.text for row in rows], kept)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadFile(f"{part}: cannot be read: {error}") from error


def _together(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    found: list[_Row] = []
    begun = 0
    for row in rows:
        if found and (len(found) == CHUNK or row.position - begun > CHUNK_BYTES):
            yield found
            found = []
        if not found:
            begun = row.position
        found.append(row)
    if found:
        yield found


def check_header(stream: io.BufferedReader, kind: str, name: str, column: str, keep: Sequence[str]) -> None:
    """Check that the columns exist, for kinds of files that have a header.

    Raises:
        BadFile: a column is missing.
    """
    if kind == ".txt" and set(keep) - {column}:
        raise BadFile(f"{name}: a .txt file has no columns, so --keep {', '.join(keep)} is not possible")
    if kind in (".csv", ".tsv"):
        _places(stream, kind, name, column, keep)


def csv_records(stream: io.BufferedReader, start: int, end: int) -> Iterator[tuple[int, list[str] | Unread]]:
    """Yield the records that begin in bytes [start, end), with the position of each. Includes the header, skips empty lines."""
    stream.seek(start)
    records = _csv_reader(stream)
    while (position := stream.tell()) < end:
        try:
            record = next(records, None)
        except csv.Error as error:
            # The reader continues with the next line.
            yield position, Unread(f"not CSV: {error}")
            continue
        except _LongLine:
            _skip_line(stream)
            # A reader that has raised an exception gives no more lines.
            records = _csv_reader(stream)
            yield position, Unread(TOO_LONG)
            continue
        if record is None:
            return
        if record:
            yield position, record


class _LongLine(Exception):
    """The line is too long to hold in memory; the stream is in the middle of it."""


def _csv_reader(stream: io.BufferedReader) -> Iterator[list[str]]:
    # Without strict, an unclosed quote makes one field of all following rows.
    return csv.reader(_csv_lines(stream), strict=True)


def _csv_lines(stream: io.BufferedReader) -> Iterator[str]:
    while line := stream.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            raise _LongLine
        yield line.decode(errors="surrogateescape").removeprefix("\ufeff" if stream.tell() == len(line) else "")


def _lines(stream: io.BufferedReader, start: int, end: int) -> Iterator[tuple[int, str | Unread]]:
    """Yield the lines that begin in bytes [start, end), with the position of each, without line ends."""
    stream.seek(max(0, start - 1))
    if start:
        _skip_line(stream)
    while (position := stream.tell()) < end:
        line = stream.readline(LINE_BYTES_MAX)
        if not line:
            return
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            _skip_line(stream)
            yield position, Unread(TOO_LONG)
        else:
            text = bare(line.decode(errors="surrogateescape"))
            yield position, text if position else text.removeprefix("\ufeff")


def _skip_line(stream: io.BufferedReader) -> None:
    while (line := stream.readline(LINE_BYTES_MAX)) and not line.endswith(b"\n"):
        pass


def _places(stream: io.BufferedReader, kind: str, name: str, column: str, keep: Sequence[str]) -> tuple[int, list[int]]:
    """The index of the text in a record, and those of the columns to keep."""
    if kind == ".csv":
        header = next((record for _, record in csv_records(stream, 0, 1)), [])
    else:
        line = next((line for _, line in _lines(stream, 0, 1)), "")
        header = line if isinstance(line, Unread) else line.split("\t")
    if isinstance(header, Unread):
        raise BadFile(f"{name}:1: {header.reason}")
    return place_of(header, name, column), [place_of(header, name, other) for other in keep]


def _rows(stream: io.BufferedReader, part: Part, column: str, keep: Sequence[str]) -> Iterator[_Row]:
    nothing = [None] * len(keep)
    if part.kind in (".txt", ".jsonl"):
        for position, line in _lines(stream, part.start, part.end):
            if isinstance(line, Unread):
                yield _Row(position, line, nothing)
            elif part.kind == ".txt":
                yield _Row(position, _utf8(line), [line] * len(keep))
            else:
                yield _json_row(position, line, column, keep)
        return
    place, places = _places(stream, part.kind, shown(part.uri), column, keep)
    for position, record in _records(stream, part):
        if isinstance(record, Unread):
            yield _Row(position, record, nothing)
        elif position:  # the first is the header
            yield _Row(position, _utf8(field_at(record, place)), [field_at(record, other) for other in places])


def _records(stream: io.BufferedReader, part: Part) -> Iterator[tuple[int, list[str] | Unread]]:
    if part.kind == ".csv":
        yield from csv_records(stream, part.start, part.end)
        return
    for position, line in _lines(stream, part.start, part.end):
        if line:
            yield position, line if isinstance(line, Unread) else line.split("\t")


def _json_row(position: int, line: str, column: str, keep: Sequence[str]) -> _Row:
    nothing = [None] * len(keep)
    if ESCAPED.search(line):
        return _Row(position, Unread("not UTF-8"), nothing)
    try:
        row = row_of_json(line, column)
    except BadFile as error:
        return _Row(position, Unread(str(error)), nothing)
    values = [row.get(name) for name in keep]
    kept = [value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return _Row(position, str(row[column]), kept)


def _utf8(text: str) -> Text:
    return Unread("not UTF-8") if ESCAPED.search(text) else text


def _clean(kept: str | None) -> str | None:
    """Replace what is not valid Unicode: kept columns may contain bytes that are not UTF-8, or lone surrogates."""
    return kept if kept is None or kept.isascii() else kept.encode(errors="replace").decode()


def _parquet(stream: io.BufferedReader, part: Part, column: str, keep: Sequence[str]) -> Iterator[Chunk]:
    # Without pre-buffering, a column chunk is read while it is decoded, not as a whole.
    with parquet.ParquetFile(stream, buffer_size=2**20, pre_buffer=False) as file:
        first = group = 0
        while first + file.metadata.row_group(group).num_rows <= part.start:
            first += file.metadata.row_group(group).num_rows
            group += 1
        columns = list(dict.fromkeys((column, *keep)))
        rows_each = max(1, min(CHUNK, CHUNK_BYTES * (part.end - part.start) // max(1, part.bytes)))
        for batch in file.iter_batches(rows_each, row_groups=[group], columns=columns, use_threads=False):
            start, end = max(0, part.start - first), min(batch.num_rows, part.end - first)
            if start < end:
                rows = batch.slice(start, end - start)
                kept = {name: rows.column(name) for name in keep}
                yield Chunk(list(range(first + start, first + end)), _texts(rows.column(column)), kept)
            first += batch.num_rows
            if first >= part.end:
                return


def _texts(found: pyarrow.Array) -> list[Text]:
    """The strings of a column, which may not all be valid UTF-8. Null becomes an empty string."""
    if pyarrow.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    raw = found.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
    return [_utf8((text or b"").decode(errors="surrogateescape")) for text in raw]
