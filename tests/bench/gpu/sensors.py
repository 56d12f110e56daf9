"""The state of a GPU while it is measured: SM clock, power, temperature, and what holds the clock back. Read by nvidia-ml-py.

What cannot be read is null, with the reason. A thread reads, since a faulty driver may take seconds to respond.
"""

import importlib
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PERIOD_S = 0.2
# Eight minutes are 2,400 samples.
SAMPLES_MAX = 10_000
VALUES = ("sm_clock_mhz", "power_w", "temperature_c")
IDLE = 0x1
# The bits of NVML's clocks event reasons (docs.nvidia.com/deploy/nvml-api, nvmlClocksEventReasons).
REASONS = {
    IDLE: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock",
}


class NoSensors(Exception):
    """The GPU's sensors cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading; None for what cannot be read. ``reasons``: bits of REASONS."""

    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None


class Sensors:
    """Reads one GPU, by its UUID, in a thread of its own that ends with the process."""

    def __init__(self, uuid: str, library: Any = None) -> None:  # Any: nvidia-ml-py has no types
        """Find the GPU.

        Raises:
            NoSensors: nvidia-ml-py is not installed, or NVML does not know the GPU.
        """
        try:
            self._library = library or importlib.import_module("pynvml")
        except ImportError as error:
            raise NoSensors("nvidia-ml-py is not installed") from error
        self._handle = self._find(uuid)
        self.absent: dict[str, str] = {}
        self._samples: list[Sample] = []

    def _find(self, uuid: str) -> Any:  # Any: as above
        why = "the GPU has no UUID"
        try:
            self._library.nvmlInit()
            # The UUID of a MIG partition has another prefix.
            for kind in ("GPU", "MIG") if uuid else ():
                try:
                    return self._library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
                except self._library.NVMLError as error:
                    why = str(error)
        except self._library.NVMLError as error:
            why = str(error)
        raise NoSensors(f"NVML does not know the GPU: {why}")

    def start(self) -> None:
        """Read from now on."""
        threading.Thread(target=self._keep_reading, name="sensors", daemon=True).start()

    def _keep_reading(self) -> None:
        pause = threading.Event()
        while True:
            if len(self._samples) < SAMPLES_MAX:
                self._samples.append(self.read())
            pause.wait(PERIOD_S)

    def read(self) -> Sample:
        """Read once."""
        nvml, handle = self._library, self._handle
        return Sample(
            self._value("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            self._value("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            self._value("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            self._value("held_back", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        )

    def _value(self, name: str, read: Callable[[], Any]) -> Any:  # Any: a number, or None
        try:
            return read()
        except (self._library.NVMLError, AttributeError) as error:
            self.absent[name] = str(error)
            return None

    def take(self) -> dict[str, Any]:  # Any: JSON
        """The summary of the samples since the last call."""
        taken, self._samples = self._samples, []
        return summary(taken, self.absent)


def summary(samples: Sequence[Sample], absent: Mapping[str, str]) -> dict[str, Any]:  # Any: JSON
    """The least, median and greatest of each value, and the share of the samples with each reason.

    Samples of an idle GPU do not count: its clock is low because nothing runs.
    """
    at_work = [sample for sample in samples if not (sample.reasons or 0) & IDLE]
    found: dict[str, Any] = {"samples": len(samples), "at_work": len(at_work)}
    reasons = dict(absent)
    for name in VALUES:
        values = [value for sample in at_work if (value := getattr(sample, name)) is not None]
        found[name] = {"min": min(values), "median": statistics.median(values), "max": max(values)} if values else None
        if not values:
            reasons.setdefault(name, "the GPU was idle, or was not read")
    bits = [sample.reasons for sample in at_work if sample.reasons is not None]
    held = {name: sum(1 for each in bits if each & bit) / len(bits) for bit, name in REASONS.items() if any(each & bit for each in bits)}
    found["held_back"] = held if bits else None
    if not bits:
        reasons.setdefault("held_back", "the GPU was idle, or was not read")
    return {**found, "absent": reasons}


def line(name: str, seconds: float, found: Mapping[str, Any] | None) -> str:  # Any: JSON
    """One line of the table for a stage."""
    if found is None or not found["at_work"]:
        return f"{name:28}{seconds:6.0f} s"
    units = {"sm_clock_mhz": "MHz", "power_w": "W", "temperature_c": "C"}
    values = [f"{found[each]['min']:.0f}-{found[each]['max']:.0f} {unit}" for each, unit in units.items() if found[each]]
    held = [f"{reason} {share:.0%}" for reason, share in (found["held_back"] or {}).items()]
    return f"{name:28}{seconds:6.0f} s  {', '.join([*values, *held])}"
