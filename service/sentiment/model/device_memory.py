"""Memory that a device computes in, and pinned memory of the host from which it copies. Knows neither rows nor graphs."""

import contextlib
import math
import mmap
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.model.devices import Accelerator, Device
from sentiment.observability.logs import logger

Bytes = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[np.generic]]

# Every array begins at a multiple of it, as what CUDA allocates does.
ALIGNMENT = 256
# Sizes are powers of two from here on, so that there are few.
LEAST_BYTES = 4096


class DeviceMemory:
    """What one session's batches are copied to and computed from, in the session's thread.

    For each size there is one piece, which stays where it is as long as the session lives: a captured run finds its inputs there. The
    arrays of a batch lie in it one behind the other, so that they are one copy.
    """

    def __init__(self, device: Device, accelerator: Accelerator) -> None:
        self._device = device
        self._accelerator = accelerator
        self._inputs: dict[int, tuple[Bytes, onnxruntime.OrtValue]] = {}
        self._outputs: dict[int, onnxruntime.OrtValue] = {}

    def put(self, arrays: Arrays) -> dict[str, int]:
        """Copy arrays to the device; they are there when this returns. Returns their addresses."""
        begins, end = {}, 0
        for name, array in arrays.items():
            begins[name] = end
            end += _multiple(array.nbytes, ALIGNMENT)
        on_host, on_device = self._input(end)
        for name, array in arrays.items():
            np.copyto(on_host[begins[name] :][: array.nbytes].view(array.dtype).reshape(array.shape), array)
        on_device.update_inplace(on_host)
        address = on_device.data_ptr()
        return {name: address + begin for name, begin in begins.items()}

    def output(self, size: int) -> onnxruntime.OrtValue:
        """At least so many bytes for what a run computes."""
        size = _size(size)
        if size not in self._outputs:
            self._outputs[size] = self._allocate(size)
        return self._outputs[size]

    def _input(self, size: int) -> tuple[Bytes, onnxruntime.OrtValue]:
        size = _size(size)
        if size not in self._inputs:
            on_host = _take(size, self._device, self._accelerator.pin)
            weakref.finalize(self, _give_back, on_host, self._accelerator.pin)
            self._inputs[size] = on_host, self._allocate(size)
        return self._inputs[size]

    def _allocate(self, size: int) -> onnxruntime.OrtValue:
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type([size], np.uint8, self._accelerator.memory, self._device.index)


Pin = Callable[[int, int, int], bool]

# Pinned memory that no session uses, by its size and by what pinned it. It is never unmapped: the driver would go on to copy from its
# address, whatever is there by then.
_idle: dict[tuple[int, Pin | None], list[Bytes]] = {}


def _take(size: int, device: Device, pin: Pin | None) -> Bytes:
    with contextlib.suppress(KeyError, IndexError):
        return _idle[size, pin].pop()
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    if pin is not None and not pin(memory.ctypes.data, size, device.index):
        logger().warning("memory_not_pinned", device=device.name, bytes=size)
    return memory


def _give_back(memory: Bytes, pin: Pin | None) -> None:
    if pin is not None:
        _idle.setdefault((len(memory), pin), []).append(memory)


def _size(size: int) -> int:
    return max(LEAST_BYTES, 1 << math.ceil(math.log2(max(1, size))))


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of
