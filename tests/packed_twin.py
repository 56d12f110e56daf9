"""A packed graph that the CPU can run: PackedMultiHeadAttention, which has a kernel for CUDA only, built of standard operators.

It follows the operator's documentation, by way of the padded layout: token_offset has the place of each token in it, and
cumulative_lengths the length of each row. In an fp16 graph it computes in fp32. The rest of the graph does not change.
"""

from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, helper, parser

DOMAIN = "cpu.twin"

# T tokens of N heads of D numbers; B rows of at most S tokens.
ATTENTION = """
<domain: "cpu.twin", opset_import: ["" : 18]>
Attention (query, bias, token_offset, cumulative) => (output)
{
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    three = Constant <value = int64[1] {3}> ()
    end = Constant <value = int64[1] {-1}> ()
    far = Constant <value = int64[1] {9223372036854775807}> ()
    T = Shape <start = 0, end = 1> (query)
    N = Shape <start = 1, end = 2> (query)
    D = Shape <start = 3, end = 4> (query)
    B = Shape <start = 0, end = 1> (token_offset)
    S = Shape <start = 1, end = 2> (token_offset)

    bias_shape = Concat <axis = 0> (three, N, D)
    bias_of_heads = Reshape (bias, bias_shape)
    split = Transpose <perm = [0, 2, 1, 3]> (query)
    tokens = Add (split, bias_of_heads)

    offsets = Reshape (token_offset, end)
    offsets_of_tokens = Slice (offsets, zero, T, zero)
    places = Cast <to = 7> (offsets_of_tokens)
    indices = Unsqueeze (places, one)
    count = Shape (offsets)
    flat_shape = Concat <axis = 0> (count, three, N, D)
    blank = ConstantOfShape <value = float[1] {7.0}> (flat_shape)
    flat = ScatterND (blank, indices, tokens)
    padded_shape = Concat <axis = 0> (B, S, three, N, D)
    padded = Reshape (flat, padded_shape)
    turned = Transpose <perm = [2, 0, 3, 1, 4]> (padded)
    q, k, v = Split <axis = 0, num_outputs = 3> (turned)

    keys = Transpose <perm = [0, 1, 2, 4, 3]> (k)
    products = MatMul (q, keys)
    width = Cast <to = 1> (D)
    root = Sqrt (width)
    scores = Div (products, root)

    begins = Slice (cumulative, zero, end, zero)
    ends = Slice (cumulative, one, far, zero)
    lengths_32 = Sub (ends, begins)
    lengths = Cast <to = 7> (lengths_32)
    lengths_column = Unsqueeze (lengths, one)
    first = Constant <value = int64 {0}> ()
    step = Constant <value = int64 {1}> ()
    longest = Squeeze (S)
    columns = Range (first, longest, step)
    stands = Less (columns, lengths_column)
    axes = Constant <value = int64[2] {1, 2}> ()
    keep = Unsqueeze (stands, axes)
    least = Constant <value = float {-1e30}> ()
    masked = Where (keep, scores, least)
    attention = Softmax <axis = -1> (masked)

    mixed = MatMul (attention, v)
    alone = Squeeze (mixed, zero)
    by_token = Transpose <perm = [0, 2, 1, 3]> (alone)
    joined_shape = Concat <axis = 0> (count, end)
    joined = Reshape (by_token, joined_shape)
    output = Gather <axis = 0> (joined, places)
}
"""


def save_twin(packed: Path, twin: Path) -> ModelProto:
    """Write the graph with its attention replaced, and return it."""
    model = onnx.load(packed)
    model.functions.append(parser.parse_function(ATTENTION))
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type != "PackedMultiHeadAttention":
            model.graph.node.append(node)
            continue
        query, key, value, bias, *others = node.input
        assert not key and not value
        assert [each.name for each in node.attribute] == ["num_heads"]
        output = node.output[0]
        model.graph.node.extend(
            [
                helper.make_node("Cast", [query], [f"{output}.query"], to=TensorProto.FLOAT),
                helper.make_node("Cast", [bias], [f"{output}.bias"], to=TensorProto.FLOAT),
                helper.make_node("Attention", [f"{output}.query", f"{output}.bias", *others], [f"{output}.fp32"], domain=DOMAIN),
                helper.make_node("Cast", [f"{output}.fp32"], [output], to=stored[bias]),
            ]
        )
    onnx.save(model, twin)
    return model
