"""Versions of the driver and of the CUDA libraries that this process has loaded. What is not known is None."""

import ctypes
import re
from pathlib import Path

_MAPS, _DRIVER = Path("/proc/self/maps"), Path("/proc/driver/nvidia/version")
# By name: the start of the file's name, and the function without arguments that returns the version.
_LIBRARIES = {"cublas": ("libcublasLt.so", "cublasLtGetVersion"), "cudnn": ("libcudnn.so", "cudnnGetVersion")}


def driver() -> dict[str, str | None]:
    """The version of the driver itself, and the newest version of CUDA that it supports."""
    found: dict[str, str | None] = {"driver": None, "cuda_driver": None}
    try:
        match = re.search(r"\b\d{3,}\.[\d.]+", _DRIVER.read_text())
        found["driver"] = match.group() if match else None
    except OSError:
        pass
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            found["cuda_driver"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    except (OSError, AttributeError):
        pass
    return found


def loaded(maps: Path = _MAPS) -> dict[str, str | None]:
    """The versions of cuBLAS and cuDNN as the loaded files say them, and where the files lie."""
    found: dict[str, str | None] = {}
    lines = maps.read_text(errors="replace").splitlines()
    files = list(dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6))
    for name, (start, function) in _LIBRARIES.items():
        file = next((file for file in files if Path(file).name.startswith(start)), None)
        found[name] = None if file is None else f"{_version(file, function)} ({file})"
    return found


def _version(file: str, function: str) -> str:
    try:
        call = getattr(ctypes.CDLL(file), function)
    except (OSError, AttributeError) as error:
        return str(error)
    call.restype = ctypes.c_size_t
    number = int(call())
    # Since version 9 of cuDNN and in all of cuBLAS: 91002 is 9.10.2.
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
