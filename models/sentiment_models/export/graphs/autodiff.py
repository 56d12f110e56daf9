"""Reverse-mode differentiation of an ONNX graph: the gradient becomes further nodes of the same graph.

It supports the operators of classifiers. The gradient of a broadcast input has the broadcast shape and is not summed, because explanations
need the gradient of each row on its own. Knows nothing of torch or of a runtime.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment_models.errors import NotExplainable

INT64 = np.dtype(np.int64)


class Writer:
    """Appends nodes to a graph. The names of their results start with a prefix."""

    def __init__(self, model: ModelProto, prefix: str) -> None:
        self.graph = model.graph
        self._prefix = prefix
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append a node of one output and return that output's name."""
        self._count += 1
        output = name or f"{self._prefix}/{kind}_{self._count}"
        self.graph.node.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, value: NDArray[np.generic] | float | Sequence[int]) -> str:
        """Store a tensor, equal tensors once. A float becomes float32, a sequence of integers int64; an array keeps its type."""
        array = np.array(value, np.float32) if isinstance(value, float) else np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"{self._prefix}/constant_{len(self._constants)}"
            self.graph.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def sum(self, names: Sequence[str]) -> str:
        """Add tensors of one shape."""
        return names[0] if len(names) == 1 else self.op("Sum", *names)


class _Node:
    """A node on a path from the tensors to differentiate by to the differentiated tensor."""

    def __init__(self, writer: Writer, node: NodeProto) -> None:
        self.writer, self.node = writer, node
        self.op = writer.op
        self.inputs, self.output = list(node.input), node.output[0]
        self.attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}

    def integer(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        assert isinstance(value, int)
        return value


Rule = Callable[[_Node, str, int], str]
"""Appends the gradient of a node's input, given the gradient of its output and the input's position."""


def gradients(writer: Writer, of: str, seed: str, by: Sequence[str]) -> dict[str, str]:
    """Append nodes that compute the gradient of sum(``of`` x ``seed``) by each tensor of ``by``; return their names.

    Args:
        writer: appends to the graph; its nodes must be in topological order.
        of: a tensor of the graph.
        seed: a tensor of the shape of ``of``, such as 1 at the chosen output and 0 elsewhere.
        by: tensors that ``of`` depends on. Each is a node's result or an input of the graph.

    Raises:
        NotExplainable: an operator on a path has no gradient rule, or there is no path.
    """
    nodes = list(writer.graph.node)
    active = set(by)
    for node in nodes:
        if node.op_type != "Shape" and not active.isdisjoint(node.input):
            active.update(node.output)
    found: dict[str, list[str]] = {of: [seed]}
    totals: dict[str, str] = {}

    def total(name: str) -> str:
        if name not in totals:
            totals[name] = writer.sum(found[name])
        return totals[name]

    for node in reversed(nodes):
        if node.op_type == "Shape" or node.output[0] not in found or active.isdisjoint(node.input):
            continue
        if node.op_type not in _RULES:
            known = ", ".join(sorted(_RULES))
            raise NotExplainable(f"{node.name}: the operator {node.op_type} has no gradient rule; rules exist for {known}")
        gradient = total(node.output[0])
        for place, name in enumerate(node.input):
            if name in active:
                found.setdefault(name, []).append(_RULES[node.op_type](_Node(writer, node), gradient, place))
    missing = [name for name in by if name not in found]
    if missing:
        raise NotExplainable(f"{of} does not depend on {', '.join(missing)}")
    return {name: total(name) for name in by}


def _same(_: _Node, gradient: str, __: int) -> str:
    return gradient


def _sub(node: _Node, gradient: str, place: int) -> str:
    return gradient if place == 0 else node.op("Neg", gradient)


def _mul(node: _Node, gradient: str, place: int) -> str:
    return node.op("Mul", gradient, node.inputs[1 - place])


def _div(node: _Node, gradient: str, place: int) -> str:
    over = node.op("Div", gradient, node.inputs[1])
    return over if place == 0 else node.op("Neg", node.op("Mul", over, node.output))


def _pow(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    lower = node.op("Pow", node.inputs[0], node.op("Sub", node.inputs[1], node.writer.constant(1.0)))
    return node.op("Mul", gradient, node.op("Mul", lower, node.inputs[1]))


def _erf(node: _Node, gradient: str, _: int) -> str:
    squared = node.op("Mul", node.inputs[0], node.inputs[0])
    slope = node.op("Mul", node.op("Exp", node.op("Neg", squared)), node.writer.constant(2 / np.pi**0.5))
    return node.op("Mul", gradient, slope)


def _tanh(node: _Node, gradient: str, _: int) -> str:
    squared = node.op("Mul", node.output, node.output)
    return node.op("Sub", gradient, node.op("Mul", gradient, squared))


def _relu(node: _Node, gradient: str, _: int) -> str:
    return node.op("Mul", gradient, node.op("Sign", node.output))


def _softmax(node: _Node, gradient: str, _: int) -> str:
    weighted = node.op("Mul", gradient, node.output)
    axes = node.writer.constant([node.integer("axis", -1)])
    mean = node.op("ReduceSum", weighted, axes, keepdims=1)
    return node.op("Sub", weighted, node.op("Mul", node.output, mean))


def _layer_normalization(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    axes = node.writer.constant([node.integer("axis", -1)])
    epsilon = node.attributes.get("epsilon", 1e-5)
    assert isinstance(epsilon, float)

    def mean(name: str) -> str:
        return node.op("ReduceMean", name, axes, keepdims=1)

    centred = node.op("Sub", node.inputs[0], mean(node.inputs[0]))
    deviation = node.op("Sqrt", node.op("Add", mean(node.op("Mul", centred, centred)), node.writer.constant(epsilon)))
    normal = node.op("Div", centred, deviation)
    scaled = node.op("Mul", gradient, node.inputs[1])
    along = node.op("Mul", normal, mean(node.op("Mul", scaled, normal)))
    return node.op("Div", node.op("Sub", node.op("Sub", scaled, mean(scaled)), along), deviation)


def _matmul(node: _Node, gradient: str, place: int) -> str:
    first, second = node.inputs
    if place == 0:
        return node.op("MatMul", gradient, _transposed(node, second))
    if second in _stored(node):
        raise NotExplainable(f"{node.node.name}: the gradient by the stored tensor {second} is not supported")
    return node.op("MatMul", _transposed(node, first), gradient)


def _transposed(node: _Node, name: str) -> str:
    """Swap the last two dimensions. A stored tensor has its own rank; other tensors have the four dimensions of heads."""
    stored = _stored(node).get(name)
    rank = len(stored.dims) if stored is not None else 4
    return node.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


def _gemm(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    plain = [node.attributes.get(name, 1.0) == 1.0 for name in ("alpha", "beta")]
    if not all(plain) or node.integer("transA", 0):
        raise NotExplainable(f"{node.node.name}: a Gemm with alpha, beta or transA is not supported")
    return node.op("Gemm", gradient, node.inputs[1], transB=1 - node.integer("transB", 0))


def _reshape(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    return node.op("Reshape", gradient, node.op("Shape", node.inputs[0]))


def _slice(node: _Node, gradient: str, place: int) -> str:
    """Put the gradient back where it was sliced from, between zeros."""
    _only_first(node, place)
    stored = _stored(node)
    axes, steps = (numpy_helper.to_array(stored[name]).tolist() if name in stored else None for name in (*node.inputs[3:], "", "")[:2])
    step = 1 if len(node.inputs) < 5 else steps[0] if steps else None
    # Of tensors with another step, those of heads are known to have four dimensions.
    if axes is None or len(axes) != 1 or step is None or (step != 1 and axes[0] not in (3, -1)):
        raise NotExplainable(f"{node.node.name}: a Slice is supported only along one axis, and in steps only along the last one of heads")
    # The limits may be negative, or more than there is, so the same slice is taken of all places.
    zero, one = (node.writer.constant(np.array(number, INT64)) for number in (0, 1))
    size = node.op("Gather", node.op("Shape", node.inputs[0]), node.inputs[3], axis=0)
    limits = [*node.inputs[1:3], node.writer.constant([0]), node.writer.constant([step])]
    places = node.op("Slice", node.op("Range", zero, node.op("Squeeze", size), one), *limits)
    if step != 1:
        zeros = node.op("ConstantOfShape", node.op("Shape", node.inputs[0]))
        return node.op("ScatterElements", zeros, node.op("Expand", places, node.op("Shape", node.output)), gradient, axis=-1)
    first = node.op("Slice", places, node.writer.constant([0]), node.writer.constant([1]))
    after = node.op("Sub", node.op("Sub", size, first), node.op("Shape", places))
    return node.op("Pad", gradient, node.op("Concat", first, after, axis=0), node.writer.constant(0.0), node.inputs[3])


def _concat(node: _Node, gradient: str, place: int) -> str:
    axis = node.writer.constant([node.integer("axis", 0)])
    sizes = [node.op("Gather", node.op("Shape", name), axis, axis=0) for name in node.inputs[: place + 1]]
    start = node.writer.constant([0])
    for size in sizes[:-1]:
        start = node.op("Add", start, size)
    return node.op("Slice", gradient, start, node.op("Add", start, sizes[-1]), axis)


def _reduce_sum(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    if len(node.inputs) > 1 and not node.integer("keepdims", 1):
        gradient = node.op("Unsqueeze", gradient, node.inputs[1])
    return node.op("Expand", gradient, node.op("Shape", node.inputs[0]))


def _cum_sum(node: _Node, gradient: str, place: int) -> str:
    _only_first(node, place)
    return node.op("CumSum", gradient, node.inputs[1], reverse=1 - node.integer("reverse", 0))


def _neg(node: _Node, gradient: str, _: int) -> str:
    return node.op("Neg", gradient)


def _transpose(node: _Node, gradient: str, _: int) -> str:
    perm = node.attributes.get("perm")
    assert isinstance(perm, list)
    return node.op("Transpose", gradient, perm=[perm.index(axis) for axis in range(len(perm))])


def _where(node: _Node, gradient: str, place: int) -> str:
    zero = node.writer.constant(0.0)
    return node.op("Where", node.inputs[0], *((gradient, zero) if place == 1 else (zero, gradient)))


def _gather(node: _Node, gradient: str, place: int) -> str:
    """Gradient of the selection of one token, as in a classifier's head: [rows, width] into [rows, tokens, width]."""
    _only_first(node, place)
    stored = _stored(node).get(node.inputs[1])
    if node.integer("axis", 0) != 1 or stored is None or list(stored.dims) not in ([], [1]):
        raise NotExplainable(f"{node.node.name}: a Gather is supported only for one token")
    index = numpy_helper.to_array(stored).astype(INT64).reshape(1)
    tokens = node.op("Gather", node.op("Shape", node.inputs[0]), node.writer.constant([1]), axis=0)
    here = node.op("OneHot", node.writer.constant(index), tokens, node.writer.constant(np.array([0, 1], np.float32)))
    if not stored.dims:
        gradient = node.op("Unsqueeze", gradient, node.writer.constant([1]))
    return node.op("Mul", gradient, node.op("Unsqueeze", here, node.writer.constant([2])))


def _only_first(node: _Node, place: int) -> None:
    if place:
        raise NotExplainable(f"{node.node.name}: the gradient by input {place} of {node.node.op_type} is not supported")


def _stored(node: _Node) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in node.writer.graph.initializer}


_RULES: dict[str, Rule] = {
    "Add": _same,
    "Cast": _same,
    "Concat": _concat,
    "CumSum": _cum_sum,
    "Div": _div,
    "Erf": _erf,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _same,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "Mul": _mul,
    "Neg": _neg,
    "Pow": _pow,
    "ReduceSum": _reduce_sum,
    "Relu": _relu,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Squeeze": _reshape,
    "Sub": _sub,
    "Tanh": _tanh,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    "Where": _where,
}
