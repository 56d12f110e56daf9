"""Each operator's gradient against torch."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sentiment_models.errors import NotExplainable
from sentiment_models.export.graphs.autodiff import Writer, gradients

Floats = NDArray[np.float32]
RNG = np.random.default_rng(1)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.5)
HEADS = RNG.normal(size=(2, 2, 3, 4)).astype(np.float32)
OTHER = RNG.normal(size=(2, 3, 4)).astype(np.float32)
MATRIX = RNG.normal(size=(4, 5)).astype(np.float32)
SCALE, SHIFT = RNG.normal(size=(2, 4)).astype(np.float32)


def _graph(nodes: list[onnx.NodeProto], x: Floats, stored: dict[str, NDArray[np.generic]]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * x.ndim)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _gradient(model: onnx.ModelProto, x: Floats) -> tuple[Floats, Floats]:
    """Return y, and the gradient by x of the sum of y weighted by 1, 2, 3, ..."""
    before = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})[0]
    weights = np.arange(1, before.size + 1, dtype=np.float32).reshape(before.shape) / before.size
    writer = Writer(model, "gradient")
    name = gradients(writer, "y", writer.constant(weights), ["x"])["x"]
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    y, gradient = onnxruntime.InferenceSession(model.SerializeToString()).run(["y", name], {"x": x})
    return y, gradient


def _node(kind: str, *inputs: str, **attributes: object) -> list[onnx.NodeProto]:
    return [helper.make_node(kind, list(inputs), ["y"], name="n", **attributes)]


SLICE = _node("Slice", "x", "start", "end", "axis")


def _limits(start: int, end: int, axis: int) -> dict[str, NDArray[np.generic]]:
    return {"start": np.array([start]), "end": np.array([end]), "axis": np.array([axis])}


def _t(array: Floats) -> torch.Tensor:
    return torch.from_numpy(array)


CASES: dict[str, tuple[Floats, list[onnx.NodeProto], dict[str, NDArray[np.generic]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "add": (X, _node("Add", "x", "o"), {"o": OTHER}, lambda x: x + _t(OTHER)),
    "twice": (X, _node("Add", "x", "x"), {}, lambda x: x + x),
    "subtracted": (X, _node("Sub", "o", "x"), {"o": OTHER}, lambda x: _t(OTHER) - x),
    "multiplied": (X, _node("Mul", "x", "o"), {"o": OTHER}, lambda x: x * _t(OTHER)),
    "squared": (X, _node("Mul", "x", "x"), {}, lambda x: x * x),
    "divided": (X, _node("Div", "x", "o"), {"o": OTHER}, lambda x: x / _t(OTHER)),
    "divisor": (POSITIVE, _node("Div", "o", "x"), {"o": OTHER}, lambda x: _t(OTHER) / x),
    "power": (X, _node("Pow", "x", "o"), {"o": np.array(3, np.float32)}, lambda x: x**3),
    "erf": (X, _node("Erf", "x"), {}, torch.erf),
    "tanh": (X, _node("Tanh", "x"), {}, torch.tanh),
    "relu": (X, _node("Relu", "x"), {}, torch.relu),
    "softmax": (X, _node("Softmax", "x", axis=-1), {}, lambda x: x.softmax(-1)),
    "layer normalization": (
        X,
        _node("LayerNormalization", "x", "a", "b", epsilon=1e-5),
        {"a": SCALE, "b": SHIFT},
        lambda x: torch.nn.functional.layer_norm(x, (4,), _t(SCALE), _t(SHIFT)),
    ),
    "product with a matrix": (X, _node("MatMul", "x", "m"), {"m": MATRIX}, lambda x: x @ _t(MATRIX)),
    "product of heads": (
        HEADS,
        [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), *_node("MatMul", "x", "t")],
        {},
        lambda x: x @ x.transpose(2, 3),
    ),
    "gemm": (
        X[0],
        _node("Gemm", "x", "m", "c"),
        {"m": MATRIX, "c": np.ones(5, np.float32)},
        lambda x: x @ _t(MATRIX) + 1,
    ),
    "gemm, turned": (X[0], _node("Gemm", "x", "m", transB=1), {"m": MATRIX.T.copy()}, lambda x: x @ _t(MATRIX)),
    "reshape": (X, _node("Reshape", "x", "s"), {"s": np.array([2, 12])}, lambda x: x.reshape(2, 12)),
    "squeeze": (X[:, :1], _node("Squeeze", "x", "s"), {"s": np.array([1])}, lambda x: x[:, 0]),
    "unsqueeze": (X, _node("Unsqueeze", "x", "s"), {"s": np.array([1])}, lambda x: x[:, None]),
    "negated": (X, _node("Neg", "x"), {}, lambda x: -x),
    "second half": (X, SLICE, _limits(2, 2**62, -1), lambda x: x[..., 2:]),
    "middle": (X, SLICE, _limits(1, -1, 1), lambda x: x[:, 1:-1]),
    "every second": (
        HEADS,
        _node("Slice", "x", "start", "end", "axis", "step"),
        {**_limits(1, 2**62, 3), "step": np.array([2])},
        lambda x: x[..., 1::2],
    ),
    "joined": (X, _node("Concat", "o", "x", "x", axis=2), {"o": OTHER}, lambda x: torch.cat([_t(OTHER), x, x], 2)),
    "running sum": (X, _node("CumSum", "x", "a"), {"a": np.array(1)}, lambda x: x.cumsum(1)),
    "sum": (X, _node("ReduceSum", "x", "s", keepdims=0), {"s": np.array([1])}, lambda x: x.sum(1)),
    "sum, kept": (X, _node("ReduceSum", "x", "s", keepdims=1), {"s": np.array([-1])}, lambda x: x.sum(-1, keepdim=True)),
    "transpose": (HEADS, _node("Transpose", "x", perm=[1, 3, 0, 2]), {}, lambda x: x.permute(1, 3, 0, 2)),
    "where": (X, _node("Where", "w", "x", "o"), {"w": OTHER > 0, "o": OTHER}, lambda x: torch.where(_t(OTHER) > 0, x, _t(OTHER))),
    "else": (X, _node("Where", "w", "o", "x"), {"w": OTHER > 0, "o": OTHER}, lambda x: torch.where(_t(OTHER) > 0, _t(OTHER), x)),
    "first token": (X, _node("Gather", "x", "i", axis=1), {"i": np.array(0)}, lambda x: x[:, 0]),
    "last token, kept": (X, _node("Gather", "x", "i", axis=1), {"i": np.array([-1])}, lambda x: x[:, -1:]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_equals_torchs(name: str) -> None:
    x, nodes, stored, same = CASES[name]
    y, found = _gradient(_graph(nodes, x, stored), x)

    leaf = torch.from_numpy(x.copy()).requires_grad_()
    wanted = same(leaf)
    weights = torch.arange(1, wanted.numel() + 1, dtype=torch.float32).reshape(wanted.shape) / wanted.numel()
    (wanted * weights).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert np.abs(y - wanted.detach().numpy()).max() < 1e-5
    assert leaf.grad is not None
    assert np.abs(found - leaf.grad.numpy()).max() < 1e-5 * max(1.0, float(leaf.grad.abs().max()))


@pytest.mark.parametrize(
    ("nodes", "stored", "message"),
    [
        (_node("Sin", "x"), {}, "operator Sin has no gradient rule"),
        (_node("Pow", "o", "x"), {"o": np.array(2, np.float32)}, "by input 1 of Pow"),
        (_node("Gather", "x", "i", axis=1), {"i": np.array([0, 1])}, "supported only for one token"),
        (
            _node("Slice", "x", "i", "i", "i", "i"),
            {"i": np.array([2])},
            "only along one axis, and in steps only along the last one of heads",
        ),
        (_node("Gemm", "x", "m", alpha=2.0), {"m": MATRIX}, "alpha, beta or transA"),
        (_node("Identity", "o"), {"o": OTHER}, "y does not depend on x"),
    ],
)
def test_an_operator_without_a_gradient_rule_is_refused(
    nodes: list[onnx.NodeProto], stored: dict[str, NDArray[np.generic]], message: str
) -> None:
    writer = Writer(_graph(nodes, X, stored), "gradient")

    with pytest.raises(NotExplainable, match=message):
        gradients(writer, "y", writer.constant(1.0), ["x"])
