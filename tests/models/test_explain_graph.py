"""The explain graph of every family: outputs equal torch's, switches work, and a missing graph is explained."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.session import ExplainSession, Session
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.errors import NotExplainable, ParityFailed
from sentiment_models.export import verify
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.export import Exported, export
from sentiment_models.export.graphs.explain_graph import explain_graph
from sentiment_models.export.verify import ExplainParity, check_explain_parity, explain_parity
from tests.english import ENGLISH
from tests.models.tiny_families import MAX_TOKENS, TINY, Made, save_tiny

TEXTS = ("the film was good", "bad", "i did not like it at all , but the end was great", "", "so so " * 40)


@dataclass(frozen=True, slots=True)
class Explained:
    """A bundle's weights in torch, its explain graph and its tokenizer."""

    checkpoint: Checkpoint
    bundle: Path
    session: ExplainSession
    tokenizer: Tokenizer

    def feeds(self, *texts: str) -> Feeds:
        return pad([self.tokenizer.encode(text) for text in texts], self.session.inputs, self.tokenizer.pad_id, left=False)


def _explained(made: Made) -> Explained:
    return Explained(Checkpoint.of_bundle(made.bundle), made.bundle, ExplainSession(made.bundle / "explain.onnx"), made.tokenizer)


# Those whose attention or embeddings are built in different ways; the export compares the graphs of all families with torch.
@pytest.fixture(
    scope="module",
    params=["bert", "bert-deep", "roberta", "distilbert", "albert", "electra", "mpnet", "modernbert", "modernbert-cls", "roformer"],
)
def made(request: pytest.FixtureRequest, make_family: Callable[[str], Made]) -> Explained:
    family = make_family(request.param)
    assert family.exported.explain is not None
    return _explained(family)


def test_every_output_equals_torchs_at_several_lengths_and_paddings(made: Explained) -> None:
    rows = [made.tokenizer.encode(text) for text in TEXTS]

    check_explain_parity(explain_parity(made.session, made.tokenizer, made.checkpoint.explained, rows, seed=2))


def test_parity_compares_bounded_batches_and_leaves_no_row_out(made: Explained, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = ([made.tokenizer.encode(text) for text in texts] for texts in (("bad", "good", "so", "the film"), TEXTS[-1:]))
    rows = [*short, *long, *short]
    squares = 2 * max(row.tokens for row in short) ** 2
    monkeypatch.setattr(verify, "EXPLAIN_NUMBERS_MAX", made.session.layers * made.session.heads * squares)
    seen: list[tuple[int, ...]] = []

    def reference(feeds: Feeds, label: NDArray[np.int64], *others: NDArray[Any]) -> verify.Explained:
        seen.append(feeds["input_ids"].shape)
        return made.checkpoint.explained(feeds, label, *others)

    check_explain_parity(explain_parity(made.session, made.tokenizer, reference, rows))

    assert sum(count for count, _ in seen) == len(rows)
    assert any(count > 1 for count, _ in seen)
    assert all(count == 1 or count * tokens**2 <= squares for count, tokens in seen)
    assert (1, long[0].tokens) in seen


@pytest.mark.parametrize("kind", ["Sub", "Mul", "MatMul", "Add"])
@pytest.mark.parametrize("place", [0.1, 0.4, 0.7])
def test_a_graph_with_a_gradient_that_is_one_percent_wrong_is_refused(
    make_family: Callable[[str], Made], kind: str, place: float, tmp_path: Path
) -> None:
    made = make_family("bert")
    bundle = Path(shutil.copytree(made.bundle, tmp_path / "bundle"))
    graph = onnx.load(bundle / "explain.onnx", load_external_data=False)
    # The last ones are of value_norm and of further columns of embedding_dots, for which torch has no counterpart here.
    nodes = [node for node in graph.graph.node if node.op_type == kind and node.output[0].startswith("gradient/")]
    _scale(graph, nodes[int(place * len(nodes))], 1.01)
    (bundle / "explain.onnx").write_bytes(graph.SerializeToString())
    rows = [made.tokenizer.encode(text) for text in TEXTS]

    measured = explain_parity(ExplainSession(bundle / "explain.onnx"), made.tokenizer, Checkpoint.of_bundle(bundle).explained, rows)

    with pytest.raises(ParityFailed, match=r"the explain graph differs from torch by .* of the size of the output at one point"):
        check_explain_parity(measured)


def _scale(graph: onnx.ModelProto, node: onnx.NodeProto, factor: float) -> None:
    """Multiply what a node gives."""
    output = node.output[0]
    node.output[0] = f"{output}/right"
    graph.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    graph.graph.node.insert(list(graph.graph.node).index(node) + 1, helper.make_node("Mul", [f"{output}/right", "factor"], [output]))


def test_one_steep_point_of_many_is_rounding_and_several_are_not() -> None:
    check_explain_parity(ExplainParity(points=60, forward=2e-5, usual=2e-5, largest=2e-3))

    for forward, usual, largest in ((2e-5, 2e-4, 2e-4), (2e-5, 2e-5, 0.02), (float("nan"), 2e-5, 2e-3)):
        with pytest.raises(ParityFailed):
            check_explain_parity(ExplainParity(points=60, forward=forward, usual=usual, largest=largest))


@pytest.mark.parametrize("output", ["logits", "attentions", "hidden"])
def test_another_forward_output_in_one_row_is_an_error(made: Explained, output: str) -> None:
    rows = [made.tokenizer.encode(text) for text in TEXTS]

    def reference(feeds: Feeds, *others: NDArray[Any]) -> verify.Explained:
        found = made.checkpoint.explained(feeds, *others)
        one = getattr(found, output)
        if feeds["input_ids"].shape[1] == max(row.tokens for row in rows):
            array = one if output == "logits" else one[-1]
            array[0] += 1e-3 * max(1, np.abs(array[0]).max())
        return found

    with pytest.raises(ParityFailed, match="in logits, attention or hidden states at one point"):
        check_explain_parity(explain_parity(made.session, made.tokenizer, reference, rows))


def test_attention_skips_padding_and_is_the_softmax_of_its_scores(made: Explained) -> None:
    feeds = made.feeds(*TEXTS[:3])
    names = [f"{kind}.{layer}" for kind in ("attention", "score") for layer in range(made.session.layers)]

    found = made.session.run(feeds, names, np.zeros(3, np.int64))

    for layer in range(made.session.layers):
        attention, score = found[f"attention.{layer}"], found[f"score.{layer}"]
        assert attention.shape == (3, made.session.heads, *[feeds["input_ids"].shape[1]] * 2)
        assert np.abs(attention.sum(-1) - 1).max() < 1e-5
        # Nobody reads what padding attends to: in ModernBERT's local layers, where no other token is near, to all padding alike.
        attended = (attention * feeds["attention_mask"][:, None, :, None]).transpose(0, 3, 1, 2)
        assert attended[feeds["attention_mask"] == 0].max(initial=0.0) < 1e-6
        powers = np.exp(score.astype(np.float64) - score.max(-1, keepdims=True))
        assert np.abs(powers / powers.sum(-1, keepdims=True) - attention).max() < 1e-5


def test_scores_are_queries_times_keys_up_to_scale_mask_and_positions(made: Explained) -> None:
    found = made.session.run(made.feeds(TEXTS[2]), ["query.0", "key.0", "score.0"], np.zeros(1, np.int64))

    product = found["query.0"] @ found["key.0"].transpose(0, 1, 3, 2)
    for ours, theirs in zip(product[0], found["score.0"][0], strict=True):
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.99


def test_with_all_gates_open_the_answer_is_the_served_one(made: Explained) -> None:
    feeds = made.feeds(*TEXTS)
    served = Session(made.bundle / "fp32.onnx").run(feeds)

    found = made.session.run(feeds, ["logits"], np.zeros(len(TEXTS), np.int64))["logits"]

    assert np.abs(found - served).max() <= 1e-4


def test_a_closed_gate_switches_off_a_head_in_one_row_only(made: Explained) -> None:
    feeds = made.feeds(*[TEXTS[2]] * 3)
    gate = np.ones((3, made.session.layers, made.session.heads), np.float32)
    gate[1, 0, 0] = 0
    gate[2] = 0

    logits = made.session.run(feeds, ["logits"], np.zeros(3, np.int64), head_gate=gate)["logits"]

    assert np.abs(logits[0] - made.session.run(made.feeds(TEXTS[2]), ["logits"], np.zeros(1, np.int64))["logits"][0]).max() <= 1e-5
    assert np.abs(logits[1] - logits[0]).max() > 1e-6
    assert np.abs(logits[2] - logits[1]).max() > 1e-6


def test_the_effect_of_a_little_less_of_a_head_is_its_gradient(made: Explained) -> None:
    label, step = np.zeros(1, np.int64), 1e-2
    feeds = made.feeds(TEXTS[2])
    found = made.session.run(feeds, ["attention.0", "attention_gradient.0"], label)
    slope = (found["attention.0"] * found["attention_gradient.0"]).sum((0, 2, 3))

    for head in range(made.session.heads):
        logits = []
        for gate in (1 - step, 1 + step):
            gates = np.ones((1, made.session.layers, made.session.heads), np.float32)
            gates[0, 0, head] = gate
            logits.append(made.session.run(feeds, ["logits"], label, head_gate=gates)["logits"][0, 0])
        assert (logits[1] - logits[0]) / (2 * step) == pytest.approx(slope[head], abs=2e-3)


def test_uniform_attention_no_longer_depends_on_queries_and_scores(made: Explained) -> None:
    uniform = np.ones((2, made.session.layers, made.session.heads), np.float32)
    feeds = made.feeds("good bad film", "film bad good")
    names = ["logits", "attention_gradient.0"]

    found = made.session.run(feeds, names, np.zeros(2, np.int64), head_uniform=uniform)
    padded = made.feeds("good bad film", TEXTS[4])
    beside = made.session.run(padded, names, np.zeros(2, np.int64), head_uniform=uniform)

    # Padding gets no share.
    assert np.abs(found["logits"][0] - beside["logits"][0]).max() < 1e-5
    assert np.abs(found["logits"] - made.session.run(feeds, ["logits"], np.zeros(2, np.int64))["logits"]).max() > 1e-6


def test_the_integral_of_the_gradient_is_the_difference_of_its_ends(made: Explained) -> None:
    steps = 256
    one = made.feeds(TEXTS[2])
    feeds = {name: np.repeat(array, steps, axis=0) for name, array in one.items()}
    baseline = np.full_like(feeds["input_ids"], made.tokenizer.pad_id)
    alpha = ((np.arange(steps) + 0.5) / steps).astype(np.float32)
    label = np.zeros(steps, np.int64)

    dots = made.session.run(feeds, ["embedding_dots"], label, alpha, baseline)["embedding_dots"]
    two = {name: array[:2] for name, array in feeds.items()}
    ends = made.session.run(two, ["logits"], label[:2], np.array([0, 1], np.float32), baseline[:2])["logits"][:, 0]

    integral = (dots[..., 0] - dots[..., 1]).mean(0).sum()
    assert integral == pytest.approx(float(ends[1] - ends[0]), abs=0.05)


def test_the_split_by_embedding_is_zero_without_such_a_table(made: Explained) -> None:
    dots = made.session.run(made.feeds(TEXTS[2]), ["embedding_dots"], np.zeros(1, np.int64))["embedding_dots"]

    kinds = np.abs(dots[0]).max(0)
    assert kinds[0] > 0
    assert (kinds[2] > 0) == (made.checkpoint.architecture not in ("distilbert", "mpnet", "modernbert"))
    # These turn queries and keys by their positions.
    assert (kinds[3] > 0) == (made.checkpoint.architecture not in ("modernbert", "roformer"))


def test_value_norms_are_the_norms_of_the_vectors_that_heads_add(make_family: Callable[[str], Made]) -> None:
    bert = _explained(make_family("bert"))
    model, session, feeds = bert.checkpoint._model, bert.session, bert.feeds(TEXTS[2])
    layer = model.get_submodule("bert.encoder.layer.1.attention")
    values: list[torch.Tensor] = []
    layer.get_submodule("self.value").register_forward_hook(lambda _, __, output: values.append(output))
    with torch.no_grad():
        model(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    heads = session.heads
    parted = values[0][0].unflatten(-1, (heads, -1)).transpose(0, 1)
    mixing = layer.get_parameter("output.dense.weight").T.unflatten(0, (heads, -1))

    wanted = (parted @ mixing).norm(dim=-1).detach().numpy()

    found = session.run(feeds, ["value_norm.1"], np.zeros(1, np.int64))["value_norm.1"][0]
    assert np.abs(found - wanted).max() < 1e-5


def test_the_bundle_names_its_explain_graph_and_stores_no_weight_twice(made: Explained) -> None:
    graph = onnx.load(made.bundle / "explain.onnx", load_external_data=False)
    inside = sum(len(tensor.raw_data) for tensor in graph.graph.initializer)

    assert "explain.onnx" in load_bundle(made.bundle).manifest.files
    assert inside < 0.5 * (made.bundle / "model.safetensors").stat().st_size


def test_an_activation_without_a_gradient_rule_gives_a_bundle_without_an_explain_graph(tmp_path: Path) -> None:
    said: list[str] = []
    tiny = replace(TINY["bert"], sizes={**TINY["bert"].sizes, "hidden_act": "silu"})

    exported = export(save_tiny(tmp_path / "checkpoint", tiny), tmp_path / "bundle", name="silu", version=1, say=said.append)

    assert exported.explain is None
    assert any("the operator Sigmoid has no gradient rule" in line for line in said)
    assert load_bundle(tmp_path / "bundle").manifest.graphs.explain is None


def test_a_graph_whose_states_are_not_recognized_has_all_other_outputs(make_family: Callable[[str], Made]) -> None:
    checkpoint = Checkpoint(make_family("bert").checkpoint, MAX_TOKENS)
    graph = checkpoint.to_onnx(checkpoint.weights)
    for node in graph.graph.node:
        if node.op_type == "LayerNormalization":
            node.op_type = "Relu"
            del node.input[1:], node.attribute[:]

    outputs = {output.name.partition(".")[0] for output in explain_graph(graph, checkpoint.heads).graph.output}

    assert outputs == {"logits", "attention", "score", "attention_gradient", "query", "key", "value_norm", "embedding_dots"}


def test_a_classify_graph_is_not_an_explain_graph(exported: tuple[Path, Exported]) -> None:
    with pytest.raises(BadBundle, match="not an explain graph: missing inputs: alpha, baseline_ids"):
        ExplainSession(exported[0] / "fp32.onnx")


def test_a_graph_without_attention_is_refused(whole: onnx.ModelProto) -> None:
    graph = onnx.ModelProto()
    graph.CopyFrom(whole)
    for node in graph.graph.node:
        node.op_type = node.op_type.replace("Softmax", "LogSoftmax")

    with pytest.raises(NotExplainable, match="no Softmax"):
        explain_graph(graph, 2)


def test_the_default_bundles_explain_graph_is_torchs_on_its_own_weights() -> None:
    tokenizer = Tokenizer(ENGLISH / "tokenizer.json", 512)
    rows = [tokenizer.encode(text) for text in ("It was not half bad, was it?", "dull", "I laughed. " * 20, "A film about a clerk.")]
    session = ExplainSession(ENGLISH / "explain.onnx")

    assert (session.layers, session.heads) == (6, 12)
    check_explain_parity(explain_parity(session, tokenizer, Checkpoint.of_bundle(ENGLISH).explained, rows))
