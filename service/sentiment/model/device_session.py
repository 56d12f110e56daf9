"""A session on a device with a memory of its own: memory that stays, captured runs, and what its failures mean."""

import contextlib
import ctypes
import functools
import io
import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import onnxruntime

from sentiment.errors import DeviceLost, NoDevice, OutOfMemory
from sentiment.model.device_memory import DeviceMemory
from sentiment.model.devices import Accelerator, Device
from sentiment.model.session import Fed, Session, Stop, is_out_of_memory, load_graph
from sentiment.model.tensors import pack, pad
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger

# A batch is launched as some hundred kernels of 2 to 4 microseconds each. Up to so many tokens computing takes no longer than that:
# there a run is captured and replayed as one launch, and padding it to a cell of the grid costs next to nothing.
GRAPH_TOKENS_MAX = 1024
GRAPH_ROWS = (1, 2, 4, 8, 16, 32)
GRAPH_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
# Beyond the grid: tensor cores work on 8 x 8 or more, and packed tokens are rounded to what attention's kernels take at once.
LENGTH_STEP = 8
TOKENS_STEP = 64
# Rows of a padded batch are rounded up until here, whatever the limits.
ROWS_MAX = 1024
# The compute capability of its GPUs.
HOPPER = (9, 0)
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
    """A classify graph on one device. Every method but the constructor and ``feeds`` belongs to one thread, and always the same.

    CUDA captures a run for the thread that made it. A batch goes from the host to the device, runs, and its logits come back, one
    after the other; docs/internals/gpu.md says what that costs. While one session captures, nothing else of the process may
    take memory of a device: capture all before the first batch.
    """

    def __init__(
        self,
        path: Path,
        device: Device,
        labels: int,
        layout: str = "padded",
        length_max: int = 512,
        memory_bytes: int = 0,
        captures: bool = True,
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file; it reads what ``tensors.pad`` or ``tensors.pack`` makes.
            device: where it runs.
            labels: how many logits a row has.
            layout: padded or packed.
            length_max: tokens of the longest row.
            memory_bytes: the most that the session's arena may take of the device's memory, 0 for all of it.
            captures: capture runs of small batches, where the device can.

        Raises:
            BadBundle: not a graph this service can run, or the device's provider is not there; or, of a session that captures, some
                nodes would run on the processor.
        """
        self.layout, self.labels, self.device = layout, labels, device
        self.hardware = device.model or device.name
        self._known_inputs = _PACKED_INPUTS if layout == "packed" else Session._known_inputs
        accelerator = _accelerator(device)
        self.provider = accelerator.provider
        _preload()
        _choose_attention(device)
        self._captures = captures and accelerator.graphs
        session = load_graph(path, _providers(device, memory_bytes, self._captures))
        self._take(path, session, labels)
        self._types = {entry.name: _TYPES[entry.type] for entry in [*session.get_inputs(), *session.get_outputs()]}
        # What the graph reads as shapes stays on the host, and would be part of a captured run.
        places = zip(self.inputs, session.get_input_memory_infos(), strict=True)
        self._on_host = [name for name, place in places if place.name.lower() != accelerator.memory]
        lengths = [*(length for length in GRAPH_LENGTHS if length < length_max), length_max]
        cells = [(rows, length) for rows in GRAPH_ROWS for length in lengths if rows * length <= GRAPH_TOKENS_MAX]
        self.cells = sorted(cells, key=math.prod, reverse=True) if self._captures and not self._on_host else ()
        self._graphs = {self._shapes_of(cell): str(number) for number, cell in enumerate(self.cells, 1)}
        self.lengths = ladder(length_max, LENGTH_STEP) if layout == "padded" else ()
        self._rows = ladder(ROWS_MAX)
        self._rows_at: Callable[[int], int] = lambda _: ROWS_MAX
        self._memory = DeviceMemory(device, accelerator)
        self._binding = session.io_binding()
        self._lost = False

    def within(self, rows_at: Callable[[int], int]) -> None:
        """Lay out no batch larger than it must be beyond the most rows of a length."""
        self._rows_at = rows_at
        self.cells = [(rows, length) for rows, length in self.cells if rows <= rows_at(length)]
        shapes = {(min(rows, rows_at(length)), length) for rows in self._rows for length in self.lengths}
        self.ladder = sorted((shape for shape in shapes if not self._cell(*shape)), key=math.prod, reverse=True)

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> Fed:
        """Lay rows out, as large as a cell of the grid or as a shape of the ladder, by tokens and rows that nobody reads."""
        longest = max(row.tokens for row in rows)
        cell = self._cell(len(rows), longest)
        if self.layout == "packed":
            return pack(rows, self.inputs, TOKENS_STEP) if cell is None else pack(rows, self.inputs, math.prod(cell), cell[1], 2 * cell[0])
        count, length = cell or self._rung(len(rows), longest)
        filled = [*rows, *[Row([pad_id], None, False)] * (count - len(rows))]
        return pad(filled, self.inputs, pad_id, left, length)

    def _cell(self, rows: int, length: int) -> tuple[int, int] | None:
        """The smallest cell that holds so many rows of at most this length."""
        return min((cell for cell in self.cells if cell[0] >= rows and cell[1] >= length), key=math.prod, default=None)

    def _rung(self, rows: int, length: int) -> tuple[int, int]:
        """The smallest shape of the ladder: cuDNN's attention makes a plan for each shape, once, and keeps it."""
        length = self.lengths[bisect_left(self.lengths, length)]
        rung = self._rows[bisect_left(self._rows, rows)] if rows <= ROWS_MAX else rows
        return max(rows, min(rung, self._rows_at(length))), length

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
            if options.terminate or is_out_of_memory(error) or not self._end_capture(feeds, error):
                self._explain(error, asked_to_end=options.terminate)
        return self.run(feeds, stop)

    def _end_capture(self, feeds: Fed, error: Exception) -> bool:
        """Whether it was a captured run that failed, or the capture: from now on batches of its shape run as others do."""
        if self._graphs.pop(self._shapes_fed(feeds), None) is None:
            return False
        logger().warning("run_not_captured", device=self.device.name, shape=feeds["input_ids"].shape, reason=str(error))
        return True

    def _shapes_fed(self, feeds: Fed) -> tuple[tuple[int, ...], ...]:
        return tuple(feeds[name].shape for name in ("input_ids", "token_offset") if name in self.inputs)

    def _run(self, feeds: Fed, options: onnxruntime.RunOptions) -> npt.NDArray[np.float32]:
        begun = time.perf_counter()
        memory, index = _accelerator(self.device).memory, self.device.index
        given = {name: np.ascontiguousarray(feeds[name], self._types[name]) for name in self.inputs}
        addresses = self._memory.put({name: array for name, array in given.items() if name not in self._on_host})
        # After the copy: what ONNX Runtime wants elsewhere it takes there when it is bound.
        for name, array in given.items():
            if name in self._on_host:
                self._binding.bind_cpu_input(name, array)
            else:
                self._binding.bind_input(name, memory, index, array.dtype, list(array.shape), addresses[name])
        kind = np.dtype(self._types[self.output])
        shape = len(given["token_offset" if self.layout == "packed" else "input_ids"]), self.labels
        output = self._memory.output(math.prod(shape) * kind.itemsize)
        self._binding.bind_output(self.output, memory, index, kind, list(shape), output.data_ptr())
        if self._captures:
            options.add_run_config_entry("gpu_graph_id", self._graphs.get(self._shapes_fed(feeds), _NO_GRAPH))
        copied = time.perf_counter()
        self._session.run_with_iobinding(self._binding, options)
        ran = time.perf_counter()
        # Copied once more: on a host they would be the memory itself, which the next batch overwrites.
        logits: npt.NDArray[np.float32] = output.numpy()[: math.prod(shape) * kind.itemsize].view(kind).reshape(shape).astype(np.float32)
        self.copied_s = copied - begun + time.perf_counter() - ran
        return logits

    def _explain(self, error: Exception, asked_to_end: bool) -> NoReturn:
        """Say what a failure means: a device that cannot run one token any more is lost, whatever it said."""
        if not asked_to_end and not self._answers():
            self._lost = True
            _keep_for_ever(self)
            raise DeviceLost(f"{self.device.name} fails every run: {error}") from error
        if is_out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        raise error

    def _answers(self) -> bool:
        # Without captured runs: what cannot be captured may run all the same.
        graphs, self._graphs = self._graphs, {}
        try:
            self._run(self.feeds([Row([0], None, False)], 0, left=False), Stop().options)
        except Exception:  # whatever it is: the device did not answer
            return False
        finally:
            self._graphs = graphs
        return True


def ladder(most: int, least_step: int = 1) -> tuple[int, ...]:
    """Numbers up to ``most`` of which the next is never more than a quarter larger, but for the first steps of ``least_step``."""
    rungs = [0]
    while rungs[-1] < most:
        step = max(least_step, 1 << max(0, rungs[-1].bit_length() - 3))
        rungs.append(min(most, rungs[-1] + step))
    return tuple(rungs[1:])


def _keep_for_ever(lost: object) -> None:
    """Not even the interpreter's end destroys it: that would call CUDA, whose failure in a destructor ends the process with SIGABRT."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))


def _choose_attention(device: Device) -> None:
    """Of a query, key and value that lie side by side ONNX Runtime takes flash attention from 513 tokens on, since below that TensorRT's
    kernels are faster; but those stop short of Hopper. Read when a session is made.
    """
    if device.capability >= HOPPER:
        os.environ.setdefault("ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV", "0")


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
