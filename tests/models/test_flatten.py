"""Flattening keeps the logits, and leaves every graph unchanged that it does not fully recognize."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from sentiment_models.export.graphs.encoder import find_encoder
from sentiment_models.export.graphs.flatten import flatten
from sentiment_models.export.graphs.graph import drop_unread, replace_nodes, resolve_aliases, serialize

LAYERS, HEADS, WIDTH = 2, 4, 32
LAYER = "/bert/encoder/layer.{}/output/LayerNorm/LayerNormalization_output_0"


def _copy(model: ModelProto) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    return result


def _feeds(rows: int, tokens: int, pads: int = 0, side: str = "right") -> dict[str, np.ndarray]:
    """Random rows, the last of which has ``pads`` pads."""
    ids = np.random.default_rng(rows * tokens).integers(5, 60, (rows, tokens))
    mask = np.ones_like(ids)
    mask[-1, slice(tokens - pads, tokens) if side == "right" else slice(0, pads)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _run(model: ModelProto, feeds: dict[str, np.ndarray], outputs: Sequence[str] = ("logits",)) -> list[np.ndarray]:
    seen = _copy(model)
    for name in set(outputs) - {value.name for value in model.graph.output}:
        seen.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = InferenceSession(seen.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    found: list[np.ndarray] = session.run(list(outputs), {name: array for name, array in feeds.items() if name in wanted})
    return found


def _product(model: ModelProto, weight: str) -> str:
    """The name of the product of a weight of the encoder."""
    return next(node.output[0] for node in model.graph.node if f"bert.encoder.{weight}.weight.transposed" in node.input)


def _count(model: ModelProto, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)


def _node(model: ModelProto, kind: str, which: int = 0) -> NodeProto:
    return [node for node in model.graph.node if node.op_type == kind][which]


def _maker(model: ModelProto, name: str) -> NodeProto:
    return next(node for node in model.graph.node if name in node.output)


def _insert_behind(model: ModelProto, name: str, *nodes: NodeProto) -> None:
    """Insert nodes after the node that makes a tensor."""
    replace_nodes(model, [each for node in model.graph.node for each in (node, *(nodes if name in node.output else ()))])


def _pass_through(model: ModelProto, name: str, kind: str, *more: str) -> None:
    """Insert a node between a tensor and all its readers."""
    for node in model.graph.node:
        for position, read in enumerate(node.input):
            if read == name:
                node.input[position] = f"{name}.passed"
    _insert_behind(model, name, helper.make_node(kind, [name, *more], [f"{name}.passed"]))


def _store(model: ModelProto, name: str, array: np.ndarray) -> str:
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


@pytest.fixture(scope="module")
def sessions(whole: ModelProto) -> tuple[InferenceSession, InferenceSession]:
    """The flattened graph and the exported one, loaded."""
    flat, exported = (InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for model in (flatten(whole), whole))
    return flat, exported


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("rows", "tokens", "pads"), [(1, 2, 0), (1, 25, 0), (1, 64, 0), (1, 25, 20), (2, 3, 1), (5, 40, 17), (8, 64, 61)])
def test_a_flattened_graph_has_the_same_logits(
    sessions: tuple[InferenceSession, InferenceSession], rows: int, tokens: int, pads: int, side: str
) -> None:
    feeds = _feeds(rows, tokens, pads, side)

    flat, exported = (session.run(["logits"], feeds)[0] for session in sessions)

    assert flat == pytest.approx(exported, abs=1e-5)


def test_the_last_layer_computes_only_keys_values_and_two_rows_per_text(whole: ModelProto) -> None:
    flat = flatten(whole)
    texts, tokens = 3, 7
    weights = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense"]
    names = [_product(flat, f"layer.{layer}.{weight}") for layer in range(LAYERS) for weight in weights]

    rows = [array.shape[0] for array in _run(flat, _feeds(texts, tokens), names)]

    assert rows == [texts * tokens] * 5 + [texts * 2, texts * tokens, texts * tokens, texts * 2, texts * 2]


def test_shapes_are_made_once_a_graph(whole: ModelProto) -> None:
    assert _count(whole, "Concat") == 4 * LAYERS

    flat = flatten(whole)

    # Shapes of the tokens and of the heads; the embeddings use their own size.
    assert (_count(flat, "Concat"), _count(flat, "Shape")) == (2, 2)


def test_a_graph_of_one_layer_is_flattened_too(whole: ModelProto) -> None:
    single = _copy(whole)
    _node(single, "Gather", -1).input[0] = LAYER.format(0)
    drop_unread(single)
    assert _count(single, "Softmax") == 1
    feeds = _feeds(3, 11, pads=4)

    flat = flatten(single)

    assert flat is not single
    assert _run(flat, feeds)[0] == pytest.approx(_run(single, feeds)[0], abs=1e-5)


def test_a_graph_without_token_type_ids_is_flattened_too(whole: ModelProto) -> None:
    model = _copy(whole)
    types = next(node for node in model.graph.node if "token_type_ids" in node.input)
    types.input[1] = "input_types"
    _insert_behind(model, "/bert/embeddings/Shape_output_0", helper.make_node("Sub", ["input_ids", "input_ids"], ["input_types"]))
    del model.graph.input[2]
    feeds = _feeds(2, 9, pads=3)

    flat = flatten(model)

    assert flat is not model
    assert _run(flat, feeds)[0] == pytest.approx(_run(model, feeds)[0], abs=1e-5)


def test_flattening_gives_the_same_bytes_each_time_and_leaves_its_argument_alone(whole: ModelProto) -> None:
    before = serialize(whole)

    first, second = serialize(flatten(whole)), serialize(flatten(whole))

    assert first == second
    assert serialize(whole) == before


def test_a_flattened_graph_is_not_flattened_again(whole: ModelProto) -> None:
    flat = flatten(whole)

    assert flatten(flat) is flat


def test_the_encoder_of_an_export_is_found_with_its_inputs_and_outputs(whole: ModelProto) -> None:
    model = _copy(whole)
    resolve_aliases(model)

    encoder = find_encoder(model)

    assert encoder is not None
    assert [(block.heads, block.width) for block in encoder.blocks] == [((HEADS, WIDTH // HEADS), WIDTH)] * LAYERS
    assert [block.source for block in encoder.blocks] == ["/bert/embeddings/LayerNorm/LayerNormalization_output_0", LAYER.format(0)]
    assert [node.output[0] for node in encoder.skips] == ["/bert/encoder/layer.1/attention/output/Add_output_0"]
    assert encoder.pooled.output[0] == "/bert/pooler/Gather_output_0"


def _set_input(node: NodeProto, place: int, name: str) -> None:
    node.input[place] = name


def _output(model: ModelProto, name: str) -> None:
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


SOFTMAX = "/bert/encoder/layer.1/attention/self/Softmax_output_0"
# Changes that make a graph differ from an export of BERT.
EDITS: dict[str, Callable[[ModelProto], object]] = {
    "second token": lambda m: _set_input(_node(m, "Gather", -1), 1, _store(m, "which", np.array(1, np.int64))),
    "last token": lambda m: _set_input(_node(m, "Gather", -1), 1, _store(m, "which", np.array(-1, np.int64))),
    "layer as output": lambda m: _output(m, LAYER.format(0)),
    "attention as output": lambda m: _output(m, SOFTMAX),
    "sum over tokens between layers": lambda m: _pass_through(m, LAYER.format(0), "CumSum", _store(m, "axis", np.array(1, np.int64))),
    "softmax as activation": lambda m: _pass_through(m, LAYER.format(0), "Softmax"),
    "constant by token": lambda m: _pass_through(m, LAYER.format(0), "Add", _store(m, "by_token", np.ones((64, WIDTH), np.float32))),
    "normalised over tokens": lambda m: setattr(_node(m, "LayerNormalization", 1).attribute[0], "i", 1),
    "softmax over queries": lambda m: setattr(_node(m, "Softmax", 1).attribute[0], "i", 2),
    "heads transposed otherwise": lambda m: _node(m, "Transpose", -1).attribute[0].CopyFrom(helper.make_attribute("perm", [0, 1, 2, 3])),
    "scores divided by token": lambda m: _set_input(_node(m, "Div", -2), 1, _store(m, "divisors", np.ones((1, 1, 1, 1), np.float32))),
    "operator of another domain": lambda m: setattr(_node(m, "Erf"), "domain", "com.microsoft"),
    "fixed shapes": lambda m: _set_input(_node(m, "Reshape", 3), 1, _store(m, "fixed", np.array([1, -1, WIDTH], np.int64))),
    "layer before the last": lambda m: _set_input(_node(m, "Gather", -1), 0, LAYER.format(0)),
    "first text": lambda m: setattr(_node(m, "Gather", -1).attribute[0], "i", 0),
    "keys of something else": lambda m: _set_input(
        _maker(m, _product(m, "layer.1.attention.self.key")), 0, "/bert/embeddings/Add_1_output_0"
    ),
}


def _edit(function: Callable[[ModelProto], None]) -> Callable[[ModelProto], None]:
    EDITS[function.__name__.strip("_").replace("_", " ")] = function
    return function


@_edit
def _mean_of_all_tokens(model: ModelProto) -> None:
    pooled = _node(model, "Gather", -1)
    axes = _store(model, "axes", np.array([1], np.int64))
    pooled.CopyFrom(helper.make_node("ReduceMean", [pooled.input[0], axes], [pooled.output[0]], keepdims=0))


@_edit
def _two_readers_of_a_first_token(model: ModelProto) -> None:
    zero = _store(model, "zero", np.array(0, np.int64))
    _insert_behind(model, LAYER.format(0), helper.make_node("Gather", [LAYER.format(0), zero], ["early"], axis=1))
    _output(model, "early")


@_edit
def _weights_that_are_computed(model: ModelProto) -> None:
    product = _maker(model, _product(model, "layer.0.intermediate.dense"))
    weight = product.input[1]
    product.input[1] = "computed"
    _insert_behind(model, "/bert/embeddings/Shape_output_0", helper.make_node("Neg", [weight], ["computed"]))


@_edit
def _a_mask_of_its_own_for_each_query(model: ModelProto) -> None:
    # [batch, 1, tokens, tokens], as causal models have it.
    masked = next(node for node in reversed(model.graph.node) if "/bert/Mul_output_0" in node.input)
    masked.input[1] = "by_query"
    turn = helper.make_node("Transpose", ["/bert/Mul_output_0"], ["turned_mask"], perm=[0, 1, 3, 2])
    _insert_behind(model, "/bert/Mul_output_0", turn, helper.make_node("Add", ["/bert/Mul_output_0", "turned_mask"], ["by_query"]))


@_edit
def _other_heads_in_one_layer(model: ModelProto) -> None:
    for name in ("Concat_output_0", "Concat_1_output_0", "Concat_2_output_0"):
        concat = _maker(model, f"/bert/encoder/layer.1/attention/self/{name}")
        concat.input[2], concat.input[3] = concat.input[3], concat.input[2]


@_edit
def _queries_read_twice(model: ModelProto) -> None:
    queries = next(node for node in model.graph.node if "bert.encoder.layer.1.attention.self.query.bias" in node.input).output[0]
    _maker(model, LAYER.format(1)).input[0] = "with_queries"
    residual = "/bert/encoder/layer.1/output/Add_output_0"
    _insert_behind(model, residual, helper.make_node("Add", [residual, queries], ["with_queries"]))


@_edit
def _a_skip_over_a_whole_layer(model: ModelProto) -> None:
    _maker(model, LAYER.format(1)).input[0] = "skipped"
    residual = "/bert/encoder/layer.1/output/Add_output_0"
    embedded = "/bert/embeddings/LayerNorm/LayerNormalization_output_0"
    _insert_behind(model, residual, helper.make_node("Add", [residual, embedded], ["skipped"]))


@_edit
def _a_size_that_is_used_elsewhere(model: ModelProto) -> None:
    cast = helper.make_node("Cast", ["sizes"], ["real_sizes"], to=TensorProto.FLOAT)
    _insert_behind(model, LAYER.format(0), helper.make_node("Shape", [LAYER.format(0)], ["sizes"]), cast)
    _output(model, "real_sizes")


@_edit
def _a_second_token_read(model: ModelProto) -> None:
    one = _store(model, "one", np.array(1, np.int64))
    _insert_behind(model, "/bert/pooler/Gather_output_0", helper.make_node("Gather", [LAYER.format(1), one], ["second"], axis=1))
    _output(model, "second")


@_edit
def _scores_read_elsewhere(model: ModelProto) -> None:
    scores = _node(model, "Div").output[0]
    _insert_behind(model, scores, helper.make_node("ReduceMax", [scores], ["highest"]))
    _output(model, "highest")


@_edit
def _keys_split_otherwise(model: ModelProto) -> None:
    concat = _maker(model, "/bert/encoder/layer.0/attention/self/Concat_1_output_0")
    concat.input[2], concat.input[3] = concat.input[3], concat.input[2]


@_edit
def _a_bias_of_activations(model: ModelProto) -> None:
    biased = next(node for node in model.graph.node if "bert.encoder.layer.1.attention.self.query.bias" in node.input)
    biased.input[:] = [_product(model, "layer.1.attention.self.query"), "/bert/embeddings/LayerNorm/LayerNormalization_output_0"]


@_edit
def _tokens_mixed_by_a_matrix(model: ModelProto) -> None:
    _pass_through(model, LAYER.format(0), "MatMul", _store(model, "mix", np.ones((WIDTH, WIDTH), np.float32)))
    mixed = next(node for node in model.graph.node if "mix" in node.input)
    mixed.input[0], mixed.input[1] = mixed.input[1], mixed.input[0]


@_edit
def _a_subgraph(model: ModelProto) -> None:
    value = helper.make_tensor_value_info("branch", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Identity", [LAYER.format(0)], ["branch"])], "branch", [], [value])
    condition = _store(model, "condition", np.array(True))
    _insert_behind(model, LAYER.format(0), helper.make_node("If", [condition], ["chosen"], then_branch=branch, else_branch=branch))
    _output(model, "chosen")


@_edit
def _no_attention(model: ModelProto) -> None:
    _node(model, "Gather", -1).input[0] = "/bert/embeddings/LayerNorm/LayerNormalization_output_0"
    drop_unread(model)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_graph_with_an_unknown_part_is_returned_unchanged(whole: ModelProto, edit: Callable[[ModelProto], object]) -> None:
    model = _copy(whole)
    resolve_aliases(model)
    edit(model)
    assert serialize(model) != serialize(whole)
    before = serialize(model)

    assert flatten(model) is model
    assert serialize(model) == before


def test_a_flattened_graph_is_valid_onnx(whole: ModelProto) -> None:
    onnx.checker.check_model(flatten(whole), full_check=True)
