"""Bad data files: each is told with file, line and what to do, or is read as it was meant."""

import gzip
from pathlib import Path

import pytest

from sentiment_models.cli import main
from sentiment_models.data.labelled import Example, read_examples, read_undecided
from sentiment_models.data.text_files import TEXT_CHARACTERS_MAX
from sentiment_models.errors import BadData
from tests.models.tiny_bert import LABELS, save_tiny_bert, sentences, write_tsv

TWO = [Example("good", 1), Example("bad", 0)]
LINES = b"1\tgood\n0\tbad\n"
CSV = b"label,text\n1,good\n0,bad\n"
JSONL = b'{"label": 1, "text": "good"}\n{"label": 0, "text": "bad"}\n'
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bom.tsv", BOM + LINES),
        ("bom.csv", BOM + CSV),
        ("bom.jsonl", BOM + JSONL),
        ("windows.tsv", LINES.replace(b"\n", b"\r\n")),
        ("windows.csv", CSV.replace(b"\n", b"\r\n")),
        ("windows.jsonl", JSONL.replace(b"\n", b"\r\n")),
        ("open.tsv", LINES.removesuffix(b"\n")),
        ("blank.csv", CSV.replace(b"\n0", b"\n\n0")),
        ("more.csv", b"id,label,note,text\n7,1,,good\n8,0,x,bad\n"),
        ("bom.tsv.gz", gzip.compress(BOM + LINES, mtime=0)),
    ],
)
def test_what_editors_and_spreadsheets_write_is_read_as_meant(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert list(read_examples(tmp_path / name, LABELS)) == TWO


def _damaged(content: bytes) -> bytes:
    packed = bytearray(gzip.compress(content, mtime=0))
    packed[10:20] = b"\xff" * 10  # behind the header
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", "1\tgut\n".encode("utf-16"), ":1: not UTF-8, UTF-16; convert it: iconv -f UTF-16 -t UTF-8"),
        (
            "a.tsv",
            "1\tgut\n".encode("utf-16-le"),
            ":1: the text has a NUL character; delete it, or if the file is UTF-16, convert it: iconv",
        ),
        ("a.tsv", b"1\tgood\n0\tcaf\xe9\n", ":2: not UTF-8, perhaps Latin-1 or Windows-1252; convert it: iconv -f WINDOWS-1252 -t UTF-8"),
        ("a.csv", b"label,text\n1,good\n0,caf\xe9\n", ":3: not UTF-8"),
        ("a.tsv", gzip.compress(LINES, mtime=0), ":1: gzip-compressed, not UTF-8 text; rename the file to .gz"),
        ("a.tsv.gz", LINES, ": cannot be read: Not a gzipped file (b'1\\t'); if the file is not compressed, rename it without .gz"),
        ("a.tsv.gz", gzip.compress(LINES * 1000, mtime=0)[:-12], "damaged or truncated (Compressed file ended"),
        ("a.tsv.gz", _damaged(b"".join(b"1\tgood %d\n" % n for n in range(9999))), "damaged or truncated (Error -3"),
        ("a.tsv", LINES + b"1\tgo\0od\n", ":3: the text has a NUL character"),
        ("a.tsv", LINES + b"1\t" + b"good " * 2_000_000, f":3: the text must have at most {TEXT_CHARACTERS_MAX} characters, got 10000000"),
        ("a.csv", CSV + b"1," + b"good " * 2_000_000, f":4: the text must have at most {TEXT_CHARACTERS_MAX} characters, got 10000000"),
        ("a.csv", CSV + b"1," + b"good " * 4_000_000, ":4: not valid CSV: field larger than field limit"),
        ("a.tsv", LINES + b"\n" + LINES, ":3: expected label<TAB>text, but the line is empty; delete it"),
        ("a.jsonl", JSONL + b"\n" + JSONL, ":3: expected a JSON object with label and text: the line is empty; delete it"),
        (
            "a.tsv",
            b"label\ttext\n" + LINES,
            ":1: label must be 0 to 1 or one of negative, positive, got 'label'; a .tsv has no header",
        ),
        ("a.csv", CSV + CSV, ":4: label must be 0 to 1 or one of negative, positive, got 'label'; the header is repeated: delete the line"),
        ("a.csv", b"label,text,text\n1,a,b\n", ":1: more than one column text; the header is ['label', 'text', 'text']; rename the others"),
        ("a.csv", b"label;text\n1;good\n", ":1: column label and column text missing; the header is ['label;text']"),
        ("a.csv", CSV + b"1,good, really\n", ":4: expected 2 fields, got 3; put texts that contain commas in quotes"),
        ("a.csv", CSV + b"1\n", ":4: expected 2 fields, got 1"),
        ("a.csv", CSV + b'1,"good\n0,bad\n', ":4: not valid CSV: unexpected end of data; look for an open quote"),
        ("a.csv", b"label,text\n1,\n", ":2: the text is empty; delete the line"),
        ("a.jsonl", JSONL + b'{"label": 1, "text": null}\n', ":3: expected a JSON object with label and text: TypeError('text is None')"),
        ("a.jsonl", JSONL + b'{"label": 1, "text": "\\ud83d"}\n', ":3: the text has half of a surrogate pair"),
        (
            "a.jsonl",
            JSONL + b'{"probabilities": [NaN, 1], "text": "x"}\n',
            ":3: expected 2 probabilities that sum to 1, got 2 that sum to nan",
        ),
        ("a.jsonl", JSONL + b"[" * 100_000 + b"\n", ":3: expected a JSON object with label and text"),
    ],
)
def test_the_error_of_an_unreadable_file_has_the_line_and_the_remedy(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(BadData) as caught:
        list(read_examples(path, LABELS))

    assert str(caught.value).startswith(str(path))
    assert told in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


def test_a_file_of_texts_without_sentiment_has_the_same_errors(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"plain\tno opinion\nplain\tcaf\xe9\n")

    with pytest.raises(BadData, match=r"a\.tsv:2: not UTF-8, perhaps Latin-1"):
        list(read_undecided(tmp_path / "a.tsv", LABELS))


def test_a_training_set_of_one_class_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = save_tiny_bert(tmp_path / "base")
    data = write_tsv(tmp_path / "data.tsv", [(1, text) for _, text in sentences(50)])

    assert main(["train", "--base", str(base), "--data", str(data), "--out", str(tmp_path / "out"), "--dev-fraction", "0.2"]) == 1

    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {data}: all ")
    assert error.endswith(" training texts have the label positive; add texts with the other labels of negative, positive")
    assert not (tmp_path / "out").exists()


def test_bad_data_leaves_no_folder(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    data = write_tsv(tmp_path / "data.tsv", [*sentences(50), (7, "far")])

    assert main(["train", "--base", str(base), "--data", str(data), "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
