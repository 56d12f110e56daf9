"""An Einsum with a weight becomes a MatMul with the same result; any other stays."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from sentiment_models.export.graphs.einsum import einsums_to_matmuls
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.graphs.quantize import quantize, weight_matmuls

WEIGHT = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)


def _model(*equations: str, dims: tuple[str | int, ...] = ("i", "b", 6)) -> onnx.ModelProto:
    """Apply several Einsum nodes to ``x``, all with the same weight."""
    names = ["x", *(f"step{number}" for number in range(1, len(equations))), "y"]
    nodes = [
        helper.make_node("Einsum", [read, "w"], [written], name=f"einsum{number}", equation=equation)
        for number, (read, written, equation) in enumerate(zip(names, names[1:], equations, strict=False))
    ]
    read, written = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "one", [read], [written], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _run(model: onnx.ModelProto, inputs: np.ndarray) -> np.ndarray:
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(None, {"x": inputs})[0]
    return answer


@pytest.mark.parametrize(
    ("equations", "shape"),
    [
        (["ibh,hnd->ibnd"], (4, 5, 6)),
        # And back, by the same weight along other axes.
        (["ibh, hnd -> ibnd", "ibnd,hnd->ibh"], (4, 5, 6)),
        (["bh,hnd->bnd"], (5, 6)),
        (["ibd,hnd->ibnh"], (4, 5, 3)),
        (["inh,hnd->id"], (4, 2, 6)),
    ],
)
def test_an_einsum_with_a_weight_has_the_same_result_as_a_matmul_and_is_quantised(equations: list[str], shape: tuple[int, ...]) -> None:
    inputs = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    model = _model(*equations, dims=("i", "b", "c")[: len(shape)])
    assert weight_matmuls(model) == [f"einsum{number}" for number in range(len(equations))]
    wanted = _run(model, inputs)

    int8 = quantize(model)
    einsums_to_matmuls(model)

    assert [node.op_type for node in model.graph.node if node.op_type in ("Einsum", "MatMul")] == ["MatMul"] * len(equations)
    assert _run(model, inputs) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert weight_matmuls(int8) == []
    assert _run(int8, inputs) == pytest.approx(wanted, abs=0.03 * float(np.abs(wanted).max()))


@pytest.mark.parametrize(
    "equation",
    [
        "ibnd,snd->ibns",  # a product for each n: XLNet's segments
        "hib,hnd->ibnd",  # not the last dimension
        "ibh,hnd->nibd",  # not behind what stays
        "ibh,hnd->ibn",  # d is summed over on its own
        "ibc,hnd->ibchnd",  # nothing is summed over
        "ihnd,hnd->i",  # everything is
        "iih,hnd->ind",  # a diagonal
        "ibh,hnd",  # the result is not written down
    ],
)
def test_another_einsum_stays_as_it_was(equation: str) -> None:
    model = _model(equation)
    before = serialize(model)

    einsums_to_matmuls(model)

    assert serialize(model) == before
    assert weight_matmuls(model) == []
