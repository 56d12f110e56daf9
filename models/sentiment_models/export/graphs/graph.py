"""Functions that the rewriters of ONNX graphs share.

Knows nothing of quantisation, of files or of a runtime.
"""

from collections.abc import Iterable, Mapping

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto


def initializers(model: ModelProto) -> dict[str, TensorProto]:
    """Return the graph's stored tensors by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def resolve_aliases(model: ModelProto) -> None:
    """Make every node read a stored tensor by its own name, in place.

    An export stores equal weights once and refers to them through Identity nodes (ALBERT's shared layers, new biases).
    """
    names = {tensor.name for tensor in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    aliases: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in model.graph.node:
        source = aliases.get(node.input[0], node.input[0]) if node.op_type == "Identity" else ""
        if source in names and node.output[0] not in outputs:
            aliases[node.output[0]] = source
        else:
            kept.append(node)
    for node in kept:
        for position, name in enumerate(node.input):
            node.input[position] = aliases.get(name, name)
    replace_nodes(model, kept)


def replace_nodes(model: ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Replace the nodes of the graph by others in topological order, in place."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def drop_unread(model: ModelProto) -> None:
    """Drop the nodes whose results no node and no output of the graph reads, in place. The nodes must be in topological order."""
    read = {value.name for value in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(node.input)
    replace_nodes(model, reversed(kept))


def replace_initializers(model: ModelProto, tensors: Mapping[str, TensorProto]) -> None:
    """Replace the stored tensors, in order of first use and without those that no node reads, in place."""
    used = dict.fromkeys(name for node in model.graph.node for name in node.input if name in tensors)
    copies = [onnx.TensorProto.FromString(tensors[name].SerializeToString()) for name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)


def strip_varying(model: ModelProto) -> None:
    """Drop the records of the producer and of source lines, in place, so that equal graphs give equal bytes."""
    model.producer_name = model.producer_version = model.doc_string = ""
    model.graph.doc_string = ""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]
    items: list[NodeProto | TensorProto | ValueInfoProto] = [
        *model.graph.node,
        *model.graph.initializer,
        *model.graph.input,
        *model.graph.output,
    ]
    for item in items:
        item.doc_string = ""
        del item.metadata_props[:]


def opset(model: ModelProto) -> int:
    """Return the graph's version of the standard operators."""
    return int(next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")))


def serialize(model: ModelProto) -> bytes:
    """Return the bytes of a graph. Equal graphs give equal bytes."""
    content: bytes = model.SerializeToString(deterministic=True)
    return content
