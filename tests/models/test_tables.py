"""Tables as other programs and people write them, read as labelled texts: no row is lost or changed without an error."""

from pathlib import Path

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment_models.data.labelled import Example, LabelledReading, read_examples, read_texts
from sentiment_models.errors import BadData
from tests.core.files.odd_files import ERROR, ODD_FILES, OddFile
from tests.core.files.test_round_trips import DELIMITERS, LINE_ENDS, SIGNS, TEXTS
from tests.models.tiny_bert import LABELS

# Column, header and format of labelled texts are fixed; a .tsv without the column label has no header; each object of a .jsonl is a row.
OTHERS = [
    odd.name for odd in ODD_FILES if {"column", "header", "format"} & odd.options.keys() or odd.ending == ".tsv" or "no key" in odd.stops
]
# Of texts that a tokenizer can read.
ROWS = st.one_of(TEXTS, SIGNS).map(lambda texts: [text for text in texts if text.strip()]).filter(bool)


def read_until_the_end(path: Path, reading: LabelledReading) -> tuple[list[object], str]:
    """The texts of a file, and why the reading ended; empty if it read the whole file."""
    texts: list[object] = []
    try:
        texts.extend(read_texts(path, reading=reading))
    except BadData as error:
        return texts, str(error)
    return texts, ""


def expected(odd: OddFile) -> tuple[list[str | None], str]:
    """The texts before the first row that ends a run, and a part of the reason."""
    kept = [text for text in odd.texts if text != "" or not odd.ending.startswith(".txt")]
    ends = {ERROR: odd.places[0] if odd.places else "", "": "the text is empty", "\ud800": "half of a surrogate pair"}
    first = next((number for number, text in enumerate(kept) if text in ends), len(kept))
    return kept[:first], ends[kept[first]] if first < len(kept) else odd.stops or ("" if kept else "the file has no example")


@pytest.mark.parametrize("odd", [odd for odd in ODD_FILES if odd.name not in OTHERS], ids=lambda odd: odd.name)
def test_an_odd_file_gives_its_texts_or_ends_the_run_at_the_first_row_that_has_none(odd: OddFile, tmp_path: Path) -> None:
    path = tmp_path / f"odd{odd.ending}"
    path.write_bytes(odd.content)

    texts, stopped = read_until_the_end(path, LabelledReading(**odd.options))  # type: ignore[arg-type]  # of several types

    wanted, reason = expected(odd)
    assert texts == wanted
    assert reason in stopped
    assert bool(reason) == bool(stopped)
    assert not stopped or stopped.startswith(str(path))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that hypothesis may share between examples."""
    return tmp_path_factory.mktemp("labelled")


def labelled(texts: list[str]) -> pandas.DataFrame:
    return pandas.DataFrame({"text": texts, "label": [number % 2 for number in range(len(texts))]})


def read_bytes(content: bytes, path: Path) -> list[Example]:
    path.write_bytes(content)
    return list(read_examples(path, LABELS))


@given(ROWS, DELIMITERS, LINE_ENDS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.booleans())
def test_labelled_tables_of_pandas(shared: Path, texts: list[str], delimiter: str, line_end: str, encoding: str, index: bool) -> None:
    content = labelled(texts).to_csv(sep=delimiter, lineterminator=line_end, index=index).encode(encoding)

    for ending in (".csv", ".tsv") if delimiter == "\t" else (".csv",):
        assert read_bytes(content, shared / f"table{ending}") == [Example(text, number % 2) for number, text in enumerate(texts)]


@given(st.lists(st.text("ab\",;\t '=", min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=5))
def test_lines_of_a_tsv_without_a_header_are_cut_at_the_first_tab_and_have_no_quotes(shared: Path, texts: list[str]) -> None:
    content = "".join(f"{number % 2}\t{text}\n" for number, text in enumerate(texts)).encode()

    assert read_bytes(content, shared / "lines.tsv") == [Example(text, number % 2) for number, text in enumerate(texts)]


@pytest.mark.parametrize("ending", [".parquet", ".xlsx", ".json", ".jsonl"])
def test_other_formats_of_pandas_give_the_same_examples(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"table{ending}"
    frame = labelled(["good, \u4f60", "bad"])
    write = {
        ".parquet": frame.to_parquet,
        ".xlsx": lambda where: frame.to_excel(where, index=False),
        ".json": lambda where: frame.to_json(where, orient="records"),
        ".jsonl": lambda where: frame.to_json(where, orient="records", lines=True),
    }

    write[ending](path)

    assert list(read_examples(path, LABELS)) == [Example("good, \u4f60", 0), Example("bad", 1)]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_labels_beside_gaps_are_numbers_and_a_gap_ends_the_run_with_its_row(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"gaps{ending}"
    frame = pandas.DataFrame({"text": ["good", "so so"], "label": [1.0, None]})
    frame.to_parquet(path) if ending == ".parquet" else frame.to_csv(path, index=False)
    found: list[Example] = []

    with pytest.raises(BadData, match=r": (line 3|row 2): has no label; add it or delete the row"):
        found.extend(read_examples(path, LABELS))

    assert found == [Example("good", 1)]


def test_an_encoding_is_that_of_tables_and_not_of_json(tmp_path: Path) -> None:
    reading = LabelledReading(encoding="cp1252")
    (tmp_path / "a.csv").write_bytes("label,text\n1,caf\u00e9\n".encode("cp1252"))
    (tmp_path / "a.jsonl").write_bytes('{"label": 1, "text": "caf\u00e9"}\n'.encode())

    for name in ("a.csv", "a.jsonl"):
        assert list(read_examples(tmp_path / name, LABELS, reading=reading)) == [Example("caf\u00e9", 1)]
