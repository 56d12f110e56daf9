"""Which of a bundle's graphs a device serves, and why. On the CPU provider, which has no packed attention."""

import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import structlog
from onnx import numpy_helper

from sentiment.errors import BadBundle, BadSettings, CannotServe
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.gpu import graphs as gpu_graphs
from sentiment.model.gpu import on_device
from sentiment.model.gpu.device_session import DeviceSession
from sentiment.model.gpu.devices import Accelerator, Device
from sentiment.model.gpu.on_device import load_on_device
from tests.english import ENGLISH
from tests.tiny import make_bundle, make_graph, read_manifest, write_manifest

DEVICE = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu", graphs=True), "a GPU")


@pytest.fixture
def host(tmp_path: Path) -> Classifier:
    return load_classifier(make_bundle(tmp_path / "bundles"))


def off_by(error: float) -> onnx.ModelProto:
    """The tiny graph, whose golden logits have at most this error."""
    graph = make_graph()
    (table,) = (tensor for tensor in graph.graph.initializer if tensor.name == "table")
    # The text "awful" has one word that counts, of the weight 2.
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table) * (1 + error / 2), "table"))
    return graph


@pytest.fixture
def makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces the builders of graphs: takes the logit error of each kind (fp16, unfused, fp32), and returns the list of those that were
    built. Those without an error cannot be built.
    """

    def begin(**errors: float | None) -> list[str]:
        made: list[str] = []

        def make(bundle: Path, folder: Path, precision: str) -> SimpleNamespace:
            made.append(precision)
            error = errors.get(precision)
            if error is None:
                raise BadBundle(f"{precision} cannot be made")
            onnx.save(off_by(error), folder / f"{precision}.onnx")
            return SimpleNamespace(padded=folder / f"{precision}.onnx", packed=None, fused={}, reason="not packable")

        monkeypatch.setattr(gpu_graphs, "make_graphs", make)
        monkeypatch.setattr(gpu_graphs, "make_unfused", lambda bundle, folder: make(bundle, folder, "unfused").padded)
        return made

    return begin


def test_fp16_is_served_if_its_golden_logits_are_within_tolerance(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path
) -> None:
    made = makes(fp16=0.02, fp32=0.0)

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert (served.graph.file, served.graph.precision, served.session.layout) == ("fp16-padded.onnx", "fp16", "padded")
    assert served.passed_over == ("fp16 packed: not packable",)
    assert made == ["fp16"]


def test_if_graphs_cannot_be_written_the_bundles_own_is_served_and_the_reason_kept(host: Classifier, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("no folder")

    served = load_on_device(host, DEVICE, "auto", taken)

    assert (served.graph.file, served.session.layout) == ("fp32.onnx", "padded")
    reasons = [f"{precision}: graphs cannot be written to {taken}" for precision in ("fp16", "fp32")]
    # The two fp16 graphs for one reason.
    assert [reason[: len(reasons[0])] for reason in served.passed_over] == reasons


def test_fp32_is_served_if_fp16_is_not_accurate_enough_within_the_bundles_tolerance(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path
) -> None:
    makes(fp16=0.04, unfused=0.05, fp32=0.0005)
    served = load_on_device(host, DEVICE, "auto", tmp_path)
    assert served.graph.file == "fp32-padded.onnx"
    for file, error in (("fp16-padded.onnx", "0.0400"), ("fp16-unfused.onnx", "0.0500")):
        assert f"{file} on cuda:0: golden[1]: the logit error is {error}; the tolerance is 0.03" in " ".join(served.passed_over)

    makes(fp16=0.04, unfused=0.05, fp32=0.003)
    served = load_on_device(host, DEVICE, "auto", tmp_path)
    assert served.graph.file == "fp32.onnx"
    assert "the logit error is 0.0015; the tolerance is 0.001" in " ".join(served.passed_over)


def test_a_graph_that_cannot_be_fused_is_served_in_fp16_if_its_golden_logits_are_within_tolerance(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path
) -> None:
    made = makes(unfused=0.02)

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert (served.graph.file, served.graph.precision, served.session.layout) == ("fp16-unfused.onnx", "fp16", "padded")
    assert (served.graph.tolerance, served.graph.invariance, served.graph.exact) == (0.03, 2e-3, True)
    assert served.passed_over == ("fp16 cannot be made",)
    assert made == ["fp16", "unfused"]

    makes(unfused=0.04)
    served = load_on_device(host, DEVICE, "auto", tmp_path)
    assert served.graph.file == "fp32.onnx"
    assert "fp16-unfused.onnx on cuda:0: golden[1]: the logit error is 0.0400" in " ".join(served.passed_over)


def test_a_graph_that_can_be_neither_fused_nor_halved_is_served_as_it_is_in_the_bundle(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path
) -> None:
    makes()

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert (served.graph.file, served.graph.precision, served.session.hardware) == ("fp32.onnx", "fp32", "a GPU")
    assert served.passed_over == ("fp16 cannot be made", "unfused cannot be made", "fp32 cannot be made")


def test_only_the_named_precision_is_served_on_a_device(host: Classifier, makes: Callable[..., list[str]], tmp_path: Path) -> None:
    made = makes(fp16=0.04, fp32=0.0)

    assert load_on_device(host, DEVICE, "fp32", tmp_path).graph.precision == "fp32"
    assert made == ["fp32"]
    with pytest.raises(BadBundle, match=r"fp16-padded.onnx on cuda:0: golden\[1\]: the logit error is 0.0400.*; unfused cannot be made$"):
        load_on_device(host, DEVICE, "fp16", tmp_path)


def test_a_bundle_that_pads_on_the_left_is_served_unfused_in_fp16(tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "bundles")
    write_manifest(path, {**read_manifest(path), "padding_side": "left"})
    host = load_classifier(path)

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert served.graph.file == "fp16-unfused.onnx"
    (reason,) = served.passed_over
    assert "padding_side is left; fused attention needs padding on the right" in reason
    rows = [host.tokenizer.encode(text, None) for text in ("a good film", "awful", "the great and the good")]
    assert served.run(rows) == [pytest.approx(logits, abs=0.03) for logits in host.run(rows)]
    assert load_on_device(host, DEVICE, "fp32", tmp_path).graph.file == "fp32.onnx"


def test_the_default_bundle_is_served_in_fp16(tmp_path: Path) -> None:
    """As on a GPU, except for its kernels and for packed attention, which the CPU provider lacks."""
    host = load_classifier(ENGLISH, "fp32")

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert served.graph.file == "fp16-padded.onnx"
    rows = [host.tokenizer.encode(text, None) for text in ("a fine film", "dull " * 40, "I would not see it again.")]
    assert served.run(rows) == [pytest.approx(logits, abs=0.03) for logits in host.run(rows)]


def refusing(monkeypatch: pytest.MonkeyPatch, refuse: Callable[[DeviceSession], bool], at: str) -> list[weakref.ref[DeviceSession]]:
    """Makes sessions fail when they are loaded or when they run. Returns the sessions."""
    made: list[weakref.ref[DeviceSession]] = []

    class Refusing(DeviceSession):
        def __init__(self, *arguments: Any) -> None:
            assert all(each() is None for each in made)
            super().__init__(*arguments)
            made.append(weakref.ref(self))
            if at == "load" and refuse(self):
                raise BadBundle("not all nodes are on the device")

        def run(self, feeds: Any, stop: Any = None) -> Any:
            if at == "run" and refuse(self):
                raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")
            return super().run(feeds, stop)

    monkeypatch.setattr(on_device, "DeviceSession", Refusing)
    return made


@pytest.mark.parametrize("at", ["load", "run"])
def test_a_graph_whose_runs_cannot_be_captured_is_served_without_and_logged(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    makes(fp16=0.0, fp32=0.0)
    made = refusing(monkeypatch, lambda session: session._captures, at)

    with structlog.testing.capture_logs() as logs:
        served = load_on_device(host, DEVICE, "auto", tmp_path, captures=True)

    assert (served.graph.file, served.session.cells) == ("fp16-padded.onnx", ())
    assert [entry["event"] for entry in logs] == ["runs_not_captured"]
    assert len(made) == 2
    assert made[1]() is served.session


@pytest.mark.parametrize(("memory_bytes", "room"), [(2**20, "device_bytes_max = 1048576"), (0, "device_bytes_max = 0 (all free memory)")])
def test_weights_that_do_not_fit_are_a_settings_error_and_no_larger_graph_is_tried(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int, room: str
) -> None:
    makes(fp16=0.0, fp32=0.0)
    tried: list[Path] = []

    def load(path: Path, *_: Any) -> Any:
        tried.append(path)
        raise BadBundle(f"{path}: cannot be loaded: Failed to allocate memory for requested buffer of size 46875648")

    monkeypatch.setattr("sentiment.model.gpu.device_session.load_graph", load)

    with pytest.raises(BadSettings) as refused:
        load_on_device(host, DEVICE, "auto", tmp_path, memory_bytes)

    assert len(tried) == 1
    size = tried[0].stat().st_size
    assert f"{room}: fp16-padded.onnx has {size} bytes and does not fit in the memory of" in str(refused.value)
    assert "set device = cpu" in str(refused.value)


def test_a_rejected_graph_is_freed_before_the_next_is_loaded(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes(fp16=0.04, unfused=0.04, fp32=0.0)
    # Asserts it.
    made = refusing(monkeypatch, lambda session: False, "load")

    assert load_on_device(host, DEVICE, "auto", tmp_path).graph.file == "fp32-padded.onnx"
    assert len(made) == 3


def test_without_onnx_the_error_says_what_to_install(host: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "sentiment.model.gpu.graphs")
    monkeypatch.delattr("sentiment.model.gpu.graphs")

    with pytest.raises(BadSettings, match=r"serving on a GPU needs the gpu extra: pip install 'sentiment-service\[gpu\]' \(.*onnx.*\)"):
        load_on_device(host, DEVICE, "auto", tmp_path)


def test_a_graph_with_nodes_that_the_device_lacks_is_passed_over(
    host: Classifier, makes: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes(unfused=0.0)

    def load(path: Path, *arguments: Any) -> DeviceSession:
        if path.name == "unfused.onnx":
            raise BadBundle("no kernel for OneHot in fp16")
        return DeviceSession(path, *arguments)

    monkeypatch.setattr(on_device, "DeviceSession", load)

    served = load_on_device(host, DEVICE, "auto", tmp_path)

    assert served.graph.file == "fp32.onnx"
    assert "no kernel for OneHot in fp16" in served.passed_over


def test_an_error_of_check_ends_the_load(host: Classifier, makes: Callable[..., list[str]], tmp_path: Path) -> None:
    makes(fp16=0.0)

    def stop() -> None:
        raise CannotServe("stopped")

    with pytest.raises(CannotServe):
        load_on_device(host, DEVICE, "auto", tmp_path, check=stop)


def test_serving_on_the_cpu_loads_no_onnx() -> None:
    program = "import sys, sentiment.serving.app; print({'onnx', 'pynvml', 'sentiment.model.gpu.graphs'} & set(sys.modules))"

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout == "set()\n"
