"""A session on a device with a memory of its own: buffers that stay, captured runs, and what its failures mean."""

import contextlib
import functools
import io
import math
import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.errors import BadBundle, DeviceLost, NoDevice, OutOfMemory
from sentiment.logs import logger
from sentiment.model.devices import Accelerator, Device
from sentiment.model.session import Fed, Session, Stop, is_out_of_memory, load_graph
from sentiment.model.tensors import pack, pad
from sentiment.model.tokenizer import Row

# A batch is launched as some hundred kernels of 2 to 4 microseconds each. Up to so many tokens computing takes no longer than that:
# there a run is captured and replayed as one launch, and padding it to a cell of the grid costs next to nothing.
GRAPH_TOKENS_MAX = 1024
GRAPH_ROWS = (1, 2, 4, 8, 16, 32)
GRAPH_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
# Beyond the grid: tensor cores work on 8 x 8 or more, and shapes that come again find their buffers.
LENGTH_STEP = 8
TOKENS_STEP = 64
# Shapes whose buffers are kept; a batch of 16,384 tokens has 0.2 MB of them.
SHAPES_MAX = 256
# Host memory from which inputs are copied; it doubles as needed.
STAGING_BYTES = 2**20
# What a run is asked for that is not to be captured.
_NO_GRAPH = "-1"
_TYPES: dict[str, npt.DTypeLike] = {
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
_PACKED_INPUTS = ("input_ids", "position_ids", "token_type_ids", "token_offset", "cumulative_lengths")
# y = x x, [2, 2] in fp32, as ONNX writes it (a test makes it again): the least that needs the device, its runtime and cuBLAS.
SQUARE = bytes.fromhex(
    "080a3a450a110a01780a017812017922064d61744d756c12067371756172655a130a0178120e0a0c080112080a0208020a02080262130a0179120e"
    "0a0c080112080a0208020a02080242040a001012"
)


def prove(device: Device) -> None:
    """Multiply two small matrices on a device.

    Raises:
        NoDevice: it could not, or the product is wrong.
    """
    accelerator = _accelerator(device)
    said = _preload()
    values = np.array([[1, 2], [3, 4]], np.float32)
    try:
        session = load_graph(SQUARE, _providers(device, 0, graphs=False))
        product = session.run(["y"], {"x": values})[0]
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise NoDevice("; ".join(filter(None, (str(error), *said)))) from error
    if not np.array_equal(product, values @ values):
        raise NoDevice(f"{accelerator.provider} multiplies wrongly: {product.tolist()}")


class DeviceSession(Session):
    """A classify graph on one device. Every method but the constructor belongs to one thread, and always the same.

    CUDA captures a run for the thread that made it. A batch goes from the host to the device, runs, and its logits come back, one
    after the other. That the next batch is copied meanwhile would need it to be chosen ahead, and a stream and events that ONNX
    Runtime's Python does not give; what is copied is some 10 kB for a run of milliseconds.
    """

    def __init__(
        self, path: Path, device: Device, labels: int, layout: str = "padded", length_max: int = 512, memory_bytes: int = 0
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file; it reads what ``tensors.pad`` or ``tensors.pack`` makes.
            device: where it runs.
            labels: how many logits a row has.
            layout: padded or packed.
            length_max: tokens of the longest row.
            memory_bytes: the most that the session may take of the device's memory, 0 for all of it.

        Raises:
            BadBundle: not a graph this service can run, or the device's provider is not there.
        """
        self.layout, self.labels, self.device = layout, labels, device
        self.hardware = device.model or device.name
        self._known_inputs = _PACKED_INPUTS if layout == "packed" else Session._known_inputs
        self._length_max = length_max
        self.provider = _accelerator(device).provider
        _preload()
        self._captures = _accelerator(device).graphs
        try:
            session = load_graph(path, _providers(device, memory_bytes, self._captures))
        except BadBundle as error:
            # A graph of which some nodes run on the processor cannot be captured, and is then not loaded either.
            session = load_graph(path, _providers(device, memory_bytes, graphs=False))
            self._captures = False
            logger().warning("runs_not_captured", device=device.name, reason=str(error))
        self._take(path, session, labels)
        self._types = {entry.name: _TYPES[entry.type] for entry in [*session.get_inputs(), *session.get_outputs()]}
        lengths = [*(length for length in GRAPH_LENGTHS if length < length_max), length_max]
        cells = [(rows, length) for rows in GRAPH_ROWS for length in lengths if rows * length <= GRAPH_TOKENS_MAX]
        self.cells = sorted(cells, key=math.prod, reverse=True) if self._captures else ()
        self._graphs = {self._shapes_of(cell): str(number) for number, cell in enumerate(self.cells, 1)}
        self._staging = _Staging(STAGING_BYTES, device)
        self._buffers: dict[tuple[tuple[int, ...], ...], _Buffers] = {}
        self._lost = False

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> Fed:
        """Lay rows out; a small batch as large as a cell of the grid, by tokens and rows that nobody reads."""
        length = max(row.tokens for row in rows)
        cell = min((cell for cell in self.cells if cell[0] >= len(rows) and cell[1] >= length), key=math.prod, default=None)
        if self.layout == "packed":
            return pack(rows, self.inputs, TOKENS_STEP) if cell is None else pack(rows, self.inputs, math.prod(cell), cell[1], 2 * cell[0])
        count, wide = cell or (len(rows), min(-(-length // LENGTH_STEP) * LENGTH_STEP, self._length_max))
        filled = [*rows, *[Row([pad_id], None, False)] * (count - len(rows))]
        return pad(filled, self.inputs, pad_id, left, wide)

    def _shapes_of(self, cell: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """The shapes by which a cell is known again: of input_ids, and of token_offset if that is read."""
        rows, length = cell
        return ((rows * length,), (2 * rows, length)) if self.layout == "packed" else (cell,)

    def run(self, feeds: Fed, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """Copy, run, copy back; the logits, float32 [rows, labels]. The GIL is free during the run.

        Raises:
            OutOfMemory: the device has not enough for this batch.
            DeviceLost: it failed, and the smallest batch fails too.
        """
        if self._lost:
            raise DeviceLost(f"{self.device.name} is lost")
        options = (stop or Stop()).options
        try:
            return self._run(feeds, options)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            self._explain(error, asked_to_end=options.terminate)

    def _run(self, feeds: Fed, options: onnxruntime.RunOptions) -> npt.NDArray[np.float32]:
        begun = time.perf_counter()
        buffers = self._buffers_for(feeds)
        buffers.put(feeds)
        if self._captures:
            options.add_run_config_entry("gpu_graph_id", buffers.graph)
        copied = time.perf_counter()
        self._session.run_with_iobinding(buffers.binding, options)
        ran = time.perf_counter()
        logits = buffers.logits()
        self.copied_s = copied - begun + time.perf_counter() - ran
        return logits

    def _explain(self, error: Exception, asked_to_end: bool) -> NoReturn:
        """Say what a failure means: a device that cannot run one token any more is lost, whatever it said."""
        if is_out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        if not asked_to_end and not self._answers():
            self._lost = True
            raise DeviceLost(f"{self.device.name} fails every run: {error}") from error
        raise error

    def _answers(self) -> bool:
        try:
            self._run(self.feeds([Row([0], None, False)], 0, left=False), Stop().options)
        except Exception:  # whatever it is: the device did not answer
            return False
        return True

    def _buffers_for(self, feeds: Fed) -> "_Buffers":
        shapes = tuple(feeds[name].shape for name in self.inputs)
        found = self._buffers.pop(shapes, None) or self._new_buffers(feeds)
        # The last used stands last.
        self._buffers[shapes] = found
        return found

    def _new_buffers(self, feeds: Fed) -> "_Buffers":
        # A captured run reads and writes the addresses that it was captured with: those stay.
        loose = [shapes for shapes, buffers in self._buffers.items() if buffers.graph == _NO_GRAPH]
        if len(loose) >= SHAPES_MAX:
            del self._buffers[loose[0]]
        rows = len(feeds["token_offset" if self.layout == "packed" else "input_ids"])
        given = {name: (feeds[name].shape, self._types[name]) for name in self.inputs}
        size = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in given.values())
        if size > self._staging.size:
            self._staging = _Staging(2 * size, self.device)
        binding = self._session.io_binding()
        memory, index = _accelerator(self.device).memory, self.device.index
        on_device = {}
        for name, (shape, kind) in given.items():
            on_device[name] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), kind, memory, index)
            binding.bind_ortvalue_input(name, on_device[name])
        logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type([rows, self.labels], self._types[self.output], memory, index)
        binding.bind_ortvalue_output(self.output, logits)
        shapes = tuple(feeds[name].shape for name in ("input_ids", "token_offset") if name in feeds)
        return _Buffers(self._graphs.get(shapes, _NO_GRAPH), binding, self._staging.views(given), on_device, logits)


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What batches of one shape are copied from, to and back from; ``graph`` is the captured run's number."""

    graph: str
    binding: onnxruntime.IOBinding
    on_host: Mapping[str, npt.NDArray[np.generic]]
    on_device: Mapping[str, onnxruntime.OrtValue]
    output: onnxruntime.OrtValue

    def put(self, feeds: Fed) -> None:
        """Copy a batch to the device; it is there when this returns."""
        for name, value in self.on_device.items():
            np.copyto(self.on_host[name], feeds[name], casting="same_kind")
            value.update_inplace(self.on_host[name])

    def logits(self) -> npt.NDArray[np.float32]:
        """Copy the logits back."""
        # On a host they would be the buffer itself, which the next batch overwrites.
        return np.array(self.output.numpy(), np.float32)


class _Staging:
    """Host memory on pages of its own, pinned where the device can: then it reads it without the processor."""

    def __init__(self, size: int, device: Device) -> None:
        self.size = size
        # Never given back: a device may still know its address.
        self._bytes = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        pin = _accelerator(device).pin
        if pin is not None and not pin(self._bytes.ctypes.data, size, device.index):
            logger().warning("memory_not_pinned", device=device.name, bytes=size)

    def views(self, wanted: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays one behind the other in it. Each batch uses it from the beginning: only one is under way."""
        views, begin = {}, 0
        for name, (shape, kind) in wanted.items():
            end = begin + math.prod(shape) * np.dtype(kind).itemsize
            views[name] = self._bytes[begin:end].view(kind).reshape(shape)
            begin = end
        return views


def _accelerator(device: Device) -> Accelerator:
    assert device.accelerator is not None, f"{device.name} is no accelerator"
    return device.accelerator


def _providers(device: Device, memory_bytes: int, graphs: bool) -> list[str | tuple[str, dict[str, str]]]:
    accelerator = _accelerator(device)
    options = {"device_id": str(device.index), **accelerator.options}
    if memory_bytes:
        options["gpu_mem_limit"] = str(memory_bytes)
    if graphs:
        options["enable_cuda_graph"] = "1"
    own = (accelerator.provider, options)
    # What works on shapes alone runs on the host.
    return [own] if accelerator.provider == "CPUExecutionProvider" else [own, "CPUExecutionProvider"]


@functools.cache
def _preload() -> tuple[str, ...]:
    """Load the CUDA libraries of the Python environment; returns what was said of those that are missing."""
    # The libraries print, and log lines that are no JSON; what fails is raised.
    onnxruntime.set_default_logger_severity(4)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        onnxruntime.preload_dlls()
    return tuple(said.getvalue().splitlines())
