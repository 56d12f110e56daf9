"""Texts from files and answers to files: formats, errors of damaged files, and interrupted outputs."""

import errno
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from sentiment.files.errors import BadFile
from sentiment.files.texts import READABLE, LineOutput, read_labels, read_texts

FOUND = ["a good film", "caf\u00e9 \U0001f600", 'with "quotes"', "a, comma"]
# str.splitlines splits at each of these; a text may contain them.
INNER = ["one\u2028text", "one\u2029text", "one\x85text", "one\x0btext", "one\x0ctext", "one\x1etext"]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def file_of(texts: list[str], folder: Path, kind: str, column: str = "text") -> Path:
    """A file of this kind with these texts and another column."""
    path = folder / f"texts{kind}"
    if kind == ".txt":
        return written(path, "".join(f"{text}\n" for text in texts))
    if kind == ".tsv":
        return written(path, "\n".join([f"id\t{column}", *(f"{number}\t{text}" for number, text in enumerate(texts))]) + "\n")
    if kind == ".csv":
        quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
        return written(path, "\n".join([f"id,{column}", *(f"{number},{text}" for number, text in enumerate(quoted))]) + "\n")
    if kind == ".jsonl":
        return written(path, "".join(json.dumps({"id": 1, column: text}, ensure_ascii=False) + "\n" for text in texts))
    parquet.write_table(pyarrow.table({"id": list(range(len(texts))), column: texts}), path, row_group_size=1000)
    return path


def why_not(path: Path, column: str = "text") -> str:
    with pytest.raises(BadFile) as caught:
        list(read_texts(path, column))
    return str(caught.value)


# Only a line feed ends a line, and a carriage return inside a line belongs to the text.
@pytest.mark.parametrize("texts", [FOUND * 3000, INNER, ["good\rfilm", "bad"]], ids=["many", "inner-ends", "carriage-return"])
@pytest.mark.parametrize("kind", READABLE)
def test_every_format_gives_its_texts_in_order(kind: str, texts: list[str], tmp_path: Path) -> None:
    assert list(read_texts(file_of(texts, tmp_path, kind))) == texts


@pytest.mark.parametrize("kind", [kind for kind in READABLE if kind != ".txt"])
def test_the_column_may_have_another_name(kind: str, tmp_path: Path) -> None:
    assert list(read_texts(file_of(FOUND, tmp_path, kind, "review"), "review")) == FOUND


VARIANTS: dict[str, Callable[[bytes], bytes]] = {
    "byte-order-mark": lambda content: b"\xef\xbb\xbf" + content,
    "windows-line-ends": lambda content: content.replace(b"\n", b"\r\n"),
    "no-last-line-end": lambda content: content.removesuffix(b"\n"),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", [".txt", ".tsv", ".csv", ".jsonl"])
def test_byte_order_mark_and_line_ends_are_not_part_of_a_text(kind: str, variant: str, tmp_path: Path) -> None:
    path = file_of(FOUND, tmp_path, kind)
    written(path, VARIANTS[variant](path.read_bytes()))

    assert list(read_texts(path)) == FOUND


LONG = "word " * 100_000
CONTENTS = {
    "blank line of a txt": (".txt", "good\n\nbad\n", ["good", "", "bad"]),
    "quoted field of a csv over lines, and a long one": (".csv", f'text,id\n"two\nlines",1\n"{LONG}",2\n', ["two\nlines", LONG]),
    "quote in a tsv": (".tsv", 'text\tid\n"good\t1\nbad"\t2\n', ['"good', 'bad"']),
    "row of a tsv that ends before the column": (".tsv", "id\ttext\n1\n2\tbad\n", ["", "bad"]),
    "row of a csv that ends before the column": (".csv", "id,text\n1\n2,bad\n", ["", "bad"]),
    "escaped lone surrogate of a jsonl": (".jsonl", '{"text": "\\ud800"}\n', ["\ud800"]),
}


@pytest.mark.parametrize(("kind", "content", "texts"), CONTENTS.values(), ids=CONTENTS)
def test_a_text_is_read_as_its_format_defines_it(kind: str, content: str, texts: list[str], tmp_path: Path) -> None:
    assert list(read_texts(written(tmp_path / f"a{kind}", content))) == texts


@pytest.mark.parametrize(
    ("column", "texts"),
    [(["good", None, "bad"], ["good", "", "bad"]), (pyarrow.array(FOUND).dictionary_encode(), FOUND)],
    ids=["null", "dictionary"],
)
def test_a_parquet_column_may_have_missing_values_and_a_dictionary(column: object, texts: list[str], tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")

    assert list(read_texts(tmp_path / "a.parquet")) == texts


@pytest.mark.parametrize("kind", [kind for kind in READABLE if kind != ".txt"])
def test_the_error_of_a_missing_column_lists_the_columns(kind: str, tmp_path: Path) -> None:
    path = file_of(FOUND, tmp_path, kind)

    message = why_not(path, "review")

    assert message.startswith(f"{path}:")
    assert "'review'" in message
    assert "--column" in message
    assert kind == ".jsonl" or "id, text" in message


@pytest.mark.parametrize("kind", [kind for kind in READABLE if kind not in (".txt", ".jsonl")])
def test_the_error_of_a_missing_column_of_labels_names_its_option(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no column 'truth'; .*id, text \(choose with --labels\)"):
        list(read_labels(file_of(FOUND, tmp_path, kind), "truth"))


def test_a_label_that_is_neither_string_nor_whole_number_is_an_error_with_its_row(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", '{"label": 1}\n{"label": [1]}\n')
    parquet.write_table(pyarrow.table({"label": [1.0, 0.5]}), tmp_path / "a.parquet")

    with pytest.raises(BadFile, match=r"a\.jsonl:2: 'label' \(--labels\): expected a string or a whole number, got a list"):
        list(read_labels(tmp_path / "a.jsonl", "label"))
    with pytest.raises(BadFile, match=r"a\.parquet: row 2: 'label' \(--labels\): expected a string or a whole number, got a float"):
        list(read_labels(tmp_path / "a.parquet", "label"))


@pytest.mark.parametrize("kind", [".csv", ".tsv"])
def test_an_empty_table_has_no_column(kind: str, tmp_path: Path) -> None:
    assert "no column 'text'; the header has none" in why_not(written(tmp_path / f"a{kind}", ""))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "good"', "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ('{"txt": "good"}', "expected a JSON object with the key 'text'"),
        ("[1]", "expected a JSON object with the key 'text'"),
        ("3", "expected a JSON object with the key 'text'"),
        ('"text"', "expected a JSON object with the key 'text'"),
        ('{"text": 3}', "'text': expected a string, got a int"),
        ('{"text": null}', "'text': expected a string, got a NoneType"),
        ("[" * 100_000, "RecursionError"),
    ],
    ids=["cut", "blank", "key", "array", "number", "string", "int", "null", "deep"],
)
def test_the_error_of_a_bad_jsonl_line_has_its_number(line: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", f'{{"text": "good"}}\n{{"text": "bad"}}\n{line}\n')

    message = why_not(path)

    assert message.startswith(f"{path}:3: ")
    assert says in message
    assert len(message) < len(str(path)) + 200


@pytest.mark.parametrize("kind", [".txt", ".tsv", ".csv", ".jsonl"])
def test_the_error_of_invalid_utf8_has_the_line_number(kind: str, tmp_path: Path) -> None:
    path = file_of(["good"] * 2000, tmp_path, kind)
    lines = path.read_bytes().splitlines(keepends=True)
    written(path, b"".join([*lines[:1500], lines[1500].replace(b"good", b"caf\xe9"), *lines[1501:]]))

    assert why_not(path).startswith(f"{path}:1501: not UTF-8")


def test_texts_before_a_bad_line_are_given(tmp_path: Path) -> None:
    texts = read_texts(written(tmp_path / "a.txt", b"good\n\xff\n"))

    assert next(texts) == "good"
    with pytest.raises(BadFile):
        next(texts)


def test_an_unquoted_carriage_return_in_a_csv_is_an_error_and_not_two_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,id\ngood,1\ngood\rfilm,2\n")

    assert why_not(path).startswith(f"{path}:3: ")


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.txt.gz", "a.TXT"])
def test_the_error_of_an_unknown_file_type_lists_the_readable_ones(name: str, tmp_path: Path) -> None:
    message = why_not(written(tmp_path / name, "good\n"))

    assert message.startswith(f"{tmp_path / name}: the file type must be one of ")
    assert ".txt, .tsv, .csv, .jsonl, .parquet" in message


@pytest.mark.parametrize("kind", READABLE)
def test_the_error_of_a_missing_file_has_its_name(kind: str, tmp_path: Path) -> None:
    message = why_not(tmp_path / f"nosuch{kind}")

    assert message.startswith(f"{tmp_path}/nosuch{kind}: ")
    assert "No such file" in message


@pytest.mark.parametrize("damage", ["empty", "no-parquet", "cut", "changed"])
def test_the_error_of_a_damaged_parquet_has_its_name(damage: str, tmp_path: Path) -> None:
    path = file_of([f"{number} film" for number in range(1000)], tmp_path, ".parquet")
    whole = path.read_bytes()
    half = len(whole) // 2
    changed = whole[:100] + b"\xff" * half + whole[100 + half :]
    written(path, {"empty": b"", "no-parquet": b"text\n" * 100, "cut": whole[:half], "changed": changed}[damage])

    assert why_not(path).startswith(f"{path}: ")


@pytest.mark.parametrize("values", [[1, 2], [1.5], [b"good"], [["good"]], [True]], ids=["int", "float", "bytes", "list", "bool"])
def test_a_parquet_column_that_holds_no_strings_is_refused(values: list[object], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": values}), path)

    assert f"{path}: 'text': expected a string, got a {type(values[0]).__name__}" in why_not(path)


def test_reading_a_parquet_without_the_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(FOUND, tmp_path, ".parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    assert "sentiment-service[parquet]" in why_not(path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 MB: a line "text" and many lines of 1,000 characters."""
    return written(tmp_path_factory.mktemp("large") / "large", b"text\n" + (b"x" * 999 + b"\n") * 50_000)


@pytest.mark.parametrize("kind", [".txt", ".tsv", ".csv"])
def test_a_large_file_is_read_in_bounded_memory(kind: str, large: Path, tmp_path: Path) -> None:
    path = tmp_path / f"large{kind}"
    path.hardlink_to(large)
    texts = read_texts(path)

    tracemalloc.start()
    try:
        read = sum(len(text) for _, text in zip(range(5000), texts, strict=False))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert read >= 5000 * 999 - 1000
    assert peak < 2**20


def test_nothing_is_read_before_the_first_text_is_requested(tmp_path: Path) -> None:
    texts = read_texts(tmp_path / "a.txt")
    written(tmp_path / "a.txt", "good\n")

    assert next(texts) == "good"


class Full(io.BytesIO):
    """A stream whose disk is full at a given step."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step = step

    def _refuse(self, step: str) -> None:
        if step == self._step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, block: object) -> int:
        self._refuse("write")
        return 1

    def flush(self) -> None:
        self._refuse("flush")

    def close(self) -> None:
        if not self.closed:
            # Closed all the same, as a file is.
            super().close()
            self._refuse("close")


def test_lines_get_their_final_name_only_when_complete(tmp_path: Path) -> None:
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"

    with LineOutput(path) as output:
        output.write("one")
        before = (path.exists(), part.exists())
        output.complete()

    assert before == (False, True)
    assert (path.read_text(), part.exists()) == ("one\n", False)


def test_lines_that_were_not_completed_stay_in_the_part(tmp_path: Path) -> None:
    path, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"

    with pytest.raises(KeyboardInterrupt), LineOutput(path) as output:
        output.write("one")
        raise KeyboardInterrupt

    assert (path.exists(), part.read_text()) == (False, "one\n")


@pytest.mark.parametrize(
    ("left", "lines", "kept"),
    [
        (b"", 0, b""),
        (b"one\ntwo\n", 2, b"one\ntwo\n"),
        (b"one\nhal", 1, b"one\n"),
        (b"hal", 0, b""),
        (b"caf\xc3", 0, b""),
        (b"x" * 2**20 + b"\n" + b"y" * 2**21, 1, b"x" * 2**20 + b"\n"),
        (b"x" * (2**20 - 1) + b"\n", 1, b"x" * (2**20 - 1) + b"\n"),
    ],
    ids=["empty", "whole", "half", "only-half", "half-character", "beyond-a-block", "a-block"],
)
def test_an_interrupted_output_is_continued_after_its_last_whole_line(left: bytes, lines: int, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(tmp_path / "out.jsonl.part", left)

    with LineOutput(path) as output:
        found = output.lines
        output.write("next")
        output.complete()

    assert found == lines
    assert path.read_bytes() == kept + b"next\n"


def test_an_output_that_exists_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "out.jsonl", "mine\n")

    with pytest.raises(BadFile, match="exists already; delete it or choose another output"):
        LineOutput(path)

    assert path.read_text() == "mine\n"
    assert not (tmp_path / "out.jsonl.part").exists()


def test_an_output_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"out\.jsonl\.part: cannot be written: No such file or directory"):
        LineOutput(tmp_path / "nosuch" / "out.jsonl")


@pytest.mark.parametrize("name", [".", "", "x" * 300])
def test_an_invalid_file_name_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile):
        LineOutput(Path(name) if len(name) < 2 else tmp_path / name)


def test_an_output_without_a_line_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), LineOutput(tmp_path / "out.jsonl") as output:
        output.begin({"column": "text"})
        raise KeyError

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["write", "flush", "close"])
def test_a_full_disk_says_how_to_continue(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = LineOutput(tmp_path / "out.jsonl")
    output._stream.close()
    monkeypatch.setattr(output, "_stream", Full(step))

    with pytest.raises(BadFile) as caught, output:
        output.write("one")
        if step == "flush":
            output.complete()

    assert str(caught.value).startswith(f"{tmp_path}/out.jsonl.part: cannot be ")
    assert str(caught.value).endswith("No space left on device; repeat the command to continue")


FILL = """
import resource, sys
from pathlib import Path
from sentiment.files.errors import BadFile
from sentiment.files.output import new_file
from sentiment.files.texts import LineOutput

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    with LineOutput(Path(sys.argv[1])) as output:
        for number in range(10_000):
            output.write(f"line {number} of many")
        output.complete()
except BadFile as error:
    print(error)
"""


def test_an_output_that_filled_the_disk_is_continued_to_the_same_file(tmp_path: Path) -> None:
    """A real limit of the file size, in a process of its own."""
    path, whole = tmp_path / "out.jsonl", [f"line {number} of many" for number in range(10_000)]

    said = subprocess.run([sys.executable, "-c", FILL, path], capture_output=True, text=True, timeout=30, check=True).stdout
    with LineOutput(path) as output:
        done = output.lines
        for line in whole[done:]:
            output.write(line)
        output.complete()

    assert said.endswith("repeat the command to continue\n")
    assert 4000 < done < 10_000
    assert path.read_text().splitlines() == whole
