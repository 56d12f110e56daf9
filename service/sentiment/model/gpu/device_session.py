"""A session on an accelerator: persistent device memory, captured runs (CUDA graphs), and the classification of its failures."""

import contextlib
import ctypes
import functools
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.errors import DeviceLost, NoDevice, OutOfMemory
from sentiment.model.gpu.device_memory import DeviceMemory
from sentiment.model.gpu.devices import CUDA, Accelerator, Device
from sentiment.model.gpu.wheel import gpu_refused, wheel_refused
from sentiment.model.session import RUNTIME_VERSION, Fed, Providers, Session, Stop, is_out_of_memory, load_graph
from sentiment.model.tensors import pack, pad
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger

# A batch launches about a hundred kernels, at 2 to 4 microseconds each. Up to this many tokens, launching takes longer than computing.
# Such a run is captured and replayed as one launch. It is padded to a cell of the grid (GRAPH_ROWS x GRAPH_LENGTHS), which costs little.
GRAPH_TOKENS_MAX = 1024
GRAPH_ROWS = (1, 2, 4, 8, 16, 32)
GRAPH_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
# Outside the grid. Tensor cores work on blocks of 8 x 8 or more; packed tokens are rounded up to the block size of the attention kernels.
LENGTH_STEP = 8
TOKENS_STEP = 64
# The compute capability of Hopper GPUs.
HOPPER = (9, 0)
# The value of gpu_graph_id for a run that is not captured.
_NO_GRAPH = "-1"
_TYPES: dict[str, npt.DTypeLike] = {
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
_PACKED_INPUTS = ("input_ids", "position_ids", "token_type_ids", "token_offset", "cumulative_lengths")
# The ONNX graph y = x x, [2, 2] in fp32; a test rebuilds it. It is the smallest graph that needs the device, its runtime and cuBLAS.
SQUARE = bytes.fromhex(
    "080a3a450a110a01780a017812017922064d61744d756c12067371756172655a130a0178120e0a0c080112080a0208020a02080262130a0179120e"
    "0a0c080112080a0208020a02080242040a001012"
)


def prove(device: Device) -> None:
    """Test a device: multiply two small matrices on it.

    Raises:
        NoDevice: the installed ONNX Runtime was not tested, or has no code for this GPU; or the run failed, or the product is wrong.
    """
    accelerator = _accelerator(device)
    if accelerator is CUDA and CUDA.provider in onnxruntime.get_available_providers():
        # Before a run: one product may work where other kernels are missing.
        reason = wheel_refused(RUNTIME_VERSION) or gpu_refused(device.capability, device.model, RUNTIME_VERSION)
        if reason:
            raise NoDevice(reason)
    preload_messages = _preload()
    values = np.array([[1, 2], [3, 4]], np.float32)
    try:
        session = load_graph(SQUARE, providers_of(device))
        product = session.run(["y"], {"x": values})[0]
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise NoDevice("; ".join(filter(None, (str(error), *preload_messages)))) from error
    if not np.array_equal(product, values @ values):
        raise NoDevice(f"{accelerator.provider} computed a wrong product: {product.tolist()}")


class DeviceSession(Session):
    """A classify graph on one device. Call every method except the constructor and ``feeds`` from one thread, always the same.

    CUDA ties a captured run to the thread that captured it. ``run`` copies a batch to the device, runs it, and copies the logits back, in
    sequence; docs/internals/gpu.md has the cost. While a session captures, nothing else in the process may allocate device memory:
    capture all shapes before the first batch.
    """

    def __init__(
        self,
        path: Path,
        device: Device,
        logits: int,
        layout: str = "padded",
        length_max: int = 512,
        memory_bytes: int = 0,
        captures: bool = True,
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file; its inputs are those of ``tensors.pad`` or ``tensors.pack``.
            device: where it runs.
            logits: how many a row has.
            layout: padded or packed.
            length_max: the tokens of the longest row.
            memory_bytes: the limit of the session's memory arena on the device; 0 for all of the memory.
            captures: capture the runs of small batches, if the device supports it.

        Raises:
            BadBundle: the service cannot run the graph, or the device's provider is missing; or, if the session captures, some nodes
                would run on the CPU.
        """
        self.layout, self.logits, self.device = layout, logits, device
        self.hardware = device.model or device.name
        self._known_inputs = _PACKED_INPUTS if layout == "packed" else Session._known_inputs
        accelerator = _accelerator(device)
        self.provider = accelerator.provider
        _preload()
        _choose_attention(device)
        self._captures = captures and accelerator.graphs
        session = load_graph(path, providers_of(device, memory_bytes, self._captures))
        self._take(path, session, logits)
        self._types = {entry.name: _TYPES[entry.type] for entry in [*session.get_inputs(), *session.get_outputs()]}
        # Inputs that the graph reads as shapes stay on the host. A captured run would freeze their values.
        places = zip(self.inputs, session.get_input_memory_infos(), strict=True)
        self._on_host = [name for name, place in places if place.name.lower() != accelerator.memory]
        lengths = [*(length for length in GRAPH_LENGTHS if length < length_max), length_max]
        cells = [(rows, length) for rows in GRAPH_ROWS for length in lengths if rows * length <= GRAPH_TOKENS_MAX]
        self.cells = sorted(cells, key=math.prod, reverse=True) if self._captures and not self._on_host else ()
        self._graphs = {self._shapes_of(cell): str(number) for number, cell in enumerate(self.cells, 1)}
        self._length_max = length_max
        self._memory = DeviceMemory(device, accelerator)
        self._binding = session.io_binding()
        self._lost = False

    def within(self, rows_at: Callable[[int], int]) -> None:
        """Set the row limit of each length, so that a cell never exceeds it."""
        self.cells = [(rows, length) for rows, length in self.cells if rows <= rows_at(length)]

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> Fed:
        """Lay rows out; runs that are captured in the shape of a cell. Filler tokens and rows make up the difference."""
        longest = max(row.tokens for row in rows)
        cell = self._cell(len(rows), longest)
        if self.layout == "packed":
            return pack(rows, self.inputs, TOKENS_STEP) if cell is None else pack(rows, self.inputs, math.prod(cell), cell[1], 2 * cell[0])
        count, length = cell or (len(rows), min(self._length_max, math.ceil(longest / LENGTH_STEP) * LENGTH_STEP))
        filled = [*rows, *[Row([pad_id], None, False)] * (count - len(rows))]
        return pad(filled, self.inputs, pad_id, left, length)

    def _cell(self, rows: int, length: int) -> tuple[int, int] | None:
        """The smallest cell for this many rows of at most this length; None if no cell is large enough."""
        return min((cell for cell in self.cells if cell[0] >= rows and cell[1] >= length), key=math.prod, default=None)

    def _shapes_of(self, cell: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """The input shapes that identify a cell: those of input_ids and, in the packed layout, of token_offset."""
        rows, length = cell
        return ((rows * length,), (2 * rows, length)) if self.layout == "packed" else (cell,)

    def run(self, feeds: Fed, stop: Stop | None = None) -> npt.NDArray[np.float32]:
        """Copy to the device, run, and copy the logits back, float32 [rows, labels]. The GIL is free during the run.

        Raises:
            OutOfMemory: the device has too little memory for this batch.
            DeviceLost: the run failed, and the smallest batch fails too.
        """
        if self._lost:
            raise DeviceLost(f"{self.device.name} is lost")
        options = (stop or Stop()).options
        try:
            return self._run(feeds, options)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if options.terminate or is_out_of_memory(error) or not self._end_capture(feeds, error):
                self._raise(error, stopped=options.terminate)
        return self.run(feeds, stop)

    def _end_capture(self, feeds: Fed, error: Exception) -> bool:
        """Stop capturing batches of this shape. Returns whether they were captured, that is, whether the run may be tried again."""
        if self._graphs.pop(self._shapes_fed(feeds), None) is None:
            return False
        logger().warning("shape_not_captured", device=self.device.name, shape=feeds["input_ids"].shape, reason=str(error))
        return True

    def _shapes_fed(self, feeds: Fed) -> tuple[tuple[int, ...], ...]:
        return tuple(feeds[name].shape for name in ("input_ids", "token_offset") if name in self.inputs)

    def _run(self, feeds: Fed, options: onnxruntime.RunOptions) -> npt.NDArray[np.float32]:
        begun = time.perf_counter()
        memory, index = _accelerator(self.device).memory, self.device.index
        given = {name: np.ascontiguousarray(feeds[name], self._types[name]) for name in self.inputs}
        addresses = self._memory.put({name: array for name, array in given.items() if name not in self._on_host})
        # After the copy: when an input is bound, ONNX Runtime may copy it to where the graph needs it.
        for name, array in given.items():
            if name in self._on_host:
                self._binding.bind_cpu_input(name, array)
            else:
                self._binding.bind_input(name, memory, index, array.dtype, list(array.shape), addresses[name])
        kind = np.dtype(self._types[self.output])
        shape = len(given["token_offset" if self.layout == "packed" else "input_ids"]), self.logits
        output = self._memory.output(math.prod(shape) * kind.itemsize)
        self._binding.bind_output(self.output, memory, index, kind, list(shape), output.data_ptr())
        if self._captures:
            options.add_run_config_entry("gpu_graph_id", self._graphs.get(self._shapes_fed(feeds), _NO_GRAPH))
        copied = time.perf_counter()
        self._session.run_with_iobinding(self._binding, options)
        ran = time.perf_counter()
        # astype copies: on a device that shares host memory, numpy() is a view that the next batch overwrites.
        logits: npt.NDArray[np.float32] = output.numpy()[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape).astype(np.float32)
        self.copied_s = copied - begun + time.perf_counter() - ran
        return logits

    def close(self) -> None:
        """As Session does, and release the memory of its batches. A lost device's session is kept: see ``_keep_alive``."""
        if not self._lost:
            super().close()
            del self._binding, self._memory

    def _raise(self, error: Exception, stopped: bool) -> NoReturn:
        """Raise the error that a failure means. A device that cannot run one token is lost, whatever its error says."""
        if not stopped and not self._works():
            self._lost = True
            _keep_alive(self)
            raise DeviceLost(f"{self.device.name} fails every run: {error}") from error
        if is_out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        raise error

    def _works(self) -> bool:
        # Without captured runs: a run that cannot be captured may still work.
        graphs, self._graphs = self._graphs, {}
        try:
            self._run(self.feeds([Row([0], None, False)], 0, left=False), Stop().options)
        except Exception:  # any error means that the device does not work
            return False
        finally:
            self._graphs = graphs
        return True


def _keep_alive(lost: object) -> None:
    """Never destroy the session, not even at interpreter exit: its destructor calls CUDA, and a failure there aborts the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))


def _choose_attention(device: Device) -> None:
    """Use flash attention for all lengths on Hopper and later.

    By default, ONNX Runtime runs packed query, key and value through flash attention only from 513 tokens on, since the TensorRT kernels
    are faster below that. Hopper has no such kernels. ONNX Runtime reads the variable when a session is created.
    """
    if device.capability >= HOPPER:
        os.environ.setdefault("ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV", "0")


def _accelerator(device: Device) -> Accelerator:
    assert device.accelerator is not None, f"{device.name} is not an accelerator"
    return device.accelerator


def providers_of(device: Device, memory_bytes: int = 0, graphs: bool = False) -> Providers:
    """The execution providers of a session on a device. ``memory_bytes``: its limit, 0 for none. ``graphs``: capture runs."""
    accelerator = _accelerator(device)
    options = {"device_id": str(device.index), **accelerator.options}
    if memory_bytes:
        options["gpu_mem_limit"] = str(memory_bytes)
    if graphs:
        options["enable_cuda_graph"] = "1"
    own = (accelerator.provider, options)
    # Nodes that compute shapes run on the host.
    return [own] if accelerator.provider == "CPUExecutionProvider" else [own, "CPUExecutionProvider"]


@functools.cache
def _preload() -> tuple[str, ...]:
    """Load the CUDA libraries of the Python environment. Returns the messages about libraries that are missing."""
    # ONNX Runtime prints, and writes log lines that are not JSON. Failures are raised anyway.
    onnxruntime.set_default_logger_severity(4)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        onnxruntime.preload_dlls()
    return tuple(printed.getvalue().splitlines())
