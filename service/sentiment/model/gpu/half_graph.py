"""Prepares a graph for fp16: the parts that fp16 is too coarse for stay in fp32.

Angles and buckets of distances are computed from positions. At position 500, adjacent fp16 numbers are 0.25 apart, so an angle would be
off by up to an eighth. That shows in long texts only, which the golden set may not have. Knows only graphs: no files, no runtime, no rows.
"""

import math

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

_ANGLES = {"Sin", "Cos"}
# ONNX Runtime has no fp16 kernel for these.
_FP32_ONLY = {"EyeLike", "Range"}
_INTEGERS = {TensorProto.INT32, TensorProto.INT64}
# They read no values.
_SHAPES = {"Shape", "Size"}
# Shape inference reads the values of shapes and axes, which are short. Others are left out: a message with all weights may be too large.
_READ_MAX = 64


def keep_exact(model: ModelProto) -> list[str]:
    """Prepare an fp32 graph for its conversion to fp16, in place. Returns the names of the nodes that must stay in fp32.

    These are the nodes from which an angle (of Sin or Cos) or an integer (of a Cast) is computed, and those without a kernel for fp16. What
    other nodes read of them is cast to fp16. All nodes are renamed, since ONNX Runtime saves some without a name. The nodes must be in
    topological order.
    """
    graph = model.graph
    floats = _floats(model)
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"
    exact = _exact(graph)
    others = {name for node in graph.node if node.name not in exact for name in node.input}
    _copy_shared(graph, exact, others)
    _cast_results(graph, exact, floats & others)
    # Where the converter knows types, it rounds to fp16 between two nodes that stay in fp32.
    del graph.value_info[:]
    return sorted(exact)


def _exact(graph: GraphProto) -> set[str]:
    """The names of the nodes that must stay in fp32, and of all nodes whose values they read."""
    makers = {name: node for node in graph.node for name in node.output if name}
    waiting = [node for node in graph.node if node.op_type in _ANGLES | _FP32_ONLY or _makes_integers(node)]
    exact: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in exact:
            exact.add(node.name)
            waiting.extend(makers[name] for name in node.input if name in makers and makers[name].op_type not in _SHAPES)
    return exact


def _makes_integers(node: NodeProto) -> bool:
    return node.op_type == "Cast" and any(each.name == "to" and each.i in _INTEGERS for each in node.attribute)


def _copy_shared(graph: GraphProto, exact: set[str], others: set[str]) -> None:
    """Give the exact nodes their own copies of tensors that other nodes read too: those are converted."""
    shared = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT and tensor.name in others}
    copies: dict[str, str] = {}
    for node in graph.node:
        for place, name in enumerate(node.input if node.name in exact else ()):
            if name not in shared:
                continue
            if name not in copies:
                copies[name] = f"{name}.exact"
                copy = graph.initializer.add()
                copy.CopyFrom(shared[name])
                copy.name = copies[name]
            node.input[place] = copies[name]


def _cast_results(graph: GraphProto, exact: set[str], results: set[str]) -> None:
    """Let the other nodes read ``results`` of the exact ones in fp16."""
    halves: dict[str, str] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.name not in exact:
            for place, name in enumerate(node.input):
                node.input[place] = halves.get(name, name)
            continue
        for name in results.intersection(node.output):
            halves[name] = f"{name}.half"
            nodes.append(helper.make_node("Cast", [name], [halves[name]], name=halves[name], to=TensorProto.FLOAT16))
    del graph.node[:]
    graph.node.extend(nodes)


def _floats(model: ModelProto) -> set[str]:
    """The names of the fp32 tensors that nodes compute."""
    graph = model.graph
    light = GraphProto(name=graph.name, node=graph.node, input=graph.input, output=graph.output)
    light.initializer.extend(_light(tensor) for tensor in graph.initializer)
    inferred = shape_inference.infer_shapes(helper.make_model(light, opset_imports=model.opset_import, ir_version=model.ir_version))
    return {value.name for value in inferred.graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}


def _light(tensor: TensorProto) -> TensorProto:
    if math.prod(tensor.dims) <= _READ_MAX:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
