"""ONNX Runtime: telemetry, stopping a run, and running out of memory."""

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from sentiment.model.session import PAIRS_FIT, Session, Stop
from tests.tiny import make_bundle, make_graph

LOAD = "import sys; from pathlib import Path; from sentiment.model.session import Session; Session(Path(sys.argv[1]))"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 10
FOR_EVER = 10**15


@pytest.mark.parametrize("module", ["sentiment.model.session", "sentiment_models"])
def test_telemetry_is_off_before_the_runtime_loads(module: str) -> None:
    program = f"import os, sys, {module}; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=True)

    assert found.stdout == "1\n"


def test_loading_a_graph_writes_nothing_into_the_home_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    graph = make_bundle(tmp_path / "bundles") / "fp32.onnx"
    # Without CI, since ONNX Runtime sends no telemetry in CI.
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}

    subprocess.run([sys.executable, "-c", LOAD, str(graph)], env={**environment, "HOME": str(home)}, timeout=60, check=True)

    assert list(home.rglob("*")) == []


@pytest.mark.parametrize(
    ("stated", "metadata", "made_exact"),
    [
        (True, {}, [False]),
        (False, {PAIRS_FIT: "1"}, [True]),
        # A bundle of before 0.2.0 does not state it.
        (None, {PAIRS_FIT: "1"}, [False]),
        (None, {}, [False, True]),
    ],
)
def test_products_are_made_exact_unless_the_manifest_or_else_the_graph_says_that_they_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: bool | None, metadata: dict[str, str], made_exact: list[bool]
) -> None:
    graph = make_graph()
    helper.set_model_props(graph, metadata)
    onnx.save(graph, tmp_path / "graph.onnx")
    loads: list[bool] = []
    load = onnxruntime.InferenceSession

    def loading(path: str, options: onnxruntime.SessionOptions, **arguments: Any) -> onnxruntime.InferenceSession:
        try:
            loads.append(options.get_session_config_entry("session.x64quantprecision") == "1")
        except RuntimeError:  # not set
            loads.append(False)
        return load(path, options, **arguments)

    monkeypatch.setattr(onnxruntime, "InferenceSession", loading)

    session = Session(tmp_path / "graph.onnx", pairs_fit=stated)

    assert loads == made_exact
    assert session.pairs_fit is not made_exact[-1]


def make_counting_graph() -> onnx.ModelProto:
    """Returns its input after as many small steps as the largest id: a run of any length."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Mul", ["value", "one"], ["next"])],
        "step",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("ReduceMax", ["input_ids"], ["steps"], keepdims=0),
        helper.make_node("Cast", ["input_ids"], ["first"], to=TensorProto.FLOAT),
        helper.make_node("Loop", ["steps", "", "first"], ["logits"], body=body),
    ]
    graph = helper.make_graph(
        nodes,
        "counting",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence"])],
        [numpy_helper.from_array(np.array(1, np.float32), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture
def counting(tmp_path: Path) -> Session:
    onnx.save(make_counting_graph(), tmp_path / "counting.onnx")
    return Session(tmp_path / "counting.onnx")


def steps(count: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"input_ids": np.array([[count]], np.int64)}


def test_a_stop_ends_a_real_run_with_an_error_and_the_session_stays_usable(counting: Session) -> None:
    outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop, begun = Stop(), threading.Event()

    def run() -> None:
        begun.set()
        try:
            counting.run(steps(FOR_EVER), stop)
            outcomes.put(None)
        except BaseException as error:  # the outcome
            outcomes.put(error)

    threading.Thread(target=run, daemon=True).start()
    assert begun.wait(PATIENCE_S)
    # The stop does not apply to another run on the same session.
    assert counting.run(steps(1000), Stop()).tolist() == [[1000.0]]
    assert outcomes.empty()

    stop.ask()

    outcome = outcomes.get(timeout=PATIENCE_S)
    assert outcome is not None
    assert "terminate flag" in str(outcome)
    assert counting.run(steps(3), Stop()).tolist() == [[3.0]]


def test_a_run_that_was_stopped_before_it_began_fails_at_once(counting: Session) -> None:
    stop = Stop()
    stop.ask()

    with pytest.raises(Exception, match="terminate flag"):
        counting.run(steps(1_000_000), stop)

    assert counting.run(steps(3)).tolist() == [[3.0]]


# A batch of 256 MiB within 300 MiB: its inputs and some of its intermediate results fit, another does not.
BEYOND_THE_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from sentiment.errors import OutOfMemory
from sentiment.model.session import Session

session = Session(Path(sys.argv[1]))
ids = np.zeros((16, 2 * 2**20), np.int64)
large = {"input_ids": ids, "attention_mask": ids}
small = {name: values[:1, :8].copy() for name, values in large.items()}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20,) * 2)
for feeds in (large, small, large):
    try:
        print(session.run(feeds).shape)
    except OutOfMemory as error:
        print("OutOfMemory", type(error.__cause__).__name__)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set from what /proc says is used")
def test_a_batch_beyond_the_host_memory_is_out_of_memory_and_a_smaller_one_runs(tmp_path: Path) -> None:
    onnx.save(make_graph(), tmp_path / "tiny.onnx")

    found = subprocess.run(
        [sys.executable, "-c", BEYOND_THE_MEMORY, str(tmp_path / "tiny.onnx")], capture_output=True, text=True, timeout=60, check=False
    )

    assert found.stdout.splitlines() == ["OutOfMemory Fail", "(1, 2)", "OutOfMemory Fail"], found.stderr
