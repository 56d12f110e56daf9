"""Per-row int8: complete, close to fp32, and independent of batch mates, unlike the usual int8."""

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from sentiment.model.session import PAIRS_FIT, Session, load_graph
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.errors import BadCheckpoint, NotInInt8, ParityFailed
from sentiment_models.evaluation.metrics import probabilities
from sentiment_models.export.graphs.flatten import flatten
from sentiment_models.export.graphs.graph import initializers
from sentiment_models.export.graphs.quantize import Embeddings, columns_int8, factor_int8, quantize, weight_matmuls
from sentiment_models.export.inference import Graph
from sentiment_models.export.verify import check_movement, movement

LAYERS = 2


@pytest.fixture(scope="module", params=["as exported", "flattened"])
def source(request: pytest.FixtureRequest, whole: onnx.ModelProto) -> onnx.ModelProto:
    """An fp32 graph with activations of three dimensions, and one whose activations are matrices."""
    return whole if request.param == "as exported" else flatten(whole)


def _graph(folder: Path, file: str, model: onnx.ModelProto | None = None) -> Graph:
    if model is not None:
        onnx.save(model, folder / file)
    return Graph(Tokenizer(folder / "tokenizer.json", 64), Session(folder / file))


def _axis(node: onnx.NodeProto) -> int | None:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)


def _count(model: onnx.ModelProto, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)


def test_every_matmul_by_a_weight_is_quantised(source: onnx.ModelProto) -> None:
    wanted = weight_matmuls(source)
    assert len(wanted) == 6 * LAYERS

    int8 = quantize(source)

    assert weight_matmuls(int8) == []
    assert _count(int8, "MatMulIntegerToFloat") == 6 * LAYERS
    matrices = [tensor for tensor in int8.graph.initializer if tensor.data_type == TensorProto.FLOAT and 1 not in tensor.dims[-2:]]
    assert {tensor.name for tensor in matrices if len(tensor.dims) == 2} == {"bert.pooler.dense.weight", "classifier.weight"}


def test_query_key_and_value_share_one_rounding_of_their_input(whole: onnx.ModelProto) -> None:
    # Per layer: one for Q, K and V, one each for the attention's output, the intermediate and the output layer.
    assert _count(quantize(whole), "QuantizeLinear") == 4 * LAYERS


def test_matrices_are_scaled_by_row_in_one_pass_and_share_zero_points_by_number_of_rows(whole: onnx.ModelProto) -> None:
    int8 = quantize(flatten(whole))

    # One more than above: the first tokens, from which the last layer makes its queries.
    assert [_axis(node) for node in int8.graph.node if node.op_type == "QuantizeLinear"] == [0] * (4 * LAYERS + 1)
    # For all tokens and for the first ones.
    assert _count(int8, "ConstantOfShape") == 2


def test_sums_are_multiplied_by_the_column_scale_and_only_then_by_the_row_scale(source: onnx.ModelProto) -> None:
    # ONNX Runtime's fusion takes a product of both scales for one scalar and silently gives wrong answers on some shapes.
    int8 = quantize(source)
    reader = {name: node for node in int8.graph.node for name in node.input}
    stored = initializers(int8)

    for sums in (node for node in int8.graph.node if node.op_type == "MatMulIntegerToFloat"):
        _, weight, one, column_scale, _ = sums.input  # and no bias, which belongs after the row scale
        assert numpy_helper.to_array(stored[one]) == 1
        assert stored[column_scale].dims == [stored[weight].dims[1]]
        assert reader[sums.output[0]].op_type == "Mul"
        assert reader[sums.output[0]].input[1].endswith(".row_scale")


@pytest.mark.parametrize("embeddings", ["int8", "fp16", "fp32"])
def test_a_row_alone_and_in_shuffled_longer_padded_batches_is_bit_equal(
    folder: Path, source: onnx.ModelProto, rows: list[Row], embeddings: Embeddings
) -> None:
    graph = _graph(folder, f"{embeddings}.onnx", quantize(source, embeddings))

    moved = movement(graph, rows, 2)

    check_movement("int8", moved)
    assert moved.probability_max == 0.0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="how a product with one row is summed depends on the machine's kernels")
def test_answers_depend_on_the_padding_if_the_first_token_is_taken_once(
    folder: Path, whole: onnx.ModelProto, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    # If this fails after an update of ONNX Runtime, taking the token twice may no longer be necessary.
    monkeypatch.setattr("sentiment_models.export.graphs.flatten.FIRST_TWICE", (0,))
    once = _graph(folder, "once.onnx", quantize(flatten(whole)))

    assert movement(once, rows, 2).probability_max > 0


def test_answers_of_the_usual_per_tensor_int8_depend_on_batch_mates(folder: Path, rows: list[Row]) -> None:
    quantize_dynamic(folder / "fp32.onnx", folder / "usual.onnx", weight_type=QuantType.QInt8)
    usual = _graph(folder, "usual.onnx")

    moved = movement(usual, rows, 2)

    assert moved.probability_max > 1e-3
    with pytest.raises(ParityFailed, match=r"batch mates change a probability .*; the limit is 1e-04"):
        check_movement("int8", moved)


def test_int8_is_close_to_fp32_and_fp16_embeddings_lose_nothing(
    folder: Path, whole: onnx.ModelProto, source: onnx.ModelProto, rows: list[Row]
) -> None:
    fp32 = probabilities(_graph(folder, "whole.onnx", whole).logits(rows))

    def error(embeddings: Embeddings) -> float:
        return float(np.abs(probabilities(_graph(folder, "one.onnx", quantize(source, embeddings)).logits(rows)) - fp32).mean())

    assert 0 < error("int8") < 0.02
    # The checkpoint's weights are fp16 numbers, so that fp16 tables lose nothing.
    assert error("fp16") == error("fp32") != error("int8")


def test_a_row_of_zeros_stays_zero_and_is_never_divided_by_zero() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    model = quantize(_one_matmul(weight))
    # The uint8 value of NaN depends on the machine.
    steps = quantize(_one_matmul(weight))
    steps.graph.output[0].name = "x.steps"
    inputs = np.zeros((2, 3, 8), np.float32)
    inputs[1, 2] = 1.0

    answer = _run(model, inputs)

    assert np.isfinite(_run(steps, inputs)).all()
    assert (answer[0] == 0).all()
    assert answer[1, 2] == pytest.approx(weight.sum(axis=0), abs=0.05)


def test_a_row_of_zeros_in_a_matrix_stays_zero_whatever_it_is_rounded_to() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    inputs = np.zeros((3, 8), np.float32)
    inputs[1] = 1.0
    inputs[2] = 1e-44  # its scale, a 127th of that, is 0 in fp32

    answer = _run(quantize(_matrix_matmul(weight)), inputs)

    assert (answer[[0, 2]] == 0).all()
    assert answer[1] == pytest.approx(weight.sum(axis=0), abs=0.05)


@pytest.mark.parametrize("shape", [(1, 3, 8), (3, 8)])
def test_a_row_is_not_disturbed_by_an_outlier_in_another(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 4)).astype(np.float32)
    model = quantize(_one_matmul(weight) if len(shape) == 3 else _matrix_matmul(weight))
    calm = rng.normal(size=shape).astype(np.float32)
    wild = np.concatenate([calm, calm])
    wild[len(calm)] = 1e6

    assert (_run(model, wild)[: len(calm)] == _run(model, calm)).all()


def test_rows_of_a_matrix_are_rounded_as_those_of_a_deeper_tensor() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 4)).astype(np.float32)
    inputs = rng.normal(size=(50, 8)).astype(np.float32)

    deep, flat = _run(quantize(_one_matmul(weight)), inputs[np.newaxis]), _run(quantize(_matrix_matmul(weight)), inputs)

    assert flat == pytest.approx(deep[0], abs=1e-5)


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

    with pytest.raises(NotInInt8, match="1 MatMul nodes with a weight cannot be quantised, such as odd"):
        quantize(_model(left, np.eye(4, dtype=np.float32), width=4))


def test_an_old_opset_is_refused(whole: onnx.ModelProto) -> None:
    old = onnx.ModelProto()
    old.CopyFrom(whole)
    old.opset_import[0].version = 17

    with pytest.raises(BadCheckpoint, match="opset of the graph must be at least 18, got 17"):
        quantize(old)


def test_columns_are_rounded_to_half_a_step_and_empty_columns_survive() -> None:
    weight = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    weight[:, 2] = 0

    columns, scale = columns_int8(weight)

    assert columns.min() >= -127
    assert np.abs(columns * scale - weight).max() <= scale.max() / 2 + 1e-6
    assert (columns[:, 2] == 0).all()


@pytest.mark.parametrize("rows", [8, 51])
def test_neighbouring_weights_of_a_product_fit_into_16_bits_with_any_activation(rows: int) -> None:
    rng = np.random.default_rng(0)
    weight = (rng.standard_cauchy(size=(rows, 40))).astype(np.float32)
    weight[:, 0] = 1  # the worst: every pair is twice the largest weight
    weight[:, 1] = 0

    factor, scale = factor_int8(weight)

    assert (np.abs(factor * scale - weight) <= scale / 2 * 1.001).all()
    assert np.abs(factor[: rows // 2 * 2].reshape(-1, 2, 40).astype(int).sum(axis=1)).max() == 128
    assert 255 * 128 < 2**15
    # No larger steps than that takes.
    assert (np.abs(factor.astype(int)).max(axis=0)[2:] > 63).all()


@pytest.mark.parametrize("products", [1, 2])
def test_products_are_exact_on_every_processor(products: int) -> None:
    """Also where several products share a weight, as in ALBERT."""
    rows = np.ones((1, 3, 64), np.float32)
    weight = np.ones((64, 64), np.float32)
    nodes = [helper.make_node("MatMul", ["x" if at == 0 else f"y{at}", "w"], [f"y{at + 1}"], name=f"p{at}") for at in range(products - 1)]
    nodes += [helper.make_node("MatMul", ["x" if products == 1 else f"y{products - 1}", "w"], ["y"], name="last")]

    found = _run(quantize(_model(nodes, weight, width=64)), rows)

    # 1 becomes 64 steps of 2 / 127.
    assert np.allclose(found, (64.0 * 128 / 127) ** products, rtol=1e-5)


def test_an_int8_graph_says_in_its_metadata_that_its_products_fit() -> None:
    model = quantize(_one_matmul(np.ones((64, 64), np.float32)))

    assert {entry.key: entry.value for entry in model.metadata_props} == {PAIRS_FIT: "1"}


def _one_matmul(weight: np.ndarray) -> onnx.ModelProto:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="only")], weight, width=weight.shape[0])


def _matrix_matmul(weight: np.ndarray) -> onnx.ModelProto:
    """The same for a matrix that is computed in the graph, because only then its dimensions are inferred."""
    nodes = [helper.make_node("Neg", ["x"], ["-x"]), helper.make_node("Neg", ["-x"], ["rows"])]
    nodes += [helper.make_node("MatMul", ["rows", "w"], ["y"], name="only")]
    return _model(nodes, weight, width=weight.shape[0], leading=["tokens"])


def _model(nodes: list[onnx.NodeProto], weight: np.ndarray, width: int, leading: Sequence[str] = ("batch", "tokens")) -> onnx.ModelProto:
    read = helper.make_tensor_value_info("x", TensorProto.FLOAT, [*leading, width])
    written = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "one", [read], [written], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _run(model: onnx.ModelProto, inputs: np.ndarray) -> np.ndarray:
    # With the service's settings, but not its session class, which only takes token ids.
    session = load_graph(model.SerializeToString(), ["CPUExecutionProvider"], pairs_fit=True)
    answer: np.ndarray = session.run(None, {"x": inputs})[0]
    return answer
