"""Memory use and utilization of the GPUs, read from the NVIDIA management library. No readings without nvidia-ml-py."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sentiment.model.gpu.devices import Device

# A thread reads the meters at this interval, so that a scrape never waits: a faulty driver may take seconds to respond.
READ_INTERVAL_S = 1.0


class Meter:
    """The last readings of one GPU. NaN if they cannot be read, for example when the GPU is lost."""

    def __init__(self, library: Any, handle: Any) -> None:  # Any: nvidia-ml-py has no types
        self._library, self._handle = library, handle
        self.read()

    def read(self) -> None:
        """Read the values from the library."""
        self._memory = self._read(lambda: self._library.nvmlDeviceGetMemoryInfo(self._handle).used)
        self._busy = self._read(lambda: self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)

    def memory_bytes(self) -> float:
        """Bytes of device memory in use, by all processes."""
        return self._memory

    def busy_ratio(self) -> float:
        """Fraction of the driver's last sampling period (1/6 s to 1 s) in which a kernel ran, 0 to 1."""
        return self._busy

    def _read(self, read: Callable[[], float]) -> float:
        try:
            return float(read())
        except self._library.NVMLError:
            return math.nan


def meters(devices: Sequence[Device]) -> dict[str, Meter]:
    """A meter for each device that NVML knows, by device name. A thread reads them until the process ends. May block."""
    found = _find(devices)
    if found:
        threading.Thread(target=_keep_reading, args=(tuple(found.values()),), name="meters", daemon=True).start()
    return found


def _keep_reading(found: Sequence[Meter]) -> None:
    while True:
        time.sleep(READ_INTERVAL_S)
        for meter in found:
            meter.read()


def _find(devices: Sequence[Device]) -> dict[str, Meter]:
    try:
        import pynvml  # noqa: PLC0415  # only the gpu extra has it
    except ImportError:
        return {}
    found = {}
    try:
        pynvml.nvmlInit()
        for device in devices:
            # The UUID of a MIG partition has another prefix.
            for kind in ("GPU", "MIG") if device.uuid else ():
                try:
                    found[device.name] = Meter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{device.uuid}"))
                    break
                except pynvml.NVMLError:
                    continue
    except pynvml.NVMLError:
        return {}
    return found
