"""Reads the rows of a part, some at a time. What is wrong with a row is that row's alone: it comes as ``Unread`` in its place."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow
from pyarrow import parquet

from sentiment.corpus.sources import Part, open_buffered, shown
from sentiment.files.texts import BadFile, bare, field_at, place_of, row_of_json

# As many as are planned together when they are scored.
CHUNK = 1024
# Texts may be long: what is read of them at a time counts too.
CHUNK_BYTES = 2**23
# A text may have 1 MiB and be written in escapes of six times that, beside other fields.
LINE_BYTES_MAX = 2**24
TOO_LONG = f"the line has more than {LINE_BYTES_MAX} bytes"
TEXTS = (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
# What a byte that is no UTF-8 is read as.
ESCAPED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that holds no text; the reason never quotes it."""

    reason: str


Text = str | Unread


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that stand together: where each is (row of a Parquet file, byte of another), its text, and the columns to keep."""

    positions: list[int]
    texts: list[Text]
    kept: Mapping[str, pyarrow.Array]


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    text: Text
    kept: Sequence[str | None]


def read_part(part: Part, column: str, keep: Sequence[str]) -> Iterator[Chunk]:
    """Chunks of at most CHUNK rows and some CHUNK_BYTES, in order. Memory is bounded by one of them, whatever the size of the file.

    Raises:
        BadFile: the file cannot be read on.
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
    """Whether the columns are there, as far as a header says.

    Raises:
        BadFile: they are not.
    """
    if kind == ".txt" and set(keep) - {column}:
        raise BadFile(f"{name}: lines of text have no column {', '.join(keep)} to keep")
    if kind in (".csv", ".tsv"):
        _places(stream, kind, name, column, keep)


def csv_records(stream: io.BufferedReader, start: int, end: int) -> Iterator[tuple[int, list[str] | Unread]]:
    """The records that begin in bytes [start, end), each with its first byte. The header is one; empty lines are none."""
    stream.seek(start)
    records = _csv_reader(stream)
    while (position := stream.tell()) < end:
        try:
            record = next(records, None)
        except csv.Error as error:
            # The reader begins anew with the next line.
            yield position, Unread(f"not CSV: {error}")
            continue
        except _LongLine:
            _skip_line(stream)
            # What has raised gives no more lines.
            records = _csv_reader(stream)
            yield position, Unread(TOO_LONG)
            continue
        if record is None:
            return
        if record:
            yield position, record


class _LongLine(Exception):
    """A line is not held in memory; the stream stands in it."""


def _csv_reader(stream: io.BufferedReader) -> Iterator[list[str]]:
    # Not strict it takes a quote that nothing closes for a field of all rows behind it.
    return csv.reader(_csv_lines(stream), strict=True)


def _csv_lines(stream: io.BufferedReader) -> Iterator[str]:
    while line := stream.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            raise _LongLine
        yield line.decode(errors="surrogateescape").removeprefix("\ufeff" if stream.tell() == len(line) else "")


def _lines(stream: io.BufferedReader, start: int, end: int) -> Iterator[tuple[int, str | Unread]]:
    """The lines that begin in bytes [start, end), each with its first byte, without its end."""
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
    """Where in a record the text stands, and where what is kept."""
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
    """As Unicode: what is kept may hold what was no UTF-8, or half of a pair."""
    return kept if kept is None or kept.isascii() else kept.encode(errors="replace").decode()


def _parquet(stream: io.BufferedReader, part: Part, column: str, keep: Sequence[str]) -> Iterator[Chunk]:
    # Without a read-ahead of its own a column chunk is read as it is decoded, not as a whole.
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
    """Strings of a column, of which not all must be UTF-8; none is an empty one."""
    if pyarrow.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    raw = found.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
    return [_utf8((text or b"").decode(errors="surrogateescape")) for text in raw]
