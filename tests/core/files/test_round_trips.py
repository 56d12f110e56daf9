"""Tables that other programs write: every text comes back as it was."""

import csv
import io
from pathlib import Path

import pandas
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentiment.files.formats import of_delimited
from sentiment.files.reading import Reading, Table
from sentiment.files.records import OpenQuote, records
from sentiment.files.tables import writer_of

# Neither NUL, at which other programs end a text, nor lone surrogates, which have no UTF-8.
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), min_size=1, max_size=5)
# What tables are made of, so that it comes together often.
SIGNS = st.lists(st.text("ab\",;\t\n\r '=\ufeff", max_size=8), min_size=1, max_size=5)
DELIMITERS = st.sampled_from([",", ";", "\t"])
LINE_ENDS = st.sampled_from(["\n", "\r\n"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that hypothesis may share between examples."""
    return tmp_path_factory.mktemp("tables")


def read(path: Path, reading: Reading) -> list[object]:
    with Table(path, reading) as table:
        key = table.key("text")
        return [row.text(key) for row in table]


def read_bytes(content: bytes, folder: Path, ending: str, reading: Reading | None = None) -> list[object]:
    path = folder / f"table{ending}"
    path.write_bytes(content)
    return read(path, reading or Reading())


@given(st.one_of(TEXTS, SIGNS), DELIMITERS, LINE_ENDS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
def test_tables_of_the_csv_module(texts: list[str], delimiter: str, line_end: str, quoting: int) -> None:
    stream = io.StringIO(newline="")
    table = csv.writer(stream, delimiter=delimiter, lineterminator=line_end, quoting=quoting)  # type: ignore[arg-type]  # of the module
    table.writerows([("text", "id"), *((text, number) for number, text in enumerate(texts))])

    assert delimited(stream.getvalue()) == texts


def delimited(content: str) -> list[object]:
    lines = iter(io.StringIO(content, newline="\n").readlines())
    opened = of_delimited(lines, "", "text", header=True, quotes=True, name="a table")  # type: ignore[arg-type]  # an iterator of lines
    return [row.text("text") for row in opened.rows]


@given(st.one_of(TEXTS, SIGNS), DELIMITERS, LINE_ENDS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.booleans())
def test_tables_of_pandas(shared: Path, texts: list[str], delimiter: str, line_end: str, encoding: str, index: bool) -> None:
    frame = pandas.DataFrame({"text": texts, "id": range(len(texts))})

    content = frame.to_csv(sep=delimiter, lineterminator=line_end, index=index).encode(encoding)

    assert read_bytes(content, shared, ".csv") == texts


@given(st.one_of(TEXTS, SIGNS), DELIMITERS, LINE_ENDS, st.sampled_from(["necessary", "always", "non_numeric"]))
def test_tables_of_polars(shared: Path, texts: list[str], delimiter: str, line_end: str, style: str) -> None:
    frame = polars.DataFrame({"text": texts, "id": range(len(texts))})

    content = frame.write_csv(separator=delimiter, line_terminator=line_end, quote_style=style)

    assert read_bytes(content.encode(), shared, ".tsv" if delimiter == "\t" else ".csv") == texts


@given(st.one_of(TEXTS, SIGNS))
def test_one_column_of_texts_keeps_its_rows(shared: Path, texts: list[str]) -> None:
    content = pandas.DataFrame({"text": texts}).to_csv(index=False)

    # A carriage return before a line feed that ends a row is taken for a part of the line end.
    found = read_bytes(content.encode(), shared, ".csv", Reading(delimiter=","))
    assert [str(text).rstrip("\r") for text in found] == [text.rstrip("\r") for text in texts]


@given(st.one_of(TEXTS, SIGNS))
def test_json_of_pandas_and_polars(shared: Path, texts: list[str]) -> None:
    frame = pandas.DataFrame({"text": texts})

    assert read_bytes(frame.to_json(orient="records", lines=True).encode(), shared, ".jsonl") == texts
    assert read_bytes(frame.to_json(orient="records").encode(), shared, ".json") == texts
    assert read_bytes(polars.DataFrame({"text": texts}).write_ndjson().encode(), shared, ".ndjson") == texts


@settings(max_examples=20)
@given(st.one_of(TEXTS, SIGNS), st.sampled_from([".csv", ".tsv", ".json", ".parquet", ".xlsx"]))
def test_tables_that_are_written_here(shared: Path, texts: list[str], ending: str) -> None:
    path = shared / f"written{ending}"
    write = writer_of(path)
    assert write
    rows = [{"text": text, "id": number} for number, text in enumerate(texts)]

    with path.open("wb") as stream:
        write(lambda: rows, {"text": str, "id": int}, stream)

    assert read(path, Reading()) == texts


@given(st.text('ab",\n\r', max_size=40), DELIMITERS)
def test_whatever_the_text_no_line_is_read_twice_or_left_out(text: str, delimiter: str) -> None:
    lines = io.StringIO(text, newline="\n").readlines()
    taken: list[int] = []
    try:
        for record in records(lines, delimiter):
            taken += range(record.line, record.line + record.lines)
    except OpenQuote as error:
        assert len(taken) < error.begun <= error.line <= len(lines)
    else:
        assert len(taken) == len(lines)
    assert taken == list(range(1, len(taken) + 1))
