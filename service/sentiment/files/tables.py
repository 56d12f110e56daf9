"""Tables, CSV or Parquet, made of JSON lines, in bounded memory. Knows nothing of what they hold."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.visible import visible

# A field's type, or the fields of the object that it holds. The key ``...`` stands for all that the lines have there.
Fields = Mapping[Any, Any]  # Any: a str or ...; a type or Fields
# Writes the table of the lines to a stream. The lines can be read again by calling the function again.
Lines = Callable[[], Iterable[bytes]]
Converter = Callable[[Lines, IO[bytes]], None]
WRITABLE = (".jsonl", ".csv", ".parquet")
# Size of a Parquet row group, in bytes of JSON: large enough to read efficiently, small enough to hold in memory.
GROUP_BYTES = 2**24


def converter_of(path: Path, fields: Fields) -> Converter | None:
    """What makes the file of JSON lines, by its ending; None for .jsonl, which is those lines.

    Raises:
        BadSettings: the ending is another.
        BadFile: the extra for Parquet is missing.
    """
    if path.suffix not in WRITABLE:
        raise BadSettings(f"--output {path}: the ending must be one of {', '.join(WRITABLE)}, got {path.suffix!r}")
    if path.suffix == ".jsonl":
        return None
    if path.suffix == ".csv":
        return lambda lines, stream: _write_csv(lines, stream, fields)
    try:
        import pyarrow.parquet  # noqa: PLC0415, F401  # an extra; its lack is told before the work
    except ImportError as error:
        raise BadFile(f"{path}: .parquet needs the parquet extra: pip install 'sentiment-service[parquet]'") from error
    return lambda lines, stream: _write_parquet(lines, stream, fields)


def _write_csv(lines: Lines, stream: IO[bytes], fields: Fields) -> None:
    """As of RFC 4180, in UTF-8. The field of an object is a column such as model.name; what a line lacks is empty."""
    columns = list(_paths(_named(fields, lines)))
    text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    # With this line end, the module quotes both of its characters.
    table = csv.writer(text, lineterminator="\r\n")
    # A server may give any label, and what shows a table may act on it.
    table.writerow([visible(".".join(path)) for path in columns])
    for row, _ in _rows(lines()):
        table.writerow([_cell(row, path) for path in columns])
    text.detach()


def _write_parquet(lines: Lines, stream: IO[bytes], fields: Fields) -> None:
    """An object is a struct; what a line lacks is null."""
    import pyarrow  # noqa: PLC0415  # an extra, loaded only if needed
    from pyarrow import parquet  # noqa: PLC0415  # as above

    types = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64(), bool: pyarrow.bool_()}

    def type_of(kind: Any) -> Any:  # Any: as Fields, and pyarrow has no types
        return pyarrow.struct([(name, type_of(inner)) for name, inner in kind.items()]) if isinstance(kind, Mapping) else types[kind]

    schema = pyarrow.schema([(name, type_of(kind)) for name, kind in _named(fields, lines).items()])
    with parquet.ParquetWriter(stream, schema, compression="zstd") as table:
        group: list[dict[str, Any]] = []
        size = 0
        for row, count in _rows(lines()):
            group.append(row)
            size += count
            if size > GROUP_BYTES:
                table.write_table(pyarrow.Table.from_pylist(group, schema))
                group, size = [], 0
        table.write_table(pyarrow.Table.from_pylist(group, schema))


def _named(fields: Fields, lines: Lines) -> Fields:
    """The fields with names for ``...``, in the order in which they come. An object without a field is left out."""
    wild = [name for name, kind in fields.items() if isinstance(kind, Mapping) and ... in kind]
    found: dict[str, dict[str, Any]] = {name: {} for name in wild}
    for row, _ in _rows(lines()):
        for name in wild:
            found[name].update(dict.fromkeys(row.get(name, {}), fields[name][...]))
    return {name: found.get(name, kind) for name, kind in fields.items() if found.get(name, kind)}


def _paths(fields: Fields) -> Iterator[tuple[str, ...]]:
    for name, kind in fields.items():
        yield from ((name, *path) for path in _paths(kind)) if isinstance(kind, Mapping) else [(name,)]


def _cell(row: Any, path: tuple[str, ...]) -> str:  # Any: JSON
    for name in path:
        row = row.get(name) if row else None
    # Numbers and booleans as in JSON.
    return "" if row is None else row if isinstance(row, str) else json.dumps(row)


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:  # Any: JSON
    """The objects, and the bytes of each line. Lone surrogates, which have no UTF-8, are shown as escapes."""
    for line in lines:
        row = json.loads(line)
        yield _valid(row) if b"\\ud" in line else row, len(line)


def _valid(value: Any) -> Any:  # Any: JSON
    if isinstance(value, dict):
        return {key: _valid(item) for key, item in value.items()}
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
