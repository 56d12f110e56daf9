"""Find the encoder of a BERT-type classifier in its export: self-attention, with token-wise nodes before and after it.

A rewriter must understand everything that it changes, so a graph that differs in any way from an eager export of BERT has no encoder here.
Knows nothing of quantisation, of files or of a runtime.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from sentiment_models.export.graphs.graph import initializers

# Operators on each number separately, whatever the dimensions.
ELEMENTWISE = {"Add", "Div", "Erf", "Gelu", "Mul", "Pow", "Relu", "Sqrt", "Sub", "Tanh"}
# Operators that make the shape of one tensor from the shape of another.
SHAPE_ARITHMETIC = {"Concat", "Gather", "Unsqueeze"}
SUBGRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
# [batch, tokens, heads, width of a head] to [batch, heads, tokens, ...] and back; keys are transposed, too.
TURN, TURN_KEYS = [0, 2, 1, 3], [0, 2, 3, 1]


@dataclass(frozen=True, slots=True)
class Attention:
    """One block of self-attention.

    ``queries``, ``keys`` and ``values`` are the nodes that reshape [batch, tokens, width] to [batch, tokens, *heads];
    ``context`` reshapes back. ``projection`` multiplies ``source``, the layer's input, by the queries' weight.
    """

    source: str
    projection: NodeProto
    queries: NodeProto
    keys: NodeProto
    values: NodeProto
    context: NodeProto
    heads: tuple[int, int]

    @property
    def width(self) -> int:
        """Numbers per token."""
        return self.heads[0] * self.heads[1]

    @property
    def split(self) -> tuple[NodeProto, NodeProto, NodeProto]:
        """The nodes that split the heads."""
        return self.queries, self.keys, self.values


@dataclass(frozen=True, slots=True)
class Encoder:
    """All blocks in order, of equal size, and the nodes that read their result.

    ``skips`` are the token-wise nodes after the last block that read its source. Every other activation there comes from its context.
    ``pooled`` is the only node that selects a token: token 0 of the last activation.
    """

    blocks: tuple[Attention, ...]
    skips: tuple[NodeProto, ...]
    pooled: NodeProto


def find_encoder(model: ModelProto) -> Encoder | None:
    """Return the encoder, with references to the graph's own nodes, or None if any part of it is not recognized.

    Nodes must read stored tensors by their own names, as after ``resolve_aliases``.
    """
    try:
        return _Finder(model).encoder()
    except _Unknown:
        return None


class _Unknown(Exception):
    """The graph differs from an eager export of BERT."""


def _require(holds: bool) -> None:
    if not holds:
        raise _Unknown


class _Finder:
    def __init__(self, model: ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.tensors = initializers(model)
        self.outputs = {value.name for value in model.graph.output}
        self.makers = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            # An operator of another domain may have a standard operator's name, and a subgraph reads tensors that its node does not list.
            _require(node.domain in ("", "ai.onnx") and all(each.type not in SUBGRAPHS for each in node.attribute))
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        inferred = shape_inference.infer_shapes(model).graph.value_info
        # 0 where a size is not a number.
        self.dims = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inferred}

    def encoder(self) -> Encoder:
        blocks = tuple(self._attention(node) for node in self.nodes if node.op_type == "Softmax")
        _require(bool(blocks) and all(block.heads == blocks[0].heads for block in blocks))
        source = blocks[0].source
        _require(len(self.dims.get(source, [])) == 3)
        last = blocks[-1]
        contexts = {block.context.output[0] for block in blocks}
        splits = {node.output[0]: node for block in blocks for node in block.split}
        # Activations [batch, tokens, any width], and those that depend on the last context.
        deep, after = {source}, {last.context.output[0]}
        skips: list[NodeProto] = []
        pooled: list[NodeProto] = []
        for node in self.nodes:
            output = node.output[0]
            if output in contexts:
                deep.add(output)
            elif deep.isdisjoint(node.input) or output in splits:
                continue
            elif node.op_type == "Shape":
                _require(self._is_spent(output, splits.keys() | contexts))
            elif node.op_type == "Gather":
                pooled.append(node)
            else:
                self._require_tokenwise(node, deep)
                deep.add(output)
                if not after.isdisjoint(node.input):
                    _require(all(name in after or name == last.source or name not in deep for name in node.input))
                    after.add(output)
                    if last.source in node.input:
                        skips.append(node)
        _require(all(node.input[0] in deep for node in splits.values()) and deep.isdisjoint(self.outputs))
        _require(len(pooled) == 1 and pooled[0].input[0] in after and self._takes_first_token(pooled[0]))
        return Encoder(blocks, tuple(skips), pooled[0])

    def _attention(self, softmax: NodeProto) -> Attention:
        """Follow the graph from the Softmax up to the split of the heads and down to their join."""
        masked = self._made_by(softmax.input[0], "Add")
        scaled = self._made_by(masked.input[0], "Div")
        scores = self._made_by(scaled.input[0], "MatMul")
        weighted = self._only_reader(softmax, "MatMul")
        turned = self._only_reader(weighted, "Transpose")
        context = self._only_reader(turned, "Reshape")
        _require(weighted.input[0] == softmax.output[0] and _attribute(softmax, "axis") == -1)
        _require(self._array(scaled.input[1]).ndim == 0 and self._is_one_for_all_queries(masked.input[1]))
        turns = [self._made_by(name, "Transpose") for name in (*scores.input, weighted.input[1])]
        _require([_attribute(turn, "perm") for turn in (*turns, turned)] == [TURN, TURN_KEYS, TURN, TURN])
        queries, keys, values = (self._made_by(turn.input[0], "Reshape") for turn in turns)
        biased = self._made_by(queries.input[0], "Add")
        projection = self._made_by(self._only_activation(biased), "MatMul")
        chain = [(projection, "Add"), (biased, "Reshape"), (scores, "Div"), (scaled, "Add"), (masked, "Softmax")]
        chain += [(split, "Transpose") for split in (queries, keys, values)] + [(turn, "MatMul") for turn in turns]
        for node, reader in chain:
            self._only_reader(node, reader)
        source = projection.input[0]
        heads = self._heads(queries, source)
        _require(self._sizes(queries) == self._sizes(keys) == self._sizes(values))
        _require(self._sizes(context) == [(turned.output[0], 0), (turned.output[0], 1), heads[0] * heads[1]])
        return Attention(source, projection, queries, keys, values, context, heads)

    def _heads(self, split: NodeProto, source: str) -> tuple[int, int]:
        match self._sizes(split):
            case [(tensor, 0), -1, int(count), int(width)] if tensor == source and count > 0 and width > 0:
                return count, width
        raise _Unknown

    def _require_tokenwise(self, node: NodeProto, deep: AbstractSet[str]) -> None:
        """Require that each token of the result depends only on the same token of the inputs and on constants equal for all tokens."""
        ranks = [None if name in deep else self._array(name).ndim for name in node.input]
        if node.op_type == "MatMul":
            _require(ranks == [None, 2])
        elif node.op_type == "LayerNormalization":
            _require(ranks in ([None, 1], [None, 1, 1]) and _attribute(node, "axis") == -1)
        else:
            _require(node.op_type in ELEMENTWISE and all(rank in (None, 0, 1) for rank in ranks))
        _require(len(node.output) == 1)

    def _takes_first_token(self, gather: NodeProto) -> bool:
        index = self._array(gather.input[1])
        return index.ndim == 0 and index.item() == 0 and _attribute(gather, "axis") == 1

    def _is_one_for_all_queries(self, mask: str) -> bool:
        dims = self.dims.get(mask, [])
        return len(dims) == 4 and dims[2] == 1

    def _is_spent(self, name: str, reshapes: AbstractSet[str]) -> bool:
        """Whether only these Reshape nodes read a shape."""
        return name not in self.outputs and all(
            node.output[0] in reshapes or (node.op_type in SHAPE_ARITHMETIC and self._is_spent(node.output[0], reshapes))
            for node in self.readers.get(name, [])
        )

    def _sizes(self, reshape: NodeProto) -> list[int | tuple[str, int]]:
        """Return the target shape of a Reshape: integers, or (tensor, axis) for a size taken from a tensor."""
        return [self._size(name) for name in self._made_by(reshape.input[1], "Concat").input]

    def _size(self, name: str) -> int | tuple[str, int]:
        if self._is_constant(name):
            return self._integer(name)
        gather = self._made_by(self._made_by(name, "Unsqueeze").input[0], "Gather")
        shape = self._made_by(gather.input[0], "Shape")
        _require(not shape.attribute)
        return shape.input[0], self._integer(gather.input[1])

    def _integer(self, name: str) -> int:
        array = self._array(name)
        _require(array.size == 1)
        return int(array.item())

    def _only_activation(self, node: NodeProto) -> str:
        names = [name for name in node.input if not self._is_constant(name)]
        _require(len(names) == 1)
        return names[0]

    def _is_constant(self, name: str) -> bool:
        return name in self.tensors or (name in self.makers and self.makers[name].op_type == "Constant")

    def _array(self, name: str) -> NDArray[np.generic]:
        """Return a constant's value."""
        if name in self.tensors:
            return np.asarray(numpy_helper.to_array(self.tensors[name]))
        value = _attribute(self._made_by(name, "Constant"), "value")
        if not isinstance(value, TensorProto):
            raise _Unknown
        return np.asarray(numpy_helper.to_array(value))

    def _made_by(self, name: str, kind: str) -> NodeProto:
        node = self.makers.get(name)
        if node is None or node.op_type != kind:
            raise _Unknown
        return node

    def _only_reader(self, node: NodeProto, kind: str) -> NodeProto:
        """Return the only node that reads this node's result; Shape nodes do not count."""
        readers = [reader for reader in self.readers.get(node.output[0], []) if reader.op_type != "Shape"]
        _require(node.output[0] not in self.outputs and [reader.op_type for reader in readers] == [kind])
        return readers[0]


def _attribute(node: NodeProto, name: str) -> object:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), None)
