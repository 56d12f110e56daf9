"""Graphs for a GPU: what is fused, what it computes on a CPU as far as there are kernels, and how they are kept.

PackedMultiHeadAttention runs on CUDA alone: here the packed graph runs with its attention in standard operators
(tests/packed_twin.py). Of fp16 it is shown that no weight is rounded and that the graph computes the same; a CPU does that in fp32,
so how much fp16 rounds is emulated (test_fp16.py), and what the kernels of CUDA do is seen on a GPU alone: the golden set is run there
before texts are served.
"""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, numpy_helper, shape_inference

from sentiment.errors import BadBundle
from sentiment.model.gpu import graphs as gpu_graphs
from sentiment.model.gpu.graphs import GpuGraphs, make_graphs, make_unfused
from sentiment.model.session import Session, load_graph
from sentiment.model.tensors import pack, pad
from sentiment.model.tokenizer import Row
from tests.english import ENGLISH
from tests.models.tiny_families import graph_tiny
from tests.packed_twin import save_twin
from tests.tiny import make_bundle, read_manifest, write_manifest

ROOT = Path(__file__).parents[3]
# Those whose every layer ONNX Runtime fuses, with their layers; english is the bundle that is served by default.
PACKED = {"bert": 2, "bert-deep": 4, "electra": 2, "english": 6}
LAYERS = {**PACKED, "roberta": 2, "xlm-roberta": 2, "camembert": 2, "data2vec-text": 2, "rembert": 2}
# Those whose layers it does not fuse, and the side on which they are padded.
UNFUSED = {
    **dict.fromkeys(("distilbert", "albert", "mpnet", "deberta", "deberta-v2", "modernbert", "roformer"), "right"),
    "xlnet": "left",
}
VOCABULARY = 60

Make = Callable[[str], Path]
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A family's tiny random classifier as what is read of a bundle here: a manifest, the fp32 graph and its weights."""
    made: dict[str, Path] = {"english": ENGLISH}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = graph_tiny(tmp_path_factory.mktemp(family), family)
        return made[family]

    return make


class Graphs(Protocol):
    """A family's graphs, made once for all tests."""

    def __call__(self, family: str, precision: gpu_graphs.Precision = "fp32") -> GpuGraphs: ...


@pytest.fixture(scope="module")
def graphs_of(bundle_of: Make, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    folder = tmp_path_factory.mktemp("graphs")
    return lambda family, precision="fp32": make_graphs(bundle_of(family), folder, precision)


def rows_of(lengths: Sequence[int], seed: int, pairs: bool = True) -> list[Row]:
    random = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        types = sorted(random.integers(0, 2, length).tolist()) if pairs else None
        rows.append(Row(random.integers(0, VOCABULARY, length).tolist(), types, False))
    return rows


MIXED = [7, 2, 64, 31, 16, 3, 48]
# How far logits may be off, whose deviation is about 1; here and there a CPU rounds to fp16 between two nodes.
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-2}
HALF = [("bert", "fp16"), ("english", "fp16")]


def plain_logits(bundle: Path, batches: Sequence[Sequence[Row]]) -> list[Logits]:
    """Of the graph as it is served on a CPU, each text alone and so without padding."""
    session = Session(bundle / "fp32.onnx")
    return [np.concatenate([session.run(pad([row], session.inputs, 0, left=False)) for row in rows]) for rows in batches]


@pytest.mark.parametrize(("family", "precision"), [*((family, "fp32") for family in LAYERS if family != "english"), *HALF])
def test_the_fused_graph_returns_the_logits_of_the_plain_one_with_any_padding(
    bundle_of: Make, graphs_of: Graphs, family: str, precision: gpu_graphs.Precision
) -> None:
    batches = [rows_of(lengths, seed) for seed, lengths in enumerate([[1], [2], [64], [5, 5, 5], MIXED])]
    session = load_graph(graphs_of(family, precision).padded, ["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]

    for rows, wanted in zip(batches, plain_logits(bundle_of(family), batches), strict=True):
        feeds = {name: array.astype(np.int32) for name, array in pad(rows, inputs, 0, left=False).items()}
        assert np.abs(session.run(["logits"], feeds)[0] - wanted).max() < TOLERANCE[precision]


@pytest.mark.parametrize(("family", "precision"), [*((family, "fp32") for family in PACKED if family != "english"), *HALF])
def test_the_packed_graph_returns_the_logits_of_each_text_alone(
    bundle_of: Make, graphs_of: Graphs, tmp_path: Path, family: str, precision: gpu_graphs.Precision
) -> None:
    shapes: list[tuple[list[int], dict[str, int]]] = [
        *(([1], {}), ([64], {}), ([5, 5, 5], {}), (MIXED, {})),
        # More tokens, and rows that are empty.
        *((MIXED, {"multiple": 256, "rows_min": 20}), ([32, 32], {"rows_min": 4})),
    ]
    batches = [rows_of(lengths, seed) for seed, (lengths, _) in enumerate(shapes)]
    packed = graphs_of(family, precision).packed
    assert packed is not None
    save_twin(packed, tmp_path / "twin.onnx")
    session = load_graph(tmp_path / "twin.onnx", ["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]

    for rows, (_, more), wanted in zip(batches, shapes, plain_logits(bundle_of(family), batches), strict=True):
        feeds = pack(rows, inputs, **more)
        logits = session.run(["logits"], feeds)[0]
        assert logits.shape == (len(feeds["token_offset"]), wanted.shape[1])
        assert np.abs(logits[: len(rows)] - wanted).max() < TOLERANCE[precision]


@pytest.mark.parametrize(("family", "side"), [*UNFUSED.items(), ("roberta", "right")])
def test_the_unfused_fp16_graph_returns_the_logits_of_the_plain_one_with_any_padding(
    bundle_of: Make, tmp_path: Path, family: str, side: str
) -> None:
    batches = [rows_of(lengths, seed) for seed, lengths in enumerate([[1], [2], [64], [5, 5, 5], MIXED])]
    session = Session(make_unfused(bundle_of(family), tmp_path))

    for rows, wanted in zip(batches, plain_logits(bundle_of(family), batches), strict=True):
        found = session.run(pad(rows, session.inputs, 0, left=side == "left", length=64))
        assert found.dtype == np.float32
        assert np.abs(found - wanted).max() < TOLERANCE["fp16"]


@pytest.mark.parametrize("family", UNFUSED)
def test_the_unfused_fp16_graph_is_valid_and_computes_positions_in_fp32(bundle_of: Make, tmp_path: Path, family: str) -> None:
    path = make_unfused(bundle_of(family), tmp_path)
    onnx.checker.check_model(str(path))
    graph = shape_inference.infer_shapes(onnx.load(path)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}

    reads = {kind: {types[node.input[0]] for node in graph.node if node.op_type == kind} for kind in ("MatMul", "Softmax", "Sin", "Log")}

    # ModernBERT's angles are a product of positions and frequencies.
    assert reads["MatMul"] == {TensorProto.FLOAT16, *([TensorProto.FLOAT] if family == "modernbert" else [])}
    assert reads["Softmax"] == {TensorProto.FLOAT16}
    # Angles, and buckets of distances.
    assert (reads["Sin"], reads["Log"]) == (
        {TensorProto.FLOAT} if family in ("xlnet", "modernbert") else set(),
        {TensorProto.FLOAT} if family in ("mpnet", "deberta-v2") else set(),
    )


@pytest.mark.parametrize("family", LAYERS)
def test_every_layer_is_fused_and_no_shape_is_computed_on_the_host(graphs_of: Graphs, family: str) -> None:
    fused = graphs_of(family, "fp16" if family == "english" else "fp32").fused

    layers = LAYERS[family]
    assert (fused["Attention"], fused["SkipLayerNormalization"], fused["BiasGelu"]) == (layers, 2 * layers, layers)
    assert "Softmax" not in fused
    if family in PACKED:
        # Otherwise runs could not be captured.
        assert fused["EmbedLayerNormalization"] == 1
        assert fused.keys().isdisjoint({"Shape", "Cast", "NonZero"})


def test_a_family_whose_embeddings_are_not_fused_is_served_padded(graphs_of: Graphs) -> None:
    graphs = graphs_of("roberta")

    assert graphs.packed is None
    assert graphs.reason == "the embeddings are not one fused node, so the source of positions is unknown"


@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_packed_graph_is_valid_and_reads_packed_tokens(graphs_of: Graphs, family: str, precision: gpu_graphs.Precision) -> None:
    graphs = graphs_of(family, precision)
    assert graphs.packed is not None
    onnx.checker.check_model(str(graphs.packed))
    model = shape_inference.infer_shapes(onnx.load(graphs.packed))

    operators = Counter(node.op_type for node in model.graph.node)
    assert operators["PackedMultiHeadAttention"] == LAYERS[family]
    assert operators.keys().isdisjoint({"Attention", "RemovePadding", "RestorePadding", "Softmax", "Shape"})
    shapes = {
        value.name: (value.type.tensor_type.elem_type, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in [*model.graph.input, *model.graph.output]
    }
    assert shapes.pop("logits")[0] == TensorProto.FLOAT
    assert shapes == {
        "input_ids": (TensorProto.INT32, ["tokens"]),
        "position_ids": (TensorProto.INT32, ["tokens"]),
        "token_type_ids": (TensorProto.INT32, ["tokens"]),
        "token_offset": (TensorProto.INT32, ["rows", "longest"]),
        "cumulative_lengths": (TensorProto.INT32, ["rows_and_one"]),
    }


def test_in_fp16_a_weight_is_rounded_to_the_nearest_number(graphs_of: Graphs) -> None:
    exact, half = graphs_of("bert-deep"), graphs_of("bert-deep", "fp16")

    for ours, theirs in [(half.padded, exact.padded), (half.packed, exact.packed)]:
        assert ours is not None
        assert theirs is not None
        wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(theirs).graph.initializer}
        found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(ours).graph.initializer}
        assert found.keys() == wanted.keys()
        assert all(array.dtype != np.float32 for array in found.values())
        # An int8 weight times its scale has more digits than fp16.
        assert all(np.allclose(array.astype(wanted[name].dtype), wanted[name], rtol=2**-11, atol=1e-7) for name, array in found.items())


def test_graphs_are_built_once_for_each_bundle_precision_and_runtime(
    bundle_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_graphs(bundle_of("bert"), tmp_path, "fp32")
    made = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}

    assert make_graphs(bundle_of("bert"), tmp_path, "fp32") == first
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == made
    folders = {first.padded.parent, make_graphs(bundle_of("bert"), tmp_path, "fp16").padded.parent}
    folders.add(make_graphs(bundle_of("electra"), tmp_path, "fp32").padded.parent)
    monkeypatch.setattr(gpu_graphs, "RUNTIME_VERSION", "0.0.1")
    folders.add(make_graphs(bundle_of("bert"), tmp_path, "fp32").padded.parent)
    assert sorted(tmp_path.iterdir()) == sorted(folders)
    assert len(folders) == 4


def test_the_unfused_graph_is_built_once(bundle_of: Make, tmp_path: Path) -> None:
    path = make_unfused(bundle_of("bert"), tmp_path)
    built_at = path.stat().st_mtime_ns

    assert make_unfused(bundle_of("bert"), tmp_path) == path
    assert path.stat().st_mtime_ns == built_at
    assert list(tmp_path.iterdir()) == [path.parent]
    assert path.parent != make_graphs(bundle_of("bert"), tmp_path, "fp16").padded.parent


def test_a_graph_that_the_converter_fails_on_is_refused(bundle_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("what is this?")

    monkeypatch.setattr(gpu_graphs.float16, "convert_float_to_float16", fail)

    with pytest.raises(BadBundle, match=r"fp32.onnx: cannot be converted to fp16: what is this\?"):
        make_unfused(bundle_of("bert"), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(bundle_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gpu_graphs, "pack_graph", full)

    with pytest.raises(OSError, match="No space left"):
        make_graphs(bundle_of("bert"), tmp_path / "kept", "fp32")

    assert list((tmp_path / "kept").iterdir()) == []


def test_two_threads_that_build_the_same_graphs_at_once_both_get_them(bundle_of: Make, tmp_path: Path) -> None:
    bundle, made = bundle_of("bert"), []
    threads = [threading.Thread(target=lambda: made.append(make_graphs(bundle, tmp_path, "fp32"))) for _ in range(2)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 2
    assert made[0] == made[1]
    assert list(tmp_path.iterdir()) == [made[0].padded.parent]


def test_a_graph_without_attention_or_with_padding_on_the_left_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundles")
    with pytest.raises(BadBundle, match="has no attention layer"):
        make_graphs(bundle, tmp_path / "graphs", "fp32")

    write_manifest(bundle, {**read_manifest(bundle), "padding_side": "left"})
    with pytest.raises(BadBundle, match="padding_side is left"):
        make_graphs(bundle, tmp_path / "graphs", "fp32")


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("distilbert", "Attention 0 of 2"),
        # All but its first, which reads what maps the embeddings.
        ("albert", "Attention 1 of 2"),
        ("mpnet", "Attention 0 of 2"),
    ],
)
def test_the_error_of_a_family_that_is_not_fused_has_the_counts(bundle_of: Make, tmp_path: Path, family: str, missing: str) -> None:
    with pytest.raises(BadBundle, match=missing):
        make_graphs(bundle_of(family), tmp_path, "fp16")

    assert list(tmp_path.iterdir()) == []


MAKE = """
import sys
from pathlib import Path
sys.modules.update(dict.fromkeys(("torch", "transformers", "sympy", "sentiment_models")))
from sentiment.model.gpu.graphs import make_graphs
assert make_graphs(Path(sys.argv[1]), Path(sys.argv[2]), "fp16").packed
"""


def test_building_needs_neither_torch_nor_transformers_nor_sympy_and_prints_nothing(bundle_of: Make, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", MAKE, str(bundle_of("bert")), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )

    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
