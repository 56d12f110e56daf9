"""A bundle's reference: counts of the service's own answers, printed and recorded by a command."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sentiment.model.bundle import Histogram, load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.observability.journal import line_of
from sentiment_models.cli import main
from sentiment_models.data.labelled import Example
from sentiment_models.evaluation.reference import measure_reference, record_reference
from sentiment_models.export.export import Exported
from tests.models.tiny_bert import sentences, write_tsv


@pytest.fixture
def bundle(exported: tuple[Path, Exported], dev: list[Example], tmp_path: Path) -> Path:
    """A copy that a test may change, with a reference of the development set."""
    path = Path(shutil.copytree(exported[0], tmp_path / "tiny" / "1"))
    record_reference(path, measure_reference(load_classifier(path), [example.whole for example in dev]))
    return path


def up_to(histogram: Histogram, value: float) -> int:
    """How many texts have at most this value, which is an edge."""
    return sum(histogram.counts[: histogram.edges.index(value) + 1])


def test_a_reference_counts_the_services_answers(bundle: Path, dev: list[Example]) -> None:
    reference, classifier = load_bundle(bundle).manifest.reference, load_classifier(bundle)
    assert reference is not None
    rows = [classifier.tokenizer.encode(example.text) for example in dev]
    answers = [classifier.score(classifier.run([row])[0]) for row in rows]

    assert reference.texts == len(dev)
    assert reference.label == {name: sum(one.label == name for one in answers) for name in classifier.manifest.labels}
    assert reference.abstained == sum(one.abstain for one in answers)
    assert up_to(reference.score, 0.6) == sum(one.score <= 0.6 for one in answers)
    assert up_to(reference.tokens, 8) == sum(row.tokens <= 8 for row in rows)
    assert up_to(reference.unknown, 0) == sum(not classifier.tokenizer.unknown_tokens(row) for row in rows)
    assert reference.fragments is not None
    assert up_to(reference.fragments, 0) == sum(not classifier.tokenizer.fragments(row)[0] for row in rows)


def test_the_command_prints_and_records(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_bundle(bundle)
    file = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=2))

    assert main(["reference", str(bundle), str(file), "--threads", "1"]) == 0
    assert load_bundle(bundle).digest == before.digest
    assert main(["reference", str(bundle), str(file), "--threads", "1", "--record"]) == 0

    after = load_bundle(bundle)
    assert after.manifest.reference is not None
    assert after.manifest.reference.texts == 40
    assert after.manifest.reference.files == {"texts.tsv": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert after.manifest.model_copy(update={"reference": before.manifest.reference}) == before.manifest
    shown = capsys.readouterr().out
    assert shown.startswith("40 texts\nlabel\n")
    share = after.manifest.reference.abstained / 40
    assert f"  true         {after.manifest.reference.abstained:9} {share:7.2%}" in shown


def test_the_texts_need_no_labels(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "usual.txt.gz").write_bytes(gzip.compress(b"A good film.\n\nA dull film.\r\n"))
    (tmp_path / "usual.jsonl").write_text('{"text": "A good film."}\n{"text": "Bad.", "label": "of another model"}\n')
    (tmp_path / "journal.jsonl").write_bytes(line_of({"journal": "answer", "request_id": "one", "item": 0, "text": "Cold."}))
    files = [str(tmp_path / name) for name in ("usual.txt.gz", "usual.jsonl", "journal.jsonl")]

    assert main(["reference", str(bundle), *files, "--threads", "1"]) == 0

    assert capsys.readouterr().out.startswith("5 texts\nlabel\n")


def test_a_text_that_cannot_be_used_is_refused_with_its_line(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "usual.jsonl").write_text('{"text": "A good film."}\n{"body": "Bad."}\n')

    assert main(["reference", str(bundle), str(tmp_path / "usual.jsonl")]) == 1
    assert "usual.jsonl:2: expected a JSON object with text: KeyError('text')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": 61}, "label counts 60 texts; texts is 61"),
        ({"abstained": 61}, "abstained is 61; texts is 60"),
        ({"label": {"positive": 60}}, "reference.label counts ['positive']"),
        ({"score": {"edges": [0.9, 0.6], "counts": [20, 20, 20]}}, "edges must ascend and counts must have one more"),
        ({"score": {"edges": [0.9], "counts": [20, 20, 20]}}, "edges must ascend and counts must have one more"),
        ({"tokens": {"edges": [4], "counts": [61, -1]}}, "greater than or equal to 0"),
        ({"tokens": {"edges": [*range(101)], "counts": [60, *[0] * 101]}}, "at most 100 items"),
    ],
)
def test_counts_that_cannot_be_are_refused(
    bundle: Path, change: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["reference"].update(change)
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    assert main(["reference", str(bundle), str(write_tsv(tmp_path / "texts.tsv", sentences(5)))]) == 3
    assert said in capsys.readouterr().err
