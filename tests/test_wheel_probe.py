"""What is read in a wheel of onnxruntime-gpu, in one with next to nothing in it."""

import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentiment.model.gpu_wheel import CAPABILITIES
from tests.bench.gpu import wheel_probe

FACTS = (
    b"libcublasLt.so.13 flash_fwd_hdim32_fp16_sm80_cu flash_fwd_hdim64_fp16_sm80_cu "
    + " ".join((*wheel_probe.OPTIONS, *wheel_probe.OPERATORS, *wheel_probe.RUN_OPTIONS)).encode()
)
PTX, MACHINE_CODE = 1, 2


def fat_binary(entries: Sequence[tuple[int, int]]) -> bytes:
    """Entries of a kind for a GPU, each with some content."""
    packed = b"".join(struct.pack("<HHIQIIHHI", kind, 0x101, 64, 24, 0, 64, 0, 1, gpu).ljust(64 + 24, b"\7") for kind, gpu in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(packed)) + packed


def save_wheel(folder: Path, version: str = "1.31.1", entries: Sequence[tuple[int, int]] = (), says: bytes = FACTS) -> Path:
    wheel = folder / f"onnxruntime_gpu-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    code = entries or [(MACHINE_CODE, 10 * major + minor) for major, minor in CAPABILITIES]
    with zipfile.ZipFile(wheel, "w") as files:
        # Two fat binaries, and the magic number somewhere else.
        magic = struct.pack("<I", 0xBA55ED50)
        files.writestr(wheel_probe.KERNELS, b"\0" * 100 + fat_binary(code[:2]) + says + magic + b"\0" * 99 + fat_binary(code[2:]) + b"end")
        files.writestr(wheel_probe.CORE.format(version=version), b"")
        files.writestr(wheel_probe.TENSORRT, b"libnvinfer.so.10\0libnvinfer.so.10")
    return wheel


def run(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["wheel_probe", str(wheel)])
    return wheel_probe.main()


def test_a_wheel_that_is_what_the_service_takes_it_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, save_wheel(tmp_path)) == 0

    assert "DIFFERS" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "1.33.0"}, "version 1.33.0, not in TESTED"),
        ({"entries": [(MACHINE_CODE, 90), (MACHINE_CODE, 100)]}, "machine code for ((9, 0), (10, 0)); gpu_wheel.CAPABILITIES = "),
        ({"entries": [*((MACHINE_CODE, 10 * a + b) for a, b in CAPABILITIES), (PTX, 120)]}, "PTX for [120]"),
        ({"says": FACTS.replace(b"so.13", b"so.14")}, "CUDA [14]; gpu_wheel.CUDA_MIN = (13, 0)"),
        ({"says": FACTS.replace(b"hdim32", b"hdim96")}, "flash attention in fp16 for heads of [64, 96]; needed: (32, 64)"),
        ({"says": FACTS.replace(b"use_tf32", b"use_tf19")}, "names of options and operators that are missing: use_tf32"),
    ],
)
def test_what_differs_is_shown_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, object], says: str
) -> None:
    assert run(monkeypatch, save_wheel(tmp_path, **changes)) == 1  # type: ignore[arg-type]  # each has the type of its parameter

    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]
    assert says in line


def test_another_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "onnxruntime-1.31.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    zipfile.ZipFile(other, "w").close()

    assert run(monkeypatch, other) == 2

    assert f"error: {other}: no wheel of onnxruntime-gpu for Linux: " in capsys.readouterr().err
