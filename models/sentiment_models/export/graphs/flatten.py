"""Remove work that does not change the answers: compute the last layer only for the token that the classifier reads.

A BERT-type classifier reads the first token ([CLS]) of the last layer. That layer needs only the keys and values of the other tokens: their
queries, attention and feed-forward are a seventh of the work of a six-layer model. Activations also become matrices of token rows. Then
the quantiser can scale rows in QuantizeLinear itself, and the layers need no shape arithmetic.
Knows nothing of quantisation, of files or of a runtime.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sentiment_models.export.graphs.encoder import Encoder, find_encoder
from sentiment_models.export.graphs.graph import drop_unread, initializers, replace_initializers, replace_nodes, resolve_aliases

# The first token of each text, twice. ONNX Runtime sums a product with a single row in an order that depends on the padding, but not a
# product with two rows. With one row, the last bits of 3 % of all answers changed with their batch mates.
FIRST_TWICE = (0, 0)
# Names of the first dimension of activations, before and after all but the first tokens are dropped.
TOKENS, FIRST_TOKENS = "flat.tokens", "flat.first_tokens"


def flatten(model: ModelProto) -> ModelProto:
    """Return a copy with activations [tokens, width] between embeddings and classifier, and the last layer cut to the first token.

    If ``find_encoder`` does not recognize the graph, for example because it reads another token, the graph itself is returned.
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
    # The flattened embeddings take over the name, so that all readers read them.
    embeddings.output[0] = _unflattened(source)
    replace_nodes(result, nodes)
    drop_unread(result)
    replace_initializers(result, rewriter.tensors)
    result.graph.value_info.extend(_row_counts(encoder))
    return result


def _unflattened(source: str) -> str:
    return f"{source}.unflattened"


def _row_counts(encoder: Encoder) -> list[ValueInfoProto]:
    """Declare which activations have the same number of rows; shape inference propagates it."""
    last = encoder.blocks[-1]
    rows = {encoder.blocks[0].source: TOKENS, **{block.context.output[0]: TOKENS for block in encoder.blocks}}
    rows |= {_first_rows(last.source): FIRST_TOKENS, last.context.output[0]: FIRST_TOKENS}
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, last.width]) for name, count in rows.items()]


def _first_rows(source: str) -> str:
    return f"{source}.first_rows"


@dataclass(slots=True)
class _Rewriter:
    tensors: dict[str, TensorProto]
    # New nodes, by the tensor after whose node they are inserted.
    added: dict[str, list[NodeProto]] = field(default_factory=dict)

    def flatten(self, encoder: Encoder) -> None:
        """Join texts and tokens after the embeddings, and split them only for attention, with shapes that are computed once."""
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
        """Compute queries of the last layer only for first tokens, and let the classifier read these. Call after ``flatten``."""
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

    def _add(self, behind: str, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:  # Any: what onnx takes
        node = helper.make_node(kind, inputs, [output], f"{output}/{kind}", **attributes)
        self.added.setdefault(behind, []).append(node)
        return output

    def _constant(self, name: str, *values: int) -> str:
        full = f"flat.{name}"
        self.tensors[full] = numpy_helper.from_array(np.array(values, np.int64), full)
        return full
