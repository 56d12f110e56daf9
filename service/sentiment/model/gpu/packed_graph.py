"""Turns a fused BERT-type graph into one without padding: a batch is one sequence of tokens, and attention stays within each text.

Most nodes compute each token on its own, so their layout does not matter. Three kinds of nodes are replaced: embeddings read positions
from an input, attention reads where each text ends, and the classifier reads the first token of each text. Knows only graphs: no files,
no runtime, no rows.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
# Operators that compute each token on its own, with two dimensions as with three.
_TOKENWISE = {"Add", "BiasGelu", "FastGelu", "Gelu", "LayerNormalization", "MatMul", "SkipLayerNormalization"}
# The allowed attributes of an Attention node. mask_filter_value has no effect without padding.
_ATTENTION_ATTRIBUTES = {"num_heads", "mask_filter_value", "scale"}
# Input indices of EmbedLayerNormalization; then the first one of Attention that is not supported.
_IDS, _TYPES, _MASK, _POSITIONS = 0, 1, 7, 8
_PAST = 4


class NotPackable(Exception):
    """The graph has a part that cannot be packed safely; the message says which."""


def pack_graph(model: ModelProto) -> None:
    """Turn a fused graph into its packed form, in place. After an error the graph may be half changed.

    The packed graph reads the int32 arrays of ``tensors.pack``: ``input_ids`` and ``position_ids`` (from 0 in each text) [tokens],
    ``token_type_ids`` [tokens] if it had that input before, ``token_offset`` [rows, longest] and ``cumulative_lengths`` [rows + 1]. It
    returns ``logits`` [rows, labels]. Its attention is ONNX Runtime's PackedMultiHeadAttention, which has a kernel for CUDA only.

    PackedMultiHeadAttention is used instead of PackedAttention because it alone supports flash attention. It reads query, key and value
    of a head side by side, so one product computes all three. RemovePadding is not used, since it makes the host wait for the device.

    Raises:
        NotPackable: the graph has a part that cannot be packed safely.
    """
    _Packing(model.graph).run()


class _Packing:
    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name for value in graph.input}
        self.types = False
        # Activations [tokens, width].
        self.deep: set[str] = set()

    def run(self) -> None:
        nodes = [made for node in self.graph.node for made in self._packed(node)]
        if not self.deep:
            raise NotPackable("the embeddings are not one fused node, so the source of positions is unknown")
        if not self.deep.isdisjoint(value.name for value in self.graph.output):
            raise NotPackable("the graph returns a result for each token")
        del self.graph.node[:], self.graph.input[:], self.graph.value_info[:]
        self.graph.node.extend(nodes)
        self.graph.input.extend(self._inputs())
        self._constant("packed.first", np.array([0], np.int64))
        self._constant("packed.last", np.array([-1], np.int64))
        self._constant("packed.one", np.array([1], np.int32))
        _prune(self.graph)

    def _inputs(self) -> Iterator[ValueInfoProto]:
        shapes: dict[str, list[str]] = {"input_ids": ["tokens"], "position_ids": ["tokens"]}
        if self.types:
            shapes["token_type_ids"] = ["tokens"]
        shapes |= {"token_offset": ["rows", "longest"], "cumulative_lengths": ["rows_and_one"]}
        return (helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name, shape in shapes.items())

    def _packed(self, node: NodeProto) -> list[NodeProto]:
        """The nodes that replace a node."""
        if node.op_type == "EmbedLayerNormalization":
            return self._embeddings(node)
        if self.deep.isdisjoint(node.input):
            return [node]
        if node.op_type == "Attention":
            return self._attention(node)
        if node.op_type == "Gather":
            return self._first_tokens(node)
        if node.op_type not in _TOKENWISE or any(name and name not in self.deep and not self._is_flat(name) for name in node.input):
            raise NotPackable(f"{node.op_type} may not compute each token on its own")
        self.deep.update(node.output)
        return [node]

    def _embeddings(self, node: NodeProto) -> list[NodeProto]:
        ids, types = node.input[_IDS], node.input[_TYPES]
        if self.deep or ids not in self.inputs or (types and types not in self.inputs) or any(node.input[_POSITIONS:]):
            raise NotPackable("the embeddings have inputs other than ids, types and positions from 0")
        self.types = bool(types)
        given = {_IDS: ids, _POSITIONS: "position_ids"} | ({_TYPES: types} if types else {})
        # The operator needs [rows, tokens]; it gets all tokens as one row.
        lifted = [helper.make_node("Unsqueeze", [name, "packed.first"], [f"packed.{name}"]) for name in given.values()]
        names = [*node.input, *[""] * (_POSITIONS + 1)][: _POSITIONS + 1]
        names[_MASK] = ""
        for place, name in given.items():
            names[place] = f"packed.{name}"
        embed = helper.make_node(node.op_type, names, ["packed.embedded", "packed.no_mask"], domain=MICROSOFT)
        embed.attribute.extend(each for each in node.attribute if each.name == "epsilon")
        self.deep.add(node.output[0])
        return [*lifted, embed, helper.make_node("Squeeze", ["packed.embedded", "packed.first"], [node.output[0]])]

    def _attention(self, node: NodeProto) -> list[NodeProto]:
        source, weight, bias = node.input[:3]
        odd = [each.name for each in node.attribute if each.name not in _ATTENTION_ATTRIBUTES]
        if odd or any(node.input[_PAST:]) or source not in self.deep or not (weight in self.tensors and bias in self.tensors):
            raise NotPackable(f"packed attention does not support the {', '.join(odd) or 'inputs'} of the attention")
        heads = next(each.i for each in node.attribute if each.name == "num_heads")
        wide = self._array(weight)
        width = wide.shape[1] // 3
        name = node.output[0]
        # [source, (query, key, value), head, width of a head] to the order in which the operator reads them.
        turned = wide.reshape(len(wide), 3, heads, width // heads).transpose(0, 2, 1, 3).reshape(wide.shape)
        self._constant(f"{name}.weight", turned)
        self._constant(f"{name}.heads", np.array([-1, heads, 3, width // heads], np.int64))
        inputs = [f"{name}.split", "", "", bias, "token_offset", "cumulative_lengths"]
        packed = helper.make_node("PackedMultiHeadAttention", inputs, [name], domain=MICROSOFT, num_heads=heads)
        packed.attribute.extend(each for each in node.attribute if each.name == "scale")
        self.deep.add(name)
        return [
            helper.make_node("MatMul", [source, f"{name}.weight"], [f"{name}.product"]),
            helper.make_node("Reshape", [f"{name}.product", f"{name}.heads"], [f"{name}.split"]),
            packed,
        ]

    def _first_tokens(self, node: NodeProto) -> list[NodeProto]:
        index = self._array(node.input[1]) if node.input[1] in self.tensors else None
        if node.input[0] not in self.deep or _axis(node) != 1 or index is None or index.ndim or index.item():
            raise NotPackable("a Gather selects something other than the first token of each text")
        first, last = "packed.first", "packed.last"
        return [
            helper.make_node("Slice", ["cumulative_lengths", first, last, first], ["packed.begins"]),
            # Empty rows at the end begin after the last token. They get its logits, which are discarded.
            helper.make_node("Gather", ["cumulative_lengths", last], ["packed.end"]),
            helper.make_node("Sub", ["packed.end", "packed.one"], ["packed.last_token"]),
            helper.make_node("Min", ["packed.begins", "packed.last_token"], ["packed.first_tokens"]),
            helper.make_node("Gather", [node.input[0], "packed.first_tokens"], node.output, axis=0),
        ]

    def _is_flat(self, name: str) -> bool:
        return name in self.tensors and len(self.tensors[name].dims) <= 2

    def _array(self, name: str) -> npt.NDArray[np.generic]:
        return np.asarray(numpy_helper.to_array(self.tensors[name]))

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> None:
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))


def _axis(node: NodeProto) -> int:
    return next((int(each.i) for each in node.attribute if each.name == "axis" and each.type == AttributeProto.INT), 0)


def _prune(graph: GraphProto) -> None:
    """Remove the nodes and tensors that no output needs."""
    needed = {value.name for value in graph.output}
    for repeated in (graph.node, graph.initializer):
        for place in reversed(range(len(repeated))):
            one = repeated[place]
            if needed.isdisjoint(one.output if isinstance(one, NodeProto) else (one.name,)):
                del repeated[place]
            elif isinstance(one, NodeProto):
                needed.update(one.input)
