"""Bad data files: each is reported with file, line and remedy, or is read as intended."""

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
        ("bom.jsonl", BOM + JSONL),
        ("windows.tsv", LINES.replace(b"\n", b"\r\n")),
        ("windows.jsonl", JSONL.replace(b"\n", b"\r\n")),
        ("open.tsv", LINES.removesuffix(b"\n")),
        ("more.csv", b"id,label,note,text\n7,1,,good\n8,0,x,bad\n"),
        ("bom.tsv.gz", gzip.compress(BOM + LINES, mtime=0)),
    ],
)
def test_what_editors_and_spreadsheets_write_is_read_as_meant(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert list(read_examples(tmp_path / name, LABELS)) == TWO


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", "1\tgut\n".encode("utf-16-le"), ": has NUL characters at its beginning; if it is UTF-16, choose --encoding utf-16-le"),
        ("a.tsv", b"1\tgood\n0\tcaf\xe9\n", ": line 2: has bytes that are not of the file's encoding; choose it with --encoding, such as"),
        (
            "a.jsonl",
            JSONL + b'{"label": 1, "text": "caf\xe9"}\n',
            ": line 3: is not UTF-8; convert the file, as with iconv -f WINDOWS-1252",
        ),
        ("a.tsv", gzip.compress(LINES, mtime=0), ": is compressed; rename it to .gz"),
        ("a.tsv", LINES + b"1\tgo\0od\n", ": line 3: the text has a NUL character"),
        (
            "a.tsv",
            LINES + b"1\t" + b"good " * 2_000_000,
            f": line 3: the text must have at most {TEXT_CHARACTERS_MAX} characters, got 10000000",
        ),
        (
            "a.csv",
            CSV + b"1," + b"good " * 2_000_000,
            f": line 4: the text must have at most {TEXT_CHARACTERS_MAX} characters, got 10000000",
        ),
        ("a.tsv", LINES + b"\n" + LINES, ": line 3: expected label<TAB>text, but the line is empty; delete it"),
        ("a.jsonl", JSONL + b"\n" + JSONL, ": line 3: the line is empty; correct the row or delete it"),
        (
            "a.tsv",
            b"class\ttext\n" + LINES,
            ": line 1: label must be 0 to 1 or one of negative, positive, got 'class'; if the line is a header, ",
        ),
        (
            "a.csv",
            CSV + CSV,
            ": line 4: label must be 0 to 1 or one of negative, positive, got 'label'; the header is repeated: delete the",
        ),
        ("a.csv", b"label,text\n1,good\n,bad\n", ": line 3: has no label; add it or delete the row"),
        ("a.csv", b"label,text,text\n1,a,b\n", ": the columns 2, 3 are all called 'text'; rename all but one"),
        ("a.csv", b"label,text,domain,domain\n1,a,b,c\n", ": the columns 3, 4 are all called 'domain'; rename all but one"),
        ("a.csv", b"label,text\n1,\n", ": line 2: the text is empty; delete the row"),
        ("a.csv", b'label,text,probabilities\n1,good,"[0.2, 0.8]"\n', ": line 2: probabilities must be an array of numbers"),
        ("a.jsonl", JSONL + b'{"label": 1, "text": null}\n', ": line 3: 'text' is missing; correct the row or delete it"),
        ("a.jsonl", JSONL + b'{"label": true, "text": "good"}\n', ": line 3: 'label' must be a string or a whole number, got a boolean"),
        ("a.jsonl", JSONL + b'{"label": 1, "text": "\\ud83d"}\n', ": line 3: the text has half of a surrogate pair"),
        ("a.jsonl", JSONL + b'{"probabilities": [NaN, 1], "text": "x"}\n', ": line 3: probabilities must be an array of numbers"),
        ("a.tsv", b"1\tgood\n7\tbad\n", ": line 2: label must be 0 to 1 or one of negative, positive, got '7'"),
        ("a.tsv", b"1\tgood\n-1\tbad\n", "got '-1'"),
        ("a.tsv", b"1\tgood\nnegative\tbad\n", ": line 2: label is a name, but line 1 has a number; use names or numbers throughout"),
        ("a.tsv", b"1\tgood\n0 bad\n", ": line 2: expected label<TAB>text, but the line has no tab"),
        ("a.tsv", b"", ": the file has no example"),
        ("a.csv", b"label,body\n1,good\n", ":1: no column 'text'; the header has label, body"),
        ("a.txt", b"good\n", ": labelled texts must be in a file of .csv, .tsv, "),
        ("a.jsonl", JSONL + b"[" * 100_000 + b"\n", ": line 3: is no JSON: RecursionError"),
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

    with pytest.raises(BadData, match=r"a\.tsv: line 2: has bytes that are not of the file\'s encoding"):
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
