"""The rows of each format of files. A row is one of the file, in order, with its values or the reason why it has none."""

import itertools
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sentiment.errors import BadSettings
from sentiment.files.decoding import Lines, is_decoded
from sentiment.files.errors import BadFile
from sentiment.files.records import Record, bare, delimiter_of, records
from sentiment.files.rows import NOT_DECODED, TEXT, Row, plain, type_of
from sentiment.files.xlsx_strings import unescaped

EXTRA = "needs the extra files: pip install 'sentiment-service[files]'"
# Rows of Parquet, and their bytes, that are held at a time.
PARQUET_ROWS = 1024
PARQUET_BYTES = 2**25
# What a workbook may open to, which is held in part; a sheet has no more rows.
WORKBOOK_BYTES_MAX = 2**29
SHEET_ROWS_MAX = 2**20
# What spreadsheets show in the place of a formula's result (ECMA-376, ST_CellType e).
CELL_ERRORS = ("#N/A", "#REF!", "#NAME?", "#DIV/0!", "#NULL!", "#NUM!", "#VALUE!")
# An element of a JSON array may hold a whole document.
ELEMENT_CHARACTERS_MAX = 2**26
_SPACE = re.compile(r"[ \t\r\n]*")


def _number(written: str) -> object:
    """A number as ``plain`` has it: also one that no float holds, and NaN and the like, which are not JSON."""
    return plain(float(written))


def _whole(digits: str) -> object:
    """A whole number; its digits if it is too long for Python (4,300 digits)."""
    try:
        return int(digits)
    except ValueError:
        return digits


_DECODER = json.JSONDecoder(parse_constant=_number, parse_float=_number, parse_int=_whole)


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows, lazily, and the names of their columns as the file has them; None where each row has keys of its own."""

    rows: Iterator[Row]
    header: Sequence[str] | None = None


def of_lines(lines: Lines) -> Opened:
    """A text a line."""
    return Opened((text_row(f"line {number}", bare(line)) for number, line in enumerate(lines, 1)), [TEXT])


def text_row(place: str, text: str) -> Row:
    """The row of a line that is a text."""
    return Row(place, {TEXT: text}) if is_decoded(text) else Row(place, {}, NOT_DECODED)


def of_json_lines(lines: Lines) -> Opened:
    """A JSON object a line."""
    return Opened(json_row(f"line {number}", bare(line)) for number, line in enumerate(lines, 1))


def json_row(place: str, line: str) -> Row:
    """The row of a line of JSON."""
    if not is_decoded(line):
        return Row(place, {}, NOT_DECODED)
    if not line.strip():
        return Row(place, {}, "the line is empty")
    try:
        return _object_row(place, _DECODER.decode(line))
    except (ValueError, RecursionError) as error:
        return Row(place, {}, f"is no JSON: {type(error).__name__}")


def _object_row(place: str, value: object) -> Row:
    return Row(place, value) if isinstance(value, dict) else Row(place, {}, f"expected a JSON object, got {type_of(value)}")


def of_json(pieces: Iterator[str]) -> Opened:
    """An array of JSON objects, read element by element. An element that is a string is a text."""
    values = _elements(pieces)
    return Opened(
        Row(f"row {number}", {TEXT: value}) if isinstance(value, str) else _object_row(f"row {number}", value)
        for number, value in enumerate(values, 1)
    )


def _elements(pieces: Iterator[str]) -> Iterator[object]:
    """The elements of a JSON array.

    Raises:
        ValueError: it is not a JSON array, not complete, or has text after it.
    """
    held, at = "", 0

    def skip() -> str:
        """Skip white space and return the next character; empty at the end."""
        nonlocal held, at
        while True:
            at = _end_of_space(held, at)
            if at < len(held):
                return held[at]
            if (piece := next(pieces, None)) is None:
                return ""
            held, at = piece, 0

    def element() -> object:
        nonlocal held, at
        wanted = 1
        while True:
            try:
                value, end = _DECODER.raw_decode(held, at)
                # A number may go on in the next piece.
                if end < len(held):
                    at = end
                    return value
            except RecursionError as error:
                raise ValueError("a JSON value is nested too deeply") from error
            except json.JSONDecodeError:
                if len(held) - at > ELEMENT_CHARACTERS_MAX:
                    raise
            # Twice as much each time, as what was read is read again.
            more = "".join(itertools.islice(pieces, wanted))
            if not more:
                raise ValueError("the JSON array is not complete or not valid")
            held, at, wanted = held[at:] + more, 0, wanted * 2

    if skip() != "[":
        raise ValueError("expected a JSON array of objects (pandas: orient='records'); one object a line is .jsonl")
    at += 1
    if skip() == "]":
        at += 1
    else:
        while True:
            skip()
            yield element()
            found = skip()
            at += 1
            if found == "]":
                break
            if found != ",":
                raise ValueError("expected , or ] after an element of the JSON array")
    if skip():
        raise ValueError("there is more after the JSON array")


def _end_of_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    assert found, "matches the empty string"
    return found.end()


def of_delimited(lines: Lines, delimiter: str, column: str, *, header: bool, quotes: bool, name: str) -> Opened:
    """Records of delimited text. ``delimiter``: empty to find it by the header, in which ``column`` helps.

    Raises:
        BadFile: the header cannot be read.
        OpenQuote: as ``records``.
    """
    first = next(lines, "")
    number = 1
    # A spreadsheet's first line may name the delimiter.
    if named := re.fullmatch(r"sep=(.)", bare(first)):
        delimiter, first, number = delimiter or named[1], next(lines, ""), 2
    delimiter = delimiter or delimiter_of(first, column)
    found = records(itertools.chain([first] if first else [], lines), delimiter, quotes=quotes, first=number)
    head = next(found, Record(1, 0, []))
    if head.error:
        raise BadFile(f"{name}:{head.line}: {head.error}")
    columns = head.fields if header else [str(number) for number in range(1, len(head.fields) + 1)]
    if not header and head.lines:
        found = itertools.chain([head], found)
    unique = unique_names(columns)
    return Opened((row for record in found if (row := record_row(record, unique, _place(record)))), columns)


def _place(record: Record) -> str:
    return f"line {record.line}" if record.lines == 1 else f"lines {record.line} to {record.line + record.lines - 1}"


def unique_names(header: Iterable[str]) -> list[str]:
    """The names of columns, the second of equal ones with _2 and so on."""
    found: dict[str, None] = {}
    for name in header:
        others = (f"{name}_{number}" for number in itertools.count(2))
        found[next(each for each in itertools.chain([name], others) if each not in found)] = None
    return list(found)


def record_row(record: Record, columns: Sequence[str], place: str) -> Row | None:
    """The row of a record; None for an empty line, which is a row only of a table with one column."""
    fields = record.fields
    if record.error:
        return Row(place, {}, record.error)
    if not fields:
        if len(columns) != 1:
            return None
        fields = [""]
    if len(fields) != len(columns):
        return Row(place, {}, _misfit(len(fields), len(columns)))
    if not all(map(is_decoded, fields)):
        return Row(place, {}, NOT_DECODED)
    return Row(place, dict(zip(columns, fields, strict=True)))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _misfit(found: int, wanted: int) -> str:
    """What is wrong with a record of too many or too few fields, and what a user can do."""
    lines = ", or read each line as a text with --format txt" if wanted == 1 else ""
    to_do = f"quote fields that contain the delimiter, choose another one with --delimiter{lines}" if found > wanted else "add the others"
    return f"has {_count(found, 'field')}, but the header has {_count(wanted, 'field')}; {to_do}"


def of_parquet(source: Path | BinaryIO, name: str, needed: Callable[[str], bool], stack: ExitStack) -> Opened:
    """The rows of a Parquet file. ``needed``: whether a column is wanted; the others are not read.

    Raises:
        BadFile: it is not a Parquet file, or has two columns of one name.
        BadSettings: the extra is missing.
    """
    try:
        import pyarrow  # noqa: PLC0415  # an extra, loaded only if needed
        from pyarrow import parquet  # noqa: PLC0415  # as above
    except ImportError as error:
        raise BadSettings(f"{name}: .parquet {EXTRA}") from error

    def rows(file: Any, columns: Sequence[str]) -> Iterator[Row]:  # Any: pyarrow has no types
        number = 0
        try:
            for batch in file.iter_batches(_rows_at_once(file.metadata), columns=columns):
                for values in zip(*map(arrow_values, batch.columns), strict=True):
                    number += 1
                    bad = any(isinstance(value, str) and not is_decoded(value) for value in values)
                    yield Row(f"row {number}", {}, "is not UTF-8") if bad else Row(f"row {number}", dict(zip(columns, values, strict=True)))
        except pyarrow.ArrowException as error:
            raise BadFile(f"{name}: cannot be read after {number} rows: {error}") from error

    try:
        file = stack.enter_context(parquet.ParquetFile(source))
    except pyarrow.ArrowException as error:
        raise BadFile(f"{name}: not a Parquet file: {error}") from error
    names = file.schema_arrow.names
    wanted = [column for column in names if needed(column)]
    if twice := [column for place, column in enumerate(wanted) if column in wanted[:place]]:
        raise BadFile(f"{name}: has two columns {twice[0]!r}; rename one, or leave the columns beside the text out")
    return Opened(rows(file, wanted), names)


def _rows_at_once(metadata: Any) -> int:  # Any: pyarrow has no types
    """How many rows to hold in memory, by the bytes that the fattest row group says that it has."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    fattest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(PARQUET_ROWS, PARQUET_BYTES // max(1, fattest)))


def arrow_values(column: Any) -> Sequence[object]:  # Any: pyarrow has no types
    """The values of a column as Python's objects. Strings need not be valid UTF-8: other bytes become lone surrogates.

    Times and durations of nanoseconds, or within lists, structs and maps, are texts (in UTC if they have a zone) and whole numbers of their
    unit. So are others that Python cannot hold.
    """
    import pyarrow  # noqa: PLC0415  # an extra, loaded only if needed

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        raw = column.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="surrogateescape") for value in raw]
    # Python has microseconds, and pandas, where it is installed, times of its own.
    if "[ns" in str(kind) or (pyarrow.types.is_nested(kind) and _mapped(kind, _shown_as) != kind):
        return _shown(column)
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        values = [value for place in range(len(column)) for value in _held(column.slice(place, 1))]
    return [_decoded(value) if isinstance(value, bytes) else value for value in values]


def _held(column: Any) -> Sequence[object]:  # Any: as above
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        # Within a list or a struct: the row is not UTF-8.
        return ["\udcff"]
    except (ValueError, OverflowError):
        return _shown(column)


def _shown(column: Any) -> Sequence[object]:  # Any: as above
    """Values with their times as texts. What is not a time that Arrow can write is "<value out of range: N>"."""
    import pyarrow  # noqa: PLC0415  # as above

    kind = column.type
    # Not in its zone, which this machine may not know.
    values = column.cast(_mapped(kind, _zoneless)).cast(_mapped(kind, _shown_as)).to_pylist()
    if not pyarrow.types.is_timestamp(kind):
        return list(values)
    zone = "" if kind.tz is None else "Z"
    return [value if value is None or value[0] == "<" else value.replace(" ", "T") + zone for value in values]


def _zoneless(kind: Any) -> Any:  # Any: as above
    import pyarrow  # noqa: PLC0415  # as above

    return pyarrow.timestamp(kind.unit) if pyarrow.types.is_timestamp(kind) else kind


def _shown_as(kind: Any) -> Any:  # Any: as above
    import pyarrow  # noqa: PLC0415  # as above

    if pyarrow.types.is_duration(kind):
        return pyarrow.int64()
    return pyarrow.string() if pyarrow.types.is_temporal(kind) else kind


def _mapped(kind: Any, each: Callable[[Any], Any]) -> Any:  # Any: as above
    """A type whose parts other than lists, structs and maps are replaced."""
    import pyarrow  # noqa: PLC0415  # as above

    types = pyarrow.types
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pyarrow.struct([(one.name, _mapped(one.type, each)) for one in fields])
    if types.is_map(kind):
        return pyarrow.map_(_mapped(kind.key_type, each), _mapped(kind.item_type, each))
    if types.is_dictionary(kind):
        return _mapped(kind.value_type, each)
    if any(is_kind(kind) for is_kind in (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view)):
        found = pyarrow.list_(kind.value_field.with_type(_mapped(kind.value_type, each)))
        return kind if found.value_type == kind.value_type else found
    return each(kind)


def _decoded(value: bytes) -> str | bytes:
    """Bytes that are UTF-8 as a string: some programs do not mark their strings as such."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def of_xlsx(source: Path | BinaryIO, name: str, sheet: str, *, header: bool, stack: ExitStack) -> Opened:
    """The rows of a workbook's sheet, whose values are those that the spreadsheet stored last. Empty rows at the end are left out.

    Raises:
        BadFile: it is not a workbook, it has no sheet ``sheet``, or ``sheet`` is empty although there are several.
        BadSettings: the extra is missing.
    """
    try:
        import openpyxl  # noqa: PLC0415  # an extra, loaded only if needed
    except ImportError as error:
        raise BadSettings(f"{name}: .xlsx {EXTRA}") from error
    stream = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
    try:
        size = sum(part.file_size for part in zipfile.ZipFile(stream).infolist())
        if size > WORKBOOK_BYTES_MAX:
            raise BadFile(f"{name}: opens to {size:,} bytes; the limit is {WORKBOOK_BYTES_MAX:,}: save it as .csv")
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
    except BadFile:
        raise
    except Exception as error:  # whatever zipfile, expat and openpyxl raise of a damaged file
        raise BadFile(f"{name}: not an .xlsx workbook: {type(error).__name__}") from error
    stack.callback(book.close)
    names = [found.title for found in book.worksheets]
    if not sheet and len(names) > 1:
        raise BadFile(f"{name}: has the sheets {', '.join(names)}: choose one with --sheet")
    if sheet and sheet not in names:
        raise BadFile(f"{name}: has no sheet {sheet!r}; it has {', '.join(names)}")
    found = book[sheet] if sheet else book.worksheets[0]
    # The size that a sheet states may be smaller than it is; what lies outside it would be left out.
    found.reset_dimensions()
    rows = _filled(found.iter_rows(values_only=True))
    number, first = next(rows, (0, ()))
    width = max((place for place, value in enumerate(first, 1) if value is not None), default=0)
    columns = [str(_cell(value)) for value in first[:width]] if header else [str(place) for place in range(1, width + 1)]
    if not header and width:
        rows = itertools.chain([(number, first)], rows)
    unique = unique_names(columns)
    return Opened((_sheet_row(number, values, unique) for number, values in rows), columns)


def _filled(rows: Iterable[tuple[object, ...]]) -> Iterator[tuple[int, tuple[object, ...]]]:
    """The rows, with their numbers, from the first to the last that is not empty."""
    before: int | None = None
    for number, values in enumerate(rows, 1):
        if number > SHEET_ROWS_MAX:
            raise ValueError(f"a sheet has at most {SHEET_ROWS_MAX:,} rows, and this one has more")
        if any(value is not None for value in values):
            yield from ((empty, ()) for empty in range(number if before is None else before + 1, number))
            yield number, values
            before = number


def _sheet_row(number: int, values: Sequence[object], columns: Sequence[str]) -> Row:
    if any(value is not None for value in values[len(columns) :]):
        return Row(f"row {number}", {}, f"has a value beyond the {_count(len(columns), 'column')} of the header")
    padded = itertools.chain(values, itertools.repeat(None))
    return Row(f"row {number}", {name: _cell(value) for name, value in zip(columns, padded, strict=False)}, typed=False)


def _cell(value: object) -> object:
    if isinstance(value, str):
        # A formula without a stored result is not a text.
        return None if value in CELL_ERRORS else unescaped(value)
    # An empty cell is an empty text, as in CSV.
    return "" if value is None else value
