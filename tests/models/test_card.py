"""The model card: every figure in it was measured."""

import json
import re
from pathlib import Path

import pytest

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.effort import EffortSpec
from sentiment_models.cli import main
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.effort import record_effort
from sentiment_models.evaluation.evaluate import Dataset, evaluate
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.export.manifest import MANIFEST_FILE, digest_without_card, read_object
from sentiment_models.reports.about import read_about
from sentiment_models.reports.card import write_card
from sentiment_models.reports.evaluation_page import as_text
from sentiment_models.reports.record import NOTHING, Record, read_record, record_path
from sentiment_models.reports.record_tables import tables, training_stages
from tests.approved import assert_approved
from tests.tiny import EFFORT


def _record(bundle: Path, **provenance: object) -> None:
    """Change the provenance in a bundle's manifest."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["provenance"].update(provenance)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_the_card_holds_the_measured_figures_and_the_bundle_stays_valid(bundle: Path, evaluation: Evaluation) -> None:
    digest = load_bundle(bundle).digest
    assert digest == digest_without_card(read_object(bundle / MANIFEST_FILE))

    text = write_card(bundle, Record(evaluations=(evaluation,))).read_text(encoding="utf-8")

    found = evaluation.datasets["made/up"]
    low, high = found.accuracy_interval
    largest = max(one.rows for one in found.classes.values()) / 100
    assert f"| made/up | 100 | {largest:.3f} | {found.accuracy:.4f} ({low:.3f} to {high:.3f}) |" in text
    assert "1.0 % of the texts of made/up are longer than 64 tokens" in text
    assert "The checkpoint has no record of its training." in text
    assert digest in text
    assert load_bundle(bundle).card == text
    assert "MODEL_CARD.md" in load_bundle(bundle).manifest.files
    assert digest == digest_without_card(read_object(bundle / MANIFEST_FILE)) != load_bundle(bundle).digest


def test_a_card_that_was_lost_or_changed_can_be_written_again(bundle: Path) -> None:
    path = write_card(bundle)
    written = path.read_text(encoding="utf-8")
    for spoil in (path.unlink, lambda: path.write_text("changed")):
        spoil()
        with pytest.raises(BadBundle):
            load_bundle(bundle)
        assert write_card(bundle).read_text(encoding="utf-8") == load_bundle(bundle).card == written


def test_the_card_has_the_rule_of_adaptive_effort_and_what_is_proved_of_it(bundle: Path) -> None:
    proven = {"texts": 1500, "early": 600, "differ": 4, "bound": 0.00609, "cost": 0.72}
    rule = EffortSpec.model_validate(EFFORT | {"proven": {"made-up": proven}})
    record_effort(bundle, rule)

    text = write_card(bundle).read_text(encoding="utf-8")

    assert "the first 4 and last 4 tokens of a text of 10 or more" in text
    assert "| made-up | 1,500 | 40.0 % | 4 | 0.61 % | 0.72 |" in text


def test_the_card_can_be_written_again_from_the_record(bundle: Path, evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_record(bundle) == NOTHING
    written = write_card(bundle, Record(evaluations=(evaluation,))).read_text(encoding="utf-8")
    assert read_record(bundle) == Record(evaluations=(evaluation,))

    assert main(["card", str(bundle)]) == 0

    assert load_bundle(bundle).card == written
    # A copy has the same record, and so the same card but for its version and digest.
    assert main(["copy", str(bundle), "--version", "2"]) == main(["card", str(bundle.parent / "2")]) == 0
    assert read_record(bundle.parent / "2") == read_record(bundle)
    record_path(bundle).write_text('{"evaluations": 1}')
    assert main(["card", str(bundle)]) == 1
    assert "1.record.json: not written by card of this version: evaluations: " in capsys.readouterr().err


def test_a_record_of_another_export_is_named(bundle: Path, evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    other = evaluation.model_copy(update={"graph": evaluation.graph.model_copy(update={"sha256": "0" * 64})})
    record_path(bundle).write_text(Record(evaluations=(other,)).model_dump_json())

    assert main(["card", str(bundle)]) == 1

    said = rf"error: {record_path(bundle)}: .*measured .* with SHA-256 0000.*\. Measure that again, or delete this file\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_every_table_is_printed_and_nothing_written(bundle: Path, evaluation: Evaluation, capsys: pytest.CaptureFixture[str]) -> None:
    write_card(bundle, Record(evaluations=(evaluation,)))
    before = {path: path.read_bytes() for path in bundle.parent.rglob("*") if path.is_file()}

    assert main(["card", str(bundle), "--tables"]) == 0

    assert as_text(evaluation) in capsys.readouterr().out
    assert {path: path.read_bytes() for path in bundle.parent.rglob("*") if path.is_file()} == before


def test_each_stage_of_training_is_described_as_approved() -> None:
    file = {"file": "sst2/train.tsv.gz", "rows": 58404, "times": 3, "sha256": "ab" * 32}
    tails = {"file": "imdb/train.tsv.gz", "rows": 22422, "times": 1, "tails": True, "sha256": "cd" * 32}
    taught = {"file": "told.jsonl", "rows": 7, "times": 1, "teachers": ["big@ab12", "english/1@cd34"], "sha256": "ab" * 32}
    read = {"file": "unlabelled.txt.gz", "documents": 50000, "times": 1, "sha256": "ef" * 32}
    looks = [{"step": step, "dev_accuracy": accuracy} for step, accuracy in ((100, 0.8), (200, 0.875), (300, 0.85))]
    resized = {"resized": {"base": "english", "layers": 12, "width": 384, "seed": 0}}
    read_first = {"files": [read], "train_documents": 49500, "dev_documents": 500, "steps": 7, "recipe": {"base": "", "layers": 6}}
    first = {"files": [tails, taught], "steps": 10, "recipe": {"base": "minilm", "layers": 9, "seed": 2}, "history": looks}
    first |= {"dev_accuracy": 0.875, "base_training": {**read_first, "base_training": resized}}
    last = {"files": [file], "steps": 4314, "recipe": {"base": "best", "seed": 1}, "history": looks[-1:], "dev_accuracy": 0.85}

    assert_approved(
        Path(__file__).parent / "approved/stages.txt", {"stages": training_stages({"training": {**last, "base_training": first}})}
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"langage = 'English'", "langage: Extra inputs are not permitted; the keys are language, licences, "),
        (b"language = English", "not TOML in UTF-8: "),
        (b"\xff", "not TOML in UTF-8: "),
    ],
)
def test_a_file_about_a_bundle_that_cannot_be_used_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "about.toml").write_bytes(content)

    with pytest.raises(BadData, match=re.escape(f"{tmp_path}/about.toml: {said}")):
        read_about(tmp_path / "about.toml")


def test_without_what_its_author_knows_the_card_names_the_files_of_training(bundle: Path) -> None:
    first = {"files": [{"file": "a.tsv"}, {"file": "b.tsv"}], "recipe": {}}
    _record(bundle, training={"files": [{"file": "a.tsv"}], "recipe": {}, "base_training": first})

    assert "The files of all stages: `a.tsv`, `b.tsv`." in write_card(bundle).read_text(encoding="utf-8")


def test_the_tables_name_the_texts_that_spellings_come_from(bundle: Path) -> None:
    _record(bundle, spellings={"count": 140692, "files": [{"file": "reviews.txt.gz", "sha256": "ab" * 32}]})

    text = tables(bundle, NOTHING)

    assert "The tokenizer corrects 140,692 misspelled words, each with one swapped or omitted letter." in text
    assert "by word counts in reviews.txt.gz (abababababababab)." in text


def test_the_card_shows_the_confusion_of_the_data_sets_that_its_author_names(bundle: Path, evaluation: Evaluation, tmp_path: Path) -> None:
    about = tmp_path / "about.toml"
    about.write_text('confusion = ["made/up", "not measured"]\n[names]\n"made/up" = "Made up"\n')
    record = Record(evaluations=(evaluation,))

    text = write_card(bundle, record, read_about(about)).read_text(encoding="utf-8")

    counts = evaluation.datasets["made/up"].confusion
    assert f"| Made up | negative | {counts[0][0]} | {counts[0][1]} |" in text
    assert "not measured" not in text[text.index("## Confusion") : text.index("## Weaknesses")]
    assert "## Confusion" not in write_card(bundle, record).read_text(encoding="utf-8")


def test_the_card_refuses_figures_of_another_bundle(bundle: Path, evaluation: Evaluation) -> None:
    other = evaluation.model_copy(update={"graph": evaluation.graph.model_copy(update={"sha256": "0" * 64})})

    with pytest.raises(ModelsError, match=r"the evaluation measured int8\.onnx with SHA-256 000000000000; the bundle has one with"):
        write_card(bundle, Record(evaluations=(other,)))
    for setting in ("temperature", "abstain_below"):
        with pytest.raises(ModelsError, match=f"the evaluation has {setting} 9"):
            write_card(bundle, Record(evaluations=(evaluation.model_copy(update={setting: 9.0}),)))
    # Checkpoints of one shape have equal fp32.onnx files: only the weights differ.
    for name in ("model.safetensors", "tokenizer.json"):
        beside = {**evaluation.graph.beside, name: "0" * 64}
        other = evaluation.model_copy(update={"graph": evaluation.graph.model_copy(update={"beside": beside})})
        with pytest.raises(ModelsError, match=rf"the evaluation measured {name} with SHA-256 000000000000; the bundle has one with"):
            write_card(bundle, Record(evaluations=(other,)))


def test_the_behaviour_that_fails_most_often_is_shown_with_an_example(bundle: Path, evaluation: Evaluation) -> None:
    text = write_card(bundle, Record(evaluations=(evaluation,))).read_text(encoding="utf-8")

    worst = max(evaluation.behaviours, key=lambda one: one.failures / one.cases)
    weaknesses = text[text.index("## Weaknesses") :]
    assert f"| {worst.name} | {100 * worst.failures / worst.cases:.1f} % | {worst.examples[0].texts[0]}" in weaknesses
    assert "changes most labels" in weaknesses


def test_a_graph_that_is_not_served_has_tables_and_no_place_in_the_card(bundle: Path, dataset: Dataset) -> None:
    record = Record(evaluations=(evaluate(bundle, [dataset], "fp32", threads=2),))

    text = write_card(bundle, record).read_text(encoding="utf-8")

    assert "Not evaluated." in text
    assert "tiny/1, fp32, 2 threads" in tables(bundle, record)


def test_evaluations_of_several_files_are_put_together(bundle: Path, evaluation: Evaluation) -> None:
    datasets = {"another": evaluation.datasets["made/up"]}
    other = evaluation.model_copy(update={"datasets": datasets, "behaviours": (), "undecided": {}})

    text = write_card(bundle, Record(evaluations=(evaluation, other))).read_text(encoding="utf-8")

    assert "| made/up | 100 |" in text
    assert "| another | 100 |" in text
    assert text.count("Behaviours that fail most often") == 1


def test_the_card_states_how_long_texts_are_read_and_the_accuracy_of_each_way(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["provenance"]["long_texts"] = {
        "texts": 120,
        "files": {"imdb.tsv": "ab"},
        "accuracy": {"head": 0.91, "windows 64/31 ends": 0.925},
    }
    manifest["default_truncation"] = "windows"
    manifest["windows"] = {"size": 64, "stride": 31, "combine": "ends", "count_max": 4}
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    path = write_card(bundle)
    text = tables(bundle, NOTHING)

    assert "is read in overlapping windows, whose answers are combined by the rule ends, unless the caller chooses" in path.read_text()
    assert "on 120 texts of imdb.tsv\n" in text
    assert "windows 64/31 ends    0.9250" in text


def test_markup_in_a_label_is_escaped_on_the_card(bundle: Path) -> None:
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"negative"', '"<b>bad"'), encoding="utf-8")

    text = write_card(bundle).read_text(encoding="utf-8")

    assert "as \\<b>bad or positive: " in text
    assert "labels \\<b>bad, positive, even" in text
    assert "and from evaluations" not in text
