"""Which devices there are: the CPU, and the GPUs that the NVIDIA driver shows. Whether one works is tried by ``device_session.prove``."""

import ctypes
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sentiment.errors import BadSettings, NoDevice

# CUDA_VISIBLE_DEVICES counts: the driver shows no others.
_DRIVER = "libcuda.so.1"
# CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of the process.
_PORTABLE = 1
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How ONNX Runtime is asked for a kind of device.

    Args:
        provider: its execution provider.
        memory: what its memory is called in an OrtValue.
        options: of the provider; the device's number and the memory limit are added.
        graphs: the provider can capture a run once and replay it.
        pin: makes host memory (address, bytes, device number) one that the device copies from by itself; False: it could not.
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
        accelerator: how ONNX Runtime is asked for it; None: it is the CPU.
        model: what its maker calls it.
        uuid: the driver's, by which NVML knows it too.
        capability: CUDA's compute capability, major and minor.
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
    """The devices to serve on. ``not_cuda`` says why ``auto`` takes the CPU, or not every GPU; else it is empty."""

    devices: tuple[Device, ...]
    not_cuda: str = ""


def find_devices(wanted: str, prove: Callable[[Device], None]) -> Found:
    """Find the devices that a setting names.

    Args:
        wanted: cpu, cuda (every GPU), GPUs such as cuda:0,cuda:1, or auto: those of one model that work, the most there are of one.
        prove: runs something on a device and raises NoDevice where that fails.

    Raises:
        BadSettings: a GPU that is asked for by name is not there or does not work.
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
        # One queue with one cost table is in front of all.
        model = max(models, key=models.__getitem__, default="")
        others = [f"{device.name} is a {device.model} beside a {model}" for device in working if device.model != model]
        taken = tuple(device for device in working if device.model == model)
        return Found(taken or (CPU,), "; ".join([*broken.values(), *others]))
    named = {device.name: device for device in there}
    names = list(named) if wanted == "cuda" else wanted.split(",")
    if len(set(names)) < len(names):
        raise BadSettings(f"device = {wanted}: names a device twice")
    missing = [name for name in names if name not in named]
    if missing:
        raise BadSettings(f"device = {wanted}: {', '.join(missing)} is not there; there are cpu, {', '.join(named)}")
    chosen = tuple(named[name] for name in names)
    broken = _broken(chosen, prove)
    if broken:
        raise BadSettings(f"device = {wanted}: {'; '.join(broken.values())}")
    return Found(chosen)


def _broken(devices: Sequence[Device], prove: Callable[[Device], None]) -> dict[str, str]:
    """Why devices do not work, by their names."""
    reasons = {}
    for device in devices:
        try:
            prove(device)
        except NoDevice as error:
            reasons[device.name] = f"{device.name} does not work: {error}"
    return reasons


def visible_gpus() -> list[Device]:
    """The GPUs that the driver shows this process, at least one.

    Raises:
        NoDevice: there is no driver, it does not start, or it shows no GPU.
    """
    driver = _driver()
    count = ctypes.c_int()
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise NoDevice("the NVIDIA driver shows no GPU")
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
    """Pin ``size`` bytes at a page's ``address`` for the life of the process; False where the driver will not.

    ONNX Runtime's own pinned allocator cannot be reached from Python for its CUDA provider, hence the driver's call.
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


def _call(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    try:
        code = getattr(driver, function)(*arguments)
    except AttributeError as error:
        raise NoDevice(f"the NVIDIA driver has no {function}; it is too old") from error
    if code:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        raise NoDevice(f"{function} of the NVIDIA driver fails with {(name.value or b'an unknown error').decode()} ({code})")


CUDA = Accelerator(
    provider="CUDAExecutionProvider",
    memory="cuda",
    options={
        # Doubling, the default, would take the memory of the next step that never comes.
        "arena_extend_strategy": "kSameAsRequested",
        # BERT has no convolution to search for.
        "cudnn_conv_algo_search": "DEFAULT",
        # fp32 is served where fp16 is off, and means fp32.
        "use_tf32": "0",
    },
    graphs=True,
    pin=pin_for_cuda,
)
