"""The proto files: they pass the linter and the formatter, and do not break existing callers."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROTO = Path(__file__).parents[2] / "proto"
CONTRACT = "sentiment/v1/sentiment.proto"
OIP = "sentiment/oip/inference.proto"
pytestmark = pytest.mark.needs_tool("buf")


def buf(*arguments: str | Path) -> tuple[int, str]:
    """The exit code and the output."""
    ran = subprocess.run(["buf", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def breaks(proto: Path) -> tuple[int, str]:
    return buf("breaking", proto, "--against", PROTO / "contract.binpb")


def changed(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """A copy with something else in it."""
    copy = tmp_path / "proto"
    shutil.copytree(PROTO, copy)
    text = (copy / file).read_text()
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new))
    return copy


def test_the_linter_finds_nothing() -> None:
    assert buf("lint", PROTO) == (0, "")


def test_the_files_are_formatted() -> None:
    assert buf("format", "--diff", PROTO, "--path", PROTO / "sentiment") == (0, "")


def test_no_change_breaks_existing_callers() -> None:
    assert breaks(PROTO) == (0, "")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (CONTRACT, 'text_pair = 2;\n  // "name"', 'text_pair = 20;\n  // "name"'),
        (CONTRACT, "  rpc GetModel(GetModelRequest) returns (GetModelResponse);\n", ""),
        (OIP, "  bool live = 1;", "  int32 live = 1;"),
    ],
    ids=["renumbered", "removed", "of-another-type"],
)
def test_a_change_that_breaks_callers_is_found(tmp_path: Path, file: str, old: str, new: str) -> None:
    code, says = breaks(changed(tmp_path, file, old, new))

    assert code == 100
    assert Path(file).name in says


def test_an_addition_is_compatible(tmp_path: Path) -> None:
    assert breaks(changed(tmp_path, OIP, "  bool live = 1;", "  bool live = 1;\n  bool well = 2;")) == (0, "")
