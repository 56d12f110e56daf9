"""Per-row int8: complete, close to fp32, and blind to batch mates, which the usual int8 is not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import QuantType, quantize_dynamic

from sentiment.model.session import Session
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.checkpoint import Checkpoint
from sentiment_models.errors import BadCheckpoint, ParityFailed
from sentiment_models.inference import Graph
from sentiment_models.metrics import probabilities
from sentiment_models.quantize import Embeddings, columns_int8, quantize, weight_matmuls
from sentiment_models.verify import check_movement, movement
from tests.models.tiny_bert import sentences

LAYERS = 2


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint's graph as fp32.onnx with its weights inside, with its tokenizer."""
    folder = tmp_path_factory.mktemp("graphs")
    loaded = Checkpoint(checkpoint)
    onnx.save(loaded.to_onnx(loaded.save(folder)), folder / "fp32.onnx")
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> onnx.ModelProto:
    """The fp32 graph."""
    return onnx.load(folder / "fp32.onnx")


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    """40 rows of 3 to about 25 tokens."""
    return Tokenizer(folder / "tokenizer.json", 64).encode_many([text for _, text in sentences(40, seed=3)])


def _graph(folder: Path, file: str, model: onnx.ModelProto | None = None) -> Graph:
    if model is not None:
        onnx.save(model, folder / file)
    return Graph(Tokenizer(folder / "tokenizer.json", 64), Session(folder / file))


def _count(model: onnx.ModelProto, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)


def test_every_matmul_by_a_weight_is_quantised(whole: onnx.ModelProto) -> None:
    wanted = weight_matmuls(whole)
    assert len(wanted) == 6 * LAYERS

    int8 = quantize(whole)

    assert weight_matmuls(int8) == []
    assert _count(int8, "MatMulInteger") == 6 * LAYERS
    matrices = [tensor for tensor in int8.graph.initializer if tensor.data_type == TensorProto.FLOAT and 1 not in tensor.dims[-2:]]
    assert {tensor.name for tensor in matrices if len(tensor.dims) == 2} == {"bert.pooler.dense.weight", "classifier.weight"}


def test_query_key_and_value_share_one_rounding_of_their_input(whole: onnx.ModelProto) -> None:
    # Per layer: one for Q, K and V, one each for the attention's output, the intermediate and the output layer.
    assert _count(quantize(whole), "QuantizeLinear") == 4 * LAYERS


def test_sums_are_multiplied_by_the_column_scale_and_only_then_by_the_row_scale(whole: onnx.ModelProto) -> None:
    # ONNX Runtime's fusion takes a product of both scales for one scalar and answers wrongly on some shapes without a word.
    int8 = quantize(whole)
    reader = {name: node for node in int8.graph.node for name in node.input}
    stored = {tensor.name for tensor in int8.graph.initializer}

    for sums in (node for node in int8.graph.node if node.op_type == "MatMulInteger"):
        first = reader[reader[sums.output[0]].output[0]]
        second = reader[first.output[0]]
        assert [first.op_type, second.op_type] == ["Mul", "Mul"]
        assert first.input[1] in stored
        assert second.input[1].endswith(".row_scale")


@pytest.mark.parametrize("embeddings", ["int8", "fp16", "fp32"])
def test_a_row_alone_and_in_shuffled_longer_padded_batches_is_bit_equal(
    folder: Path, whole: onnx.ModelProto, rows: list[Row], embeddings: Embeddings
) -> None:
    graph = _graph(folder, f"{embeddings}.onnx", quantize(whole, embeddings))

    for seed in range(3):
        moved = movement(graph, rows, seed)
        check_movement("int8", moved)
        assert moved.probability_max == 0.0, f"seed {seed}"


def test_the_usual_per_tensor_int8_fails_that_test(folder: Path, rows: list[Row]) -> None:
    quantize_dynamic(folder / "fp32.onnx", folder / "usual.onnx", weight_type=QuantType.QInt8)
    usual = _graph(folder, "usual.onnx")

    moved = movement(usual, rows)

    assert moved.probability_max > 1e-3
    with pytest.raises(ParityFailed, match="with its batch mates; the bound is 1e-04"):
        check_movement("int8", moved)


def test_int8_is_close_to_fp32_and_closer_with_exact_embeddings(folder: Path, whole: onnx.ModelProto, rows: list[Row]) -> None:
    fp32 = probabilities(_graph(folder, "fp32.onnx").logits(rows))

    def error(embeddings: Embeddings) -> float:
        return float(np.abs(probabilities(_graph(folder, "one.onnx", quantize(whole, embeddings)).logits(rows)) - fp32).mean())

    assert 0 < error("int8") < 0.02
    # The checkpoint's weights are fp16 numbers, so that fp16 tables lose nothing.
    assert error("fp16") == error("fp32") < error("int8")


def test_a_row_of_zeros_stays_zero_and_is_never_divided_by_zero() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    model = quantize(_one_matmul(weight))
    # What NaN becomes in uint8 depends on the machine.
    steps = quantize(_one_matmul(weight))
    steps.graph.output[0].name = "x.steps"
    inputs = np.zeros((2, 3, 8), np.float32)
    inputs[1, 2] = 1.0

    answer = _run(model, inputs)

    assert np.isfinite(_run(steps, inputs)).all()
    assert (answer[0] == 0).all()
    assert answer[1, 2] == pytest.approx(weight.sum(axis=0), abs=0.05)


def test_a_row_is_not_disturbed_by_an_outlier_in_another() -> None:
    rng = np.random.default_rng(0)
    model = quantize(_one_matmul(rng.normal(size=(8, 4)).astype(np.float32)))
    calm = rng.normal(size=(1, 3, 8)).astype(np.float32)
    wild = np.concatenate([calm, calm])
    wild[1, 0, 0] = 1e6

    assert (_run(model, wild)[:1] == _run(model, calm)).all()


def test_a_weight_shared_through_identity_is_stored_once() -> None:
    weight = np.eye(4, dtype=np.float32)
    nodes = [
        helper.make_node("Identity", ["w"], ["alias"]),
        helper.make_node("Identity", ["alias"], ["alias_of_alias"]),
        helper.make_node("MatMul", ["x", "w"], ["once"], name="first"),
        helper.make_node("MatMul", ["once", "alias_of_alias"], ["y"], name="second"),
    ]
    model = _model(nodes, weight, width=4)
    assert weight_matmuls(model) == ["first", "second"]
    inputs = np.random.default_rng(0).normal(size=(1, 2, 4)).astype(np.float32)

    int8 = quantize(model)

    assert _count(int8, "Identity") == 0
    assert [tensor.name for tensor in int8.graph.initializer if tensor.data_type == TensorProto.INT8] == ["w.int8"]
    assert _run(int8, inputs) == pytest.approx(inputs, abs=0.05)


def test_a_weight_that_cannot_be_quantised_is_refused() -> None:
    left = [helper.make_node("MatMul", ["w", "x"], ["y"], name="odd")]

    with pytest.raises(BadCheckpoint, match="1 MatMul by a weight stayed fp32, the first odd"):
        quantize(_model(left, np.eye(4, dtype=np.float32), width=4))


def test_an_old_opset_is_refused(whole: onnx.ModelProto) -> None:
    old = onnx.ModelProto()
    old.CopyFrom(whole)
    old.opset_import[0].version = 17

    with pytest.raises(BadCheckpoint, match="opset 17; quantising needs at least 18"):
        quantize(old)


def test_columns_are_rounded_to_half_a_step_and_empty_columns_survive() -> None:
    weight = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    weight[:, 2] = 0

    columns, scale = columns_int8(weight)

    assert columns.min() >= -127
    assert np.abs(columns * scale - weight).max() <= scale.max() / 2 + 1e-6
    assert (columns[:, 2] == 0).all()


def _one_matmul(weight: np.ndarray) -> onnx.ModelProto:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="only")], weight, width=weight.shape[0])


def _model(nodes: list[onnx.NodeProto], weight: np.ndarray, width: int) -> onnx.ModelProto:
    read = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", width])
    written = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "one", [read], [written], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _run(model: onnx.ModelProto, inputs: np.ndarray) -> np.ndarray:
    # Not the service's session, which knows only token ids.
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(None, {"x": inputs})[0]
    return answer
