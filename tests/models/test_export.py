"""Checkpoint to bundle, end to end on a tiny random BERT."""

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
import torch
import transformers
from onnx import ModelProto
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification

from sentiment.errors import BadBundle
from sentiment.model.classifier import load_classifier
from sentiment.model.tokenizer import Row
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadCheckpoint, BadData, ModelsError, ParityFailed
from sentiment_models.export.checkpoint import from_pretrained
from sentiment_models.export.examine import examine
from sentiment_models.export.export import Exported, export
from sentiment_models.export.folders import temporary_folder
from sentiment_models.export.graphs.quantize import Embeddings, quantize
from sentiment_models.export.verify import check_parity, parity
from tests.models import processes
from tests.models.tiny_bert import save_tiny_bert, sentences

FILES = {"config.json", "explain.onnx", "fp32.onnx", "int8.onnx", "manifest.json", "model.safetensors", "tokenizer.json"}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.smoke
def test_a_bundle_holds_these_files_and_lists_the_hash_of_each(exported: tuple[Path, Exported]) -> None:
    bundle = exported[0]
    manifest = json.loads((bundle / "manifest.json").read_bytes())

    assert {path.name for path in bundle.iterdir()} == FILES
    assert manifest["files"].keys() == FILES - {"manifest.json"}
    for name, entry in manifest["files"].items():
        content = (bundle / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert not list(bundle.parent.glob("*.part"))


def test_the_manifest_keeps_the_contract(exported: tuple[Path, Exported]) -> None:
    manifest = json.loads((exported[0] / "manifest.json").read_bytes())

    fixed = {
        "format": 1,
        "name": "tiny",
        "version": 1,
        "labels": ["negative", "positive"],
        "architecture": "bert",
        "max_tokens": 64,
        "pairs": False,
        "default_truncation": "head",
        "inputs": ["input_ids", "attention_mask", "token_type_ids"],
        "padding_side": "right",
        "windows": None,
    }
    assert {name: manifest[name] for name in fixed} == fixed
    assert manifest.keys() == fixed.keys() | {"graphs", "calibration", "golden", "accuracy", "provenance", "files"}
    int8, fp32 = manifest["graphs"]["classify"]
    assert (int8["file"], int8["precision"], fp32["file"], fp32["precision"]) == ("int8.onnx", "int8", "fp32.onnx", "fp32")
    for graph in (int8, fp32):
        assert graph["providers"] == ["CPUExecutionProvider"]
        assert graph["outputs"] == ["logits"]
        assert graph["invariance"] == 1e-4
    assert (int8["pairs_fit"], fp32["pairs_fit"]) == (True, False)
    assert 1e-3 == fp32["tolerance"] <= int8["tolerance"] < 0.2
    assert manifest["accuracy"]["dev"]["rows"] == 60
    assert 0.5 <= manifest["calibration"]["abstain_below"] <= 0.6


def test_the_int8_graph_alone_is_flattened(exported: tuple[Path, Exported]) -> None:
    sizes = {
        precision: sum(node.op_type == "Concat" for node in onnx.load(exported[0] / f"{precision}.onnx").graph.node)
        for precision in ("int8", "fp32")
    }

    # One shape of tokens and one of heads, instead of four per layer.
    assert sizes == {"int8": 2, "fp32": 8}


def test_each_weight_is_stored_once_in_int8_or_fp16_and_can_be_trained_further(exported: tuple[Path, Exported], checkpoint: Path) -> None:
    bundle = exported[0]
    before, after = load_file(checkpoint / "model.safetensors"), load_file(bundle / "model.safetensors")

    model = from_pretrained(bundle)

    in_int8 = {name.removesuffix(".int8") for name in after if name.endswith(".int8")}
    assert in_int8 == {name for name, tensor in before.items() if tensor.ndim == 2 and "pooler" not in name and "classifier" not in name}
    assert after.keys() == {part for name in before for part in ((f"{name}.int8", f"{name}.scale") if name in in_int8 else (name,))}
    for name, tensor in model.state_dict().items():
        if name in in_int8:
            assert torch.equal(tensor, after[f"{name}.int8"] * after[f"{name}.scale"])
            assert ((tensor - before[name].half().float()).abs() <= after[f"{name}.scale"] * 0.501).all()
        else:
            assert torch.equal(tensor, after[name].float())
            assert torch.equal(after[name], before[name].half())
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_equal_layers_are_stored_alike(checkpoint: Path, tmp_path: Path) -> None:
    twins = Path(shutil.copytree(checkpoint, tmp_path / "twins"))
    weights = load_file(twins / "model.safetensors")
    for name in weights:
        weights[name] = weights[name.replace(".layer.1.", ".layer.0.")].clone()
    save_file(weights, twins / "model.safetensors", metadata={"format": "pt"})

    export(twins, tmp_path / "bundle", name="twins", version=1)

    stored = load_file(tmp_path / "bundle" / "model.safetensors")
    name = "bert.encoder.layer.{}.output.dense.weight.int8"
    assert torch.equal(stored[name.format(0)], stored[name.format(1)])


def test_transformers_alone_says_that_it_does_not_know_the_weights_of_a_bundle(
    exported: tuple[Path, Exported], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Training keeps this message back.
    monkeypatch.setattr(logging.getLogger("transformers.modeling_utils"), "filters", [])
    transformers.logging.enable_propagation()
    try:
        AutoModelForSequenceClassification.from_pretrained(exported[0])
    finally:
        transformers.logging.disable_propagation()

    assert "newly initialized: ['bert.embeddings.position_embeddings.weight', " in caplog.text


def test_no_graph_has_a_weight_inside(exported: tuple[Path, Exported]) -> None:
    for name in ("int8.onnx", "fp32.onnx", "explain.onnx"):
        tensors = onnx.load(exported[0] / name, load_external_data=False).graph.initializer

        inside = [one for one in tensors if not (one.external_data or one.name.startswith("gradient/"))]

        assert all(math.prod(one.dims) == 1 for one in inside if one.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8))
        assert {tensor.data_type for tensor in tensors if tensor.external_data} == {
            onnx.TensorProto.INT8,
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.FLOAT16,
        }


def test_the_saved_tokenizer_neither_truncates_nor_pads(exported: tuple[Path, Exported]) -> None:
    saved = json.loads((exported[0] / "tokenizer.json").read_bytes())

    assert saved["truncation"] is None
    assert saved["padding"] is None


def test_golden_answers_are_those_of_fp32_and_cannot_flip_within_the_tolerance(exported: tuple[Path, Exported]) -> None:
    bundle = exported[0]
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    fp32 = load_classifier(bundle, "fp32")
    tolerance = max(graph["tolerance"] for graph in manifest["graphs"]["classify"])

    assert len(manifest["golden"]) >= 4
    for golden in manifest["golden"]:
        assert fp32.run([fp32.tokenizer.encode(golden["text"])])[0] == pytest.approx(golden["logits"], abs=1e-5)
        best, other = sorted(golden["logits"], reverse=True)
        assert golden["label"] == manifest["labels"][golden["logits"].index(best)]
        assert best - other > 2 * tolerance


def test_the_proofs_read_no_more_of_a_row_than_they_can_compare(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def fails(_: object, __: object, rows: Sequence[Row], labels: int) -> None:
        compared.extend(row.tokens for row in rows)
        raise ParityFailed("enough")

    monkeypatch.setattr("sentiment_models.export.export.COMPARED_TOKENS_MAX", 8)
    monkeypatch.setattr("sentiment_models.export.export.parity", fails)
    dev = [Example("the film was good and " * 9, label) for label in (0, 1) * 10]

    with pytest.raises(ParityFailed):
        export(checkpoint, tmp_path / "tiny" / "1", name="tiny", version=1, dev=dev)

    assert max(compared) == 8


def test_the_same_checkpoint_gives_the_same_bytes_in_another_process_and_folder(
    exported: tuple[Path, Exported], checkpoint: Path, dev: list[Example], tmp_path: Path
) -> None:
    listed = tmp_path / "dev.jsonl"
    listed.write_text("".join(json.dumps({"label": one.label, "text": one.text}) + "\n" for one in dev))
    again = tmp_path / "deep" / "down" / "tiny" / "1"
    arguments = ["export", str(checkpoint), "--out", str(again), "--dev", str(listed)]

    assert processes.run(processes.command, (arguments, tmp_path / "printed", 2)) == [0]

    made, known = _bytes(again), _bytes(exported[0])
    # The command adds where the checkpoint comes from, and the card.
    manifests = [json.loads(one.pop("manifest.json")) for one in (made, known)]
    assert manifests[0]["provenance"].pop("origin") == {"checkpoint": checkpoint.name}
    assert manifests[0]["files"].pop("MODEL_CARD.md")
    del made["MODEL_CARD.md"]
    assert manifests[0] == manifests[1]
    assert made == known


def test_training_json_lands_in_the_manifest_without_a_machine_path_and_without_dev_nothing_is_calibrated(tmp_path: Path) -> None:
    checkpoint = save_tiny_bert(tmp_path / "home" / "somebody" / "best")
    recipe = {"base": "/home/somebody/minilm", "sources": ["/home/somebody/sst2/train.tsv:3"], "epochs": 1}
    (checkpoint / "training.json").write_text(json.dumps({"recipe": recipe, "steps": 7}))

    export(checkpoint, tmp_path / "1", name="tiny", version=1, embeddings="fp16")

    content = (tmp_path / "1" / "manifest.json").read_text()
    manifest = json.loads(content)
    provenance = manifest["provenance"]
    assert manifest["calibration"] == {"temperature": 1.0, "abstain_below": 0.0}
    assert manifest["accuracy"] == {}
    assert provenance["training"] == {"recipe": {"base": "minilm", "sources": ["train.tsv:3"], "epochs": 1}, "steps": 7}
    assert provenance["base"] == "minilm"
    assert provenance["embeddings"] == "fp16"
    assert not [name for name, kept in _bytes(tmp_path / "1").items() if b"somebody" in kept or str(tmp_path).encode() in kept]


def test_an_existing_bundle_is_kept_unless_forced(exported: tuple[Path, Exported], checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine.txt").write_text("mine")

    with pytest.raises(ModelsError, match="exists; use --overwrite to replace it"):
        export(checkpoint, tmp_path / "1", name="tiny", version=1)
    assert (tmp_path / "1" / "mine.txt").read_text() == "mine"
    with pytest.raises(ModelsError, match=r"1: exists and is not a bundle \(it has no manifest\.json\)"):
        export(checkpoint, tmp_path / "1", name="tiny", version=1, force=True)
    assert (tmp_path / "1" / "mine.txt").read_text() == "mine"

    (tmp_path / "1" / "manifest.json").write_text("{}")
    export(checkpoint, tmp_path / "1", name="tiny", version=1, force=True)
    assert {path.name for path in (tmp_path / "1").iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"1"}


def test_only_one_process_at_a_time_exports_to_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    with temporary_folder(tmp_path / "1.part"):
        (tmp_path / "1.part" / "of the other process").write_text("")
        with pytest.raises(ModelsError, match=r"1\.part: another process uses this folder"):
            export(checkpoint, tmp_path / "1", name="tiny", version=1)
        assert [path.name for path in (tmp_path / "1.part").iterdir()] == ["of the other process"]

    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_nothing_and_keeps_what_was_there(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()
    for name in ("manifest.json", "mine.txt"):
        (tmp_path / "1" / name).write_text("mine")
    (tmp_path / "1.part").mkdir()
    (tmp_path / "1.part" / "left by a killed export").write_text("")

    def fail(*_: object) -> None:
        raise ParityFailed("only 3 of 26 golden texts keep their label")

    monkeypatch.setattr("sentiment_models.export.export.golden_set", fail)
    with pytest.raises(ParityFailed, match="only 3 of 26 golden texts"):
        export(checkpoint, tmp_path / "1", name="tiny", version=1, force=True)

    assert {path.name for path in tmp_path.iterdir()} == {"1"}
    assert {path.name for path in (tmp_path / "1").iterdir()} == {"manifest.json", "mine.txt"}


def test_a_model_that_int8_changes_is_served_in_fp32_from_unrounded_weights_and_the_export_says_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: ModelProto, embeddings: Embeddings) -> ModelProto:
        graph = quantize(model, embeddings)
        scale = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("value.weight.transposed.scale"))
        scale.raw_data = (np.frombuffer(scale.raw_data, np.float32) * 30).tobytes()
        return graph

    monkeypatch.setattr("sentiment_models.export.export.quantize", broken)
    said: list[str] = []
    bundle = tmp_path / "tiny" / "1"
    exported = export(checkpoint, bundle, name="tiny", version=1, say=said.append)

    reason = "probabilities of the int8 graph differ from torch by"
    assert any(line.startswith(f"no int8 graph: {reason}") and "served in fp32" in line for line in said)
    manifest = load_classifier(bundle).manifest
    assert [graph.precision for graph in manifest.graphs.classify] == ["fp32"] == list(exported.parity)
    assert manifest.graphs.explain is not None
    provenance = json.loads((bundle / "manifest.json").read_bytes())["provenance"]
    assert provenance["left_out"]["int8"].startswith(reason)
    assert not (bundle / "int8.onnx").exists()
    assert not any(name.endswith(".int8") for name in load_file(bundle / "model.safetensors"))
    assert not [check.line for check in examine(bundle) if check.good is False]


@pytest.mark.parametrize(("wrong", "texts", "sure"), [(10, 66, 0.97), (3, 19, 0.97), (1, 60, 0.97), (1, 29, 0.74)])
def test_int8_may_turn_texts_between_two_labels_alone(wrong: int, texts: int, sure: float) -> None:
    """Each label of torch is as probable as ``sure``; int8 gives ``wrong`` texts the other label, as probable."""
    half = np.log(sure / (1 - sure)) / 2
    rows: list[Any] = [SimpleNamespace(tokens=3, number=number) for number in range(texts)]
    graph: Any = SimpleNamespace(feeds=lambda batch: batch, logits=lambda batch: np.array([[half, -half]] * len(batch)))

    def torch_says(batch: Any) -> Any:
        return np.array([[-half, half] if row.number < wrong else [half, -half] for row in batch])

    measured = parity(graph, torch_says, rows, 2)

    assert (measured.labels_changed, measured.sure_labels_changed) == (wrong, wrong * (sure > 0.9))
    if sure > 0.9:
        with pytest.raises(ParityFailed, match=f"the int8 graph gives {wrong} of {texts} texts another label than torch"):
            check_parity("int8", measured)
    else:
        check_parity("int8", measured)


def test_a_flip_of_one_text_among_many_labels_is_an_error_of_the_whole_text() -> None:
    one, other = (np.where(np.arange(28) == place, 12.0, 0.0)[None] for place in (0, 1))
    graph: Any = SimpleNamespace(feeds=lambda batch: batch, logits=lambda _: one)

    measured = parity(graph, lambda _: other, [SimpleNamespace(tokens=3)], 28)  # type: ignore[list-item]  # all that is read of a row

    assert measured.probability_error_mean > 0.99
    assert measured.probability_error_counted == pytest.approx(0.1)


def test_a_graph_that_a_server_would_drop_makes_no_bundle(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(*_: object) -> None:
        raise BadBundle("explain.onnx: the sum of an attention row differs from 1")

    monkeypatch.setattr("sentiment_models.export.export.load_graph", drop)

    with pytest.raises(BadBundle, match="attention row"):
        export(checkpoint, tmp_path / "1", name="tiny", version=1)

    assert not list(tmp_path.iterdir())


def test_a_name_that_the_service_refuses_makes_no_bundle(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="name"):
        export(checkpoint, tmp_path / "bundles" / "new" / "1", name="Not A Name", version=1)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ([Example("good", 2)], "label 2; the model has labels 0 to 1"),
        ([Example(text, 1) for _, text in sentences(20)], "all 20 texts of the development set have label 1; calibration needs at least"),
    ],
    ids=["unknown label", "one label"],
)
def test_a_development_set_that_cannot_calibrate_makes_no_bundle(
    checkpoint: Path, dev: list[Example], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=message):
        export(checkpoint, tmp_path / "1", name="tiny", version=1, dev=dev)

    assert list(tmp_path.iterdir()) == []


NAMES = r'id2label must name two or more labels .*, such as \{"0": "negative", "1": "positive"\}'


def _configured(**settings: object) -> Callable[[Path], object]:
    def change(checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_bytes())
        (checkpoint / "config.json").write_text(json.dumps({**config, **settings}))

    return change


def _cut_off(checkpoint: Path) -> None:
    content = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(content[:-1000])


def _header_cut_off(checkpoint: Path) -> None:
    content = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(content[:100])


def _tokenizer_of_another_model(checkpoint: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.add_tokens(["one", "more"])
    tokenizer.save(str(checkpoint / "tokenizer.json"))


# And the message of each.
DAMAGED_WEIGHTS = [
    pytest.param(_cut_off, "/model.safetensors: expected ", id="cut_off"),
    pytest.param(_header_cut_off, "/model.safetensors: not a safetensors file", id="header_cut_off"),
]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _configured(model_type="gpt2"),
            r"config\.json: model_type must be one of bert, roberta, .*, roformer, got gpt2",
        ),
        (_configured(model_type=None), r"config\.json: model_type must be one of .*, got None"),
        (_configured(id2label=None), rf"config\.json: {NAMES}, got None"),
        (_configured(id2label={"0": "LABEL_0", "1": "LABEL_1"}), rf"config\.json: {NAMES}, got .*LABEL_0"),
        (_configured(id2label={"0": "bad", "2": "good"}), NAMES),
        (_configured(id2label={"0": "bad", "1": None}), NAMES),
        (_configured(id2label=["bad", "good"]), r"config\.json: id2label must be an object such as .*, got \['bad', 'good'\]"),
        (_configured(id2label={"0": "bad", "1": "bad"}), r"config\.json: id2label: labels must differ, got bad twice in bad,bad"),
        (
            _configured(id2label={"0": "sentiment"}),
            r"config\.json: id2label has one label .*, so this is a regression, which answers a number",
        ),
        (_configured(problem_type="regression"), r"config\.json: problem_type is regression"),
        (
            _configured(problem_type="multi_label_classification"),
            r"config\.json: problem_type is multi_label_classification, .* --new-head",
        ),
        (_configured(vocab_size="many"), r"best: cannot be loaded as a classifier"),
        (lambda best: (best / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not a tokenizer"),
        (_tokenizer_of_another_model, r"tokenizer\.json: has token ids up to (\d+), but the model has only \d+; use the model's own"),
        (lambda best: (best / "config.json").write_text('{"model_type": '), r"config\.json: cannot be read as JSON"),
    ],
)
def test_a_checkpoint_that_cannot_be_exported_is_refused_by_file_and_nothing_is_made(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    checkpoint = save_tiny_bert(tmp_path / "best")
    damage(checkpoint)

    with pytest.raises(BadCheckpoint, match=message):
        export(checkpoint, tmp_path / "new" / "1", name="tiny", version=1)

    assert {path.name for path in tmp_path.iterdir()} == {"best"}


def test_pairs_without_segment_ids_are_refused_if_the_model_has_segments(tmp_path: Path) -> None:
    checkpoint = save_tiny_bert(tmp_path / "best")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:0 [SEP]:0", special_tokens=ids)
    tokenizer.save(str(checkpoint / "tokenizer.json"))

    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json: the second text of a pair has no segment id 1"):
        export(checkpoint, tmp_path / "new" / "1", name="tiny", version=1, pairs=True)

    assert {path.name for path in tmp_path.iterdir()} == {"best"}


def test_a_weight_beyond_fp16_is_refused(tmp_path: Path) -> None:
    checkpoint = save_tiny_bert(tmp_path / "best")
    weights = load_file(checkpoint / "model.safetensors")
    weights["classifier.bias"][0] = 1e6
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})

    with pytest.raises(BadCheckpoint, match=r"classifier\.bias has numbers over 65504"):
        export(checkpoint, tmp_path / "1", name="tiny", version=1)


def test_texts_that_cannot_be_read_end_the_export_before_its_work(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("Label,Text\nA,good\n")
    said: list[str] = []

    with pytest.raises(BadData, match=r"texts\.csv:1: no column 'text'; the header has Label, Text; rename the column$"):
        export(save_tiny_bert(tmp_path / "best"), tmp_path / "1", name="tiny", version=1, texts=[tmp_path / "texts.csv"], say=said.append)

    assert len(said) == 1
    assert not (tmp_path / "1").exists()
