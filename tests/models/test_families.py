"""Every family from checkpoint to answer, on tiny random models: torch, both graphs and a real server give the same answers."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tokenizers
import torch
from onnx import TensorProto
from safetensors.numpy import load_file
from transformers import AutoConfig, PreTrainedTokenizerFast

from sentiment.batch_limits import ON_CPU
from sentiment.batching.plan import BatchLimits
from sentiment.lifecycle.warm_up import warm_up
from sentiment.model.classifier import load_classifier
from sentiment.model.session import Session
from sentiment.model.tokenizer import Row
from sentiment.settings import Settings
from sentiment_models.errors import BadCheckpoint
from sentiment_models.evaluation.metrics import probabilities
from sentiment_models.export.checkpoint import Checkpoint, from_pretrained
from sentiment_models.export.export import FLATTENED, NOT_FLATTENED, export
from sentiment_models.export.families import FAMILIES
from sentiment_models.export.golden import MEANT
from sentiment_models.export.graphs.quantize import weight_matmuls
from sentiment_models.export.inference import Graph
from sentiment_models.export.positions import positions_of
from tests.conftest import RunningServer
from tests.models.tiny_families import MAX_TOKENS, TINY, Made, save_tiny

TEXTS = [*MEANT, "", "a", "good", "so so", *(" ".join(["fine"] * count) for count in (3, 7, 11, 29, 60, 200))]
PAIRS = [(TEXTS[3], TEXTS[4]), ("good", TEXTS[6]), (TEXTS[10], "a"), (TEXTS[-1], TEXTS[-1]), ("a", "good")]


def _read(made: Made) -> list[tuple[str, str | None]]:
    """All texts, and all pairs if the model reads pairs."""
    return [*((text, None) for text in TEXTS), *(PAIRS if made.tiny.pairs else ())]


def _graph(made: Made, precision: str) -> Graph:
    return Graph(made.tokenizer, Session(made.bundle / f"{precision}.onnx"), made.manifest.padding_side == "left")


@pytest.fixture(scope="session", params=list(TINY))
def made(request: pytest.FixtureRequest, make_family: Callable[[str], Made]) -> Made:
    return make_family(request.param)


@pytest.fixture(scope="session")
def wanted(made: Made) -> np.ndarray:
    """Logits of all texts from transformers' own tokenizer and model with the stored weights, one text at a time, without padding."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(made.checkpoint)
    model = from_pretrained(made.bundle, attn_implementation="eager").eval().float()
    limit = made.manifest.max_tokens
    found = []
    for text, pair in _read(made):
        encoded = tokenizer(text, pair, truncation=True, max_length=limit, return_tensors="pt")
        with torch.no_grad():
            found.append(model(**{name: encoded[name] for name in made.manifest.graphs.classify[1].inputs}).logits.numpy())
    return np.concatenate(found)


@pytest.fixture(scope="session")
def server(made: Made, settings: Settings) -> Iterator[RunningServer]:
    """A real server of the bundle."""
    running = RunningServer(settings.model_copy(update={"bundles": (made.bundle.parents[1],), "model": made.name}))
    yield running
    running.stop()


def _rows(made: Made, graph: Graph) -> list[Row]:
    return [graph.tokenizer.encode(text, pair) for text, pair in _read(made)]


def _batched(graph: Graph, rows: list[Row], size: int, seed: int) -> np.ndarray:
    """Logits of rows in shuffled batches, padded by up to 30 tokens more than needed."""
    rng = random.Random(seed)
    order = rng.sample(range(len(rows)), len(rows))
    found: dict[int, np.ndarray] = {}
    for start in range(0, len(order), size):
        group = order[start : start + size]
        length = min(max(rows[index].tokens for index in group) + rng.randint(0, 30), MAX_TOKENS)
        found.update(zip(group, graph.logits([rows[index] for index in group], length), strict=True))
    return np.stack([found[index] for index in range(len(rows))])


@pytest.mark.parametrize(("size", "seed"), [(1, 1), (3, 2), (8, 3)])
def test_fp32_gives_torchs_logits_at_every_length_and_padding(made: Made, wanted: np.ndarray, size: int, seed: int) -> None:
    graph = _graph(made, "fp32")
    rows = _rows(made, graph)
    assert len({row.tokens for row in rows}) > 15

    assert np.abs(_batched(graph, rows, size, seed) - wanted).max() <= 1e-4
    # Otherwise a model with the same answer for all texts would pass.
    assert probabilities(wanted).std(axis=0).max() > 0.05


@pytest.mark.parametrize(("size", "seed"), [(1, 4), (2, 5), (5, 6), (16, 7)])
def test_no_bit_of_an_int8_answer_depends_on_batch_mates_or_padding(made: Made, size: int, seed: int) -> None:
    graph = _graph(made, "int8")
    rows = _rows(made, graph)
    alone = np.concatenate([graph.logits([row]) for row in rows])

    assert (_batched(graph, rows, size, seed) == alone).all()


def test_every_product_with_a_weight_is_int8_and_each_weight_is_stored_once(made: Made) -> None:
    whole, int8 = (onnx.load(made.bundle / f"{precision}.onnx", load_external_data=False) for precision in ("fp32", "int8"))
    products = [node for node in int8.graph.node if node.op_type == "MatMulIntegerToFloat"]
    turned = {node.output[0]: node.input[0] for node in int8.graph.node if node.op_type == "Transpose"}
    weights = {turned.get(node.input[1], node.input[1]) for node in products}

    assert weight_matmuls(int8) == []
    assert len(products) == made.tiny.products
    stored = [tensor.name for tensor in int8.graph.initializer if tensor.data_type == TensorProto.INT8 and not _is_table(int8, tensor.name)]
    assert sorted(stored) == sorted(weights)
    # XLNet's products are by other matrices than its weights, so these stay inside.
    outside = {tensor.name for tensor in int8.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
    assert (weights <= outside) == (made.tiny.family != "xlnet")
    assert len(weights) == made.tiny.products - made.tiny.shared
    # fp32.onnx stores no weights itself: it reads those of model.safetensors.
    inside = [tensor for tensor in whole.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    # The smallest matrix has 2,048 bytes. DeBERTa's biases of queries and values are inside, in another shape.
    assert sum(len(tensor.raw_data) for tensor in inside if tensor.data_type == TensorProto.FLOAT) < 1024
    onnx.checker.check_model(str(made.bundle / "fp32.onnx"))


def test_a_weight_in_int8_is_within_half_a_step_of_the_checkpoints(made: Made) -> None:
    stored = load_file(made.bundle / "model.safetensors")
    before = from_pretrained(made.checkpoint).state_dict()
    rounded = [name.removesuffix(".int8") for name in stored if name.endswith(".int8")]

    assert len(rounded) >= 2  # the tables at least
    for name in rounded:
        steps = before[name].half().float().numpy() / stored[f"{name}.scale"]
        assert np.abs(steps - stored[f"{name}.int8"]).max() <= 0.501


def _is_table(model: onnx.ModelProto, name: str) -> bool:
    return any(node.op_type == "Gather" and node.input[0] == name for node in model.graph.node)


def test_the_manifest_describes_the_inputs_of_the_family(made: Made) -> None:
    manifest, family = made.manifest, FAMILIES[made.tiny.family]

    assert (manifest.architecture, manifest.labels, manifest.pairs) == (made.tiny.family, made.tiny.labels, made.tiny.pairs)
    assert manifest.padding_side == family.padding_side == ("left" if made.name == "xlnet" else "right")
    assert manifest.max_tokens == MAX_TOKENS
    assert any(golden.text_pair for golden in manifest.golden) == made.tiny.pairs
    for graph in manifest.graphs.classify:
        assert sorted(graph.inputs) == sorted(family.inputs)
        assert ("token_type_ids" in graph.inputs) == (made.tiny.family in ("bert", "albert", "xlnet", "electra", "rembert", "roformer"))


def test_the_export_prints_whether_the_graph_is_flattened(made: Made) -> None:
    assert (FLATTENED in made.said) == made.tiny.flattened
    assert (NOT_FLATTENED.format(family=made.tiny.family) in made.said) != made.tiny.flattened


def test_the_export_makes_an_explain_graph_or_says_why_not(made: Made) -> None:
    assert (made.exported.explain is not None) == (made.bundle / "explain.onnx").exists() == made.tiny.explained
    assert any(line.startswith("no explain graph: ") for line in made.said) != made.tiny.explained


# One for each kind of input: with segments, without, and padded on the left.
@pytest.mark.parametrize("made", ["bert", "roberta", "xlnet"], indirect=True)
def test_a_real_server_answers_as_the_graph_does(made: Made, server: RunningServer) -> None:
    graph = _graph(made, "int8")
    scores = probabilities(np.concatenate([graph.logits([row]) for row in _rows(made, graph)]))
    asked = [((text, pair) if pair else text, row) for (text, pair), row in zip(_read(made), scores, strict=True) if text]

    with server.client(timeout_s=30) as client:
        alone = [client.classify(*(read if isinstance(read, tuple) else (read,))) for read, _ in asked]
        together = client.classify_batch([read for read, _ in asked])

    for (read, row), one, many in zip(asked, alone, together, strict=True):
        assert list(one.scores) == list(made.tiny.labels)
        assert list(one.scores.values()) == pytest.approx(list(row), abs=1e-6), read
        assert many.scores == one.scores


# Characters that are more than one code unit, more than one byte, decomposed, and two letters in one; several kinds of white space.
ODD = "Ünder the ﬁlm 😍😍,  nai\u0308ve\tCAFÉ — 的 “quoted”\u00a0end."


def test_offsets_are_code_points_of_the_text_as_it_was_sent(made: Made) -> None:
    """Each word is covered exactly by its own tokens, except for white space at the ends of a token."""
    encoding = tokenizers.Tokenizer.from_file(str(made.bundle / "tokenizer.json")).encode(ODD)
    spans = [_trimmed(*span) for span, special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True) if not special]
    spans = [(start, end) for start, end in spans if start < end]
    words = [match.span() for match in re.finditer(r"\S+", ODD)]

    assert spans == sorted(spans)
    for start, end in words:
        inside = [span for span in spans if span[0] < end and span[1] > start]
        assert (min(inside)[0], max(inside, key=lambda span: span[1])[1]) == (start, end), ODD[start:end]
        assert all(start <= first and last <= end for first, last in inside), ODD[start:end]
    assert {ODD[start:end] for start, end in spans} >= {"the", ","}


def _trimmed(start: int, end: int) -> tuple[int, int]:
    while start < end and ODD[start].isspace():
        start += 1
    while start < end and ODD[end - 1].isspace():
        end -= 1
    return start, end


def test_every_family_is_tested() -> None:
    assert {tiny.family for tiny in TINY.values()} == FAMILIES.keys()
    assert {len(tiny.labels) for tiny in TINY.values()} == {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("family", "fields", "tokens"),
    [
        ("bert", {}, 512),
        ("albert", {}, 512),
        ("electra", {"max_position_embeddings": 128}, 128),
        ("distilbert", {}, 512),
        # Their positions start after the padding's.
        ("roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("mpnet", {"max_position_embeddings": 514, "pad_token_id": 0}, 512),
        ("xlnet", {}, 512),
        ("xlm-roberta", {"max_position_embeddings": 514}, 512),
        ("camembert", {"max_position_embeddings": 514}, 512),
        ("data2vec-text", {"max_position_embeddings": 514}, 512),
        ("deberta", {}, 512),
        ("deberta-v2", {}, 512),
        ("modernbert", {}, 8192),
        ("rembert", {}, 512),
        ("roformer", {}, 1536),
    ],
)
def test_a_family_reads_one_token_for_each_position(family: str, fields: dict[str, int], tokens: int) -> None:
    assert positions_of(AutoConfig.for_model(family, **fields).to_dict()) == tokens


def test_a_bundle_of_long_texts_is_proved_and_answers_as_torch_does_at_its_full_length(tmp_path: Path) -> None:
    checkpoint = save_tiny(tmp_path / "checkpoint", replace(TINY["modernbert"], positions=2048))
    bundle = tmp_path / "bundles" / "long" / "1"
    export(checkpoint, bundle, name="long", version=1)

    classifier = load_classifier(bundle, "fp32")
    row = classifier.tokenizer.encode("not so good, but fine. " * 999)
    found = classifier.run([row])

    assert (row.tokens, row.truncated) == (2048, True)
    assert np.abs(found - Checkpoint.of_bundle(bundle).logits(classifier.feeds([row]))).max() < 1e-4
    assert (1, 2048) in warm_up(classifier, BatchLimits(**ON_CPU, heads=4)).points()


@pytest.mark.parametrize("tokens", [7, MAX_TOKENS + 1])
def test_more_tokens_than_there_are_positions_are_refused(tmp_path: Path, tokens: int) -> None:
    checkpoint = save_tiny(tmp_path / "checkpoint", TINY["roberta"])

    with pytest.raises(BadCheckpoint, match=f"max_tokens must be from 8 to 64, got {tokens}"):
        export(checkpoint, tmp_path / "bundle" / "1", name="tiny", version=1, max_tokens=tokens)


def _as_version_5(checkpoint: Path, **changes: object) -> None:
    """Write config.json as transformers 5 does: rotary positions and kinds of layers have other keys."""
    config = json.loads((checkpoint / "config.json").read_bytes())
    every = config.pop("global_attn_every_n_layers")
    bases = {"full_attention": config.pop("global_rope_theta"), "sliding_attention": config.pop("local_rope_theta")}
    config["rope_parameters"] = {kind: {"rope_theta": base, "rope_type": "default"} for kind, base in bases.items()}
    layers = range(config["num_hidden_layers"])
    config["layer_types"] = ["sliding_attention" if place % every else "full_attention" for place in layers]
    (checkpoint / "config.json").write_text(json.dumps({**config, **changes}))


def test_modernbert_of_transformers_5_has_its_own_positions_and_layers(tmp_path: Path) -> None:
    sizes = {**TINY["modernbert"].sizes, "global_attn_every_n_layers": 2, "global_rope_theta": 100.0, "local_rope_theta": 5.0}
    checkpoint = save_tiny(tmp_path / "checkpoint", replace(TINY["modernbert"], sizes=sizes))
    before = Checkpoint(checkpoint)
    ids = np.array([before.tokenizer.encode("not so good, but fine. " * 3).ids])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    wanted = before.logits(feeds)
    _as_version_5(checkpoint)

    assert np.array_equal(Checkpoint(checkpoint).logits(feeds), wanted)
    # They count: without them the answer is another.
    config = json.loads((checkpoint / "config.json").read_bytes())
    (checkpoint / "config.json").write_text(json.dumps({**config, "rope_parameters": None, "layer_types": None}))
    assert np.abs(Checkpoint(checkpoint).logits(feeds) - wanted).max() > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
        {"layer_types": ["sliding_attention"] * 4},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 100.0}}},
        {"rope_parameters": ["full_attention"]},
        {"rope_parameters": {"full_attention": "default"}},
    ],
)
def test_a_modernbert_that_only_transformers_5_computes_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    checkpoint = save_tiny(tmp_path / "checkpoint", TINY["modernbert"])
    _as_version_5(checkpoint, **changes)

    with pytest.raises(BadCheckpoint, match=r"/config\.json: .* transformers 4 cannot compute; .* use import-onnx$"):
        Checkpoint(checkpoint)
