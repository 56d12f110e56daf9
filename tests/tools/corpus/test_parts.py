"""Cutting a corpus and reading its parts. Each row is in exactly one part, for any step size; a malformed row does not affect others."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow
import pytest
from pyarrow import parquet

from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading
from sentiment.files.rows import Unread
from sentiment_tools.corpus.parts import PARTS_MAX, cut
from sentiment_tools.corpus.reading import LINE_BYTES_MAX, Text, read_part
from sentiment_tools.corpus.sources import find_sources, resolve, uri_of
from tests.tools.corpus.files import KINDS, make_texts, write


def read(path: Path | str, step: int = 2**20, column: str = "text", beside: Mapping[str, str] = MappingProxyType({})) -> list[Text]:
    parts = cut(find_sources(str(path)), Reading(column), beside, step)
    return [text for part in parts for chunk in read_part(part, Reading(column), beside) for text in chunk.texts]


def why_not(path: Path | str, **arguments: object) -> str:
    with pytest.raises(BadFile) as caught:
        read(path, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_in_one_part_whatever_the_step(kind: str, end: str, tmp_path: Path) -> None:
    texts = make_texts(60)
    path = write(tmp_path / f"a{kind}", texts, end)

    found = {step: read(path, step) for step in (1, 2, 3, 5, 8, 13, 31, 64, 999, 2**20)}

    assert {step: texts_of for step, texts_of in found.items() if texts_of != texts} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_file_has_several_parts(kind: str, tmp_path: Path) -> None:
    texts = make_texts(5000)
    path = write(tmp_path / f"a{kind}", texts)

    parts = cut(find_sources(str(path)), Reading(), {}, 20_000)

    assert len(parts) > 5
    assert len({part.name for part in parts}) == len(parts)
    assert sorted(part.name for part in parts) == [part.name for part in parts]
    assert [(one.end, one.number) for one in parts[:-1]] == [(other.start, other.number) for other in parts[1:]]
    assert read(path, 20_000) == texts


def test_a_record_of_csv_may_have_many_lines(tmp_path: Path) -> None:
    texts = [f'line {number}\r\n\n"quoted", and more\n' for number in range(200)]
    path = write(tmp_path / "a.csv", texts)

    assert read(path, 64) == texts


def test_a_position_is_the_byte_at_which_a_line_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", make_texts(50))
    content = path.read_bytes()

    places = [
        place for part in cut(find_sources(str(path)), Reading(), {}, 100) for c in read_part(part, Reading(), {}) for place in c.positions
    ]

    assert places == [0, *(i + 1 for i, byte in enumerate(content[:-1]) if byte == 10)]


def test_a_parquet_string_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    raw = pyarrow.array([b"good", b"b\xff", None], pyarrow.binary())
    strings = pyarrow.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    parquet.write_table(pyarrow.table({"text": strings}), tmp_path / "a.parquet")

    assert read(tmp_path / "a.parquet") == ["good", Unread("is not UTF-8"), Unread("'text' is missing")]


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())])
def test_strings_of_every_arrow_kind_are_read(kind: pyarrow.DataType, tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": pyarrow.array(["good", "bad", "good"]).cast(kind)}), tmp_path / "a.parquet")

    assert read(tmp_path / "a.parquet") == ["good", "bad", "good"]


@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_a_line_without_end_is_a_bad_row_and_not_held_in_memory(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{kind}", ["good"])
    with path.open("ab") as stream:
        stream.truncate(4 * LINE_BYTES_MAX)
        stream.seek(0, 2)
        stream.write(b"\n" + path.read_bytes().splitlines()[0] + b"\n")

    assert read(path, 2**30) == ["good", Unread(f"the line has more than {LINE_BYTES_MAX} bytes"), "good"]


@pytest.mark.parametrize("step", [1, 2**20])
def test_a_quote_that_is_not_closed_makes_the_rest_of_the_file_one_bad_row(step: int, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"good\n2,bad\n')
    (tmp_path / "b.csv").write_bytes(b'id,text\n1,"good\n2,bad\n3,"x"\n4,good\n')

    (whole,) = read(tmp_path / "a.csv")
    (rest,) = read(tmp_path / "b.csv", step)

    assert isinstance(whole, Unread)
    assert whole.reason.endswith("covers 2 lines, to the end of the file")
    assert isinstance(rest, Unread)
    assert rest.reason.endswith("covers 4 lines, to the end of the file")


@pytest.mark.parametrize("begin", [b"2,", b'2,"\n'])
def test_a_line_of_csv_without_end_is_a_bad_row_and_not_held_in_memory(begin: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["good"])
    with path.open("ab") as stream:
        stream.write(begin)
        stream.truncate(4 * LINE_BYTES_MAX)
        stream.seek(0, 2)
        stream.write(b"\n3,bad\n4,good\n")

    for step in (2**30, 2**20):
        good, long, *others = read(path, step)

        assert good == "good"
        assert isinstance(long, Unread)
        # In a quoted field, nothing tells where the next row begins.
        assert others == ([] if b'"' in begin else ["bad", "good"])


def test_too_many_parts_are_refused_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write(tmp_path / "a.txt", ["good"]).open("ab") as stream:
        stream.truncate(PARTS_MAX + 1)
    sources = find_sources(str(tmp_path))
    monkeypatch.setattr("sentiment_tools.corpus.parts._cut", None)

    with pytest.raises(BadFile, match=f"the corpus has {PARTS_MAX + 1} parts; the limit is {PARTS_MAX}"):
        cut(sources, Reading(), {}, 1)


def test_a_column_with_a_dot_in_its_name_has_its_size(tmp_path: Path) -> None:
    nested = [{"x": "good " * 9}] * 1000
    table = pyarrow.table({"a.text": make_texts(1000), "a": nested, "a.text2": make_texts(1000)})
    parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    group = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0)

    (part,) = cut(find_sources(str(tmp_path)), Reading("a.text"), {}, 2**20)
    (kept,) = cut(find_sources(str(tmp_path)), Reading("a.text2"), {"a": "--keep"}, 2**30)

    assert part.bytes == group.column(0).total_uncompressed_size
    assert kept.bytes >= group.column(1).total_uncompressed_size + group.column(2).total_uncompressed_size


def test_a_uri_that_workers_cannot_open_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "good\n")

    assert "workers cannot open it as" in why_not(f"zip://*.txt::file://{tmp_path}/a.zip")
    assert "webhdfs:///x" in why_not("webhdfs:///x")
    fs, path = resolve("webhdfs://user@nn:9870/x/a.csv")
    with pytest.raises(BadFile, match=r"workers cannot open it as webhdfs:///x/a\.csv"):
        uri_of(fs, path, "webhdfs://user@nn:9870/x")


def test_a_folder_is_read_recursively_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/_temporary/3.txt", "b/.4.txt", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, [name])

    assert read(tmp_path) == ["a.txt", "b/2.txt"]
    assert read(f"{tmp_path}/?/2*.txt") == ["b/2.txt"]
    assert read(f"file://{tmp_path}/a.txt") == ["a.txt"]


def test_a_file_that_cannot_be_read_is_reported_and_not_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", ["good"])
    write(tmp_path / "b.gz", ["good"])

    assert "b.gz: the suffix must be one of .txt" in why_not(tmp_path)
    assert "no files found" in why_not(f"{tmp_path}/*.csv")
    assert "cannot be read" in why_not(tmp_path / "nowhere.csv")
    assert "nosuch://x" in why_not("nosuch://x")


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet"])
def test_a_missing_column_is_reported_before_anything_is_read(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{kind}", ["good"])

    assert "no column 'review'" in why_not(path, column="review")
    for option in ("--keep", "--targets-column"):
        assert re.search(rf"no column 'key'.*\(choose with {option}, or", why_not(path, beside={"key": option}))


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".csv.gz"])
def test_a_file_of_no_bytes_has_no_rows(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"a{ending}").touch()
    write(tmp_path / "b.csv", ["good"])

    assert read(tmp_path) == ["good"]


@pytest.mark.parametrize(("ending", "content"), [(".csv", "id\n"), (".csv", "\n"), (".json", ""), (".parquet", "")])
def test_a_file_that_should_name_columns_and_does_not_is_reported(ending: str, content: str, tmp_path: Path) -> None:
    (tmp_path / f"a{ending}").write_text(content)

    assert f"a{ending}" in why_not(tmp_path)


def test_a_column_of_numbers_is_not_a_column_of_texts(tmp_path: Path) -> None:
    assert "column 'id' must hold strings, got int64" in why_not(write(tmp_path / "a.parquet", ["good"]), column="id")


def test_a_file_that_is_not_parquet_is_reported(tmp_path: Path) -> None:
    assert "not a Parquet file" in why_not(write(tmp_path / "a.txt", ["good"]).rename(tmp_path / "a.parquet"))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """One part of 300 MB, as a file of lines and as a single row group, read in less than that."""
    text = "good " * 20_000
    texts = pyarrow.array([f"w{number} {text}" for number in range(3000)], pyarrow.large_string())
    # Pages are read as a whole. Writers count them in rows, so that a default page would have 100 MB.
    parquet.write_table(
        pyarrow.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False, compression="none", write_batch_size=10
    )
    with (tmp_path / "a.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"text": f"w{number} {text}"}) + "\n" for number in range(3000))
    # From /proc, because getrusage's peak includes that of the parent before the fork.
    script = (
        "import re, sys; from tests.tools.corpus.test_parts import *\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024\n"
        "first = peak()\n"
        "parts = cut(find_sources(sys.argv[1]), Reading(), {}, 2**40)\n"
        "print(sum(len(chunk.texts) for part in parts for chunk in read_part(part, Reading(), {})), peak() - first)\n"
    )

    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=120, check=False)

        assert done.returncode == 0, done.stderr
        rows, grown_mb = map(int, done.stdout.split())
        assert rows == 3000
        assert 0 < grown_mb < 200
