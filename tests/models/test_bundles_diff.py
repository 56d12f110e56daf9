"""``diff`` shows what differs between two bundles, and nothing else."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from safetensors.numpy import load_file, save_file

from sentiment_models.cli import main
from sentiment_models.export.difference import LINES_MAX, difference, table
from sentiment_models.export.export import Exported
from sentiment_models.export.weights import real_names
from tests.models.tampered import change_graph, change_json, copy, reseal


@pytest.fixture
def two(exported: tuple[Path, Exported], tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of the tiny bundle, each with a card."""
    return copy(exported[0], tmp_path / "a"), copy(exported[0], tmp_path / "b")


def test_equal_bundles_differ_in_nothing_and_exit_with_0(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *map(str, two)]) == 0
    assert main(["diff", *map(str, two), "--json"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("same: tiny/1 ")
    assert json.loads(shown[shown.index("{") :])["same"] is True


def test_a_change_of_the_manifest_is_shown_by_its_path_and_exits_with_1(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def change(manifest: dict) -> None:
        manifest["version"] = 2
        manifest["provenance"]["parity"]["int8"]["rows"] = 7
        manifest["calibration"]["temperature"] = 2.5
        manifest["accuracy"]["more"] = {"accuracy": 0.5, "macro_f1": 0.5, "ece": 0.1, "rows": 3}
        manifest["golden"][0]["logits"][0] += 0.25
        dropped.append(manifest["golden"].pop()["text"])

    dropped: list[str] = []
    reseal(two[1], change)

    assert main(["diff", *map(str, two), "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert found["manifest"]["version"] == [1, 2]
    assert found["manifest"]["provenance.parity.int8.rows"][1] == 7
    assert found["manifest"].keys() == {"version", "provenance.parity.int8.rows"}
    assert found["calibration"]["temperature"][1] == 2.5
    assert found["accuracy"]["more.rows"] == [None, 3]
    assert len(found["golden"]) == 2
    assert found["golden"][dropped[0]][1] is None
    assert found["files"].keys() == {"MODEL_CARD.md"}
    assert not found["weights"] and not found["operators"] and not found["vocabulary"] and not found["tokenizer"]


def test_other_labels_are_shown(two: tuple[Path, Path]) -> None:
    def change(manifest: dict) -> None:
        manifest["labels"] = ["bad", "good"]
        for golden in manifest["golden"]:
            golden["label"] = {"negative": "bad", "positive": "good"}[golden["label"]]

    reseal(two[1], change)

    found = difference(*two)

    assert found.labels == (["negative", "positive"], ["bad", "good"])
    assert len(found.golden) >= 4


def test_weights_are_shown_with_their_largest_and_mean_change(two: tuple[Path, Path]) -> None:
    path = two[1] / "model.safetensors"
    weights = load_file(path)
    weights["classifier.bias"][0] += np.float16(0.5)
    weights["extra"] = np.zeros((2, 3), np.float16)
    del weights["bert.pooler.dense.bias"]
    save_file(weights, path, metadata={"format": "pt"})
    reseal(two[1])

    found = difference(*two)

    assert found.weights.keys() == {"classifier.bias"}
    change = found.weights["classifier.bias"]
    assert change.largest == pytest.approx(0.5, abs=1e-3)
    assert change.mean == pytest.approx(0.25, abs=1e-3)
    assert found.tensors == {"bert.pooler.dense.bias": ("F16 [32]", None), "extra": (None, "F16 [2, 3]")}


def test_a_weight_in_int8_is_compared_by_what_it_stands_for(two: tuple[Path, Path]) -> None:
    path = two[1] / "model.safetensors"
    weights = load_file(path)
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[f"{name}.int8"][3, 5] += 1 if weights[f"{name}.int8"][3, 5] < 0 else -1
    save_file(weights, path, metadata={"format": "pt"})
    reseal(two[1])

    found = difference(*two)

    assert found.weights.keys() == {name}
    assert found.weights[name].largest == pytest.approx(weights[f"{name}.scale"][3].item())


def test_operators_are_counted_by_graph(two: tuple[Path, Path]) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("Erf", ["logits"], ["wasted"]))
        model.graph.node.append(helper.make_node("BiasGelu", ["logits"], ["more"], domain="com.microsoft"))

    change_graph(two[1], "int8.onnx", change)

    counts = difference(*two).operators

    assert counts.keys() == {"int8.onnx"}
    assert counts["int8.onnx"]["com.microsoft.BiasGelu"] == (None, 1)
    before, after = counts["int8.onnx"]["Erf"]
    assert after - before == 1


def test_vocabulary_and_the_rest_of_the_tokenizer_are_shown_separately(two: tuple[Path, Path]) -> None:
    def change(tokenizer: dict) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["goood"] = vocabulary.pop("good")
        tokenizer["normalizer"]["lowercase"] = False

    change_json(two[1], "tokenizer.json", change)

    found = difference(*two)

    assert found.vocabulary.keys() == {"good", "goood"}
    assert found.tokenizer == {"normalizer.lowercase": (True, False)}


def test_the_table_shows_the_largest_changes_and_counts_the_rest(two: tuple[Path, Path]) -> None:
    path = two[1] / "model.safetensors"
    weights = {name: tensor + tensor.dtype.type(0.01) if tensor.dtype.kind == "f" else tensor for name, tensor in load_file(path).items()}
    weights["classifier.bias"] += np.float16(3)
    save_file(weights, path, metadata={"format": "pt"})
    reseal(two[1])

    lines = table(difference(*two)).splitlines()

    title = next(index for index, line in enumerate(lines) if line.startswith("weights, change ("))
    assert lines[title + 1].startswith("  classifier.bias: largest 3")
    assert lines[title + LINES_MAX + 1] == f"  ... and {len(real_names(weights)) - LINES_MAX} more; --json shows all"
