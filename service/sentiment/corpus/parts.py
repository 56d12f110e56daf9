"""Cuts the files of a corpus into parts: the same files and the same step give the same parts, whoever asks and whenever.

Lines are cut by bytes without reading them: a line belongs to the part in which it begins. Only CSV must be read for that, since its
fields may hold line feeds.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow
from pyarrow import parquet

from sentiment.corpus.reading import TEXTS, check_header, csv_records
from sentiment.corpus.sources import Part, Source, open_buffered
from sentiment.files.texts import BadFile

# Ray has one block a part: so many are queued in seconds.
PARTS_MAX = 200_000
# A part of a Parquet row group decodes it from its begin: with 8 parts each is decoded 4.5 times, whatever its size.
PARTS_OF_GROUP_MAX = 8
# Files that are looked into at once: on an object store each look takes tens of milliseconds, nearly all of them waiting.
LOOKS = 16


def cut(sources: Sequence[Source], column: str, keep: Sequence[str], step: int) -> list[Part]:
    """Parts of about ``step`` bytes of text.

    Raises:
        BadFile: a file cannot be read so, has no such column, or there are too many parts.
    """
    # Of Parquet's it is not known before, but they are few.
    least = sum(source.bytes // step for source in sources if source.kind != ".parquet")
    if least > PARTS_MAX:
        raise _too_many(least)
    with ThreadPoolExecutor(LOOKS) as pool:
        each = pool.map(partial(_cut, column=column, keep=keep, step=step), range(len(sources)), sources)
        found = [part for parts in each for part in parts]
    if len(found) > PARTS_MAX:
        raise _too_many(len(found))
    return found


def _too_many(count: int) -> BadFile:
    return BadFile(f"{count} parts; the limit is {PARTS_MAX} (--part-bytes makes larger ones)")


def _cut(number: int, source: Source, column: str, keep: Sequence[str], step: int) -> list[Part]:
    try:
        if source.kind == ".parquet":
            return list(_parquet(number, source, column, keep, step))
        with open_buffered(source.uri) as stream:
            check_header(stream, source.kind, source.shown, column, keep)
        edges = _csv_edges(source, step) if source.kind == ".csv" else [*range(0, source.bytes, step), source.bytes]
    except OSError as error:
        raise BadFile(f"{source.shown}: cannot be read: {error.strerror or error}") from error
    return [Part(number, source.uri, source.kind, start, end, end - start) for start, end in itertools.pairwise(edges)]


def _csv_edges(source: Source, step: int) -> list[int]:
    """Where the first row at or behind each multiple of ``step`` begins, and the end."""
    edges = [0]
    if source.bytes <= step:
        return [*edges, source.bytes]
    with open_buffered(source.uri) as stream:
        for position, _ in csv_records(stream, 0, source.bytes):
            if position >= edges[-1] + step:
                edges.append(position)
    return [*edges, source.bytes]


def _parquet(number: int, source: Source, column: str, keep: Sequence[str], step: int) -> Iterator[Part]:
    try:
        with open_buffered(source.uri) as stream, parquet.ParquetFile(stream) as file:
            names = file.schema_arrow.names
            for name in (column, *keep):
                if name not in names:
                    raise BadFile(f"{source.shown}: no column {name!r}; it has {', '.join(names)} (--column chooses)")
            kind = file.schema_arrow.field(column).type
            if not _is_text(kind):
                raise BadFile(f"{source.shown}: {column!r} is {kind}; wanted are strings")
            paths = [file.metadata.schema.column(place).path for place in range(file.metadata.num_columns)]
            # What is kept is held in memory too; a column of structs is stored as several.
            begins = tuple(f"{name}." for name in (column, *keep))
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


def _is_text(kind: pyarrow.DataType) -> bool:
    return (kind.value_type if pyarrow.types.is_dictionary(kind) else kind) in TEXTS
