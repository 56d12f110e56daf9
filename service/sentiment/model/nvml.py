"""What the NVIDIA management library says of the GPUs that are served on; nothing where nvidia-ml-py is not installed."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sentiment.model.devices import Device

# A driver in trouble may take seconds to answer: meters are read so often by a thread of their own, and scraped without waiting.
EVERY_S = 1.0


class Meter:
    """One GPU's memory and utilisation as they were last read. NaN where it cannot be read, as of a GPU that has gone."""

    def __init__(self, library: Any, handle: Any) -> None:  # Any: nvidia-ml-py has no types
        self._library, self._handle = library, handle
        self.read()

    def read(self) -> None:
        """Ask the library."""
        self._memory = self._read(lambda: self._library.nvmlDeviceGetMemoryInfo(self._handle).used)
        self._busy = self._read(lambda: self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)

    def memory_bytes(self) -> float:
        """Bytes that are taken of its memory, by whomever."""
        return self._memory

    def busy_ratio(self) -> float:
        """Part of the driver's last sampling period (a sixth of a second to one) in which a kernel ran, 0 to 1."""
        return self._busy

    def _read(self, read: Callable[[], float]) -> float:
        try:
            return float(read())
        except self._library.NVMLError:
            return math.nan


def meters(devices: Sequence[Device]) -> dict[str, Meter]:
    """A meter for each device that NVML knows, by the device's name, read again and again until the process ends. May block."""
    found = _find(devices)
    if found:
        threading.Thread(target=_keep_reading, args=(tuple(found.values()),), name="meters", daemon=True).start()
    return found


def _keep_reading(found: Sequence[Meter]) -> None:
    while True:
        time.sleep(EVERY_S)
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
            # A part of a GPU has a UUID of its own kind.
            for kind in ("GPU", "MIG") if device.uuid else ():
                try:
                    found[device.name] = Meter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{device.uuid}"))
                    break
                except pynvml.NVMLError:
                    continue
    except pynvml.NVMLError:
        return {}
    return found
