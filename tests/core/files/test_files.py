"""Texts from files and answers to files: formats, errors of damaged files, and interrupted outputs."""

import errno
import io
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from sentiment.files.errors import BadFile
from sentiment.files.line_output import LineOutput
from sentiment.files.reading import read_texts


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


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
from sentiment.files.line_output import LineOutput

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
