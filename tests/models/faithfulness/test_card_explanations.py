"""The card's section on explanations: measured figures in plain words, unfavourable ones included."""

from pathlib import Path

import pytest

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.errors import ModelsError
from sentiment_models.explanations import training_page
from sentiment_models.explanations.findings import Difference
from sentiment_models.explanations.page import as_text
from sentiment_models.explanations.record import record_findings
from sentiment_models.explanations.training_findings import Accuracy, TrainingFindings, UniformFound
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, write_manifest
from sentiment_models.reports.card import write_card
from sentiment_models.reports.record import Record, read_record
from tests.models.faithfulness.found import findings
from tests.trusted import explanations as section

TITLE = "## How far explanations can be trusted"


def trained(loss: float) -> TrainingFindings:
    """One test only: uniform attention in all layers costs this much accuracy."""
    accuracy = Accuracy(mean=0.8, low=0.75, high=0.85, seeds=(0.8,))
    lost = Difference(mean=loss, low=loss - 0.02, high=loss + 0.02, texts=40)
    uniform = UniformFound(learned=accuracy, last_layer=accuracy, all_layers=accuracy, last_loss=lost, all_loss=lost)
    counts = {"train_texts": 80, "heldout_texts": 40, "vocabulary": 9, "parameters": 9}
    return TrainingFindings(files={}, fingerprint="", words=9.0, majority=0.5, settings={}, uniform=uniform, **counts)


def test_the_command_writes_what_was_measured_into_the_card(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studied, tested = tmp_path / "findings.json", tmp_path / "results.json"
    study = findings(bundle)
    record_findings(bundle, study)
    studied.write_text(study.model_dump_json())
    tested.write_text(trained(0.1).model_dump_json())

    assert main(["card", str(bundle), "--explanations", str(studied), "--attention-tests", str(tested)]) == 0

    assert str(bundle / "MODEL_CARD.md") in capsys.readouterr().out
    assert read_record(bundle) == Record(explanations=study, attention_tests=trained(0.1))
    # What is not measured again is kept.
    tested.write_text(trained(0.3).model_dump_json())
    assert main(["card", str(bundle), "--attention-tests", str(tested)]) == 0
    assert read_record(bundle) == Record(explanations=study, attention_tests=trained(0.3))
    assert "the default method, `integrated_gradients`, is better than random word order in the mean; on single texts" in (
        load_bundle(bundle).card
    )
    assert main(["card", str(bundle), "--tables"]) == 0
    shown = capsys.readouterr().out
    assert as_text(study) in shown
    assert training_page.as_text(trained(0.3)) in shown


def test_findings_of_another_default_than_the_bundle_s_are_refused(bundle: Path) -> None:
    record_findings(bundle, findings(bundle, "occlusion"))

    with pytest.raises(ModelsError, match="the findings have default method integrated_gradients; the bundle has occlusion"):
        write_card(bundle, Record(explanations=findings(bundle, "integrated_gradients")))
    assert "the default method, `occlusion`, " in write_card(bundle, Record(explanations=findings(bundle, "occlusion"))).read_text()


def test_without_findings_the_card_says_that_nothing_was_measured(bundle: Path) -> None:
    text = write_card(bundle).read_text(encoding="utf-8")

    assert f"{TITLE}\n\nThe bundle's explanations were not measured." in text


def test_a_study_of_the_base_is_not_stated_as_the_bundle_s_own(bundle: Path) -> None:
    manifest = read_object(bundle / MANIFEST_FILE)
    write_manifest(bundle, {**manifest, "explanations": {**section("occlusion"), "bundle": "base/3"}})

    text = write_card(bundle).read_text(encoding="utf-8")

    assert "On 400 texts of made/up (measured on base/3, before this fine-tuning), the default method, `occlusion`," in text


def test_findings_of_another_bundle_are_refused(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = findings(bundle).model_copy(update={"graph_sha256": "0" * 64})
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")

    with pytest.raises(ModelsError, match="the bundle has one with SHA-256"):
        write_card(bundle, Record(explanations=other))
    assert main(["card", str(bundle), "--explanations", str(wrong)]) == 1
    assert f"error: {wrong}: not written by evaluate --explanations --json of this version: bundle: " in capsys.readouterr().err
