"""A session on a device, on the CPU provider: buffers, cells, copies, and the errors of failures. Capturing itself needs CUDA."""

import ctypes
import dataclasses
import gc
import os
import tomllib
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import structlog
from onnx import TensorProto, helper

from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, DeviceLost, NoDevice, OutOfMemory
from sentiment.model.bundle import load_bundle
from sentiment.model.gpu import device_session
from sentiment.model.gpu import wheel as gpu_wheel
from sentiment.model.gpu.device_memory import DeviceMemory
from sentiment.model.gpu.device_session import SQUARE, DeviceSession, prove
from sentiment.model.gpu.devices import CUDA, Accelerator, Device
from sentiment.model.gpu.graphs import make_graphs
from sentiment.model.session import Session, Stop
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from tests.english import ENGLISH
from tests.packed_twin import save_twin
from tests.tiny import make_graph

# The CPU provider ignores the options of captured runs. Everything else is as on a GPU.
CAPTURING = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu", graphs=True), "a GPU")
ROOT = Path(__file__).parents[3]
PLAIN = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu"))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    onnx.save(make_graph(), tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


@pytest.fixture(scope="module")
def english_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default bundle's packed graph, with attention that a CPU has kernels for."""
    folder = tmp_path_factory.mktemp("graphs")
    packed = make_graphs(ENGLISH, folder, "fp32").packed
    assert packed is not None
    save_twin(packed, packed.with_name("twin.onnx"))
    return packed.with_name("twin.onnx")


@pytest.fixture(params=[CAPTURING, PLAIN], ids=["capturing", "plain"])
def session(request: pytest.FixtureRequest, graph: Path) -> DeviceSession:
    return DeviceSession(graph, request.param, logits=2)


def row(*ids: int) -> Row:
    return Row(list(ids), None, False)


def logits_of(session: DeviceSession, rows: Sequence[Row]) -> list[list[float]]:
    found: list[list[float]] = session.run(session.feeds(rows, 0, left=False))[: len(rows)].tolist()
    return found


def random_rows(seed: int, count: int, longest: int) -> list[Row]:
    draw = np.random.default_rng(seed)
    return [row(*draw.integers(4, 60, draw.integers(1, longest + 1)).tolist()) for _ in range(count)]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("count", "longest"), [(1, 1), (1, 16), (3, 17), (7, 300), (33, 20), (2, 512), (40, 512)])
def test_a_batch_of_any_shape_has_the_answers_that_it_has_without_the_device(
    session: DeviceSession, graph: Path, count: int, longest: int, left: bool
) -> None:
    plain = Session(graph)
    for seed in range(3):
        rows = random_rows(seed, count, longest)

        found = session.run(session.feeds(rows, 0, left))[: len(rows)]

        assert found == pytest.approx(plain.run(pad(rows, plain.inputs, 0, left)), abs=1e-4)


def test_the_next_batch_does_not_overwrite_the_answers_of_the_last(session: DeviceSession) -> None:
    first = session.run(session.feeds([row(5)], 0, left=False))
    before = first.copy()

    session.run(session.feeds([row(7)], 0, left=False))

    assert (first == before).all()


def test_a_small_batch_is_padded_to_the_smallest_cell_that_holds_it(graph: Path) -> None:
    session = DeviceSession(graph, CAPTURING, 2, length_max=48)

    def shape(count: int, length: int) -> tuple[int, ...]:
        return session.feeds([row(*[5] * length)] * count, 0, left=False)["input_ids"].shape

    assert [shape(*of) for of in ((1, 3), (3, 16), (5, 17), (1, 33), (9, 48))] == [(1, 16), (4, 16), (8, 32), (1, 48), (16, 48)]
    # Outside the grid, lengths are rounded up to 8, but not beyond the model's.
    assert [shape(*of) for of in ((33, 17), (65, 1), (33, 48))] == [(33, 24), (65, 8), (33, 48)]
    assert DeviceSession(graph, PLAIN, 2, length_max=42).feeds([row(*[5] * 41)], 0, left=False)["input_ids"].shape == (1, 42)


def test_cells_end_at_the_models_length_and_the_largest_is_first(graph: Path) -> None:
    cells = list(DeviceSession(graph, CAPTURING, 2, length_max=48).cells)

    assert {length for _, length in cells} == {16, 32, 48}
    assert all(rows * length <= 1024 for rows, length in cells)
    assert [rows * length for rows, length in cells] == sorted((rows * length for rows, length in cells), reverse=True)
    assert DeviceSession(graph, PLAIN, 2).cells == ()


def packing(session: DeviceSession) -> DeviceSession:
    """The same session, as if its graph read packed rows. Only the layout is tested."""
    session.layout, session.inputs = "packed", ["input_ids", "position_ids", "token_offset", "cumulative_lengths"]
    return session


def test_packed_rows_of_one_cell_all_have_its_shapes(graph: Path) -> None:
    session = packing(DeviceSession(graph, CAPTURING, 2))
    seen: dict[Any, set[Any]] = {}

    for seed in range(300):
        rows = random_rows(seed, seed % 32 + 1, (3, 16, 40, 128)[seed % 4])
        if len(rows) * max(each.tokens for each in rows) > 256:
            continue
        feeds = session.feeds(rows, 0, left=False)
        shapes = tuple(feeds[name].shape for name in session.inputs)
        cell = min(
            (cell for cell in session.cells if cell[0] >= len(rows) and cell[1] >= max(each.tokens for each in rows)),
            key=lambda cell: cell[0] * cell[1],
        )
        seen.setdefault(cell, set()).add(shapes)
        assert (shapes[0], shapes[2]) == session._shapes_of(cell)

    assert len(seen) > 8
    assert all(len(shapes) == 1 for shapes in seen.values())


class Recorder:
    """Replaces ONNX Runtime's session: records each run, runs it, and raises the error that ``fails`` returns."""

    def __init__(self, session: DeviceSession) -> None:
        self._real = session._session
        self.fails: Callable[[int], BaseException | None] = lambda number: None
        self.graphs: list[str] = []
        self.bindings: list[Any] = []
        self.io_binding = self._real.io_binding
        session._session = self  # type: ignore[assignment]  # the fake

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.bindings.append(binding)
        try:
            self.graphs.append(options.get_run_config_entry("gpu_graph_id"))
        except RuntimeError:
            self.graphs.append("unset")
        failure = self.fails(len(self.bindings))
        if failure is not None:
            raise failure
        self._real.run_with_iobinding(binding, options)


def test_a_cell_that_cannot_be_captured_runs_uncaptured_and_is_logged_once(graph: Path) -> None:
    session, plain = DeviceSession(graph, CAPTURING, 2), DeviceSession(graph, PLAIN, 2)
    recorder = Recorder(session)
    recorder.fails = lambda _: None if recorder.graphs[-1] == "-1" else RuntimeError("CUDA failure 900: stream is capturing")
    rows = random_rows(1, 8, 16)

    with structlog.testing.capture_logs() as logs:
        answers = [logits_of(session, rows) for _ in range(2)]

    assert answers == [logits_of(plain, rows)] * 2
    assert recorder.graphs[1:] == ["-1", "-1"]
    assert [(entry["event"], entry["shape"]) for entry in logs] == [("shape_not_captured", (8, 16))]
    assert "CUDA failure 900" in logs[0]["reason"]


def test_a_captured_run_without_memory_is_not_tried_again(graph: Path) -> None:
    session = DeviceSession(graph, CAPTURING, 2)
    recorder = Recorder(session)
    recorder.fails = lambda number: RuntimeError("Failed to allocate memory for requested buffer of size 9") if number == 1 else None

    with pytest.raises(OutOfMemory):
        logits_of(session, random_rows(1, 8, 16))

    # The second run is one token, which tests whether the device works.
    assert len(recorder.graphs) == 2
    assert recorder.graphs[1] == "-1"


def test_each_cell_replays_its_own_run_and_other_shapes_are_never_captured(graph: Path) -> None:
    session = DeviceSession(graph, CAPTURING, 2)
    recorder = Recorder(session)

    for count, length in ((1, 3), (1, 9), (2, 3), (1, 40), (40, 40), (1, 3)):
        logits_of(session, [row(*[5] * length)] * count)

    first, second, third, fourth, large, again = recorder.graphs
    assert first == second == again
    assert len({first, third, fourth, "-1"}) == 4
    assert large == "-1"


def test_a_device_without_captured_runs_gets_no_graph_id(graph: Path) -> None:
    session = DeviceSession(graph, PLAIN, 2)
    recorder = Recorder(session)

    logits_of(session, [row(5)])

    assert recorder.graphs == ["unset"]


def test_buffers_keep_their_address_and_have_few_sizes(graph: Path) -> None:
    session = DeviceSession(graph, CAPTURING, 2)
    logits_of(session, [row(5)])
    address = session._memory.put({"x": np.zeros(8, np.int32)})

    for seed in range(50):
        logits_of(session, random_rows(seed, 1 + 7 * seed, 300))

    assert session._memory.put({"x": np.zeros(8, np.int32)}) == address
    assert len(session._memory._inputs) < 16
    assert len(session._memory._outputs) < 4


def test_arrays_are_contiguous_in_device_memory_and_do_not_overlap() -> None:
    memory = DeviceMemory(PLAIN, Accelerator("CPUExecutionProvider", "cpu"))
    arrays = {"a": np.arange(70, dtype=np.int32), "b": np.arange(6, dtype=np.int64).reshape(2, 3), "c": np.array([9], np.int32)}

    addresses = memory.put(arrays)

    for name, array in arrays.items():
        found = np.frombuffer((ctypes.c_ubyte * array.nbytes).from_address(addresses[name]), array.dtype)
        assert found.tolist() == array.ravel().tolist()
        assert (addresses[name] - addresses["a"]) % 256 == 0


class Pinning:
    """A driver that pins host memory and cannot unpin it."""

    def __init__(self) -> None:
        self.pinned: list[tuple[int, int, int]] = []

    def __call__(self, *arguments: int) -> bool:
        self.pinned.append(arguments)
        return True

    def device(self) -> Device:
        return Device("cuda:3", 3, Accelerator("CPUExecutionProvider", "cpu", pin=self))


def test_memory_that_batches_are_copied_from_is_pinned_page_by_page(graph: Path) -> None:
    pinning = Pinning()
    session = DeviceSession(graph, pinning.device(), 2)
    small, large = [row(5)], [row(*[5] * 200)] * 20

    before = logits_of(session, small)
    assert logits_of(session, large)[0] == pytest.approx([200 * value for value in before[0]], rel=1e-4)
    assert logits_of(session, small) == before

    assert [(size, index) for _, size, index in pinning.pinned] == [(4096, 3), (2**16, 3)]
    assert all(address % 4096 == 0 for address, _, _ in pinning.pinned)


def test_pinned_memory_is_never_unmapped_and_the_next_session_reuses_it(graph: Path) -> None:
    pinning = Pinning()
    for _ in range(2):
        session = DeviceSession(graph, pinning.device(), 2)
        logits_of(session, [row(5)])
        del session
        gc.collect()

    ((address, size, _),) = pinning.pinned
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert any(int(begin, 16) <= address and address + size <= int(end, 16) for begin, end in maps)


def test_sessions_that_live_at_once_share_no_memory(graph: Path) -> None:
    pinning = Pinning()
    sessions = [DeviceSession(graph, pinning.device(), 2) for _ in range(2)]

    for session in sessions:
        logits_of(session, [row(5)])

    assert len({address for address, _, _ in pinning.pinned}) == 2


class HostInput:
    """ONNX Runtime's session on a device with an input that is read on the host, as a shape is."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_input_memory_infos(self) -> list[Any]:
        return [type("Info", (), {"name": name}) for name in ("Cpu", "Cuda")]

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self._real.run_with_iobinding(binding.real, options)

    def io_binding(self) -> Any:
        return Bound(self._real.io_binding())


class Bound:
    """Records how inputs are bound. All memory is on the host."""

    def __init__(self, real: Any) -> None:
        self.real, self.by = real, {}

    def bind_input(self, name: str, memory: str, *rest: Any) -> None:
        self.by[name] = memory
        self.real.bind_input(name, "cpu", *rest)

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self.by[name] = "host"
        self.real.bind_cpu_input(name, array)

    def bind_output(self, name: str, _: str, *rest: Any) -> None:
        self.real.bind_output(name, "cpu", *rest)


def test_an_input_that_stays_on_the_host_is_bound_there_and_no_run_is_captured(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = device_session.load_graph
    monkeypatch.setattr(device_session, "load_graph", lambda *arguments: HostInput(load(*arguments)))
    allocate = onnxruntime.OrtValue.ortvalue_from_shape_and_type
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_shape_and_type", lambda shape, kind, *_: allocate(shape, kind))
    monkeypatch.setattr(
        HostInput, "run_with_iobinding", lambda self, binding, options: self._real.run_with_iobinding(binding.real, options)
    )
    session = DeviceSession(graph, Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cuda", graphs=True)), 2)

    first, second = (logits_of(session, [row(word)]) for word in (5, 7))

    assert session.cells == ()
    assert session._binding.by == {"input_ids": "host", "attention_mask": "cuda"}
    plain = Session(graph)
    assert [first, second] == [plain.run(pad([row(word)], plain.inputs, 0, left=False)).tolist() for word in (5, 7)]


def test_memory_that_cannot_be_pinned_is_logged_and_the_session_works(graph: Path) -> None:
    device = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu", pin=lambda *_: False))

    with structlog.testing.capture_logs() as logs:
        assert logits_of(DeviceSession(graph, device, 2), [row(5)])

    assert [entry["event"] for entry in logs] == ["memory_not_pinned"]


def test_copies_are_timed_apart_from_the_run(session: DeviceSession) -> None:
    assert session.copied_s == 0

    logits_of(session, [row(5)])

    assert 0 < session.copied_s < 10


@pytest.mark.parametrize(
    "message",
    [
        "Failed to allocate memory for requested buffer of size 1073741824",
        "Available memory of 1048576 is smaller than requested bytes of 2097152",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_a_batch_beyond_the_device_memory_is_out_of_memory_and_a_smaller_one_runs(session: DeviceSession, message: str) -> None:
    Recorder(session).fails = lambda number: RuntimeError(message) if number == 1 else None

    with pytest.raises(OutOfMemory):
        logits_of(session, [row(5)] * 8)

    assert logits_of(session, [row(5)])


def attempts(session: DeviceSession) -> int:
    """How often a small batch is tried: with captured runs once more, without them."""
    return 2 if session.cells else 1


def test_a_failed_run_on_a_working_device_fails_alone(session: DeviceSession) -> None:
    Recorder(session).fails = lambda number: RuntimeError("bad shape") if number <= attempts(session) else None

    with pytest.raises(RuntimeError, match="bad shape"):
        logits_of(session, [row(5)] * 8)

    assert logits_of(session, [row(5)])


def test_a_device_that_fails_the_smallest_batch_too_is_lost_for_ever(session: DeviceSession) -> None:
    recorder = Recorder(session)
    recorder.fails = lambda number: (
        RuntimeError("CUDA failure 719: unspecified launch failure") if number <= attempts(session) + 1 else None
    )

    with pytest.raises(DeviceLost, match="cuda:0 fails every run: CUDA failure 719"):
        logits_of(session, [row(5)] * 8)

    with pytest.raises(DeviceLost, match="cuda:0 is lost"):
        logits_of(session, [row(5)])
    assert len(recorder.bindings) == attempts(session) + 1


def test_a_device_without_memory_for_a_single_token_is_lost(session: DeviceSession) -> None:
    recorder = Recorder(session)
    recorder.fails = lambda number: RuntimeError("Failed to allocate memory for requested buffer of size 9")

    with pytest.raises(DeviceLost, match="cuda:0 fails every run: Failed to allocate"):
        logits_of(session, [row(5)] * 8)


def test_the_session_of_a_lost_device_is_never_destroyed(graph: Path) -> None:
    session = DeviceSession(graph, PLAIN, 2)
    Recorder(session).fails = lambda number: RuntimeError("CUDA failure 719: unspecified launch failure")
    with pytest.raises(DeviceLost):
        logits_of(session, [row(5)])
    watched = weakref.ref(session)

    del session
    gc.collect()

    assert watched() is not None


def test_a_stopped_run_does_not_count_as_a_device_failure(session: DeviceSession) -> None:
    recorder = Recorder(session)
    stop = Stop()

    def ask(number: int) -> BaseException:
        stop.ask()
        return RuntimeError("Exiting due to terminate flag being set to true")

    recorder.fails = ask
    with pytest.raises(RuntimeError, match="terminate flag"):
        session.run(session.feeds([row(5)], 0, left=False), stop)

    assert len(recorder.bindings) == 1
    recorder.fails = lambda number: None
    assert logits_of(session, [row(5)])


def test_a_working_device_passes_its_test() -> None:
    prove(PLAIN)


def test_the_test_graph_of_a_device_is_the_square_of_a_matrix() -> None:
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "square", ends[:1], ends[1:])

    assert helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString() == SQUARE


def test_without_the_provider_there_is_no_device() -> None:
    with pytest.raises(NoDevice, match="needs NoSuchExecutionProvider; this ONNX Runtime has"):
        prove(Device("cuda:0", 0, Accelerator("NoSuchExecutionProvider", "cuda")))


@pytest.mark.parametrize(
    ("version", "capability", "says"),
    [
        ("1.31.1", (10, 0), "onnxruntime-gpu 1.31.1 has no code for NVIDIA B200 of compute capability 10.0, only for 7.5, 8.0, "),
        ("1.31.1", (7, 0), "has no code for NVIDIA B200 of compute capability 7.0"),
        ("1.31.0", (9, 0), "onnxruntime-gpu 1.31.0 was not tested; install a tested release "),
        ("1.32.0", (9, 0), r"onnxruntime-gpu 1.32.0 was not tested; .*\(pip install 'onnxruntime-gpu\[cuda,cudnn\]>=1.31.1,<1.32'\)"),
    ],
)
def test_a_gpu_that_the_wheel_cannot_run_is_refused_before_a_run(
    monkeypatch: pytest.MonkeyPatch, version: str, capability: tuple[int, int], says: str
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA.provider])
    monkeypatch.setattr(device_session, "RUNTIME_VERSION", version)

    with pytest.raises(NoDevice, match=says):
        prove(Device("cuda:0", 0, CUDA, "NVIDIA B200", capability=capability))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 7), (8, 9), (9, 0), (12, 0), (12, 1)])
def test_a_gpu_that_the_wheel_has_code_for_is_tried(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA.provider])
    monkeypatch.setattr(device_session, "RUNTIME_VERSION", "1.31.1")

    # The runtime of the tests has no code for GPUs, so that the run itself fails.
    with pytest.raises(NoDevice, match=r"ONNX Runtime cannot load it|could not start"):
        prove(Device("cuda:0", 0, CUDA, capability=capability))


def test_the_tested_releases_are_those_that_are_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    first, end = (".".join(map(str, version)) for version in gpu_wheel.TESTED)

    assert f"onnxruntime-gpu[cuda,cudnn]>={first},<{end}" in extras["gpu"]


def test_a_graph_that_is_not_a_classifier_is_refused(graph: Path) -> None:
    with pytest.raises(BadBundle, match="returns 2 logits per row; the manifest says 3"):
        DeviceSession(graph, PLAIN, logits=3)
    with pytest.raises(BadBundle, match=r"has unknown inputs: attention_mask; supported are input_ids, position_ids"):
        DeviceSession(graph, PLAIN, logits=2, layout="packed")


def test_flash_attention_runs_at_every_length_on_hopper_and_by_default_on_older_gpus(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV"
    monkeypatch.delenv(name, raising=False)

    DeviceSession(graph, dataclasses.replace(PLAIN, capability=(8, 9)), 2)
    assert name not in os.environ

    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    DeviceSession(graph, dataclasses.replace(PLAIN, capability=(9, 0)), 2)
    assert os.environ[name] == "0"


def test_a_session_does_not_capture_if_captures_is_off(graph: Path) -> None:
    assert DeviceSession(graph, CAPTURING, 2, captures=False).cells == ()


def test_cells_stay_within_the_row_limits(graph: Path) -> None:
    session = DeviceSession(graph, CAPTURING, 2)
    limits = BatchLimits(48, 4096, 2**30, 2)

    session.within(limits.rows_at)

    assert {rows for rows, _ in session.cells} == {1, 2, 4, 8, 16, 32}
    assert all(rows <= limits.rows_at(length) for rows, length in session.cells)
    session.within(BatchLimits(3, 4096, 2**30, 2).rows_at)
    assert {rows for rows, _ in session.cells} == {1, 2}


@pytest.mark.parametrize("device", [CAPTURING, PLAIN], ids=["capturing", "plain"])
def test_packed_batches_of_a_real_bert_have_the_answers_of_its_plain_graph(device: Device, english_twin: Path) -> None:
    plain = Session(ENGLISH / "fp32.onnx")
    session = DeviceSession(english_twin, device, load_bundle(ENGLISH).manifest.logits, layout="packed")
    seen = set()

    for seed, (count, longest) in enumerate([(1, 5), (3, 16), (7, 30), (2, 70), (40, 40), (1, 512)]):
        rows = random_rows(seed, count, longest)
        feeds = session.feeds(rows, 0, left=False)
        seen.add(session._graphs.get((feeds["input_ids"].shape, feeds["token_offset"].shape), "-1") == "-1")

        found = session.run(feeds)[:count]

        assert np.abs(found - plain.run(pad(rows, plain.inputs, 0, left=False))).max() < 1e-4

    assert seen == ({True, False} if device is CAPTURING else {True})


def test_the_cuda_options_set_the_arena_its_limit_and_captured_runs() -> None:
    device = Device("cuda:2", 2, CUDA)

    (provider, options), host = device_session.providers_of(device, 2**30, graphs=True)

    assert (provider, host) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["device_id"] == "2"
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert options["gpu_mem_limit"] == str(2**30)
    assert options["enable_cuda_graph"] == "1"
    assert "gpu_mem_limit" not in device_session.providers_of(device)[0][1]
