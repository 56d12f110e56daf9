"""Servers on devices. The devices are fakes that compute on the CPU provider; everything between the call and the kernel is as on a GPU."""

import asyncio
import itertools
import math
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import structlog

from sentiment import Local
from sentiment.batch_limits import ON_GPU
from sentiment.batching.cost import CostTable
from sentiment.batching.layout import Padded
from sentiment.client import CallFailed, Classification
from sentiment.errors import BadBundle, BadSettings, CannotServe, RunnerLost, Unsupported
from sentiment.explain.engine import Explainer
from sentiment.lifecycle.loading import Loaded, load
from sentiment.model.classifier import load_classifier
from sentiment.model.gpu import devices, on_device
from sentiment.model.gpu import graphs as gpu_graphs
from sentiment.model.gpu.device_session import DeviceSession
from sentiment.model.gpu.devices import CPU, Accelerator, Device
from sentiment.model.gpu.graphs import GpuGraphs
from sentiment.model.session import Session
from sentiment.serving import event_loop
from sentiment.serving.app import App
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.english import ENGLISH
from tests.packed_twin import save_twin
from tests.tiny import make_bundle, make_graph

GPUS = [Device(f"cuda:{index}", index, Accelerator("CPUExecutionProvider", "cpu", graphs=True), "a GPU", f"u{index}") for index in (0, 1)]
# Long enough for a busy machine; a test that passes never waits so long.
PATIENCE_S = 60
ROOT = Path(__file__).parents[3]


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no niceness of its own, and no batch is wide")


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: GPUS)


@pytest.fixture
def loaded(settings: Settings) -> Iterator[Callable[..., Loaded]]:
    made: list[Loaded] = []

    def begin(**changes: Any) -> Loaded:
        made.append(load(settings.model_copy(update={"device": "cuda", **changes}), measure_s=0.0))
        return made[-1]

    yield begin
    for each in made:
        for runner in each.runners:
            runner.close(PATIENCE_S)


def runner_threads() -> list[str]:
    """Those that do not end within seconds."""
    found = [thread for thread in threading.enumerate() if thread.name.startswith("cuda:")]
    for thread in found:
        thread.join(10)
    return [thread.name for thread in found if thread.is_alive()]


class Runs(list[tuple[str, dict[str, tuple[int, ...]], str]]):
    """The runs of all devices: the device's name, the shapes of the inputs, and the thread."""

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [shapes[name] for _, shapes, _ in self]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made, run = Runs(), DeviceSession.run

    def record(self: DeviceSession, feeds: Any, stop: Any = None) -> Any:
        shapes = {name: array.shape for name, array in feeds.items()}
        made.append((self.device.name, shapes, threading.current_thread().name))
        return run(self, feeds, stop)

    monkeypatch.setattr(DeviceSession, "run", record)
    return made


def sessions(server: RunningServer) -> list[DeviceSession]:
    found = [runner.classifier.session for runner in server.lifecycle.running[0].loaded.runners if runner.classifier]
    assert all(isinstance(session, DeviceSession) for session in found)
    return found  # type: ignore[return-value]  # as the line above says


def test_each_device_has_a_runner_with_a_session_of_its_own(loaded: Callable[..., Loaded]) -> None:
    found = loaded()

    assert [runner.name for runner in found.runners] == ["cuda:0", "cuda:1"]
    own = [runner.classifier.session for runner in found.runners if runner.classifier]
    assert isinstance(own[0], DeviceSession)
    assert own[0] is not own[1]
    assert found.devices == tuple(GPUS)
    # Runs are captured only if a setting says so.
    assert not found.classifier.session.cells
    # Explanations do not run in the threads of the devices.
    assert not isinstance(found.explained.session, DeviceSession)
    assert Explainer(found.explained).methods


def test_the_limits_of_batches_are_a_gpus_unless_they_are_set(loaded: Callable[..., Loaded]) -> None:
    usual, own = loaded(), loaded(batch_rows_max=8, batch_tokens_max=64)

    assert (usual.limits.rows, usual.limits.tokens, usual.limits.scores_bytes) == (1024, 16_384, 2**32)
    assert (own.limits.rows, own.limits.tokens) == (8, 64)


def test_every_shape_runs_on_every_device_before_the_first_request_largest_first(loaded: Callable[..., Loaded], runs: Runs) -> None:
    found = loaded(device_captures=True)

    for name in ("cuda:0", "cuda:1"):
        own = [(math.prod(shapes["input_ids"]), thread) for device, shapes, thread in runs if device == name]
        # The two golden texts come first.
        sizes = [size for size, _ in own[2:]]
        first = sizes[: 2 + len({*found.cost.points(), *found.classifier.session.cells})]
        # Small shapes are padded to their cells, so only the first is known to be the largest.
        assert first[0] == max(first) == ON_GPU["tokens"]
        assert {rows * length for rows, length in found.classifier.session.cells} < set(first)
        assert {thread for _, thread in own} == {name}
    assert isinstance(found.layout, Padded)


def test_a_model_is_served_on_a_device_even_if_a_cell_cannot_be_captured(
    loaded: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = DeviceSession._run

    def refuses(self: DeviceSession, feeds: Any, options: Any) -> Any:
        if self._graphs.get(self._shapes_fed(feeds)) and len(feeds["input_ids"]) >= 8:
            raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")
        return run(self, feeds, options)

    monkeypatch.setattr(DeviceSession, "_run", refuses)

    with structlog.testing.capture_logs() as logs:
        found = loaded(device_captures=True)

    shapes = {entry["shape"] for entry in logs if entry["event"] == "shape_not_captured"}
    cells = found.classifier.session.cells
    assert shapes == {cell for cell in cells if cell[0] >= 8}
    assert shapes < set(cells)
    assert found.devices


def out_of_memory_beyond(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DeviceSession._run

    def fail(self: DeviceSession, feeds: Any, options: Any) -> Any:
        if feeds["input_ids"].size > tokens:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 9")
        return run(self, feeds, options)

    monkeypatch.setattr(DeviceSession, "_run", fail)


def no_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    out_of_memory_beyond(1280, monkeypatch)
    return "512 rows of 32 tokens do not fit in the memory of a GPU"


def no_right_graph(monkeypatch: pytest.MonkeyPatch) -> str:
    run = DeviceSession.run
    monkeypatch.setattr(DeviceSession, "run", lambda *arguments: run(*arguments) + 1)
    return "fp32.onnx on cuda:0: golden[0]: the logit error is 1.0000"


def no_onnx(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "sentiment.model.gpu.graphs")
    monkeypatch.delattr("sentiment.model.gpu.graphs")
    return "pip install 'sentiment-service[gpu]'"


def lost_in_the_first_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first large batch on, every run fails."""
    run = DeviceSession._run
    gone = threading.Event()

    def fail(self: DeviceSession, feeds: Any, options: Any) -> Any:
        if feeds["input_ids"].size > 1280:
            gone.set()
        if gone.is_set():
            raise RuntimeError("CUDA failure 719: unspecified launch failure")
        return run(self, feeds, options)

    monkeypatch.setattr(DeviceSession, "_run", fail)


def test_auto_uses_the_cpu_if_a_device_is_lost_during_warm_up(loaded: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not loaded(device="auto").device_lost
    lost_in_the_first_large_batch(monkeypatch)

    found = loaded(device="auto")

    assert (found.devices, found.device_lost) == ((CPU,), True)
    assert "cuda:0 fails every run: CUDA failure 719" in found.not_cuda


def test_a_device_lost_during_warm_up_ends_the_start_like_a_lost_runner(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def served() -> None:
        await App(settings.model_copy(update={"device": "cuda"})).run()

    lost_in_the_first_large_batch(monkeypatch)

    with structlog.testing.capture_logs() as logs, pytest.raises(RunnerLost, match="cuda:0 fails every run: CUDA failure 719"):
        event_loop.run(served())

    assert "ready" not in [entry["event"] for entry in logs]
    assert runner_threads() == []


@pytest.mark.parametrize("trouble", [no_memory, no_right_graph, no_onnx])
def test_auto_uses_the_cpu_if_a_gpu_cannot_serve_and_gives_the_reason(
    loaded: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch, trouble: Callable[[pytest.MonkeyPatch], str]
) -> None:
    says = trouble(monkeypatch)

    found = loaded(device="auto")

    assert found.devices == (CPU,)
    assert says in found.not_cuda
    assert runner_threads() == []
    with pytest.raises((BadBundle, BadSettings), match=re.escape(says)):
        loaded(device="cuda")


def test_if_neither_gpu_nor_cpu_can_serve_the_error_has_both_reasons(loaded: Callable[..., Loaded]) -> None:
    with pytest.raises(BadBundle, match=r"has no int8 graph; it has fp32; and no GPU can serve it: precision = int8: runs only on the CPU"):
        loaded(device="auto", precision="int8")


def test_devices_warm_up_one_after_the_other(loaded: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    """Capturing a run fails while another session allocates memory, on any device."""
    order: list[str] = []
    run = DeviceSession.run

    def note(self: DeviceSession, feeds: Any, stop: Any = None) -> Any:
        order.append(self.device.name)
        logits = run(self, feeds, stop)
        # No other device ran meanwhile.
        assert order[-1] == self.device.name
        return logits

    monkeypatch.setattr(DeviceSession, "run", note)

    loaded()

    # Golden texts, first runs, then the costs of the first device, which apply to the second as well.
    assert [name for name, _ in itertools.groupby(order)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]


def test_an_error_of_check_ends_the_load_and_leaves_no_runner(settings: Settings) -> None:
    calls = itertools.count()

    def check() -> None:
        if next(calls) == 5:
            raise CannotServe("stopped")

    with pytest.raises(CannotServe):
        load(settings.model_copy(update={"device": "cuda"}), 0.0, check)

    assert runner_threads() == []


def test_a_stop_ends_the_load_before_it_ends_the_rest(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, over, shut_down = threading.Event(), threading.Event(), App._shut_down

    async def stopped() -> None:
        loop, app = asyncio.get_running_loop(), App(settings)

        def load_for_ever(_: Settings, check: Callable[[], None], model: str) -> None:
            loop.call_soon_threadsafe(app.stop)
            try:
                while not over.wait(0.001):
                    check()
            except CannotServe:
                ended.set()
                raise

        monkeypatch.setattr("sentiment.lifecycle.startup.load", load_for_ever)
        await app.run()

    async def shut_down_later(app: App) -> None:
        found = await asyncio.to_thread(ended.wait, PATIENCE_S)
        over.set()
        await shut_down(app)
        assert found

    monkeypatch.setattr(App, "_shut_down", shut_down_later)

    event_loop.run(stopped())


ABORTING = """
import os, sys
from sentiment.serving.app import App
from sentiment.cli.main import main
from sentiment.errors import RunnerLost

class Session:
    def __del__(self):
        os.abort()

async def run(self):
    {ends}

App.run, App.session = run, Session()
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("ends", "code", "says"),
    [('raise RunnerLost("its device is lost")', 1, "error: its device is lost\n"), ("self.device_lost = True", 0, "")],
    ids=["while it served", "before the CPU served"],
)
def test_a_process_with_a_lost_device_exits_without_destroying_sessions(
    bundles: Path, tmp_path: Path, ends: str, code: int, says: str
) -> None:
    """Destroying CUDA objects of a lost device aborts the process."""
    program = tmp_path / "aborting.py"
    program.write_text(ABORTING.replace("{ends}", ends))
    command = [sys.executable, str(program), "serve", "--bundles", str(bundles), "--model", "tiny"]

    found = subprocess.run([*command, "--grpc-listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60, check=False)

    assert found.returncode == code, found.stderr
    assert ("runner_lost" in found.stderr) == bool(code)
    assert found.stderr.endswith(says)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes the builder of graphs, since the tiny graph cannot be fused."""

    def make(bundle: Path, folder: Path, precision: str) -> GpuGraphs:
        place = folder / f"gpu-{precision}"
        place.mkdir(parents=True, exist_ok=True)
        onnx.save(make_graph(), place / "padded.onnx")
        return GpuGraphs(place / "padded.onnx", None, {}, "not packable")

    monkeypatch.setattr(gpu_graphs, "make_graphs", make)


def test_devices_that_cannot_serve_the_same_graph_stop_the_start(
    loaded: Callable[..., Loaded], fused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(path: Path, device: Device, *arguments: Any) -> DeviceSession:
        if device.name == "cuda:1" and path.name != "fp32.onnx":
            raise BadBundle("no kernel")
        return DeviceSession(path, device, *arguments)

    monkeypatch.setattr(on_device, "DeviceSession", make)

    with pytest.raises(BadBundle, match=r"no graph passes on all devices: fp16-padded.onnx, fp32.onnx"):
        loaded()


def test_int8_is_refused_on_a_device(loaded: Callable[..., Loaded]) -> None:
    with pytest.raises(BadSettings, match="precision = int8: runs only on the CPU, but the device is cuda:0"):
        loaded(precision="int8")


def test_graphs_built_for_a_device_are_removed_after_loading_or_kept_in_cache_dir(
    loaded: Callable[..., Loaded], fused: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    found = loaded(device="cuda:0")
    loaded(device="cuda:0", cache_dir=str(tmp_path / "kept"))

    assert found.classifier.graph.file == "fp16-padded.onnx"
    assert list(temporary.iterdir()) == []
    assert [path.name for path in (tmp_path / "kept").glob("gpu-*")] != []


def test_texts_are_answered_explained_and_counted_by_device(start: Callable[..., RunningServer]) -> None:
    server = start(device="cuda")
    with server.client() as client:
        results = client.classify_batch(["good", "bad film", "awful"] * 50)
        explanation = client.explain("a good film")

    assert [getattr(result, "label", None) for result in results] == ["positive", "negative", "negative"] * 50
    assert explanation.label == "positive"
    # Not the served graph: that one belongs to the devices' runners.
    assert (explanation.precision, explanation.provider) == ("fp32", "CPUExecutionProvider")
    assert explanation.explain_provider == ""
    assert {runner.name for runner in server.lifecycle.running[0].loaded.runners} == {"cuda:0", "cuda:1"}
    assert sum(server.metric("sentiment_runner_busy_seconds_total", runner=name) for name in ("cuda:0", "cuda:1")) > 0
    assert server.metric("sentiment_stage_seconds_sum", stage="copy", model="tiny/1") > 0


def test_local_runs_batches_on_all_devices_and_explains_on_the_cpu(bundles: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    with Local("tiny", bundles=bundles, device="cuda") as local:
        out_of_memory_beyond(256, monkeypatch)
        runs.clear()

        results = [*local.classify(["good", "bad film", "awful"] * 1000), local.classify("good")]

        assert [getattr(result, "label", result) for result in results] == ["positive", "negative", "negative"] * 1000 + ["positive"]
        assert {(device, thread) for device, _, thread in runs} == {("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")}
        assert local.explain("a good film").provider == "CPUExecutionProvider"
    assert runner_threads() == []


def test_local_says_that_its_device_is_lost(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("CUDA failure 999: unknown error")

    with Local("tiny", bundles=bundles, device="cuda:0") as local:
        monkeypatch.setattr(DeviceSession, "_run", gone)

        for call in (lambda: local.classify("good"), lambda: local.classify(["good"] * 5000)):
            with pytest.raises(CallFailed, match="the device is lost") as caught:
                call()
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("where", "providers"), [("cpu", ()), ("device", [("CPUExecutionProvider", {"device_id": "0"})])])
def test_attention_and_gradients_run_on_a_gpu_only_if_asked(start: Callable[..., RunningServer], where: str, providers: Any) -> None:
    server = start(device="cuda:0", explain_on=where)

    with server.client() as client:
        assert client.explain("a good film").label == "positive"

    explaining = server.lifecycle.running[0].explaining
    assert explaining is not None
    assert explaining.explainer._providers == providers


def test_packed_batches_are_answered_like_single_texts(
    start: Callable[..., RunningServer], runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default bundle's packed graph with attention for a CPU, in small batches: everything except the kernels is as on a GPU."""
    make = gpu_graphs.make_graphs

    def make_twin(bundle: Path, folder: Path, precision: gpu_graphs.Precision) -> GpuGraphs:
        made = make(bundle, folder, precision)
        assert made.packed is not None
        save_twin(made.packed, made.packed.with_name("twin.onnx"))
        return replace(made, packed=made.packed.with_name("twin.onnx"))

    monkeypatch.setattr(gpu_graphs, "make_graphs", make_twin)
    small = {"batch_rows_max": 2, "batch_tokens_max": 576, "precision": "fp32", "explain": False}
    server = start(device="cuda:0", bundles=(ROOT / "models/bundles",), model="english", **small)
    texts = ["A fine film.", "Dull.", "I would not see it again, and nor should you.", "wonderful " * 30, "wonderful " * 500] * 2
    warm = len(runs)

    with server.client() as client:
        results = client.classify_batch(texts)

    served = sessions(server)[0]
    assert (served.layout, server.app._ready_with["device"]) == ("packed", "cuda:0")
    host = load_classifier(ENGLISH, "fp32")
    wanted = [host.score(host.run([host.tokenizer.encode(text, None)])[0]).scores[1] for text in texts]
    assert [result.scores["positive"] for result in results if isinstance(result, Classification)] == pytest.approx(wanted, abs=1e-4)
    # The shapes that need most memory ran before the first request.
    places = list(map(math.prod, runs.shapes("token_offset")))
    assert max(places[:warm]) >= 2 * 512
    assert max(places[warm:]) <= max(places[:warm])


def test_models_on_gpus_are_exchanged_while_they_serve(start: Callable[..., RunningServer]) -> None:
    server = start(device="cuda")
    repository = server.lifecycle

    with server.client() as client:
        asyncio.run_coroutine_threadsafe(repository.load("paired/1"), server.loop).result(PATIENCE_S * 6)
        answered = client.classify("good", model="tiny")
        loaded = {running.id: running.loaded for running in repository.running}
        own = [runner.classifier.session for runner in loaded["paired/1"].runners if runner.classifier]
        asyncio.run_coroutine_threadsafe(repository.unload("paired"), server.loop).result(PATIENCE_S)
        again = client.classify("good", model="tiny")

    assert {device.name for device in loaded["paired/1"].devices} == {"cuda:0", "cuda:1"}
    assert all(isinstance(session, DeviceSession) and not hasattr(session, "_memory") for session in own)
    assert len(own) == 2
    assert again.scores == answered.scores
    assert [running.id for running in repository.running] == ["tiny/1"]


def test_models_on_a_gpu_whose_runs_are_captured_cannot_be_exchanged_while_they_serve(start: Callable[..., RunningServer]) -> None:
    server = start(device="cuda:0", device_captures=True)
    loading = asyncio.run_coroutine_threadsafe(server.lifecycle.load("paired/1"), server.loop)

    with pytest.raises(Unsupported, match="cannot be changed while they serve with device_captures"):
        loading.result(PATIENCE_S)


def test_filler_tokens_of_a_cell_count_as_padding(start: Callable[..., RunningServer]) -> None:
    server = start(device="cuda:0", device_captures=True)

    with server.client() as client:
        client.classify("good")

    real, padded = (server.metric("sentiment_tokens_total", kind=kind, model="tiny/1") for kind in ("real", "padded"))
    assert (real > 0, real + padded) == (True, 16)


def test_two_devices_run_at_once(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    # One text a batch: texts that arrive in the same turn of the event loop would otherwise run together, on one device.
    server = start(device="cuda", batch_rows_max=1)
    both = threading.Barrier(2)
    run = DeviceSession.run

    def meet(self: DeviceSession, feeds: Any, stop: Any = None) -> Any:
        both.wait(PATIENCE_S)
        return run(self, feeds, stop)

    monkeypatch.setattr(DeviceSession, "run", meet)
    answers: list[Any] = []

    def call() -> None:
        with server.client() as client:
            answers.append(client.classify("good").label)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert answers == ["positive", "positive"]


def test_the_next_batch_of_a_busy_device_is_laid_out_while_one_runs_in_a_server(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(device="cuda:0", batch_rows_max=8)
    running: list[bool] = []
    laid_out_meanwhile: list[bool] = []
    run, feeds = DeviceSession._run, DeviceSession.feeds

    def compute(self: DeviceSession, given: Any, options: Any) -> Any:
        running.append(True)
        # As long as a batch on a GPU; the CPU is free meanwhile.
        time.sleep(0.02)
        logits = run(self, given, options)
        running.pop()
        return logits

    def lay_out(self: DeviceSession, *arguments: Any) -> Any:
        laid_out_meanwhile.append(bool(running))
        return feeds(self, *arguments)

    monkeypatch.setattr(DeviceSession, "_run", compute)
    monkeypatch.setattr(DeviceSession, "feeds", lay_out)

    with server.client() as client:
        results = client.classify_batch(["good", "bad"] * 160)
        alone_from = len(laid_out_meanwhile)
        alone = client.classify("good")

    assert [getattr(result, "label", result) for result in results] == ["positive", "negative"] * 160
    assert any(laid_out_meanwhile[:alone_from])
    assert (alone.label, laid_out_meanwhile[alone_from:]) == ("positive", [False])


def test_a_lost_device_answers_unavailable_and_the_server_ends(start: Callable[..., RunningServer]) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("CUDA failure 999: unknown error")

    with structlog.testing.capture_logs() as logs:
        server = start(device="cuda")
        for session in sessions(server):
            session._run = gone  # type: ignore[method-assign, assignment]  # the fault

        with server.client() as client, pytest.raises(CallFailed) as caught:
            client.classify("good XyzzySecret")
        with pytest.raises(RunnerLost, match="its device is lost"):
            server.stop()

    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    (lost,) = (entry for entry in logs if entry["event"] == "device_lost")
    assert (lost["runner"] in ("cuda:0", "cuda:1"), lost["rows"], lost["log_level"]) == (True, 1, "critical")
    assert "Xyzzy" not in str(logs)
    server.failure = None


def test_a_lost_device_does_not_affect_the_batches_of_the_other(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()
    run = DeviceSession._run

    def one_waits_one_fails(self: DeviceSession, feeds: Any, options: Any) -> Any:
        if (feeds["input_ids"] == 5).any():  # the word "great"
            entered.set()
            assert go.wait(PATIENCE_S)
            return run(self, feeds, options)
        raise RuntimeError("CUDA failure 999: unknown error")

    server = start(device="cuda", drain_wait_s=0.0)
    monkeypatch.setattr(DeviceSession, "_run", one_waits_one_fails)
    answers: list[str] = []

    def call() -> None:
        with server.client() as client:
            answers.append(client.classify("great").label)

    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(PATIENCE_S)
    with server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("bad")
    go.set()
    thread.join(PATIENCE_S)

    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert answers == ["positive"]
    with pytest.raises(RunnerLost):
        server.stop()
    server.failure = None


class FakeMeter:
    def memory_bytes(self) -> float:
        return 5.0

    def busy_ratio(self) -> float:
        return 0.5


def test_device_meters_are_exported_as_metrics_if_there_are_any(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentiment.serving.app.meters", lambda given: {device.name: FakeMeter() for device in given})
    with_meters = urllib.request.urlopen(start(device="cuda").url + "/metrics", timeout=10).read().decode()
    monkeypatch.setattr("sentiment.serving.app.meters", lambda given: {})
    without = urllib.request.urlopen(start(device="cuda").url + "/metrics", timeout=10).read().decode()

    assert 'sentiment_device_memory_bytes{device="cuda:1"} 5.0\n' in with_meters
    assert 'sentiment_device_busy_ratio{device="cuda:0"} 0.5\n' in with_meters
    assert "sentiment_device_" not in without


@linux_only
@pytest.mark.parametrize(("threads_max", "width"), [(0, 2), (1, 1), (3, 2)])
def test_a_lone_text_runs_on_idle_cores_unless_that_is_turned_off(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch, threads_max: int, width: int
) -> None:
    wide: list[int] = []
    run_wide = Session.run_wide

    def record(self: Session, feeds: Any, stop: Any = None) -> Any:
        wide.append(self.width)
        return run_wide(self, feeds, stop)

    monkeypatch.setattr(Session, "run_wide", record)
    monkeypatch.setattr(CostTable, "widening_saves", lambda *_: True)
    server = start(device="cpu", runners=2, batch_threads_max=threads_max)
    assert server.lifecycle.running[0].loaded.classifier.session.width == width
    wide.clear()

    with server.client() as client:
        answer = client.classify("a good film")

    assert answer.scores["positive"] > 0.5
    assert wide == ([2] if width > 1 else [])


@linux_only
def test_a_model_whose_bits_differ_on_several_cores_uses_one(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "run_wide", lambda self, feeds, stop=None: np.nextafter(self.run(feeds, stop), np.float32(9)))

    with structlog.testing.capture_logs() as logs:
        server = start(device="cpu", runners=2)

    (found,) = (entry["reason"] for entry in logs if entry["event"] == "not_wide")
    assert found.endswith("tiny/1/fp32.onnx: golden[0]: other logits in 2 threads than in one")
    assert server.lifecycle.running[0].loaded.classifier.session.width == 1


def test_a_bundle_is_checked_before_its_gpu_graphs_are_built(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "bundles")
    onnx.save(onnx.ModelProto(), path / "fp32.onnx")

    with pytest.raises(BadBundle):
        loaded(bundles=(tmp_path / "bundles",))
