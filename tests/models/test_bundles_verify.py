"""``verify`` finds every fault of a bundle, and none in a valid one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save_file

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.session import Session
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.cli import main
from sentiment_models.export.checkpoint import Checkpoint, save_weights
from sentiment_models.export.examine import examine
from sentiment_models.export.export import Exported
from sentiment_models.export.graphs.explain_graph import explain_graph
from sentiment_models.export.graphs.flatten import flatten
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.graphs.quantize import quantize
from sentiment_models.export.inference import Graph
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, write_object
from sentiment_models.export.weights import refer
from sentiment_models.reports.record import NOTHING
from sentiment_models.reports.record_tables import tables
from tests.models.tampered import change_graph, change_json, copy, reseal


@pytest.fixture
def bundle(exported: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy of the tiny bundle, with a card."""
    return copy(exported[0], tmp_path)


def change_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and nothing else."""
    manifest: dict[str, Any] = dict(read_object(bundle / MANIFEST_FILE))
    change(manifest)
    write_object(bundle / MANIFEST_FILE, manifest)


def unlist_card(bundle: Path) -> Path:
    """Take the card out of the manifest, as earlier versions left it; returns its path."""
    change_manifest(bundle, lambda manifest: manifest["files"].pop("MODEL_CARD.md"))
    return bundle / "MODEL_CARD.md"


def _failed(bundle: Path) -> dict[str, str]:
    return {check.name: check.found for check in examine(bundle) if not check.good}


def test_a_sound_bundle_passes_every_check_and_exits_with_0(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16
    assert all(line.startswith("ok    ") for line in lines)
    assert "tiny/1" in lines[0]
    for graph in ("int8.onnx", "fp32.onnx"):
        for check in ("content", "golden set", "against the weights", "batch mates"):
            assert sum(line.startswith(f"ok    {graph} {check}: ") for line in lines) == 1


def test_a_bundle_of_0_1_0_which_has_its_weights_in_fp16_and_in_int8_onnx_is_served_and_verified(bundle: Path, checkpoint: Path) -> None:
    loaded = Checkpoint(checkpoint)
    whole = loaded.to_onnx(loaded.weights)
    save_weights(loaded.weights, bundle / "model.safetensors")
    for name, graph in (("fp32", whole), ("explain", explain_graph(whole, 4))):
        (bundle / f"{name}.onnx").write_bytes(serialize(refer(graph, bundle / "model.safetensors")))
    (bundle / "int8.onnx").write_bytes(serialize(quantize(flatten(whole))))
    tokenizer, session = Tokenizer(bundle / "tokenizer.json", loaded.max_tokens), Session(bundle / "fp32.onnx")
    graph = Graph(tokenizer, session, pads_left=False)

    def change(manifest: dict[str, Any]) -> None:
        del manifest["provenance"]["weights_in_int8"]
        # The weights' rounding to int8 comes on top of that of the activations.
        manifest["graphs"]["classify"][0]["tolerance"] = 0.2
        for golden in manifest["golden"]:
            golden["logits"] = graph.logits([tokenizer.encode(golden["text"])])[0].tolist()

    reseal(bundle, change)

    assert _failed(bundle) == {}
    assert "has the weights in fp16" in tables(bundle, NOTHING)
    assert load_classifier(bundle).graph.precision == "int8"


def test_a_failed_check_is_a_line_and_exit_code_3(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "notes.txt").write_text("x")

    assert main(["verify", str(bundle)]) == 3

    shown = capsys.readouterr()
    assert "BAD   folder: has notes.txt, which the manifest does not list" in shown.out.splitlines()
    assert shown.err == f"error: {bundle}: 1 checks failed: folder\n"


def test_damaged_bytes_are_named_and_end_the_checks(bundle: Path) -> None:
    content = bytearray((bundle / "int8.onnx").read_bytes())
    content[1000] ^= 1
    (bundle / "int8.onnx").write_bytes(content)

    (only,) = examine(bundle)

    assert not only.good
    assert "int8.onnx: SHA-256 is " in only.found


@pytest.mark.parametrize(
    ("spoil", "check", "found"),
    [
        (lambda b: (b / "MODEL_CARD.md").unlink(), "files", "MODEL_CARD.md: No such file"),
        (lambda b: (b / "MODEL_CARD.md").write_text("# tiny/1"), "files", "MODEL_CARD.md: has 8 bytes"),
        (lambda b: unlist_card(b).write_text("# tiny/1"), "model card", "does not name "),
        (lambda b: change_manifest(b, lambda m: m["calibration"].update(temperature=2.0)), "model card", "does not name "),
        (lambda b: (b / "deep").mkdir(), "folder", "has deep, which the manifest does not list"),
        (lambda b: reseal(b, lambda m: m["files"].pop("config.json")), "folder", "config.json is not listed in the manifest"),
        (lambda b: change_json(b, "config.json", lambda c: c.update(vocab_size=7)), "tokenizer", "token ids up to"),
        (
            lambda b: change_json(b, "config.json", lambda c: c.update(pad_token_id=3)),
            "tokenizer",
            "pads with id 0, but config.json has pad_token_id 3",
        ),
        (lambda b: change_json(b, "config.json", lambda c: c["id2label"].update({"0": "bad"})), "configuration", "labels are ('bad', "),
        (lambda b: reseal(b, lambda m: m.update(architecture="xlnet")), "configuration", "model_type is bert, but the manifest has xlnet"),
        (lambda b: reseal(b, lambda m: m.update(max_tokens=128)), "configuration", "max_position_embeddings is 64"),
        (lambda b: (b / "fp32.onnx").write_bytes(b"no graph") and reseal(b), "fp32.onnx content", "not an ONNX file"),
        (lambda b: reseal(b, lambda m: m["golden"][2]["logits"].reverse()), "weights", "logits of golden[2]"),
        (lambda b: reseal(b, lambda m: m["graphs"]["classify"][0].update(tolerance=1e-9)), "int8.onnx golden set", "tolerance is 1e-09"),
        (
            lambda b: reseal(b, lambda m: m["graphs"]["classify"][0].update(invariance=-1.0)),
            "int8.onnx batch mates",
            "the limit in the manifest",
        ),
    ],
)
def test_every_fault_is_named(bundle: Path, spoil: Callable[[Path], object], check: str, found: str) -> None:
    spoil(bundle)

    failed = _failed(bundle)

    assert check in failed
    assert found in failed[check]


def test_a_bundle_that_has_no_card_yet_passes_and_its_card_is_skipped(
    exported: tuple[Path, Exported], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(exported[0])]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("ok    ")] == [
        "skip  model card: no MODEL_CARD.md yet; write it with sentiment-models card"
    ]


def test_a_link_is_not_a_regular_file(bundle: Path, tmp_path: Path) -> None:
    (bundle / "config.json").rename(bundle / "other.json")
    (bundle / "config.json").symlink_to("other.json")
    said = "has other.json, which the manifest does not list; config.json is not a regular file"
    assert _failed(bundle) == {"folder": said}
    (bundle / "other.json").rename(tmp_path / "elsewhere.json")
    (bundle / "config.json").unlink()
    (bundle / "config.json").symlink_to(tmp_path / "elsewhere.json")

    assert _failed(bundle).keys() == {"files"}


def test_a_bundle_of_an_earlier_version_whose_card_is_not_listed_passes(bundle: Path) -> None:
    card = unlist_card(bundle).read_text()

    assert load_bundle(bundle).digest in card
    assert _failed(bundle) == {}


def test_weights_that_differ_from_those_of_the_graphs_are_found(bundle: Path) -> None:
    path = bundle / "model.safetensors"
    weights = load_file(path)
    weights["classifier.bias"] = weights["classifier.bias"] + np.float16(0.5)
    save_file(weights, path, metadata={"format": "pt"})
    reseal(bundle)

    failed = _failed(bundle)

    assert "differ by 0.5" in failed["weights"]
    assert "differ by 0.5" in failed["fp32.onnx golden set"]


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Phone", ["logits"], ["home"], domain="evil.example"))


def _foreign_in_a_branch(model: onnx.ModelProto) -> None:
    value = helper.make_tensor_value_info("home", onnx.TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Phone", ["logits"], ["home"], domain="evil.example")], "body", [], [value])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    model.graph.node.append(helper.make_node("If", ["true"], ["out"], then_branch=body, else_branch=body))


def _refer(location: str, offset: int | None = None) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
            elif entry.key == "offset" and offset is not None:
                entry.value = str(offset)

    return change


def _hide_in_an_attribute(model: onnx.ModelProto) -> None:
    tensor = onnx.TensorProto(name="secret", dims=[1], data_type=onnx.TensorProto.FLOAT, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    model.graph.node.append(helper.make_node("Constant", [], ["secret"], value=tensor))


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_foreign, "1 operators of the domain 'evil.example', such as Phone; allowed are ONNX's own and com.microsoft"),
        (_foreign_in_a_branch, "2 operators of the domain 'evil.example'"),
        (_refer("../../../etc/passwd"), "is read from '../../../etc/passwd', which is not a file of the bundle"),
        (_refer("/etc/passwd"), "is read from '/etc/passwd', which is not a file of the bundle"),
        (_refer("config.json", 1_000_000), "bytes from byte 1000000 of config.json, but the file has"),
        (_refer("model.safetensors", 8), "which has no tensor of its type and shape there"),
        (_hide_in_an_attribute, "tensor secret is read from '/etc/passwd'"),
        (
            lambda model: setattr(model.graph.input[0], "name", "words"),
            "inputs are words, attention_mask, token_type_ids, but the manifest has",
        ),
        (
            lambda model: setattr(_dims(model.graph.input[0])[1], "dim_value", 8),
            "must be INT64 [rows, tokens] with dynamic sizes, got INT64 [batch_size, 8]",
        ),
        (lambda model: setattr(_dims(model.graph.output[0])[1], "dim_value", 3), "must be FLOAT [rows, 2], got"),
    ],
)
def test_a_graph_with_anything_foreign_is_named_and_not_run(bundle: Path, change: Callable[[onnx.ModelProto], object], found: str) -> None:
    change_graph(bundle, "fp32.onnx", change)

    failed = _failed(bundle)

    assert found in failed["fp32.onnx content"]
    assert failed["fp32.onnx"] == "not run, because its content check failed"
    assert failed.keys() == {"fp32.onnx content", "fp32.onnx"}
