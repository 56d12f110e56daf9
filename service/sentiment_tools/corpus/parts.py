"""Cuts the files of a corpus into parts. The same files and step size always give the same parts.

Files of lines are cut at byte positions without reading them: a line belongs to the part in which it begins. Only delimited text must be
read for that, because its fields may contain line breaks. Other files are one part, such as compressed ones.
"""

import itertools
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from io import BufferedReader

import pyarrow
from pyarrow import parquet

from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading, key_of
from sentiment.files.rows import TEXT
from sentiment_tools.corpus.reading import LINE_BYTES_MAX, TEXTS, check_columns, record_starts
from sentiment_tools.corpus.sources import Part, Source, open_buffered

# Formats that are cut by bytes.
DELIMITED = ("csv", "tsv")
OF_LINES = ("txt", "jsonl", *DELIMITED)
# Each is a file of the output, and all are listed and opened before a run continues.
PARTS_MAX = 200_000
# A part of a Parquet row group decodes the group from its start: with 8 parts, a group is decoded 4.5 times on average.
PARTS_OF_GROUP_MAX = 8
# Files to open at once: on an object store, opening takes tens of milliseconds, nearly all of it waiting.
OPEN_FILES = 16


def cut(sources: Sequence[Source], reading: Reading, beside: Mapping[str, str], step: int) -> list[Part]:
    """Parts of about ``step`` bytes of text.

    Raises:
        BadFile: a file cannot be read in parts or has no such column, or there are too many parts.
    """
    # Parquet files are not counted here; they have few parts.
    least = sum(source.bytes // step for source in sources if source.kind in OF_LINES and not source.compressed)
    if least > PARTS_MAX:
        raise _too_many(least)
    with ThreadPoolExecutor(OPEN_FILES) as pool:
        each = pool.map(partial(_cut, reading=reading, beside=beside, step=step), range(len(sources)), sources)
        found = [part for parts in each for part in parts]
    if len(found) > PARTS_MAX:
        raise _too_many(len(found))
    return found


def _too_many(count: int) -> BadFile:
    return BadFile(f"the corpus has {count} parts; the limit is {PARTS_MAX}; increase --part-bytes")


def _cut(number: int, source: Source, reading: Reading, beside: Mapping[str, str], step: int) -> list[Part]:
    try:
        if source.kind == "parquet":
            return list(_parquet(number, source, reading.column, beside, step))
        if source.kind == "txt" and (wrong := beside.keys() - {reading.column, TEXT}):
            asked = ", ".join(f"{option} {name}" for name, option in beside.items() if name in wrong)
            raise BadFile(f"{source.shown}: a .txt file has no columns, so leave out {asked}")
        if not source.bytes and source.kind in OF_LINES:
            # Without a header too, it is a file of no rows.
            return []
        with open_buffered(source.uri) as stream:
            whole = Part(number, source.uri, source.kind, 0, source.bytes, source.bytes, whole=not _is_cut(source, reading, stream))
            check_columns(stream, whole, reading, beside)
            if whole.whole:
                return [whole]
            edges = _edges(stream, whole, reading, step)
    except OSError as error:
        raise BadFile(f"{source.shown}: cannot be read: {error.strerror or error}") from error
    return [replace(whole, start=start, end=end, bytes=end - start) for start, end in itertools.pairwise(edges)]


def _is_cut(source: Source, reading: Reading, stream: BufferedReader) -> bool:
    """Whether a line of a file can be found from any byte: it is of lines, not compressed, and UTF-8."""
    if source.kind not in OF_LINES or source.compressed or reading.encoding.lower() not in ("", "utf-8"):
        return False
    head = stream.readline(LINE_BYTES_MAX).removeprefix(BOM_UTF8)
    stream.seek(0)
    lines = head.endswith(b"\n") or b"\r" not in head.rstrip(b"\r")
    return lines and not head.startswith((BOM_UTF16_LE, BOM_UTF16_BE, b"sep=")) and b"\0" not in head[:4]


def _edges(stream: BufferedReader, whole: Part, reading: Reading, step: int) -> list[int]:
    """Byte positions at least ``step`` bytes apart at which parts begin, and the end of the file."""
    if whole.kind not in DELIMITED:
        return [*range(0, whole.end, step), whole.end]
    edges = [0]
    for position in record_starts(stream, whole, reading) if whole.end > step else ():
        if position >= edges[-1] + step:
            edges.append(position)
    return [*edges, whole.end]


def _parquet(number: int, source: Source, column: str, beside: Mapping[str, str], step: int) -> Iterator[Part]:
    try:
        with open_buffered(source.uri) as stream, parquet.ParquetFile(stream) as file:
            names = file.schema_arrow.names
            for name, option in ((column, "--column"), *beside.items()):
                if key_of(names, name, source.shown, option) != name:
                    raise BadFile(f"{source.shown}: a column of a Parquet file is chosen by its name, got {name!r}")
            kind = file.schema_arrow.field(column).type
            if (kind.value_type if pyarrow.types.is_dictionary(kind) else kind) not in TEXTS:
                raise BadFile(f"{source.shown}: column {column!r} must hold strings, got {kind}")
            paths = [file.metadata.schema.column(place).path for place in range(file.metadata.num_columns)]
            # Kept columns are held in memory too. A column of structs is stored as several columns.
            begins = tuple(f"{name}." for name in (column, *beside))
            places = [place for place, path in enumerate(paths) if f"{path}.".startswith(begins)]
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            sizes = [(group.num_rows, sum(group.column(place).total_uncompressed_size for place in places)) for group in groups]
    except pyarrow.ArrowException as error:
        raise BadFile(f"{source.shown}: not a Parquet file: {error}") from error
    first = 0
    for rows, size in sizes:
        each = max(1, rows * step // max(1, size), -(-rows // PARTS_OF_GROUP_MAX))
        for start in range(0, rows, each):
            end = min(rows, start + each)
            yield Part(number, source.uri, source.kind, first + start, first + end, size * (end - start) // max(1, rows))
        first += rows
