"""Turn Einsum nodes that multiply by a weight, as in XLNet's export, into MatMul nodes, which the quantiser supports.

Knows nothing of quantisation, of files or of a runtime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment_models.export.graphs.graph import initializers, replace_initializers, replace_nodes


@dataclass(frozen=True, slots=True)
class _Product:
    """An Einsum that is ``activation @ weight``.

    ``kept`` and ``summed`` are the numbers of dimensions that stay and that are summed over, ``others`` the sizes of the weight's other
    dimensions. ``order`` is the permutation of the weight's axes to [*summed, *others].
    """

    kept: int
    order: tuple[int, ...]
    summed: int
    others: tuple[int, ...]


def einsums_to_matmuls(model: ModelProto) -> None:
    """Replace each Einsum that multiplies an activation's last dimensions by a stored tensor, in place.

    The result is a MatMul by a matrix, with a Reshape before it if several dimensions are summed over, and a Reshape after it if the weight
    has several other dimensions. Every other Einsum stays. Nodes must read stored tensors by their own names.
    """
    tensors = initializers(model)
    if not any(is_weight_product(node, tensors) for node in model.graph.node):
        return
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        product = _product(node, tensors)
        nodes += [node] if product is None else _matmul(node, product, tensors)
    replace_nodes(model, nodes)
    replace_initializers(model, tensors)


def is_weight_product(node: NodeProto, tensors: Mapping[str, TensorProto]) -> bool:
    """Whether a node is an Einsum that ``einsums_to_matmuls`` replaces."""
    return _product(node, tensors) is not None


def _product(node: NodeProto, tensors: Mapping[str, TensorProto]) -> _Product | None:
    if node.op_type != "Einsum" or len(node.input) != 2 or node.input[0] in tensors or node.input[1] not in tensors:
        return None
    equation = next(each.s.decode() for each in node.attribute if each.name == "equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    read, _, weight = terms.partition(",")
    summed = [letter for letter in read if letter in weight and letter not in result]
    others = [letter for letter in result if letter in weight and letter not in read]
    kept = [letter for letter in read if letter not in summed]
    letters = [*kept, *summed, *others]
    ordered = [*read] == [*kept, *summed] and [*result] == [*kept, *others] and len(set(letters)) == len(letters)
    if not (arrow and kept and summed and others and ordered) or sorted(weight) != sorted([*summed, *others]):
        return None
    sizes = dict(zip(weight, tensors[node.input[1]].dims, strict=True))
    order = tuple(weight.index(letter) for letter in [*summed, *others])
    return _Product(len(kept), order, len(summed), tuple(int(sizes[letter]) for letter in others))


def _matmul(node: NodeProto, product: _Product, tensors: dict[str, TensorProto]) -> list[NodeProto]:
    activation, weight = node.input
    output = node.output[0]
    axes = "".join(map(str, product.order))
    # The name holds the axes, because another node may read the weight along other axes.
    matrix = f"{weight}.{axes[: product.summed]}x{axes[product.summed :]}"
    if matrix not in tensors:
        array = np.asarray(numpy_helper.to_array(tensors[weight])).transpose(product.order)
        columns = int(np.prod(product.others))
        tensors[matrix] = numpy_helper.from_array(np.ascontiguousarray(array.reshape(-1, columns)), matrix)
    nodes: list[NodeProto] = []
    if product.summed > 1:
        joined = f"{output}.joined"
        nodes.append(_reshape(activation, joined, [0] * product.kept + [-1], tensors))
        activation = joined
    flat = output if len(product.others) == 1 else f"{output}.flat"
    nodes.append(helper.make_node("MatMul", [activation, matrix], [flat], name=f"{node.name or output}/MatMul"))
    if flat != output:
        nodes.append(_reshape(flat, output, [0] * product.kept + [*product.others], tensors))
    return nodes


def _reshape(read: str, output: str, dims: Sequence[int], tensors: dict[str, TensorProto]) -> NodeProto:
    """Append a Reshape. 0 in ``dims`` keeps the size of the dimension."""
    shape = f"einsum.{'x'.join(map(str, dims))}"
    tensors[shape] = numpy_helper.from_array(np.array(dims, np.int64), shape)
    return helper.make_node("Reshape", [read, shape], [output], name=f"{output}/Reshape")
