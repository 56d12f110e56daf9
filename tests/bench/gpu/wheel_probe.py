"""``python -m tests.bench.gpu.wheel_probe WHEEL``: whether a wheel of onnxruntime-gpu still is what the service takes it for.

Reads the machine code and the names of options and libraries in the file; needs no GPU and installs nothing. Run it before you change
``gpu_wheel.TESTED``. Exit status 1 if something differs.
"""

import argparse
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentiment.model.gpu.devices import CUDA
from sentiment.model.gpu.wheel import CAPABILITIES, CUDA_MIN, TESTED, wheel_refused

# In the wheel.
CORE, KERNELS = "onnxruntime/capi/libonnxruntime.so.{version}", "onnxruntime/capi/libonnxruntime_providers_cuda.so"
# A fat binary: a header, and entries of machine code or PTX, each for one GPU.
_FATBIN, _HEADER = 0xBA55ED50, struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
_PTX, _MACHINE_CODE = 1, 2
# Widths of an attention head for which flash attention in fp16 must exist: MiniLM's and BERT's.
HEADS = (32, 64)
OPTIONS = (*CUDA.options, *(value for value in CUDA.options.values() if value.isalpha()), "gpu_mem_limit", "enable_cuda_graph")
RUN_OPTIONS = ("gpu_graph_id", "ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV")
OPERATORS = ("PackedMultiHeadAttention", "EmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu", "Attention")


@dataclass(frozen=True, slots=True)
class Checked:
    """A fact of the wheel, and whether it is as the service needs it."""

    as_needed: bool
    says: str


def probe(wheel: Path) -> Iterator[Checked]:
    """Read a wheel's facts.

    Raises:
        OSError, zipfile.BadZipFile, KeyError: the file is not a wheel of onnxruntime-gpu for Linux.
    """
    version = wheel.name.split("-")[1]
    refused = wheel_refused(version)
    yield Checked(not refused, f"version {version}{f', not in TESTED = {TESTED}' if refused else ''}")
    with zipfile.ZipFile(wheel) as files:
        kernels, core = files.read(KERNELS), files.read(CORE.format(version=version))
    found = set(machine_code(kernels))
    capabilities = tuple(sorted(divmod(number, 10) for kind, number in found if kind == _MACHINE_CODE))
    yield Checked(capabilities == CAPABILITIES, f"machine code for {capabilities}; gpu_wheel.CAPABILITIES = {CAPABILITIES}")
    ptx = sorted(number for kind, number in found if kind == _PTX)
    yield Checked(not ptx, f"PTX for {ptx or 'none'}; with it later GPUs need not be refused")
    cuda = sorted(set(map(int, re.findall(rb"libcublasLt\.so\.(\d+)", kernels))))
    yield Checked(cuda == [CUDA_MIN[0]], f"CUDA {cuda}; gpu_wheel.CUDA_MIN = {CUDA_MIN}")
    heads = set(map(int, re.findall(rb"flash_fwd_hdim(\d+)_fp16_sm80", kernels)))
    yield Checked(heads.issuperset(HEADS), f"flash attention in fp16 for heads of {sorted(heads)}; needed: {HEADS}")
    missing = [name for name in (*OPTIONS, *OPERATORS, *RUN_OPTIONS) if name.encode() not in kernels and name.encode() not in core]
    yield Checked(not missing, f"names of options and operators that are missing: {', '.join(missing) or 'none'}")


def machine_code(library: bytes) -> Iterator[tuple[int, int]]:
    """The kind (1: PTX, 2: machine code) and the GPU of each entry, as ten times the major capability plus the minor one."""
    place = library.find(struct.pack("<I", _FATBIN))
    while place >= 0:
        _, version, header, size = _HEADER.unpack_from(library, place)
        entry = end = place + 4
        if version == 1 and header == _HEADER.size:
            entry, end = place + header, place + header + size
        while entry < end - _ENTRY.size:
            kind, _, own, content, *_, number = _ENTRY.unpack_from(library, entry)
            yield kind, number
            entry += own + content
        place = library.find(struct.pack("<I", _FATBIN), end)


def main() -> int:
    """Print each fact; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu.wheel_probe", description=__doc__)
    parser.add_argument("wheel", type=Path, help="pip download --no-deps onnxruntime-gpu")
    wheel = parser.parse_args().wheel
    try:
        facts = list(probe(wheel))
    except (OSError, zipfile.BadZipFile, KeyError, IndexError) as error:
        print(f"error: {wheel}: no wheel of onnxruntime-gpu for Linux: {error}", file=sys.stderr)
        return 2
    for fact in facts:
        print(f"{'ok     ' if fact.as_needed else 'DIFFERS'} {fact.says}")
    return 0 if all(fact.as_needed for fact in facts) else 1


if __name__ == "__main__":
    sys.exit(main())
