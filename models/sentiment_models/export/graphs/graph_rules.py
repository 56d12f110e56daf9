"""Check an ONNX file of a bundle before a runtime loads it: only known operators, and no data from outside of the bundle.

Knows nothing of torch or of a runtime.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from sentiment.model.bundle import GraphSpec
from sentiment_models.export.graphs.quantize import RUNTIME_DOMAIN
from sentiment_models.export.manifest import WEIGHTS_FILE
from sentiment_models.export.weights import TYPES, Stored

DOMAINS = ("", "ai.onnx", RUNTIME_DOMAIN)
"""The allowed domains of operators: ONNX's own, which has two names, and ONNX Runtime's."""


def read_graph(path: Path) -> ModelProto | None:
    """Parse an ONNX file without its external data; None if it is not an ONNX file."""
    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError:
        return None


def graph_faults(model: ModelProto, sizes: Mapping[str, int], stored: Mapping[str, Stored]) -> Iterator[str]:
    """Yield everything in a graph that a bundle's graph must not have.

    Args:
        model: the graph, read without its external data.
        sizes: size in bytes of the bundle's files by name.
        stored: the tensors of the bundle's model.safetensors.
    """
    of_functions = [node for function in model.functions for node in function.node]
    graphs = [graph for outer in (model.graph, *_inner(of_functions)) for graph in _all_graphs(outer)]
    nodes = [*(node for graph in graphs for node in graph.node), *of_functions]
    local = {function.domain for function in model.functions}
    foreign: dict[str, list[str]] = {}
    for node in nodes:
        if node.domain not in (*DOMAINS, *local):
            foreign.setdefault(node.domain, []).append(node.op_type)
    for domain, kinds in foreign.items():
        yield f"{len(kinds)} operators of the domain {domain!r}, such as {kinds[0]}; allowed are ONNX's own and {RUNTIME_DOMAIN}"
    for tensor in (*_initializers(graphs), *_attribute_tensors(nodes)):
        yield from _external_faults(tensor, sizes, stored)


def shape_faults(model: ModelProto, spec: GraphSpec, labels: int) -> Iterator[str]:
    """Yield the inputs and outputs of a classify graph that do not match its manifest entry and the service."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    for kind, values, expected in (("inputs", inputs, spec.inputs), ("outputs", model.graph.output, spec.outputs)):
        names = [value.name for value in values]
        if sorted(names) != sorted(expected):
            yield f"{kind} are {', '.join(names)}, but the manifest has {', '.join(expected)}"
    for value in inputs:
        if kind_of(value) != TensorProto.INT64 or len(dims_of(value)) != 2 or any(isinstance(dim, int) for dim in dims_of(value)):
            yield f"input {value.name} must be INT64 [rows, tokens] with dynamic sizes, got {shown_value(value)}"
    for value in list(model.graph.output)[:1]:
        dims = dims_of(value)
        fits = len(dims) == 2 and isinstance(dims[0], str) and (dims[1] == labels or isinstance(dims[1], str))
        if kind_of(value) != TensorProto.FLOAT or not fits:
            yield f"output {value.name} must be FLOAT [rows, {labels}], got {shown_value(value)}"


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield a graph's nodes, including those in the bodies of If, Loop and Scan."""
    return (node for each in _all_graphs(graph) for node in each.node)


def _all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for inner in _inner(graph.node):
        yield from _all_graphs(inner)


def _inner(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _initializers(graphs: Iterable[GraphProto]) -> Iterator[TensorProto]:
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)


def _attribute_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def _external_faults(tensor: TensorProto, sizes: Mapping[str, int], stored: Mapping[str, Stored]) -> Iterator[str]:
    if tensor.data_location != TensorProto.EXTERNAL and not tensor.external_data:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if location not in sizes:
        yield f"tensor {tensor.name} is read from {location!r}, which is not a file of the bundle"
        return
    offset, length = entries.get("offset", "0"), entries.get("length", "0")
    if not (offset.isdecimal() and length.isdecimal() and int(offset) + int(length) <= sizes[location]):
        yield f"tensor {tensor.name} has {length} bytes from byte {offset} of {location}, but the file has {sizes[location]} bytes"
    elif location == WEIGHTS_FILE and not any(_is_at(tensor, int(offset), int(length), place) for place in stored.values()):
        yield f"tensor {tensor.name} is read from byte {offset} of {location}, which has no tensor of its type and shape there"


def _is_at(tensor: TensorProto, offset: int, length: int, place: Stored) -> bool:
    same_bytes = (place.offset, place.length) == (offset, length)
    return same_bytes and place.dims == tuple(tensor.dims) and TYPES.get(place.dtype) == tensor.data_type


def kind_of(value: ValueInfoProto) -> int:
    """Return the number of a tensor's type."""
    return int(value.type.tensor_type.elem_type)


def dims_of(value: ValueInfoProto) -> list[int | str]:
    """Return a tensor's axes: a size, or the name of a dynamic one, which may be empty."""
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def shown_value(value: ValueInfoProto) -> str:
    """Return a tensor's type and axes in words."""
    kinds = {number: name for name, number in TensorProto.DataType.items()}
    return f"{kinds.get(kind_of(value), kind_of(value))} [{', '.join(str(dim) for dim in dims_of(value))}]"
