"""Finding devices: the selection, the errors, and the calls of the driver."""

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sentiment.errors import BadSettings, NoDevice
from sentiment.model.gpu import devices, nvml
from sentiment.model.gpu.devices import CPU, CUDA, Device, find_devices, pin_for_cuda, visible_gpus

GPUS = [Device("cuda:0", 0, CUDA, "NVIDIA H200", "u0"), Device("cuda:1", 1, CUDA, "NVIDIA H200", "u1")]


def works(device: Device) -> None:
    return


def works_not(*names: str) -> Callable[[Device], None]:
    def prove(device: Device) -> None:
        if device.name in names:
            raise NoDevice("no kernel image")

    return prove


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: GPUS)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Device]:
        raise NoDevice("no NVIDIA driver: libcuda.so.1 is missing")

    monkeypatch.setattr(devices, "visible_gpus", fail)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [("auto", "cuda:0 cuda:1"), ("cuda", "cuda:0 cuda:1"), ("cuda:1", "cuda:1"), ("cuda:1,cuda:0", "cuda:1 cuda:0"), ("cpu", "cpu")],
)
def test_named_devices_are_found_in_their_order(two_gpus: None, wanted: str, names: str) -> None:
    found = find_devices(wanted, works)

    assert [device.name for device in found.devices] == names.split()
    assert found.not_cuda == ""


def test_auto_skips_a_broken_gpu_and_gives_the_reason(two_gpus: None) -> None:
    found = find_devices("auto", works_not("cuda:0"))

    assert found.devices == (GPUS[1],)
    assert found.not_cuda == "cuda:0 does not work: no kernel image"


def test_auto_uses_the_most_frequent_gpu_model_and_names_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Device("cuda:2", 2, CUDA, "NVIDIA T4", "u2")
    monkeypatch.setattr(devices, "visible_gpus", lambda: [small, *GPUS])

    assert find_devices("auto", works) == devices.Found(tuple(GPUS), "cuda:2 is a NVIDIA T4, not a NVIDIA H200")
    # A tie: the model of the first GPU.
    assert find_devices("auto", works_not("cuda:1")).devices == (small,)
    # Named GPUs may be of different models.
    assert find_devices("cuda", works).devices == (small, *GPUS)


def test_auto_uses_the_cpu_if_no_gpu_works_and_gives_the_reason(two_gpus: None) -> None:
    found = find_devices("auto", works_not("cuda:0", "cuda:1"))

    assert found.devices == (CPU,)
    assert found.not_cuda == "cuda:0 does not work: no kernel image; cuda:1 does not work: no kernel image"


def test_auto_uses_the_cpu_without_a_driver_and_gives_the_reason(no_gpu: None) -> None:
    found = find_devices("auto", works)

    assert found.devices == (CPU,)
    assert "no NVIDIA driver" in found.not_cuda


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0"])
def test_a_named_gpu_without_a_driver_is_an_error(no_gpu: None, wanted: str) -> None:
    with pytest.raises(BadSettings, match=f"device = {wanted}: no NVIDIA driver"):
        find_devices(wanted, works)


def test_the_error_of_a_missing_gpu_lists_the_devices(two_gpus: None) -> None:
    with pytest.raises(BadSettings, match=r"device = cuda:1,cuda:3: this machine has no cuda:3; it has cpu, cuda:0, cuda:1"):
        find_devices("cuda:1,cuda:3", works)


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0,cuda:1"])
def test_a_named_gpu_that_does_not_work_is_an_error(two_gpus: None, wanted: str) -> None:
    with pytest.raises(BadSettings, match="cuda:1 does not work: no kernel image"):
        find_devices(wanted, works_not("cuda:1"))


def test_a_device_cannot_be_named_twice(two_gpus: None) -> None:
    with pytest.raises(BadSettings, match="a device is listed twice"):
        find_devices("cuda:0,cuda:0", works)


class FakeDriver:
    """libcuda with GPUs that have a name and a UUID of 16 equal bytes; ``fails`` maps a function to its code."""

    def __init__(self, gpus: int = 2, lacks: Sequence[str] = (), cuda: int = 13_000, **fails: int) -> None:
        self.gpus, self.lacks, self.cuda, self.fails = gpus, lacks, cuda, fails
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.lacks:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            code = self.fails.get(name, 0)
            if not code and hasattr(FakeDriver, f"do_{name}"):
                getattr(self, f"do_{name}")(*arguments)
            return code

        return call

    def do_cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802  # the driver's name
        version._obj.value = self.cuda

    def do_cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802  # the driver's name
        count._obj.value = self.gpus

    def do_cuDeviceGet(self, handle: Any, index: int) -> None:  # noqa: N802  # as above
        handle._obj.value = index + 10

    def do_cuDeviceGetName(self, name: Any, size: int, handle: Any) -> None:  # noqa: N802  # as above
        name.value = f"GPU {handle.value}".encode()

    def do_cuDeviceGetUuid_v2(self, number: Any, handle: Any) -> None:  # noqa: N802  # as above
        number._obj[:] = bytes([handle.value]) * 16

    def do_cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> None:  # noqa: N802  # as above
        value._obj.value = {75: 9, 76: 5}[attribute]

    def do_cuGetErrorName(self, code: int, name: Any) -> None:  # noqa: N802  # as above
        name._obj.value = b"CUDA_ERROR_NO_DEVICE"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDriver]:
    def make(**arguments: Any) -> FakeDriver:
        made = FakeDriver(**arguments)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
        return made

    return make


def test_each_gpu_has_its_name_uuid_and_capability_from_the_driver(driver: Callable[..., FakeDriver]) -> None:
    driver()

    found = visible_gpus()

    assert [(device.name, device.index, device.model) for device in found] == [("cuda:0", 0, "GPU 10"), ("cuda:1", 1, "GPU 11")]
    assert found[0].uuid == "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a"
    assert found[0].accelerator is CUDA
    assert found[0].capability == (9, 5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cuInit": 100}, r"the NVIDIA driver's cuInit failed: CUDA_ERROR_NO_DEVICE \(100\)"),
        ({"gpus": 0}, "the NVIDIA driver lists no GPU"),
        ({"cuDeviceGetUuid_v2": 3}, "the NVIDIA driver's cuDeviceGetUuid_v2 failed"),
        ({"lacks": ["cuDeviceGetUuid_v2"]}, "the NVIDIA driver is too old: it has no cuDeviceGetUuid_v2"),
    ],
)
def test_a_driver_that_fails_or_lists_no_gpu_means_no_device(
    driver: Callable[..., FakeDriver], arguments: dict[str, Any], says: str
) -> None:
    driver(**arguments)

    with pytest.raises(NoDevice, match=says):
        visible_gpus()


@pytest.mark.parametrize(("file", "named"), [("Kernel Module  570.86.15  Thu Jan 23 2025", " 570.86.15"), ("odd", ""), (None, "")])
def test_a_driver_too_old_for_the_wheel_is_refused_by_its_version(
    driver: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str | None, named: str
) -> None:
    monkeypatch.setattr(devices, "_DRIVER_VERSION", tmp_path / "version")
    if file is not None:
        (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 {file}")
    driver(cuda=12_080)

    wanted = f"the NVIDIA driver{named} supports CUDA 12.8, but onnxruntime-gpu needs CUDA 13.0: install driver 580 or later, or set device"
    with pytest.raises(BadSettings, match=f"device = cuda:0: {re.escape(wanted)} = cpu"):
        find_devices("cuda:0", works)
    assert find_devices("auto", works).not_cuda.startswith(wanted)


def test_a_machine_without_a_driver_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVER", "libnosuch.so.1")

    with pytest.raises(NoDevice, match="no NVIDIA driver: libnosuch"):
        visible_gpus()


def test_memory_is_pinned_in_the_devices_context_which_is_then_popped(driver: Callable[..., FakeDriver]) -> None:
    made = driver()

    assert pin_for_cuda(0x1000, 4096, 1)

    names = [name for name, _ in made.calls]
    assert names == ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemHostRegister_v2", "cuCtxPopCurrent_v2"]
    address, size, _ = made.calls[3][1]
    assert (address.value, size.value) == (0x1000, 4096)


@pytest.mark.parametrize("function", ["cuInit", "cuDevicePrimaryCtxRetain", "cuMemHostRegister_v2"])
def test_memory_that_cannot_be_pinned_is_not_an_error(driver: Callable[..., FakeDriver], function: str) -> None:
    made = driver(**{function: 2})

    assert not pin_for_cuda(0x1000, 4096, 0)

    names = [name for name, _ in made.calls]
    assert names.count("cuCtxPushCurrent_v2") == names.count("cuCtxPopCurrent_v2")


class NVMLError(Exception):
    pass


class FakeNvml:
    """nvidia-ml-py, with one GPU of the uuid u0 and a part of one of the uuid u1."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.gone = False

    def nvmlInit(self) -> None:  # noqa: N802  # the library's name
        if self.gone:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802  # as above
        if name not in ("GPU-u0", "MIG-u1"):
            raise NVMLError
        return name

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802  # as above
        if self.gone:
            raise NVMLError
        return type("Memory", (), {"used": 5 * 2**30})

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802  # as above
        return type("Rates", (), {"gpu": 42})


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    return fake


def test_each_gpu_that_is_known_by_its_uuid_has_a_meter(library: FakeNvml) -> None:
    found = nvml.meters([*GPUS, Device("cuda:2", 2, CUDA, "", "u2"), CPU])

    assert list(found) == ["cuda:0", "cuda:1"]
    assert found["cuda:0"].memory_bytes() == 5 * 2**30
    assert found["cuda:0"].busy_ratio() == 0.42


def test_the_meter_of_a_lost_gpu_reads_nan(library: FakeNvml) -> None:
    meter = nvml.meters(GPUS)["cuda:0"]
    library.gone = True
    meter.read()

    assert meter.memory_bytes() != meter.memory_bytes()


def test_without_a_working_library_there_are_no_meters(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    library.gone = True
    assert nvml.meters(GPUS) == {}

    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.meters(GPUS) == {}
