"""Dynamic int8 with a scale per row: a graph several times smaller and faster whose answers do not depend on batch mates.

The usual dynamic int8 has one activation scale for the whole tensor, so an outlier in one row coarsens all other rows: on SST-2 dev in
shuffled batches, probabilities changed by up to 0.38 and 11 of 872 labels flipped. Here each row (token) has its own scale.
Knows nothing of files, of torch or of a runtime.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from sentiment.model.session import PAIRS_FIT
from sentiment_models.errors import BadCheckpoint, NotInInt8
from sentiment_models.export.graphs.einsum import einsums_to_matmuls, is_weight_product
from sentiment_models.export.graphs.graph import initializers, opset, replace_initializers, replace_nodes, resolve_aliases

Embeddings = Literal["int8", "fp16", "fp32"]
"""How the embedding tables are stored. The arithmetic after the look-up is always fp32."""

INT8, SCALE, FP16 = ".int8", ".scale", ".fp16"
"""Suffixes of the initializers that hold a weight in int8, the scales of its columns (of a table: of its rows), and a table in fp16."""

# From 18 on, ReduceMax takes its axes as an input.
OPSET_MIN = 18
# int8 without -128, so that weights are symmetric. Activations use the same 127 levels around 128.
LEVELS = 127.0
# Replaces the maximum of a row of zeros: its reciprocal is finite, and 0 stays 0.
ROW_MAX_MIN = 1e-30
# The domain of MatMulIntegerToFloat: MatMulInteger, Cast and Mul in one pass over the result.
RUNTIME_DOMAIN = "com.microsoft"


def quantize(model: ModelProto, embeddings: Embeddings = "int8") -> ModelProto:
    """Return a copy with every MatMul by a weight in int8 and the embedding tables as ``embeddings`` says.

    ``model`` is an fp32 graph with its weights inside. An Einsum that multiplies by a weight becomes a MatMul first. Gemm (the
    pooler and the head, one row per text) and MatMul of two activations stay fp32. Activations that are matrices, as after ``flatten``,
    are rounded in one pass instead of two. The result uses an operator of ONNX Runtime, MatMulIntegerToFloat. Its products fit into the
    pairs of 16 bits that x86 without VNNI adds them in, and its metadata say so.

    Raises:
        BadCheckpoint: the graph is older than opset 18.
        NotInInt8: a product with a weight is not supported.
    """
    if opset(model) < OPSET_MIN:
        raise BadCheckpoint(f"opset of the graph must be at least {OPSET_MIN}, got {opset(model)}")
    if embeddings not in get_args(Embeddings):
        raise BadCheckpoint(f"embeddings must be one of {', '.join(get_args(Embeddings))}, got {embeddings!r}")
    result = ModelProto()
    result.CopyFrom(model)
    resolve_aliases(result)
    einsums_to_matmuls(result)
    rewriter = _Rewriter(initializers(result), embeddings, _row_counts(result))
    for node in result.graph.node:
        rewriter.add(node)
    replace_nodes(result, rewriter.nodes)
    replace_initializers(result, rewriter.tensors)
    del result.graph.value_info[:]
    if RUNTIME_DOMAIN not in [entry.domain for entry in result.opset_import]:
        result.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
    helper.set_model_props(result, {PAIRS_FIT: "1"})
    left = weight_matmuls(result)
    if left:
        raise NotInInt8(f"{len(left)} MatMul nodes with a weight cannot be quantised, such as {left[0]}: the weight must be on the right")
    return result


def weight_matmuls(model: ModelProto) -> list[str]:
    """Return the names of the MatMul nodes that multiply by a constant, directly or through Identity, and of such Einsum nodes."""
    tensors = initializers(model)
    constant = set(tensors)
    found: list[str] = []
    for node in model.graph.node:
        if node.op_type == "Constant" or (node.op_type == "Identity" and node.input[0] in constant):
            constant.add(node.output[0])
        elif (node.op_type == "MatMul" and not constant.isdisjoint(node.input)) or is_weight_product(node, tensors):
            found.append(node.name)
    return found


def columns_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round a matrix to int8 with one scale per column, so that ``weight`` is about ``int8 * scale``."""
    return _rounded(weight, np.abs(weight).max(axis=0))


def factor_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round the right factor of a product: as ``columns_int8``, but rows 2i and 2i + 1 of a column sum to at most 128.

    x86 without VNNI multiplies u8 by s8 and adds such pairs in 16 bits, which overflow without notice: 255 * 128 fits. In trained weights
    the largest sum is some 1.3 times the largest weight, so the steps are as much larger.
    """
    even = len(weight) // 2 * 2
    sums = weight[:even].reshape(-1, 2, weight.shape[1]).sum(axis=1)
    return _rounded(weight, np.abs(np.concatenate([weight, sums])).max(axis=0))


def _rounded(weight: NDArray[np.float32], top: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round columns so that ``top``, one number a column, becomes 127."""
    scale = np.maximum(top, ROW_MAX_MIN) / np.float32(LEVELS)
    return np.rint(weight / scale).clip(-LEVELS, LEVELS).astype(np.int8), scale.astype(np.float32)


def _row_counts(model: ModelProto) -> dict[str, str]:
    """Return the activations that are matrices, each with the name of its number of rows, which may be empty."""
    known = {value.name: value.type.tensor_type.shape.dim for value in shape_inference.infer_shapes(model).graph.value_info}
    return {name: dims[0].dim_param for name, dims in known.items() if len(dims) == 2}


@dataclass(slots=True)
class _Rewriter:
    """The rewritten graph. Tensors that are no longer used are dropped at the end, because several nodes may share one."""

    tensors: dict[str, TensorProto]
    embeddings: Embeddings
    # Matrix -> name of its number of rows. Equal names mean equal numbers.
    row_counts: dict[str, str]
    nodes: list[NodeProto] = field(default_factory=list)
    # Name of a number of rows -> tensor of as many zero points.
    zeros: dict[str, str] = field(default_factory=dict)
    # Activation -> (uint8 rows, scale of each row): Q, K and V read one activation and share its rounding.
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, node: NodeProto) -> None:
        dims = [list(self.tensors[name].dims) if name in self.tensors else None for name in node.input]
        if node.op_type == "MatMul" and dims[0] is None and dims[1] is not None and len(dims[1]) == 2:
            self._matmul(node)
        elif node.op_type == "Gather" and self.embeddings != "fp32" and self._is_table(node):
            self._table(node)
        else:
            self.nodes.append(node)

    def _matmul(self, node: NodeProto) -> None:
        activation, weight = node.input
        rows, row_scale = self._quantised_rows(activation)
        columns, column_scale = weight + INT8, weight + SCALE
        if columns not in self.tensors:
            whole, scale = factor_int8(self._array(weight))
            self._store(columns, whole)
            self._store(column_scale, scale)
        zero = self._constant("zero_point", np.uint8(128))
        name = node.name or node.output[0]
        # The operator takes one scale for all rows, so it gets 1, and a Mul by the scales of the rows follows. The operator's own bias
        # cannot be used, because it belongs after that Mul. MatMulInteger, Cast and Mul by both scales do not work: ONNX Runtime fuses
        # them, takes the row scale for a scalar and gives wrong answers silently (SST-2 dev accuracy 0.84 instead of 0.90).
        one = self._constant("one", np.float32(1))
        scaled = self._node("MatMulIntegerToFloat", [rows, columns, one, column_scale, zero], f"{name}.scaled", RUNTIME_DOMAIN)
        self._node("Mul", [scaled, row_scale], node.output[0])

    def _quantised_rows(self, activation: str) -> tuple[str, str]:
        if activation not in self.rows:
            is_matrix = activation in self.row_counts
            self.rows[activation] = self._matrix_rows(activation) if is_matrix else self._any_rows(activation)
        return self.rows[activation]

    def _matrix_rows(self, activation: str) -> tuple[str, str]:
        """Round the rows of a matrix in one pass: QuantizeLinear itself takes a scale per row."""
        top = self._row_max(activation, keepdims=0)
        scale = self._node("Div", [top, self._constant("levels", np.float32(LEVELS))], f"{activation}.scale")
        # A row of zeros has the scale 0 and arbitrary integers, which times 0 are 0 again.
        rounded = self._node("QuantizeLinear", [activation, scale, self._zeros(activation, scale)], f"{activation}.uint8", axis=0)
        last = self._constant("last_axis", np.array([-1], np.int64))
        return rounded, self._node("Unsqueeze", [scale, last], f"{activation}.row_scale")

    def _zeros(self, activation: str, scale: str) -> str:
        """Return a tensor with a zero point per row of ``activation``, shared by all activations with the same number of rows."""
        key = self.row_counts[activation] or activation
        if key not in self.zeros:
            count = self._node("Shape", [scale], f"{activation}.rows")
            zero = helper.make_tensor("value", TensorProto.UINT8, [1], [128])
            self.zeros[key] = self._node("ConstantOfShape", [count], f"{activation}.zero_points", value=zero)
        return self.zeros[key]

    def _any_rows(self, activation: str) -> tuple[str, str]:
        """Round the rows of a tensor with any or unknown dimensions, in two passes."""
        levels = self._constant("levels", np.float32(LEVELS))
        floor = self._constant("row_max_min", np.float32(ROW_MAX_MIN))
        top = self._node("Max", [self._row_max(activation, keepdims=1), floor], f"{activation}.max_guarded")
        scale = self._node("Div", [top, levels], f"{activation}.row_scale")
        # One division per row and one product per number save 2 % of the whole graph's time against one division per number.
        per_one = self._node("Div", [levels, top], f"{activation}.steps_per_one")
        steps = self._node("Mul", [activation, per_one], f"{activation}.steps")
        one, zero = self._constant("one", np.float32(1)), self._constant("zero_point", np.uint8(128))
        return self._node("QuantizeLinear", [steps, one, zero], f"{activation}.uint8"), scale

    def _row_max(self, activation: str, keepdims: int) -> str:
        last = self._constant("last_axis", np.array([-1], np.int64))
        size = self._node("Abs", [activation], f"{activation}.abs")
        return self._node("ReduceMax", [size, last], f"{activation}.max", keepdims=keepdims)

    def _is_table(self, node: NodeProto) -> bool:
        table = self.tensors.get(node.input[0])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return table is not None and len(table.dims) == 2 and table.data_type == TensorProto.FLOAT and axis == 0

    def _table(self, node: NodeProto) -> None:
        table, indices = node.input
        output = node.output[0]
        array = self._array(table)
        if self.embeddings == "fp16":
            self._store(table + FP16, array.astype(np.float16))
            rows = self._node("Gather", [table + FP16, indices], f"{output}.fp16")
            self._node("Cast", [rows], output, to=TensorProto.FLOAT)
            return
        transposed, scale = columns_int8(array.T)
        self._store(table + INT8, np.ascontiguousarray(transposed.T))
        self._store(table + SCALE, scale[:, np.newaxis])
        rows = self._node("Gather", [table + INT8, indices], f"{output}.int8")
        real = self._node("Cast", [rows], f"{output}.real", to=TensorProto.FLOAT)
        scales = self._node("Gather", [table + SCALE, indices], f"{output}.scale")
        self._node("Mul", [real, scales], output)

    def _node(self, kind: str, inputs: list[str], output: str, domain: str = "", **attributes: int | TensorProto) -> str:
        node = helper.make_node(kind, inputs, [output], name=f"{output}/{kind}", domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)
        return output

    def _constant(self, name: str, value: np.generic | NDArray[np.int64]) -> str:
        full = f"int8.{name}"
        if full not in self.tensors:
            self._store(full, np.asarray(value))
        return full

    def _store(self, name: str, array: NDArray[np.generic]) -> None:
        self.tensors[name] = numpy_helper.from_array(array, name)

    def _array(self, name: str) -> NDArray[np.float32]:
        array: NDArray[np.float32] = numpy_helper.to_array(self.tensors[name])
        return array
