"""A bundle with an output beside its labels, and one that answers targets: export, proofs, and what a fine-tune keeps."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sentiment.model.classifier import load_classifier
from sentiment_models.cli import main
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadCheckpoint, ModelsError, ParityFailed
from sentiment_models.evaluation.calibration import MixedCalibration, calibrate_mixed
from sentiment_models.evaluation.metrics import probabilities, stated
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.examine import examine
from sentiment_models.export.export import Exported, export
from sentiment_models.export.inherited import hand_on, inherited_of
from sentiment_models.export.verify import check_movement, check_parity, movement, parity
from tests.models.tiny_bert import save_tiny_bert, sentences


def test_the_checkpoints_last_label_is_only_a_logit_of_the_bundle(beside: tuple[Path, Exported]) -> None:
    manifest = json.loads((beside[0] / "manifest.json").read_bytes())

    served = load_classifier(beside[0])

    assert manifest["labels"] == ["negative", "positive", "neutral"]
    assert {len(golden["logits"]) for golden in manifest["golden"]} == {4}
    assert beside[1].calibration.mixed
    assert manifest["mixed"] == {"at": beside[1].calibration.mixed.at}
    logits = served.run([served.tokenizer.encode("a good film and a bad story")])[0]
    assert len(served.score(logits).scores) == 3
    assert sum(served.score(logits).scores) == pytest.approx(1)


def test_golden_answers_are_of_targets_too_if_the_bundle_answers_them(beside: tuple[Path, Exported]) -> None:
    manifest = json.loads((beside[0] / "manifest.json").read_bytes())

    assert manifest["targets"] == {"tokens": 32}
    assert not manifest["pairs"]
    assert any("text_pair" in golden for golden in manifest["golden"])


def test_everything_in_the_bundle_agrees_and_torch_gives_all_four_logits(beside: tuple[Path, Exported]) -> None:
    checks = {check.name: check for check in examine(beside[0])}

    assert [check for check in checks.values() if check.good is False] == []
    assert {"weights", "int8.onnx against the weights", "explain.onnx against the weights", "fp32.onnx batch mates"} <= checks.keys()


def test_the_temperature_is_fitted_on_whole_texts_of_the_labels_alone(beside: tuple[Path, Exported]) -> None:
    calibration = beside[1].calibration

    assert calibration.dev
    assert calibration.dev.rows == 90
    assert calibration.mixed
    assert (calibration.mixed.texts, calibration.mixed.one_sign) == (30, 60)


def test_an_error_of_the_output_beside_the_labels_alone_is_an_error() -> None:
    rows: list[Any] = [SimpleNamespace(tokens=3)] * 20
    graph: Any = SimpleNamespace(feeds=lambda batch: batch, logits=lambda batch: np.array([[2.0, 0.0, 3.0]] * len(batch), np.float32))

    measured = parity(graph, lambda batch: np.array([[2.0, 0.0, -3.0]] * len(batch), np.float32), rows, labels=2)

    assert measured.labels_changed == 0
    with pytest.raises(ParityFailed, match="probabilities of the int8 graph differ from torch"):
        check_parity("int8", measured)


def test_batch_mates_that_move_the_output_beside_the_labels_are_found() -> None:
    rows: list[Any] = [SimpleNamespace(tokens=3)] * 20

    def logits(batch: Any, length: int = 0) -> Any:
        return np.array([[2.0, 0.0, 0.1 * len(batch)]] * len(batch), np.float32)

    with pytest.raises(ParityFailed, match="batch mates"):
        check_movement("int8", movement(SimpleNamespace(logits=logits, tokenizer=SimpleNamespace(max_tokens=64)), rows, labels=2))  # type: ignore[arg-type]  # all that is read


def test_scores_are_of_the_labels_logits_alone_and_further_outputs_of_all() -> None:
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)

    found = stated(logits, 2, temperature=1.5)

    assert found[0, :2].tolist() == probabilities(logits[:, :2], 1.5)[0].tolist()
    assert found[0, 2] == probabilities(logits, 1.5)[0, 2]


def test_the_threshold_finds_most_mixed_texts_that_one_false_alarm_in_ten_allows() -> None:
    one_sign = np.arange(50) / 100
    mixed = np.array([0.1, *[0.45] * 9, *[0.9] * 20])

    assert calibrate_mixed(mixed, one_sign, 0.7) == MixedCalibration(at=0.4401, texts=30, found=29, one_sign=50, alarms=5)


def test_with_few_texts_of_one_sign_the_threshold_is_the_base_s() -> None:
    assert calibrate_mixed(np.full(500, 0.9), np.full(19, 0.1), 0.7).at == 0.7


def test_only_texts_of_kinds_that_have_mixed_ones_choose_the_threshold(four: Path, tmp_path: Path) -> None:
    dev = [Example(text, 3 if place % 2 else 0, domain="films") for place, (_, text) in enumerate(sentences(40, seed=5))]
    dev += [Example(text, place % 3, domain="tweets") for place, (_, text) in enumerate(sentences(30, seed=6))]

    found = export(four, tmp_path / "1", name="three", version=1, dev=dev, mixed=True).calibration.mixed

    assert found
    assert (found.texts, found.one_sign) == (20, 20)


def test_a_fine_tune_keeps_the_output_and_the_targets_of_its_base(beside: tuple[Path, Exported], tmp_path: Path) -> None:
    tuned = save_tiny_bert(tmp_path / "tuned", seed=3, labels=("negative", "positive", "neutral", "mixed"))
    hand_on(inherited_of(beside[0]), tuned)

    export(tuned, tmp_path / "2", name="three", version=2)

    before, after = (json.loads((folder / "manifest.json").read_bytes()) for folder in (beside[0], tmp_path / "2"))
    assert [after[key] for key in ("labels", "mixed", "targets")] == [before[key] for key in ("labels", "mixed", "targets")]


def test_a_fine_tune_to_other_labels_keeps_neither(beside: tuple[Path, Exported], checkpoint: Path, tmp_path: Path) -> None:
    tuned = Path(shutil.copytree(checkpoint, tmp_path / "tuned"))
    hand_on(inherited_of(beside[0]), tuned)

    export(tuned, tmp_path / "2", name="two", version=2)

    assert {"mixed", "targets"}.isdisjoint(json.loads((tmp_path / "2" / "manifest.json").read_bytes()))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"mixed": True}, BadCheckpoint, "--beside mixed needs it as the last of three labels or more, got negative,positive"),
        ({"targets": 32}, BadCheckpoint, "--targets needs a label neutral"),
    ],
)
def test_a_checkpoint_without_the_labels_is_refused(
    settings: dict[str, Any], error: type[ModelsError], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        export(checkpoint, tmp_path / "1", name="tiny", version=1, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"targets": 65}, "must be at most 64"), ({"targets": 32, "pairs": True}, "exclude each other")],
)
def test_targets_need_room_and_no_other_pairs(settings: dict[str, Any], message: str, four: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelsError, match=message):
        export(four, tmp_path / "1", name="tiny", version=1, mixed=True, **settings)


def test_the_command_says_what_chose_the_threshold(four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = tmp_path / "dev.jsonl"
    rows = [{"label": ("negative", "mixed")[place % 2], "text": text} for place, (_, text) in enumerate(sentences(60))]
    rows += [{"label": "positive", "text": text} for _, text in sentences(20, seed=2)]
    rows += [{"label": "neutral", "text": "the film and the story", "text_pair": "film"}]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))

    code = main(["export", str(four), "--output", str(tmp_path / "new" / "1"), "--dev", str(dev), "--beside", "mixed", "--targets", "32"])

    assert code == 0
    assert "of 30 mixed development texts, and 5 of 50 of one sign" in capsys.readouterr().out


def test_the_checkpoint_of_a_bundle_names_all_outputs(beside: tuple[Path, Exported]) -> None:
    assert Checkpoint.of_bundle(beside[0]).labels == ["negative", "positive", "neutral", "mixed"]
