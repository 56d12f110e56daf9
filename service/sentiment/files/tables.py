"""Writes tables (CSV, TSV, JSON, Parquet, spreadsheets) in bounded memory. Knows nothing of what they hold."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.formats import EXTRA, SHEET_ROWS_MAX, unique_names
from sentiment.files.visible import visible
from sentiment.files.xlsx_strings import CELL_CHARACTERS_MAX, escaped

Row = Mapping[str, Any]  # Any: JSON
# The rows; they can be read again by calling the function again.
Rows = Callable[[], Iterable[Row]]
# The columns of a table in order, with their types; None: found by the values.
Columns = Mapping[str, type | None]
# Writes a table to a stream.
Write = Callable[[Rows, Columns, IO[bytes]], None]
WRITABLE = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx")
SHEET_COLUMNS_MAX = 2**14
# A Parquet row group: large enough to read efficiently, small enough to hold in memory.
GROUP_CHARACTERS = 2**24
GROUP_ROWS = 2**16
# A float, and so a cell of .xlsx, holds integers up to this one exactly.
EXACT_MAX = 2**53
_SURROGATE = re.compile("[\ud800-\udfff]")
# Programs for spreadsheets run cells that begin so as formulas (OWASP, CSV injection).
_FORMULA = re.compile("\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def writer_of(path: Path, *, escape_formulas: bool = False) -> Write | None:
    """What writes a table of the kind of a file's ending; None for .jsonl.

    Args:
        path: of the table.
        escape_formulas: in .csv and .tsv, put an apostrophe before texts that a spreadsheet would run as formulas.

    Raises:
        BadSettings: the ending is another, or an extra is missing.
    """
    kind = path.suffix.lower()
    if kind not in WRITABLE:
        raise BadSettings(f"--output {path}: the ending must be one of {', '.join(WRITABLE)}, got {path.suffix!r}")
    if escape_formulas and kind not in (".csv", ".tsv"):
        raise BadSettings(f"--escape-formulas: {path} has none; a .csv or .tsv may")
    if kind in (".csv", ".tsv"):
        delimiter = "\t" if kind == ".tsv" else ","
        return lambda rows, columns, stream: _write_delimited(rows, columns, stream, delimiter, escape_formulas)
    if kind == ".json":
        return _write_json
    try:
        if kind == ".xlsx":
            import openpyxl  # noqa: PLC0415, F401  # an extra; its absence is reported before the work
        elif kind == ".parquet":
            import pyarrow.parquet  # noqa: PLC0415, F401  # as above
    except ImportError as error:
        raise BadSettings(f"{path}: {kind} {EXTRA}") from error
    return {".xlsx": _write_xlsx, ".parquet": _write_parquet}.get(kind)


def _write_delimited(rows: Rows, columns: Columns, stream: IO[bytes], delimiter: str, escape_formulas: bool) -> None:
    """As of RFC 4180, in UTF-8. What a row lacks is empty."""
    text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
    # With this line end, the module quotes both of its characters.
    table = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")

    def cell(value: object) -> str:
        shown = "" if value is None else valid(value) if isinstance(value, str) else json.dumps(valid(value), ensure_ascii=False)
        return f"'{shown}" if escape_formulas and isinstance(value, str) and _FORMULA.match(value) else shown

    table.writerow([cell(name) for name in _shown(columns)])
    for row in rows():
        table.writerow([cell(row.get(name)) for name in columns])
    text.detach()


def _write_json(rows: Rows, _columns: Columns, stream: IO[bytes]) -> None:
    """An array of objects, one a line. Lone surrogates are JSON's escapes."""
    before = b"[\n"
    for row in rows():
        stream.write(before + json_text(row).encode())
        before = b",\n"
    stream.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _write_parquet(rows: Rows, columns: Columns, stream: IO[bytes]) -> None:
    """What a row lacks is null."""
    import pyarrow  # noqa: PLC0415  # an extra, loaded only if needed
    from pyarrow import parquet  # noqa: PLC0415  # as above

    types = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64(), bool: pyarrow.bool_()}
    found = _types(rows, columns)
    named = dict(zip(_shown(found), found.values(), strict=True))
    schema = pyarrow.schema([(name, types[kind]) for name, kind in named.items()], for_pandas(named))
    with parquet.ParquetWriter(stream, schema, compression="zstd") as table:
        for group in _groups(rows()):
            arrays = [pyarrow.array([_typed(row.get(name), kind) for row in group], types[kind]) for name, kind in found.items()]
            table.write_table(pyarrow.table(arrays, schema=schema))


def _shown(columns: Iterable[str]) -> list[str]:
    """The names as a table has them. A server may give any label, and what shows a table may act on it."""
    return unique_names(map(visible, columns))


def for_pandas(kinds: Mapping[str, type]) -> dict[str, str]:
    """Metadata by which pandas reads whole numbers and booleans with gaps as such, and not as floats and objects."""
    numpy = {int: ("int64", "Int64"), bool: ("bool", "boolean"), float: ("float64", "float64"), str: ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": numpy[kind][0], "numpy_type": numpy[kind][1], "metadata": None}
        for name, kind in kinds.items()
    ]
    return {"pandas": json.dumps({"columns": columns, "index_columns": [], "column_indexes": [], "pandas_version": "2.0.0"})}


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if characters > GROUP_CHARACTERS or len(group) == GROUP_ROWS:
            yield group
            group, characters = [], 0
    # A table without a row has its columns.
    yield group


def _types(rows: Rows, columns: Columns) -> dict[str, type]:
    """The types of the columns; strings where values of several types stand."""
    unknown = [name for name, kind in columns.items() if kind is None]
    seen: dict[str, set[type]] = {name: set() for name in unknown}
    for row in rows() if unknown else ():
        for name in unknown:
            if (value := row.get(name)) is not None:
                seen[name].add(_kind(value))
    return {name: _common(seen[name]) if kind is None else kind for name, kind in columns.items()}


class _Wide(int):
    """The type of integers that no float holds exactly."""


def _kind(value: object) -> type:
    """The type that a value needs. An integer that no type of Parquet holds is kept as its digits."""
    if type(value) is not int or abs(value) <= EXACT_MAX:
        return type(value)
    return _Wide if -(2**63) <= value < 2**63 else str


def _common(kinds: set[type]) -> type:
    if kinds == {int, float}:
        return float
    if kinds <= {int, _Wide}:
        return int
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= {bool, int, float} else str


def _typed(value: object, kind: type) -> object:
    if value is None:
        return None
    if kind is str:
        return valid(value) if isinstance(value, str) else json.dumps(valid(value), ensure_ascii=False)
    return kind(value)


def _write_xlsx(rows: Rows, columns: Columns, stream: IO[bytes]) -> None:
    """One sheet with a header.

    Raises:
        BadFile: a sheet cannot hold this many rows, or a cell a text of this length.
    """
    import openpyxl  # noqa: PLC0415  # an extra, loaded only if needed
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415  # as above

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("answers")

    def cell(value: object, number: int) -> object:
        if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= EXACT_MAX):
            return value
        text = escaped(valid(value) if isinstance(value, str) else json.dumps(valid(value), ensure_ascii=False))
        if len(text) > CELL_CHARACTERS_MAX:
            raise BadFile(f"row {number} has a text of {len(text):,} characters; a cell of .xlsx holds {CELL_CHARACTERS_MAX:,}: use .csv")
        made = WriteOnlyCell(sheet, text)
        # Otherwise a text that begins with = would be a formula.
        made.data_type = "s"
        return made

    if len(columns) > SHEET_COLUMNS_MAX:
        raise BadFile(f"{len(columns):,} columns; a sheet of .xlsx holds {SHEET_COLUMNS_MAX:,}: use .csv or --drop")
    try:
        sheet.append([cell(name, 0) for name in _shown(columns)])
        for number, row in enumerate(rows(), 1):
            if number == SHEET_ROWS_MAX:
                raise BadFile(f"more than {SHEET_ROWS_MAX - 1:,} rows; a sheet of .xlsx holds no more: use .csv")
            sheet.append([cell(row.get(name), number) for name in columns])
    finally:
        # Otherwise the file that holds the rows until then would be closed under it.
        sheet.close()
    book.save(stream)


def json_text(value: object) -> str:
    """A value as JSON on one line. Lone surrogates are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or not _SURROGATE.search(text) else json.dumps(value)


def valid(value: Any) -> Any:  # Any: JSON
    """The value with escapes for lone surrogates, which have no UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {valid(name): valid(inner) for name, inner in value.items()}
    return [valid(inner) for inner in value] if isinstance(value, list) else value
