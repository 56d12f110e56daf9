"""What ONNX Runtime's CUDA kernels demand of a batch, as pure checks: shapes, types and values in, the reason for a refusal out.

They show without a GPU which batches a kernel refuses, and which it would read or write out of bounds, since it checks few values. Each
check returns an empty text if the kernel accepts. It names its source: a file of github.com/microsoft/onnxruntime, under
onnxruntime/contrib_ops, and the commit of the version that was read. Where several kernels may run, the demands of all of them count,
unless a check says otherwise; where versions differ, the strictest counts. Versions up to 2026 were read, but not just that of the tested
release (TESTED in model/gpu/wheel.py). What a kernel computes is not checked.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
Array = npt.NDArray[Any]  # any type: whether it is the right one is checked

INT32_MAX = 2**31 - 1
# CUDA's limits: the second and third dimension of a grid, the threads of a block, and the shared memory of a block.
GRID_YZ_MAX, THREADS_MAX, SHARED_BYTES_MAX = 65_535, 1024, 48 * 1024
# From this length on packed attention in fp32 keeps no scores: cpu/bert/attention_common.h, 01cd33b.
EFFICIENT_FP32_MIN = 256


def packed_attention(query: Shape, bias: Shape, token_offset: Shape, cumulative: Shape, heads: int, kind: str) -> str:
    """Shapes for PackedMultiHeadAttention that reads query, key and value as one tensor of this type.

    cuda/bert/packed_attention_workspace.cc, 12b36ce. Which batches run unfused: cuda/bert/packed_multihead_attention.cc, 12b36ce.
    """
    if len(query) != 4 or query[1:3] != (heads, 3):
        return f"query is {query}, not [tokens, {heads}, 3, width of a head]"
    if len(token_offset) != 2:
        return f"token_offset is {token_offset}, not [rows, longest]"
    tokens, _, _, width = query
    rows, longest = token_offset
    if cumulative != (rows + 1,):
        return f"cumulative_lengths is {cumulative}, not [{rows + 1}]"
    if bias != (3 * heads * width,):
        return f"bias is {bias}, not [{3 * heads * width}]"
    if tokens > rows * longest:
        return f"{tokens} tokens are more than {rows} rows of {longest} hold"
    # Query, key and value are moved by 4, 2 or 1 numbers at once.
    moves = 3 * heads * width // math.gcd(width, 4)
    unfused = width % 8 != 0 or (kind == "float32" and longest < EFFICIENT_FP32_MIN)
    padded = rows * longest if unfused else 0
    return _beyond(GRID_YZ_MAX, rows=rows, heads=heads) or _beyond(
        INT32_MAX, moves=tokens * moves, padded_moves=padded * moves, lines_of_scores=padded * heads, rounded_length=longest + 127
    )


def packed_values(tokens: int, token_offset: Array, cumulative: Array) -> str:
    """Values for PackedMultiHeadAttention, as RemovePadding makes them. No kernel checks them.

    Rows: cuda/bert/bert_padding.cu, 5d721f6. Why each index may occur only once: cuda/bert/packed_multihead_attention_impl.cu, 0125678.
    """
    if token_offset.dtype != np.int32 or cumulative.dtype != np.int32:
        return f"token_offset is {token_offset.dtype} and cumulative_lengths {cumulative.dtype}, not int32"
    _, longest = token_offset.shape
    lengths = np.diff(cumulative.astype(np.int64))
    if (cumulative[0], cumulative[-1]) != (0, tokens):
        return f"cumulative_lengths goes from {cumulative[0]} to {cumulative[-1]}, not from 0 to {tokens}"
    if lengths.min() < 0:
        return f"cumulative_lengths falls by {-lengths.min()}"
    if lengths.max() > longest:
        return f"a row has {lengths.max()} tokens; token_offset has {longest} columns"
    places = token_offset.ravel()
    if not np.array_equal(places[:tokens], np.flatnonzero(np.arange(longest) < lengths[:, None])):
        return f"the first {tokens} values of token_offset are not the places of the tokens"
    if not np.array_equal(np.sort(places), np.arange(places.size)):
        return "token_offset does not have each place once"
    return ""


def attention(source: Shape, weight: Shape, bias: Shape, mask: Shape | None, heads: int) -> str:
    """Shapes for Attention with the length of each row as its mask.

    cpu/bert/attention_base.cc, 058c5bb. Offsets in shared memory: cuda/bert/bert_padding.cu, 5d721f6. An int32 index of a score:
    cuda/bert/attention_softmax.cu, 02b0534; a fused kernel has none, but with this mask fp32 has no fused kernel.
    """
    if len(source) != 3:
        return f"input is {source}, not [rows, longest, width]"
    rows, longest, width = source
    if len(weight) != 2 or weight[0] != width or weight[1] % (3 * heads):
        return f"weight is {weight}, not [{width}, 3 x {heads} x width of a head]"
    if bias != weight[1:]:
        return f"bias is {bias}, not {weight[1:]}"
    if mask != (rows,):
        return f"the mask is {mask}, not the lengths of {rows} rows"
    return (
        _beyond(THREADS_MAX, heads=heads)
        or _beyond(GRID_YZ_MAX, rows=rows)
        or _beyond(SHARED_BYTES_MAX, bytes_of_offsets=4 * (2 * rows + 1))
        or _beyond(INT32_MAX, products=rows * longest * weight[1], last_score=rows * heads * longest**2 - 1)
    )


def embeddings(
    ids: Shape,
    types: Shape | None,
    words: Shape,
    positions: Shape,
    type_table: Shape | None,
    gamma: Shape,
    beta: Shape,
    mask: Shape | None = None,
    position_ids: Shape | None = None,
) -> str:
    """Shapes for EmbedLayerNormalization, in the order of its inputs.

    cpu/bert/embed_layer_norm_helper.h, 3ab07d5. The grid and the int32 indices: cuda/bert/embed_layer_norm_impl.cu, 0680b8a.
    """
    if len(ids) != 2:
        return f"input_ids is {ids}, not [rows, longest]"
    rows, longest = ids
    if types not in (None, ids) or mask not in (None, ids):
        return f"token_type_ids is {types} and the mask {mask}, not as input_ids, {ids}"
    if position_ids not in (None, ids, (1, longest)):
        return f"position_ids is {position_ids}, not as input_ids, {ids}"
    width = words[-1]
    tables = [words, positions, *([type_table] if type_table is not None else [])]
    if any(len(table) != 2 or table[1] != width for table in tables):
        return f"the tables of embeddings are {tables}, not all [any, {width}]"
    if gamma != (width,) or beta != (width,):
        return f"gamma is {gamma} and beta {beta}, not [{width}]"
    if position_ids is None and positions[0] < longest:
        return f"rows of {longest} tokens need as many positions; there are {positions[0]}"
    return _beyond(GRID_YZ_MAX, rows=rows) or _beyond(INT32_MAX, output=rows * longest * width, words=math.prod(words))


def embedded(ids: Array, table: int) -> str:
    """Values for EmbedLayerNormalization: ids into a table of ``table`` rows. cuda/bert/embed_layer_norm_impl.cu, 0680b8a."""
    if ids.dtype != np.int32:
        return f"ids are {ids.dtype}, not int32"
    if ids.min() < 0 or ids.max() >= table:
        return f"ids from {ids.min()} to {ids.max()} for a table of {table}"
    return ""


def row_mask(mask: Array) -> str:
    """Values for EmbedLayerNormalization: a row ends at its first 0 in the mask. cuda/bert/embed_layer_norm_impl.cu, 0680b8a."""
    if mask.dtype != np.int32:
        return f"the mask is {mask.dtype}, not int32"
    if not np.array_equal(mask, np.arange(mask.shape[1]) < mask.sum(axis=1, keepdims=True)):
        return "a row of the mask is not ones, then zeros"
    return ""


def skip_layer_norm(source: Shape, skip: Shape, gamma: Shape, beta: Shape, bias: Shape | None = None) -> str:
    """Shapes for SkipLayerNormalization.

    cpu/skip_layer_norm_helper.h, 072e70f. The same shape of skip: cuda/bert/skip_layer_norm.cc, 130fed8, in its strict mode; a later
    version refuses outputs that an int32 does not count.
    """
    if len(source) not in (2, 3):
        return f"input is {source}, not 2 or 3 dimensions"
    if skip != source:
        return f"skip is {skip}, not as input, {source}"
    if any(given not in (None, source[-1:]) for given in (gamma, beta, bias)):
        return f"gamma is {gamma}, beta {beta} and bias {bias}, not [{source[-1]}]"
    return _beyond(INT32_MAX, output=math.prod(source))


def bias_gelu(source: Shape, bias: Shape) -> str:
    """Shapes for BiasGelu: cuda/math/bias_gelu.cc, b4a9107. Its indices are int64."""
    return "" if source and bias == source[-1:] else f"bias is {bias}, not as the last dimension of {source}"


def _beyond(limit: int, **counts: int) -> str:
    """The first of these that is beyond a limit."""
    return next((f"{name.replace('_', ' ')}: {count}, at most {limit}" for name, count in counts.items() if count > limit), "")


class Kernel(NamedTuple):
    """An operator's row in the table of CUDA kernels.

    ``first`` and ``last``: the opset in which the operator last changed. ``inputs`` and ``outputs``: their type parameters, in order.
    ``types``: NumPy's names of what each parameter may be.
    """

    first: int
    last: int
    inputs: str
    outputs: str
    types: Mapping[str, frozenset[str]]


_HALF_OR_SINGLE = frozenset({"float16", "float32"})
_FLOATS = _HALF_OR_SINGLE | {"float64"}
_INT32, _INT64 = frozenset({"int32"}), frozenset({"int64"})
_INDICES = _INT32 | _INT64
_NUMBERS = _FLOATS | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ALL = _NUMBERS | {"bool"}
_LATEST = 1000

# docs/OperatorKernels.md, 001d12d, CUDAExecutionProvider: the operators of our graphs. What the table leaves open (M, T1) is from the
# operator's schema. bfloat16 and smaller types are left out, since no graph of ours has them.
KERNELS = {
    "Add": Kernel(14, _LATEST, "T T", "T", {"T": _NUMBERS}),
    "Cast": Kernel(13, 18, "T1", "T2", {"T1": _ALL, "T2": _ALL}),
    "Gather": Kernel(13, _LATEST, "T Tind", "T", {"T": _ALL, "Tind": _INDICES}),
    "Gemm": Kernel(13, _LATEST, "T T T", "T", {"T": _FLOATS}),
    "MatMul": Kernel(13, _LATEST, "T T", "T", {"T": _FLOATS}),
    "Min": Kernel(13, _LATEST, "T T", "T", {"T": _FLOATS | _INDICES | {"uint32", "uint64"}}),
    "Reshape": Kernel(14, 18, "T shape", "T", {"T": _ALL, "shape": _INT64}),
    "Slice": Kernel(13, _LATEST, "T Tind Tind Tind Tind", "T", {"T": _ALL, "Tind": _INDICES}),
    "Squeeze": Kernel(13, 20, "T axes", "T", {"T": _ALL, "axes": _INT64}),
    "Sub": Kernel(14, _LATEST, "T T", "T", {"T": _NUMBERS}),
    "Tanh": Kernel(13, _LATEST, "T", "T", {"T": _FLOATS}),
    "Unsqueeze": Kernel(13, 20, "T axes", "T", {"T": _ALL, "axes": _INT64}),
    "com.microsoft.Attention": Kernel(1, 1, "T T T M T T M", "T T", {"T": _HALF_OR_SINGLE, "M": _INT32}),
    "com.microsoft.BiasGelu": Kernel(1, 1, "T T", "T", {"T": _FLOATS}),
    "com.microsoft.EmbedLayerNormalization": Kernel(1, 1, "T1 T1 T T T T T T1 T1", "T T1 T", {"T": _HALF_OR_SINGLE, "T1": _INT32}),
    "com.microsoft.PackedMultiHeadAttention": Kernel(1, 1, "T T T T M M T", "T", {"T": _HALF_OR_SINGLE, "M": _INT32}),
    "com.microsoft.SkipLayerNormalization": Kernel(1, 1, "T T T T T", "T U U T", {"T": _HALF_OR_SINGLE, "U": frozenset({"float32"})}),
}


class Tensor(NamedTuple):
    """NumPy's name of a tensor's type, and its shape."""

    kind: str
    shape: Shape


class _Refused(Exception):
    """A node is refused; the message says why."""


def graph_refused(model: ModelProto, fed: Mapping[str, Tensor]) -> str:
    """Why a node of a graph has no CUDA kernel for these inputs, or its kernel refuses their shapes. Computes shapes and types only.

    Args:
        model: one that ``gpu_graphs`` makes; its weights need not be loaded.
        fed: the graph's inputs.
    """
    try:
        _follow(model, fed)
    except _Refused as refused:
        return str(refused)
    return ""


def _follow(model: ModelProto, fed: Mapping[str, Tensor]) -> None:
    known = {each.name: Tensor(_kind(each.data_type), tuple(each.dims)) for each in model.graph.initializer}
    constants = {
        each.name: numpy_helper.to_array(each).tolist()
        for each in model.graph.initializer
        if each.data_type == TensorProto.INT64 and each.data_location != TensorProto.EXTERNAL
    }
    for declared in model.graph.input:
        kind = _kind(declared.type.tensor_type.elem_type)
        dimensions = len(declared.type.tensor_type.shape.dim)
        given = known[declared.name] = fed[declared.name]
        if (given.kind, len(given.shape)) != (kind, dimensions):
            raise _Refused(f"{declared.name} is {given.kind} {given.shape}; the graph reads {kind} of {dimensions} dimensions")
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        kernel = _kernel(node.op_type, node.domain, opset)
        inputs = [known[name] if name else None for name in node.input]
        kinds, shapes = _kinds(node, kernel, inputs), _shapes(node, inputs, constants)
        known.update((name, Tensor(kind, shape)) for name, kind, shape in zip(node.output, kinds, shapes, strict=False))
    for result in model.graph.output:
        kind = _kind(result.type.tensor_type.elem_type)
        if known[result.name].kind != kind:
            raise _Refused(f"{result.name} is {known[result.name].kind}, not {kind}")


@functools.cache
def _kind(element: int) -> str:
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(element)).name)


@functools.cache
def _kernel(operator: str, domain: str, opset: int) -> Kernel:
    own = domain in ("", "ai.onnx")
    kernel = KERNELS.get(operator if own else f"{domain}.{operator}")
    if kernel is None:
        raise _Refused(f"{operator} is not in the table of CUDA kernels")
    since = onnx.defs.get_schema(operator, opset).since_version if own else 1
    if not kernel.first <= since <= kernel.last:
        raise _Refused(f"{operator} of opset {since} is not in the table of CUDA kernels")
    return kernel


def _kinds(node: NodeProto, kernel: Kernel, inputs: Sequence[Tensor | None]) -> list[str]:
    """The types of a node's outputs."""
    bound: dict[str, str] = {}
    for parameter, tensor in zip(kernel.inputs.split(), inputs, strict=False):
        if tensor is None:
            continue
        if tensor.kind not in kernel.types[parameter]:
            raise _Refused(f"{node.op_type} has no CUDA kernel for {parameter} = {tensor.kind}")
        if bound.setdefault(parameter, tensor.kind) != tensor.kind:
            raise _Refused(f"{node.op_type} has {bound[parameter]} and {tensor.kind} for {parameter}")
    if node.op_type == "Cast":
        bound["T2"] = _kind(_attributes(node)["to"])
        if bound["T2"] not in kernel.types["T2"]:
            raise _Refused(f"Cast has no CUDA kernel for T2 = {bound['T2']}")
    return [bound.get(parameter, "unknown") for parameter in kernel.outputs.split()]


def _shapes(node: NodeProto, inputs: Sequence[Tensor | None], constants: Mapping[str, Any]) -> list[Shape]:
    """The shapes of a node's outputs, as far as they are used."""
    attributes = _attributes(node)
    shapes = [None if tensor is None else tensor.shape for tensor in inputs]
    first: Shape = shapes[0] or ()
    match node.op_type:
        case "EmbedLayerNormalization":
            _accept(node, embeddings(*shapes))  # type: ignore[arg-type]  # only optional inputs are None
            return [(*first, (shapes[2] or ())[-1]), first[:1]]
        case "Attention":
            source, weight, bias, mask = [*shapes, None][:4]
            _accept(node, attention(source, weight, bias, mask, attributes["num_heads"]))  # type: ignore[arg-type]  # as above
            return [(*first[:2], (weight or ())[-1] // 3)]
        case "PackedMultiHeadAttention":
            _, key, value, bias, token_offset, cumulative = shapes
            if key is not None or value is not None:
                _accept(node, "key and value are apart from the query")
            kind = inputs[0].kind if inputs[0] else ""
            _accept(node, packed_attention(first, bias, token_offset, cumulative, attributes["num_heads"], kind))  # type: ignore[arg-type]  # as above
            return [(first[0], first[1] * first[3])]
        case "SkipLayerNormalization":
            _accept(node, skip_layer_norm(*shapes))  # type: ignore[arg-type]  # as above
            return [first] * 4
        case "BiasGelu":
            _accept(node, bias_gelu(*shapes))  # type: ignore[arg-type]  # as above
            return [first]
        case "MatMul" | "Gemm":
            second = (shapes[1] or ())[:: -1 if attributes.get("transB") else 1]
            if len(second) != 2 or second[0] != first[-1]:
                _accept(node, f"no product of {first} and {second}")
            return [(*first[:-1], second[1])]
        case "Add" | "Sub" | "Min":
            return [np.broadcast_shapes(*(shape or () for shape in shapes))]
        case "Gather":
            axis = attributes.get("axis", 0)
            return [(*first[:axis], *(shapes[1] or ()), *first[axis + 1 :])]
        case "Slice":
            (start,), (end,) = constants[node.input[1]], constants[node.input[2]]
            return [(len(range(first[0])[start:end]), *first[1:])]
        case "Squeeze":
            return [tuple(size for axis, size in enumerate(first) if axis not in constants[node.input[1]])]
        case "Unsqueeze":
            if constants[node.input[1]] != [0]:
                _accept(node, f"axes are {constants[node.input[1]]}, not [0]")
            return [(1, *first)]
        case "Reshape":
            wanted = constants[node.input[1]]
            rest, odd = divmod(math.prod(first), -math.prod(wanted))
            if odd:
                _accept(node, f"{first} cannot be reshaped to {wanted}")
            return [tuple(rest if size == -1 else size for size in wanted)]
    return [first]


def _accept(node: NodeProto, reason: str) -> None:
    if reason:
        raise _Refused(f"{node.op_type}: {reason}")


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
