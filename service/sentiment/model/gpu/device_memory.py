"""Device memory for inputs and outputs, and the pinned host memory that inputs are copied from. Knows neither rows nor graphs."""

import contextlib
import math
import mmap
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.model.gpu.devices import Accelerator, Device
from sentiment.observability.logs import logger

Bytes = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[np.generic]]

# In bytes, as in CUDA's own allocations.
ALIGNMENT = 256
# The smallest allocation. All sizes are powers of two, so that there are few.
LEAST_BYTES = 4096


class DeviceMemory:
    """The memory of one session's batches. Used in the session's thread only.

    There is one buffer for each size. It keeps its address as long as the session lives, since a captured run reads its inputs there. The
    arrays of a batch are contiguous in one buffer, so that one copy transfers all of them.
    """

    def __init__(self, device: Device, accelerator: Accelerator) -> None:
        self._device = device
        self._accelerator = accelerator
        self._inputs: dict[int, tuple[Bytes, onnxruntime.OrtValue]] = {}
        self._outputs: dict[int, onnxruntime.OrtValue] = {}

    def put(self, arrays: Arrays) -> dict[str, int]:
        """Copy arrays to the device and wait for the copy. Returns their device addresses."""
        begins, end = {}, 0
        for name, array in arrays.items():
            begins[name] = end
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        on_host, on_device = self._input(end)
        for name, array in arrays.items():
            np.copyto(on_host[begins[name] :][: array.nbytes].view(array.dtype).reshape(array.shape), array)
        on_device.update_inplace(on_host)
        address = on_device.data_ptr()
        return {name: address + begin for name, begin in begins.items()}

    def output(self, size: int) -> onnxruntime.OrtValue:
        """A buffer of at least ``size`` bytes for the output of a run."""
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

# Pinned memory that no session uses, by size and pin function. It is never unmapped: the driver would still copy from its address,
# whatever is there by then.
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
