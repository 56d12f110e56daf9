"""Files as other programs and people write them, and what every reader of tables has to make of them."""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import openpyxl
import pandas
import pyarrow
from backports import zstd
from pyarrow import parquet

# The text of a row is one of the files', or this: the row has an error of its own.
ERROR = None


@dataclass(frozen=True, slots=True)
class OddFile:
    """A file.

    Attributes:
        name: says what is odd; the test's name.
        ending: of the file's name.
        content: its bytes.
        texts: of its rows in order, or ERROR.
        stops: a part of the message that ends the reading after these rows; empty if it does not end early.
        places: where the rows with errors stand, and a part of each reason.
        options: of ``sentiment.files.reading.Reading``.
    """

    name: str
    ending: str
    content: bytes
    texts: Sequence[str | None]
    stops: str = ""
    places: tuple[str, ...] = ()
    options: Mapping[str, str | bool] = field(default_factory=dict)


def _frame(**columns: Sequence[object]) -> pandas.DataFrame:
    return pandas.DataFrame(columns)


def _xlsx(rows: Sequence[Sequence[object]], *more_sheets: str) -> bytes:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Sheet")
    for row in rows:
        sheet.append(row)
    for title in more_sheets:
        book.create_sheet(title).append(["text"])
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _smaller_than_it_is(content: bytes, stated: str) -> bytes:
    """A workbook whose sheet states another size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(stream, "w") as made:
        for name in given.namelist():
            part = given.read(name)
            if name.endswith("sheet1.xml"):
                part = re.sub(rb"<sheetPr|<sheetViews", rb'<dimension ref="%s"/>\g<0>' % stated.encode(), part, count=1)
                assert b"<dimension" in part
            made.writestr(name, part)
    return stream.getvalue()


def _parquet(**columns: object) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


def _parquet_of(names: Sequence[str]) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["good"])] * len(names), list(names)), stream)
    return stream.getvalue()


TABBED = ["a\tb", 'he said "yes"', "two\nlines", "plain"]
LINES = "the quote that opens in line"

ODD_FILES = [
    # More or fewer fields than the header.
    OddFile(
        "bare commas in a one-column csv",
        ".csv",
        b"text\nGood film, but far too long and boring\nbad\n",
        [ERROR, "bad"],
        places=("line 2: has 2 fields, but the header has 1 field",),
    ),
    OddFile(
        "no row fits the header",
        ".csv",
        b"text\na, b\nc, d\n",
        [ERROR, ERROR],
        places=("choose another one with --delimiter, or read each line as a text with --format txt", "line 3"),
    ),
    OddFile("the same file read as lines", ".csv", b"text\na, b\nc, d\n", ["text", "a, b", "c, d"], options={"format": "txt"}),
    OddFile(
        "a row with too few fields",
        ".csv",
        b"id,text,note\n1,good\n2,bad,\n",
        [ERROR, "bad"],
        places=("line 2: has 2 fields, but the header has 3 fields",),
    ),
    OddFile("a row of a tsv with too few fields", ".tsv", b"id\ttext\n1\n2\tbad\n", [ERROR, "bad"], places=("line 2: has 1 field,",)),
    # Quotes.
    OddFile(
        "a quote that is not closed", ".csv", b'id,text\n1,good\n2,"open\n3,bad\n4,fine\n', ["good"], stops=f":3: {LINES} 3 is not closed"
    ),
    OddFile("a quote that the next row's quote closes", ".csv", b'id,text\n1,good\n2,"open\n3,"bad"\n', ["good"], stops=f":3: {LINES} 3"),
    OddFile(
        "a quote that is not closed after a field of many lines",
        ".csv",
        b'text,note\n"a\nb","open\nbad,x\n',
        [],
        stops=f":3: {LINES} 3 is not closed, so nothing tells where the rows after line 2 begin",
    ),
    OddFile("a quote that is not closed in the last line", ".csv", b'text\ngood\n"bad', ["good"], stops=f":3: {LINES} 3"),
    OddFile(
        "text after a closing quote",
        ".csv",
        b'text,id\n"good" film,1\nbad,2\n',
        [ERROR, "bad"],
        places=("line 2: a quoted field must end",),
    ),
    OddFile("quotes escaped by a backslash", ".csv", b'text\n"she said \\"no\\", twice"\nbad\n', [ERROR, "bad"], places=("line 2: ",)),
    OddFile("quotes inside of fields that are not quoted", ".csv", b'text,id\na 5" disk,1\nso "good",2\n', ['a 5" disk', 'so "good"']),
    OddFile("quoted fields with commas, quotes and line ends", ".csv", b'text,id\n"a, ""b""\r\nc",1\n"",2\n', ['a, "b"\r\nc', ""]),
    OddFile(
        "quotes that are part of the text",
        ".tsv",
        b'text\tid\n"Great" movie\t1\n"bad\t2\n',
        ['"Great" movie', '"bad'],
        options={"quotes": False},
    ),
    # Empty cells and lines.
    OddFile("empty cells of a one-column table", ".csv", b'text\ngood\n\n""\nbad\n', ["good", "", "", "bad"]),
    OddFile("empty lines of a table with more columns", ".csv", b"text,id\ngood,1\n\nbad,2\n\n", ["good", "bad"]),
    OddFile("empty lines of a txt", ".txt", b"good\n\nbad\n", ["good", "", "bad"]),
    OddFile("a row of nothing but delimiters", ".csv", b"id;text\n1;good\n;\n", ["good", ""]),
    OddFile("a gap of pandas", ".csv", _frame(text=["good", None, "bad"]).to_csv(index=False).encode(), ["good", "", "bad"]),
    # Delimiters.
    OddFile("semicolons", ".csv", b"id;text\n1;good, or not\n", ["good, or not"]),
    OddFile("tabs in a csv", ".csv", b"id\ttext\n1\tgood; or not\n", ["good; or not"]),
    OddFile("a delimiter named in the first line", ".csv", b"sep=|\r\ntext|id\r\na,b|1\r\n", ["a,b"]),
    OddFile("a delimiter named after a byte order mark", ".csv", b"\xef\xbb\xbfsep=;\r\nid;text\r\n1;good film\r\n", ["good film"]),
    OddFile(
        "a delimiter named after a byte order mark, and no header",
        ".csv",
        b"\xef\xbb\xbfsep=;\r\n1;good film\r\n2;bad\r\n",
        ["good film", "bad"],
        options={"header": False, "column": "2"},
    ),
    OddFile("a delimiter named by an option", ".csv", b"text|id\na,b|1\n", ["a,b"], options={"delimiter": "|"}),
    OddFile("a header with commas and one semicolon", ".csv", b"id,what;where,text\n1,a,good\n", ["good"]),
    OddFile(
        "tsv of pandas with quoted fields", ".tsv", _frame(id=[1, 2, 3, 4], text=TABBED).to_csv(sep="\t", index=False).encode(), TABBED
    ),
    OddFile("tsv whose texts have bare quotes", ".tsv", b'text\tid\nso "good"\t1\n', ['so "good"']),
    # Headers.
    OddFile("two columns of the name", ".csv", b"text,text\na,b\n", [], stops="the columns 1, 2 are all called 'text'"),
    OddFile("one of two columns by its number", ".csv", b"text,text\na,b\n", ["b"], options={"column": "2"}),
    OddFile("two other columns of one name", ".csv", b"a,text,a\n1,good,2\n", ["good"]),
    OddFile("the unnamed index of pandas", ".csv", _frame(text=["good"]).to_csv().encode(), ["good"]),
    OddFile("no header", ".csv", b"1,good\n2,bad\n", ["good", "bad"], options={"header": False, "column": "2"}),
    OddFile("no such column", ".csv", b"id,review\n1,good\n", [], stops="no column 'text'; the header has id, review"),
    OddFile("an empty file", ".csv", b"", [], stops="no column 'text'; the header has none"),
    OddFile("a header alone", ".csv", b"text,id\n", []),
    # Encodings.
    OddFile("utf-8 with a byte order mark", ".csv", b"\xef\xbb\xbftext,id\ngood,1\n", ["good"]),
    OddFile("a quoted header after a byte order mark", ".csv", b'\xef\xbb\xbf"text","id"\n"good","1"\n', ["good"]),
    OddFile("utf-16 of a spreadsheet", ".csv", "text\tid\r\ncaf\u00e9 \U0001f600\t1\r\n".encode("utf-16"), ["caf\u00e9 \U0001f600"]),
    OddFile("utf-16 big-endian", ".txt", b"\xfe\xff" + "caf\u00e9\n\u4f60\n".encode("utf-16-be"), ["caf\u00e9", "\u4f60"]),
    OddFile("utf-16 without a byte order mark", ".csv", "text\ngood\n".encode("utf-16-le"), [], stops="has NUL characters"),
    OddFile("utf-16 without a byte order mark, as lines", ".txt", "good\n".encode("utf-16-le"), [], stops="has NUL characters"),
    OddFile(
        "a text in another encoding",
        ".csv",
        "text,id\ncaf\u00e9,1\ngood,2\n".encode("cp1252"),
        [ERROR, "good"],
        places=("line 2: has bytes that are not of the file's encoding; choose it with --encoding",),
    ),
    OddFile(
        "an encoding named by an option",
        ".csv",
        "text,id\ncaf\u00e9 \u20ac,1\n".encode("cp1252"),
        ["caf\u00e9 \u20ac"],
        options={"encoding": "cp1252"},
    ),
    OddFile(
        "UTF-8 that is named as another encoding",
        ".csv",
        "text\n\u00e4\u00f6\u00fc\u00df\nna\u00efve\n".encode(),
        [],
        stops="is UTF-8, not cp1252",
        options={"encoding": "cp1252"},
    ),
    OddFile(
        "letters of another encoding that could be one of UTF-8",
        ".csv",
        "text\n\u00c3\u00a9\ncaf\u00e9\n".encode("cp1252"),
        ["\u00c3\u00a9", "caf\u00e9"],
        options={"encoding": "cp1252"},
    ),
    OddFile("a line of a txt in another encoding", ".txt", b"good\ncaf\xe9\nbad\n", ["good", ERROR, "bad"], places=("line 2: ",)),
    OddFile(
        "a line of a jsonl in another encoding", ".jsonl", b'{"text": "good"}\n{"text": "caf\xe9"}\n', ["good", ERROR], places=("line 2: ",)
    ),
    # Line ends.
    OddFile("windows line ends", ".csv", b"text,id\r\ngood,1\r\nbad,2\r\n", ["good", "bad"]),
    OddFile("no last line end", ".tsv", b"id\ttext\n1\tgood", ["good"]),
    OddFile(
        "characters that other programs take for line ends",
        ".txt",
        "a\u2028b\nc\x0bd\ne\x85f\ng\rh\n".encode(),
        ["a\u2028b", "c\x0bd", "e\x85f", "g\rh"],
    ),
    OddFile("line ends of an old Macintosh", ".csv", b"text,id\rgood,1\rbad,2\r", [], stops="has carriage returns but no line feeds"),
    OddFile("lines of an old Macintosh", ".txt", b"good\rbad\r", [], stops="has carriage returns but no line feeds"),
    # JSON.
    OddFile(
        "lines of a jsonl that are not rows",
        ".jsonl",
        b'{"text": "good"}\n\n{"text": null}\n{"text": 5}\n[1]\nnull\n{"x": 1}\n{"te\n{"text": "bad"}\n',
        ["good", ERROR, ERROR, ERROR, ERROR, ERROR, ERROR, ERROR, "bad"],
        places=(
            "line 2: the line is empty",
            "line 3: 'text' is missing",
            "line 4: 'text' must be a string, got a number",
            "line 5: expected a JSON object, got an array",
            "line 6: expected a JSON object, got null",
            "line 7: has no 'text'",
            "line 8: is no JSON",
        ),
    ),
    OddFile("another ending of json lines", ".ndjson", b'{"text": "good"}\n', ["good"]),
    OddFile("a key that no row has", ".jsonl", b'{"review": "good"}\n', [], stops="no key 'text'; the object has review"),
    OddFile("a lone surrogate", ".jsonl", b'{"text": "\\ud800"}\n', ["\ud800"]),
    OddFile(
        "a json array of pandas",
        ".json",
        _frame(id=[1, 2], text=["good", None]).to_json(orient="records").encode(),
        ["good", ERROR],
        places=("row 2: 'text' is missing",),
    ),
    OddFile("a json array of texts over lines", ".json", json.dumps(["good", "bad"], indent=2).encode(), ["good", "bad"]),
    OddFile("an empty json array", ".json", b" [ ] \n", []),
    OddFile("a json object of columns", ".json", _frame(text=["good"]).to_json().encode(), [], stops="expected a JSON array of objects"),
    OddFile("a json array that was cut", ".json", b'[{"text": "good"}, {"te', ["good"], stops="not complete or not valid after row 1"),
    OddFile("more after a json array", ".json", b'[{"text": "good"}] {', ["good"], stops="there is more after the JSON array"),
    # Compressed files.
    OddFile("csv in gzip", ".csv.gz", gzip.compress(b"text,id\ngood,1\n"), ["good"]),
    OddFile("json lines in zstd", ".jsonl.zst", zstd.compress(b'{"text": "good"}\n'), ["good"]),
    OddFile("an ending in capitals", ".CSV", b"text,id\ngood,1\n", ["good"]),
    OddFile("gzip that was cut", ".txt.gz", gzip.compress(b"good\n")[:-4], ["good"], stops="cannot be decompressed"),
    OddFile("not gzip", ".txt.gz", b"good\n", [], stops="cannot be decompressed"),
    OddFile("not zstd", ".txt.zst", b"good\n", [], stops="cannot be decompressed"),
    OddFile(
        "an open quote in gzip",
        ".csv.gz",
        gzip.compress(b'id,text\n1,good\n2,"open\n3,bad\n'),
        ["good"],
        stops=f":3: {LINES} 3 is not closed",
    ),
    OddFile("an open quote in utf-16", ".csv", 'id,text\n1,good\n2,"open\n'.encode("utf-16"), ["good"], stops=f":3: {LINES} 3"),
    OddFile("an open quote after a named delimiter", ".csv", b'sep=;\nid;text\n1;good\n2;"open\n', ["good"], stops=f":4: {LINES} 4"),
    OddFile("text in gzip whose name does not say it", ".txt", gzip.compress(b"good\n"), [], stops="is compressed; rename it to .gz"),
    # Parquet and spreadsheets.
    OddFile(
        "gaps of a parquet",
        ".parquet",
        _parquet(text=["good", None, "bad"], id=[1, 2, 3]),
        ["good", ERROR, "bad"],
        places=("row 2: 'text' is missing",),
    ),
    OddFile(
        "numbers for texts in a parquet",
        ".parquet",
        _parquet(text=[1, 2]),
        [ERROR, ERROR],
        places=("row 1: 'text' must be a string, got a number", "row 2"),
    ),
    OddFile(
        "two columns of the name in a parquet",
        ".parquet",
        _parquet_of(["text", "text"]),
        [],
        stops="has two columns 'text'",
    ),
    OddFile(
        "bytes for texts in a parquet", ".parquet", _parquet(text=[b"good", b"\xff"]), ["good", ERROR], places=("row 2: 'text' must be",)
    ),
    OddFile(
        "a dictionary in a parquet",
        ".parquet",
        _parquet(text=pyarrow.array(["good", "bad", "good"]).dictionary_encode()),
        ["good", "bad", "good"],
    ),
    OddFile(
        "a sheet",
        ".xlsx",
        _xlsx([["id", "text"], [1, "good"], [None, None], [2, 10], [3, "=1+1 is a formula"], [None, None]]),
        ["good", "", "10", ""],
    ),
    *(
        OddFile(
            f"a sheet that states {stated} and is larger",
            ".xlsx",
            _smaller_than_it_is(_xlsx([["id", "text"], [1, "good"], [2, "bad"], [3, "dull"]]), stated),
            ["good", "bad", "dull"],
        )
        for stated in ("A1", "A1:A4", "A1:B2", "A1:B1048576")
    ),
    OddFile("two sheets", ".xlsx", _xlsx([["text"], ["good"]], "notes"), [], stops="has the sheets Sheet, notes: choose one with --sheet"),
    OddFile("a sheet chosen by an option", ".xlsx", _xlsx([["text"], ["good"]], "notes"), ["good"], options={"sheet": "Sheet"}),
    OddFile(
        "a value beyond the header",
        ".xlsx",
        _xlsx([["text"], ["good", "more"], ["bad"]]),
        [ERROR, "bad"],
        places=("row 2: has a value beyond the 1 column of the header",),
    ),
    OddFile("not a workbook", ".xlsx", b"text\ngood\n", [], stops="not an .xlsx workbook"),
]
