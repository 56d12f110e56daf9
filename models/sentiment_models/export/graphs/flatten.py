"""Less work for the same answers: tokens as rows of one matrix, and of the last layer only what the classifier reads.

A BERT-type classifier reads the first token ([CLS]) of the last layer. Of the other tokens only keys and values are read there:
their queries, attention and feed-forward are a seventh of a six-layer model's work. Two-dimensional activations let the
quantiser scale rows by QuantizeLinear itself, and spare each layer its shape arithmetic.
Knows nothing of quantisation, of files or of a runtime.
"""

from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sentiment_models.export.graphs.encoder import Encoder, find_encoder
from sentiment_models.export.graphs.graph import drop_unread, initializers, replace_initializers, replace_nodes, resolve_aliases

# Of each text the first token, twice: ONNX Runtime sums a product with a single row in an order that depends on the padding, one
# of two rows in none. Alone, the last bits of 3 % of all answers moved with their batch mates.
FIRST_TWICE = (0, 0)
# What the first dimension of activations is called, before and after all but the first tokens are dropped.
TOKENS, FIRST_TOKENS = "flat.tokens", "flat.first_tokens"


def flatten(model: ModelProto) -> ModelProto:
    """Return a copy with activations [tokens, width] between embeddings and classifier, its last layer cut to the first token.

    A graph with anything that ``find_encoder`` does not understand is returned as it was: one that reads another token, say, or
    has other nodes between its layers.
    """
    result = ModelProto()
    result.CopyFrom(model)
    resolve_aliases(result)
    encoder = find_encoder(result)
    if encoder is None:
        return model
    rewriter = _Rewriter(initializers(result))
    rewriter.flatten(encoder)
    rewriter.cut(encoder)
    source = encoder.blocks[0].source
    embeddings = next(node for node in result.graph.node if node.output[0] == source)
    nodes = [each for node in result.graph.node for each in (node, *rewriter.added.get(node.output[0], ()))]
    # What read the embeddings reads them flattened, under the same name.
    embeddings.output[0] = _unflattened(source)
    replace_nodes(result, nodes)
    drop_unread(result)
    replace_initializers(result, rewriter.tensors)
    result.graph.value_info.extend(_row_counts(encoder))
    return result


def _unflattened(source: str) -> str:
    return f"{source}.unflattened"


def _row_counts(encoder: Encoder) -> list[ValueInfoProto]:
    """Say which activations have equally many rows, for shape inference to spread."""
    last = encoder.blocks[-1]
    rows = {encoder.blocks[0].source: TOKENS, **{block.context.output[0]: TOKENS for block in encoder.blocks}}
    rows |= {_first_rows(last.source): FIRST_TOKENS, last.context.output[0]: FIRST_TOKENS}
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, last.width]) for name, count in rows.items()]


def _first_rows(source: str) -> str:
    return f"{source}.first_rows"


@dataclass(slots=True)
class _Rewriter:
    tensors: dict[str, TensorProto]
    # New nodes, by the tensor behind whose maker they stand.
    added: dict[str, list[NodeProto]] = field(default_factory=dict)

    def flatten(self, encoder: Encoder) -> None:
        """Join texts and tokens behind the embeddings; part them for attention alone, by shapes that are made once."""
        first = encoder.blocks[0]
        source, whole = first.source, _unflattened(first.source)
        sizes = self._add(source, "Shape", [whole], "flat.sizes", end=2)
        self._add(source, "Concat", [sizes, self._constant("width", first.width)], "flat.tokens_shape", axis=0)
        shape = self._add(source, "Concat", [sizes, self._constant("heads", *first.heads)], "flat.heads_shape", axis=0)
        rows = self._constant("rows", -1, first.width)
        self._add(source, "Reshape", [whole, rows], source)
        for block in encoder.blocks:
            for node in block.split:
                node.input[1] = shape
            block.context.input[1] = rows

    def cut(self, encoder: Encoder) -> None:
        """Let the last layer ask for its first tokens, and the classifier find each text's first among them; after ``flatten``."""
        last, count = encoder.blocks[-1], len(FIRST_TWICE)
        source = last.source
        tokens = self._add(source, "Reshape", [source, "flat.tokens_shape"], f"{source}.tokens")
        few = self._add(source, "Gather", [tokens, self._constant("first", *FIRST_TWICE)], f"{source}.first", axis=1)
        rows = self._add(source, "Reshape", [few, self._constant("rows", -1, last.width)], _first_rows(source))
        for node in (last.projection, *encoder.skips):
            for position, name in enumerate(node.input):
                if name == source:
                    node.input[position] = rows
        last.queries.input[1] = self._constant("first_heads", -1, count, *last.heads)
        final = encoder.pooled.input[0]
        shape = self._constant("first_tokens", -1, count, last.width)
        encoder.pooled.input[0] = self._add(final, "Reshape", [final, shape], f"{final}.tokens")

    def _add(self, behind: str, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
        node = helper.make_node(kind, inputs, [output], name=f"{output}/{kind}")
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.added.setdefault(behind, []).append(node)
        return output

    def _constant(self, name: str, *values: int) -> str:
        full = f"flat.{name}"
        self.tensors[full] = numpy_helper.from_array(np.array(values, np.int64), full)
        return full
