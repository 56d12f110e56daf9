"""What the tested wheels of onnxruntime-gpu run on. Any other GPU, driver or wheel is refused by name before a model is loaded.

``python -m tests.bench.gpu.wheel_probe WHEEL`` reads these numbers from a wheel and shows the differences. Run it before you change TESTED.
"""

from collections.abc import Sequence

# The first tested release, and the first that is not.
TESTED = ((1, 31, 1), (1, 32))
# The compute capabilities of its machine code. It has no PTX, so nothing is compiled for another GPU when it is loaded.
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0))
# The version of CUDA that it is built for, and the first driver with it.
CUDA_MIN, DRIVER_MIN = (13, 0), "580"


def wheel_refused(version: str) -> str:
    """Why a release of onnxruntime-gpu is not used; empty if it is tested."""
    parts = tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())
    first, end = TESTED
    if first <= parts < end:
        return ""
    wanted = f"onnxruntime-gpu[cuda,cudnn]>={_dotted(first)},<{_dotted(end)}"
    return f"onnxruntime-gpu {version} was not tested; install a tested release (pip install '{wanted}'), or set device = cpu"


def gpu_refused(capability: tuple[int, int], model: str, version: str) -> str:
    """Why a GPU cannot run the wheel's kernels; empty if it can.

    Machine code runs on GPUs of the same major capability and of the same or a higher minor one.
    """
    major, minor = capability
    if any(major == built_major and minor >= built_minor for built_major, built_minor in CAPABILITIES):
        return ""
    return (
        f"onnxruntime-gpu {version} has no code for {model or 'a GPU'} of compute capability {_dotted(capability)}, only for "
        f"{', '.join(map(_dotted, CAPABILITIES))} and later ones of the same first number; use another GPU, or set device = cpu"
    )


def driver_refused(cuda: tuple[int, int], driver: str) -> str:
    """Why a driver cannot run the wheel; empty if it can. ``cuda``: the newest version that it supports; ``driver``: its own, or empty."""
    if cuda >= CUDA_MIN:
        return ""
    return (
        f"the NVIDIA driver{driver and f' {driver}'} supports CUDA {_dotted(cuda)}, but onnxruntime-gpu needs CUDA {_dotted(CUDA_MIN)}: "
        f"install driver {DRIVER_MIN} or later, or set device = cpu"
    )


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))
