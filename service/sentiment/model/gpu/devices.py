"""The devices of this machine: the CPU, and the GPUs that the NVIDIA driver lists. ``device_session.prove`` tests whether one works."""

import ctypes
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sentiment.errors import BadSettings, NoDevice
from sentiment.model.gpu.wheel import driver_refused

# The driver lists only the GPUs that CUDA_VISIBLE_DEVICES allows.
_DRIVER = "libcuda.so.1"
# Where the kernel module says its version.
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
# CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of the process.
_PORTABLE = 1
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How ONNX Runtime uses one kind of device.

    Args:
        provider: the name of its execution provider.
        memory: the name of its memory in an OrtValue.
        options: of the provider; the device index and the memory limit are added to them.
        graphs: whether the provider can capture a run and replay it.
        pin: pins host memory (address, bytes, device index), so that the device can copy from it directly. Returns False on failure.
            Nothing unpins it: the memory must stay mapped as long as the process lives.
    """

    provider: str
    memory: str
    options: Mapping[str, str] = field(default_factory=dict)
    graphs: bool = False
    pin: Callable[[int, int, int], bool] | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device that batches may run on.

    Args:
        name: cpu, or cuda:N.
        index: N.
        accelerator: how ONNX Runtime uses it; None for the CPU.
        model: its product name.
        uuid: its UUID in the driver and in NVML.
        capability: its CUDA compute capability, major and minor.
    """

    name: str
    index: int = 0
    accelerator: Accelerator | None = None
    model: str = ""
    uuid: str = ""
    capability: tuple[int, int] = (0, 0)


CPU = Device("cpu")


@dataclass(frozen=True, slots=True)
class Found:
    """The devices to serve on. ``not_cuda``: why ``auto`` uses the CPU or only some of the GPUs; otherwise empty."""

    devices: tuple[Device, ...]
    not_cuda: str = ""


def find_devices(wanted: str, prove: Callable[[Device], None]) -> Found:
    """Find the devices that the setting ``device`` selects.

    Args:
        wanted: cpu; cuda (every GPU); a list of GPUs such as cuda:0,cuda:1; or auto. ``auto`` selects the working GPUs of one product,
            the one with the most GPUs, and the CPU if no GPU works.
        prove: runs a computation on a device; raises NoDevice if that fails.

    Raises:
        BadSettings: a GPU that the setting requires is missing or does not work.
    """
    if wanted == "cpu":
        return Found((CPU,))
    try:
        there = visible_gpus()
    except NoDevice as error:
        if wanted == "auto":
            return Found((CPU,), str(error))
        raise BadSettings(f"device = {wanted}: {error}") from error
    if wanted == "auto":
        broken = _broken(there, prove)
        working = [device for device in there if device.name not in broken]
        models = Counter(device.model for device in working)
        # All devices share one queue and one cost table, so they must be equally fast.
        model = max(models, key=models.__getitem__, default="")
        others = [f"{device.name} is a {device.model}, not a {model}" for device in working if device.model != model]
        taken = tuple(device for device in working if device.model == model)
        return Found(taken or (CPU,), "; ".join([*broken.values(), *others]))
    named = {device.name: device for device in there}
    names = list(named) if wanted == "cuda" else wanted.split(",")
    if len(set(names)) < len(names):
        raise BadSettings(f"device = {wanted}: a device is listed twice; list each device once")
    missing = [name for name in names if name not in named]
    if missing:
        raise BadSettings(f"device = {wanted}: this machine has no {', '.join(missing)}; it has cpu, {', '.join(named)}")
    chosen = tuple(named[name] for name in names)
    broken = _broken(chosen, prove)
    if broken:
        raise BadSettings(f"device = {wanted}: {'; '.join(broken.values())}")
    return Found(chosen)


def _broken(devices: Sequence[Device], prove: Callable[[Device], None]) -> dict[str, str]:
    """The devices that do not work, by name, and why."""
    reasons = {}
    for device in devices:
        try:
            prove(device)
        except NoDevice as error:
            reasons[device.name] = f"{device.name} does not work: {error}"
    return reasons


def visible_gpus() -> list[Device]:
    """The GPUs that the driver lists for this process, at least one.

    Raises:
        NoDevice: there is no driver, it does not initialize, it is too old for ONNX Runtime, or it lists no GPU.
    """
    driver = _driver()
    version = ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    # 13.1 is 13010.
    if reason := driver_refused(divmod(version.value // 10, 100), _driver_version()):
        raise NoDevice(reason)
    count = ctypes.c_int()
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise NoDevice("the NVIDIA driver lists no GPU")
    return [_gpu(driver, index) for index in range(count.value)]


def _gpu(driver: ctypes.CDLL, index: int) -> Device:
    handle, name, number = ctypes.c_int(), ctypes.create_string_buffer(128), (ctypes.c_ubyte * 16)()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDeviceGet", ctypes.byref(handle), index)
    _call(driver, "cuDeviceGetName", name, len(name), handle)
    _call(driver, "cuDeviceGetUuid_v2", ctypes.byref(number), handle)
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(major), _CAPABILITY_MAJOR, handle)
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(minor), _CAPABILITY_MINOR, handle)
    model, known_as = name.value.decode(errors="replace"), str(uuid.UUID(bytes=bytes(number)))
    return Device(f"cuda:{index}", index, CUDA, model, known_as, (major.value, minor.value))


def pin_for_cuda(address: int, size: int, index: int) -> bool:
    """Pin ``size`` bytes at a page-aligned ``address`` for the life of the process. Returns False if the driver refuses.

    Calls the driver directly: Python has no access to the pinned allocator of ONNX Runtime's CUDA provider.
    """
    context = ctypes.c_void_p()
    try:
        driver = _driver()
        _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
        _call(driver, "cuCtxPushCurrent_v2", context)
        try:
            _call(driver, "cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), _PORTABLE)
        finally:
            _call(driver, "cuCtxPopCurrent_v2", ctypes.byref(context))
    except NoDevice:
        return False
    return True


def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise NoDevice(f"no NVIDIA driver: {error}") from error
    _call(driver, "cuInit", 0)
    return driver


def _driver_version() -> str:
    """The version of the driver itself, such as 570.86.15; empty if it is not known."""
    try:
        found = re.search(r"\b\d{3,}\.[\d.]+", _DRIVER_VERSION.read_text())
    except OSError:
        return ""
    return found.group() if found else ""


def _call(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    try:
        code = getattr(driver, function)(*arguments)
    except AttributeError as error:
        raise NoDevice(f"the NVIDIA driver is too old: it has no {function}") from error
    if code:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        raise NoDevice(f"the NVIDIA driver's {function} failed: {(name.value or b'unknown error').decode()} ({code})")


CUDA = Accelerator(
    provider="CUDAExecutionProvider",
    memory="cuda",
    options={
        # The default doubles the arena at each step and so reserves memory that is never used.
        "arena_extend_strategy": "kSameAsRequested",
        # BERT has no convolutions, so a search for the best algorithm is wasted.
        "cudnn_conv_algo_search": "DEFAULT",
        # fp32 is served when fp16 is not accurate enough, so it must not be rounded to TF32.
        "use_tf32": "0",
    },
    graphs=True,
    pin=pin_for_cuda,
)
