"""The explain graph: the exported classifier with switches in its attention, and with its own gradient as further nodes.

It works for any family whose export multiplies a softmax of scores with values. Inputs in addition to those of the classifier:

- ``label`` int64 [rows]: the label whose logit is differentiated.
- ``alpha`` float [rows]: position between the word embeddings of ``baseline_ids`` (0) and those of ``input_ids`` (1).
- ``baseline_ids`` int64 [rows, tokens].
- ``head_gate``, ``head_uniform`` float [rows, layers, heads]: attention is gate x ((1 - uniform) x softmax + uniform / tokens read).

Outputs, ``i`` from 0 to layers - 1:

- ``logits`` [rows, labels].
- ``attention.i``: output of softmax, ``score.i``: its input, ``attention_gradient.i``: gradient of the logit by the switched attention,
  each [rows, heads, tokens, tokens].
- ``query.i``, ``key.i`` [rows, heads, tokens, width of a head].
- ``value_norm.i`` [rows, heads, tokens]: norm of the vector that a token adds to the layer's output at weight 1 (Kobayashi et al. 2020).
- ``hidden.i``, ``i`` from 0 to layers [rows, tokens, width of the layer]: what layer ``i`` reads; the last is what the last layer gives.
  Not there if they are not recognized.
- ``embedding_dots`` [rows, tokens, 4]: products of the logit's gradient by a token's embedding with the embeddings of its id, its baseline
  id, its segment and its position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment_models.errors import NotExplainable
from sentiment_models.export.graphs.autodiff import Writer, gradients
from sentiment_models.export.graphs.graph import drop_unread, initializers, replace_initializers, replace_nodes

LOGITS = "logits"
EMBEDDINGS = ("token", "baseline", "segment", "position")
# Operators between the product of queries and keys and the softmax. The other input is the mask or a constant.
_SCORE_OPS = {"Add", "Div", "Mul", "Where"}


_Shape = Sequence[str | int | None]


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's attention by the names of its tensors: ``scores`` go into ``softmax``, whose result is multiplied with ``values``.

    ``keys`` are transposed: [rows, heads, width, tokens]. ``mixing`` is the stored matrix [heads x width, width of the layer] that the
    results of the heads are multiplied with.
    """

    softmax: NodeProto
    scores: str
    queries: str
    keys: str
    values: str
    mixing: str


def explain_graph(model: ModelProto, heads: int) -> ModelProto:
    """Return the explain graph of an exported classifier with ``heads`` heads a layer.

    Its stored tensors must have the names of the weights.

    Raises:
        NotExplainable: the attention or the embeddings are not recognized, or an operator has no gradient rule.
    """
    result = ModelProto()
    result.CopyFrom(model)
    _lift_constants(result)
    _slice_splits(result)
    blocks = find_blocks(result)
    states = _states(result, blocks)
    switched = _switch(result, blocks)
    embedded = _interpolate(result)
    writer = Writer(result, "gradient")
    labels = writer.op("Gather", writer.op("Shape", LOGITS), writer.constant([1]), axis=0)
    one_hot = writer.op("OneHot", "label", labels, writer.constant(np.array([0, 1], np.float32)))
    parts = [embedded["between"], *(embedded[name] for name in EMBEDDINGS[2:] if name in embedded)]
    by = gradients(writer, LOGITS, one_hot, [*switched, *parts])
    for index, (block, name) in enumerate(zip(blocks, switched, strict=True)):
        writer.op("Identity", block.softmax.output[0], name=f"attention.{index}")
        writer.op("Identity", block.scores, name=f"score.{index}")
        writer.op("Identity", by[name], name=f"attention_gradient.{index}")
        writer.op("Identity", block.queries, name=f"query.{index}")
        writer.op("Transpose", block.keys, name=f"key.{index}", perm=[0, 1, 3, 2])
        _value_norms(writer, block, heads, f"value_norm.{index}")
    for index, state in enumerate(states):
        writer.op("Identity", state, name=f"hidden.{index}")
    dots = [_dot(writer, by[embedded["between"]], embedded[name]) for name in EMBEDDINGS[:2]]
    for name in EMBEDDINGS[2:]:
        known = name in embedded
        dots.append(_dot(writer, by[embedded[name]], embedded[name]) if known else writer.op("Mul", dots[0], writer.constant(0.0)))
    writer.op("Concat", *dots, name="embedding_dots", axis=2)
    _declare(result, len(blocks), heads, len(states))
    _sort(result)
    drop_unread(result)
    replace_initializers(result, initializers(result))
    return result


def find_blocks(model: ModelProto) -> list[Block]:
    """Find each layer's attention, in order.

    Raises:
        NotExplainable: there is none, or its structure is not recognized.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    stored = initializers(model)
    blocks = []
    for node in model.graph.node:
        if node.op_type != "Softmax":
            continue
        product = _product(node.input[0], makers)
        context = _reader(model, node.output[0], "MatMul")
        if _before_casts(context.input[0], makers) != node.output[0]:
            raise NotExplainable(f"{node.name}: the softmax must be the first factor of {context.name}")
        mixing = _mixing(model, context.output[0], stored)
        blocks.append(Block(node, node.input[0], product.input[0], product.input[1], context.input[1], mixing))
    if not blocks:
        raise NotExplainable("the graph has no Softmax")
    return blocks


def _product(name: str, makers: dict[str, NodeProto]) -> NodeProto:
    """Find the MatMul of queries and keys that the scores come from."""
    start = name
    waiting = [name]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.op_type == "MatMul":
            return node
        if node is not None and node.op_type in _SCORE_OPS:
            waiting += node.input
    raise NotExplainable(f"{start}: no product of queries and keys was found")


def _reader(model: ModelProto, name: str, kind: str) -> NodeProto:
    """Return the only node that reads a tensor, through casts, which change nothing in an fp32 graph."""
    readers = [node for node in model.graph.node if name in node.input and node.op_type != "Shape"]
    if [node.op_type for node in readers] == ["Cast"]:
        return _reader(model, readers[0].output[0], kind)
    if len(readers) != 1 or readers[0].op_type != kind:
        raise NotExplainable(f"{name}: must be read by one {kind}, got {', '.join(node.op_type for node in readers)}")
    return readers[0]


def _before_casts(name: str, makers: dict[str, NodeProto]) -> str:
    while name in makers and makers[name].op_type == "Cast":
        name = makers[name].input[0]
    return name


def _mixing(model: ModelProto, context: str, stored: dict[str, TensorProto]) -> str:
    turned = _reader(model, context, "Transpose")
    joined = _reader(model, turned.output[0], "Reshape")
    product = _reader(model, joined.output[0], "MatMul")
    if product.input[1] not in stored:
        raise NotExplainable(f"{product.name}: must multiply the results of the heads with a stored matrix")
    return product.input[1]


def _states(model: ModelProto, blocks: Sequence[Block]) -> list[str]:
    """Return the names of the states that the layers read, and of the last layer's result: of its second normalization.

    Where a layer normalizes what it reads (ModernBERT), the state is what is normalized. Empty if one is not recognized: only the geometry
    of words needs them.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    stored = initializers(model)
    read = []
    for block in blocks:
        node = makers.get(block.queries)
        while node is not None and node.op_type != "MatMul":
            node = next((makers[name] for name in node.input if name in makers), None)
        if node is None or node.input[1] not in stored:
            return []
        read.append(node.input[0])
    nodes = list(model.graph.node)
    last = max(place for place, node in enumerate(nodes) if node.op_type == "Softmax")
    norms = [node for node in nodes[last:] if node.op_type == "LayerNormalization"]
    if len(norms) < 2:
        return []
    # The sum that a layer normalizes first is read once more, by the sum after its attention.
    sums = {name for name in read if name in makers and _normalizes_a_shared_sum(makers[name], nodes)}
    first = bool(sums)
    return [*(makers[name].input[0] if name in sums else name for name in read), norms[1].input[0] if first else norms[1].output[0]]


def _normalizes_a_shared_sum(node: NodeProto, nodes: Sequence[NodeProto]) -> bool:
    readers = [reader for reader in nodes if node.input[0] in reader.input and reader.op_type != "Shape"]
    return node.op_type == "LayerNormalization" and len(readers) > 1


def _slice_splits(model: ModelProto) -> None:
    """Turn each Split into as many Slice nodes, in place: nodes of one result are what is differentiated."""
    stored = initializers(model)
    writer = Writer(model, "split")
    kept: list[NodeProto] = []
    for node in list(model.graph.node):
        sizes = stored.get(node.input[1]) if node.op_type == "Split" and len(node.input) > 1 else None
        if sizes is None:
            kept.append(node)
            continue
        ends = np.cumsum(numpy_helper.to_array(sizes))
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        for start, end, output in zip([0, *ends], ends, node.output, strict=False):
            limits = [writer.constant([int(start)]), writer.constant([int(end)]), writer.constant([axis])]
            kept.append(helper.make_node("Slice", [node.input[0], *limits], [output], name=f"{output}/Slice"))
    replace_nodes(model, kept)


def _lift_constants(model: ModelProto) -> None:
    """Turn Constant nodes into stored tensors, in place."""
    kept = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
        else:
            kept.append(node)
    replace_nodes(model, kept)


def _switch(model: ModelProto, blocks: Sequence[Block]) -> list[str]:
    """Insert a gate and a share of uniform attention after each softmax, in place. Return the names of the new tensors."""
    writer = Writer(model, "switch")
    read = writer.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    even = writer.op("Div", read, writer.op("ReduceSum", read, writer.constant([1]), keepdims=1))
    even = writer.op("Unsqueeze", even, writer.constant([1, 2]))
    names = []
    for index, block in enumerate(blocks):
        learned = block.softmax.output[0]
        gate, uniform = (
            writer.op("Unsqueeze", writer.op("Gather", name, writer.constant(np.array(index, np.int64)), axis=1), writer.constant([2, 3]))
            for name in ("head_gate", "head_uniform")
        )
        mixed = writer.op("Add", learned, writer.op("Mul", uniform, writer.op("Sub", even, learned)))
        names.append(writer.op("Mul", gate, mixed))
    _redirect(model, {block.softmax.output[0]: name for block, name in zip(blocks, names, strict=True)}, "switch/")
    _sort(model)
    return names


def _interpolate(model: ModelProto) -> dict[str, str]:
    """Replace the word embeddings by an interpolation from the baseline's, in place. Return tensor names by kind, and ``between``."""
    tables = _tables(model)
    if "token" not in tables:
        raise NotExplainable("the embedding table of input_ids was not found")
    writer = Writer(model, "embedding")
    words = tables["token"]
    base = writer.op("Gather", words.input[0], "baseline_ids", axis=0)
    alpha = writer.op("Unsqueeze", "alpha", writer.constant([1, 2]))
    between = writer.op("Add", base, writer.op("Mul", alpha, writer.op("Sub", words.output[0], base)))
    _redirect(model, {words.output[0]: between}, "embedding/")
    _sort(model)
    return {**{kind: node.output[0] for kind, node in tables.items()}, "baseline": base, "between": between}


def _tables(model: ModelProto) -> dict[str, NodeProto]:
    """Find the nodes that look up the embeddings of ids, segments and positions."""
    stored = initializers(model)
    lookups = [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] in stored]
    widths = {stored[node.input[0]].dims[-1] for node in lookups if node.input[1] == "input_ids"}
    tables: dict[str, NodeProto] = {}
    for node in lookups:
        dims = stored[node.input[0]].dims
        # The table of relative positions is skipped: its width is the number of heads.
        if len(dims) == 2 and dims[1] in widths:
            kind = {"input_ids": "token", "token_type_ids": "segment"}.get(
                node.input[1], "segment" if "type" in node.input[0] else "position"
            )
            if kind in tables:
                raise NotExplainable(f"{node.name}: there must be one table of {kind} embeddings, found a second")
            tables[kind] = node
    return tables


def _redirect(model: ModelProto, names: dict[str, str], own: str) -> None:
    """Rename the inputs of all nodes except those whose names start with ``own``, in place."""
    for node in model.graph.node:
        if not node.name.startswith(own) and node.op_type != "Shape":
            for place, name in enumerate(node.input):
                node.input[place] = names.get(name, name)


def _value_norms(writer: Writer, block: Block, heads: int, name: str) -> None:
    """Compute |v W| of each head as the root of (v G) . v with G = W W^T, which is cheaper than the product in the layer's width."""
    mixing = numpy_helper.to_array(next(tensor for tensor in writer.graph.initializer if tensor.name == block.mixing))
    parted = mixing.astype(np.float64).reshape(heads, -1, mixing.shape[1])
    gram = writer.constant((parted @ parted.transpose(0, 2, 1)).astype(np.float32))
    squared = writer.op("Mul", writer.op("MatMul", block.values, gram), block.values)
    summed = writer.op("ReduceSum", squared, writer.constant([3]), keepdims=0)
    # Rounding may make a zero negative.
    writer.op("Sqrt", writer.op("Relu", summed), name=name)


def _dot(writer: Writer, gradient: str, embedding: str) -> str:
    return writer.op("ReduceSum", writer.op("Mul", gradient, embedding), writer.constant([2]), keepdims=1)


def _declare(model: ModelProto, layers: int, heads: int, states: int) -> None:
    numbers, ids = TensorProto.FLOAT, TensorProto.INT64
    switches: _Shape = ["rows", layers, heads]
    for name, kind, shape in (
        ("label", ids, ["rows"]),
        ("alpha", numbers, ["rows"]),
        ("baseline_ids", ids, ["rows", "tokens"]),
        ("head_gate", numbers, switches),
        ("head_uniform", numbers, switches),
    ):
        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    square: _Shape = ["rows", heads, "tokens", "tokens"]
    wide: _Shape = ["rows", heads, "tokens", None]
    shapes = {"attention": square, "score": square, "attention_gradient": square, "query": wide, "key": wide, "value_norm": wide[:3]}
    for index in range(layers):
        for name, shape in shapes.items():
            model.graph.output.append(helper.make_tensor_value_info(f"{name}.{index}", numbers, shape))
    for index in range(states):
        model.graph.output.append(helper.make_tensor_value_info(f"hidden.{index}", numbers, ["rows", "tokens", None]))
    model.graph.output.append(helper.make_tensor_value_info("embedding_dots", numbers, ["rows", "tokens", len(EMBEDDINGS)]))


def _sort(model: ModelProto) -> None:
    """Sort the nodes topologically, in place. Nodes that are already in order keep it."""
    makers = {name: node for node in model.graph.node for name in node.output}
    done: dict[str, NodeProto] = {}
    for last in model.graph.node:
        waiting = [last]
        while waiting:
            node = waiting[-1]
            first = [makers[name] for name in node.input if name in makers and makers[name].output[0] not in done]
            if first:
                waiting += first
            else:
                done.setdefault(node.output[0], waiting.pop())
    replace_nodes(model, done.values())
