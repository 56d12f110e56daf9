"""A bundle's references: counts of the service's own answers, printed and recorded by a command."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sentiment.explain.engine import Explainer
from sentiment.model.bundle import REFERENCES_MAX, Histogram, load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.observability.journal import line_of
from sentiment_models.cli import main
from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import Example, read_examples
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.reference import measure_reference, projections, record_reference
from sentiment_models.export.export import Exported
from tests.models.tiny_bert import sentences, write_tsv


@pytest.fixture
def bundle(exported: tuple[Path, Exported], dev: list[Example], tmp_path: Path) -> Path:
    """A copy that a test may change, with a reference of the development set."""
    path = Path(shutil.copytree(exported[0], tmp_path / "tiny" / "1"))
    record_reference(path, "usual", measure_reference(load_classifier(path), [example.whole for example in dev]))
    return path


def up_to(histogram: Histogram, value: float) -> int:
    """How many texts have at most this value, which is an edge."""
    return sum(histogram.counts[: histogram.edges.index(value) + 1])


def test_a_reference_counts_the_services_answers(bundle: Path, dev: list[Example]) -> None:
    reference, classifier = load_bundle(bundle).manifest.references["usual"], load_classifier(bundle)
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


def test_a_reference_counts_projections_of_hidden_states_with_the_edges_of_the_first_one(bundle: Path, tmp_path: Path) -> None:
    classifier = load_classifier(bundle)
    graph = Explainer(classifier).load()
    assert graph is not None
    file = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=2))
    rows = [classifier.tokenizer.encode(example.text) for example in read_examples(file, classifier.manifest.labels)]

    assert main(["reference", str(bundle), str(file), "--threads", "1", "--name", "short", "--record"]) == 0

    manifest = load_bundle(bundle).manifest
    usual, short = (manifest.references[name].hidden for name in ("usual", "short"))
    assert usual is not None
    assert short is not None
    assert usual.edges == short.edges
    values = projections(classifier, graph.session, rows, manifest.hidden_layer or 0, threads=2)
    for found, column in zip(short.projections, values.T, strict=True):
        assert up_to(found, found.edges[6]) == sum(column <= found.edges[6])
    assert [signal.counts["short"] for signal in manifest.hidden_signals] == [one.counts for one in short.projections]

    # A reference from before hidden states were counted: the others are not compared either.
    record_reference(bundle, "old", manifest.references["usual"].model_copy(update={"hidden": None}))
    assert load_bundle(bundle).manifest.hidden_signals == ()
    other = short.model_copy(update={"layer": short.layer + 1})
    with pytest.raises(ModelsError, match=r"hidden have different layers or edges; --remove others first"):
        record_reference(bundle, "other", manifest.references["short"].model_copy(update={"hidden": other}))


def test_the_command_prints_and_records(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_bundle(bundle)
    file = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=2))

    assert main(["reference", str(bundle), str(file), "--threads", "1"]) == 0
    assert load_bundle(bundle).digest == before.digest
    assert main(["reference", str(bundle), str(file), "--threads", "1", "--name", "short", "--record"]) == 0

    after = load_bundle(bundle)
    short = after.manifest.references["short"]
    assert short.texts == 40
    assert short.files == {"texts.tsv": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert after.manifest == before.manifest.model_copy(update={"references": {**before.manifest.references, "short": short}})
    shown = capsys.readouterr().out
    assert shown.startswith("40 texts\nlabel\n")
    assert f"  true         {short.abstained:9} {short.abstained / 40:7.2%}" in shown


def test_a_reference_of_the_same_name_is_replaced_and_one_is_removed(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_bundle(bundle)
    file = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=2))

    assert main(["reference", str(bundle), str(file), "--threads", "1", "--name", "usual", "--record"]) == 0
    assert {name: one.texts for name, one in load_bundle(bundle).manifest.references.items()} == {"usual": 40}
    assert main(["reference", str(bundle), "--remove", "usual"]) == 0
    assert load_bundle(bundle).manifest == before.manifest.model_copy(update={"references": {}})
    assert main(["reference", str(bundle), "--remove", "usual"]) == 1

    assert "has no reference 'usual'; it has none" in capsys.readouterr().err


def test_only_what_training_held_out_is_counted(bundle: Path, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "texts.tsv", sentences(60, seed=2))
    before = load_bundle(bundle).manifest
    held_out = carve([(list(read_examples(file, before.labels)), 1)], 0.4, 7).dev

    arguments = ["--dev", "0.4", "--seed", "7", "--threads", "1", "--name", "held-out", "--record"]
    assert main(["reference", str(bundle), str(file), *arguments]) == 0

    assert load_bundle(bundle).manifest.references["held-out"] == measure_reference(
        load_classifier(bundle), [example.whole for example in held_out], [file], like=before.references["usual"].hidden
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{file}", "--record"], 1, "--record needs --name"),
        (["{file}", "--remove", "usual"], 1, "--remove goes without FILE"),
        ([], 1, "FILE is needed"),
        (["{file}", "--name", "Ours", "--record"], 2, "got 'Ours'"),
        (["{file}", "--name", "other", "--record"], 1, "different signals or edges; --remove others first"),
    ],
)
def test_what_cannot_be_recorded_changes_nothing(
    bundle: Path, arguments: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_tsv(tmp_path / "texts.tsv", sentences(5))
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    score = manifest["references"]["usual"]["score"]
    score.update(edges=[0.5], counts=[0, sum(score["counts"])])
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    before = load_bundle(bundle).digest

    assert main(["reference", str(bundle), *(one.format(file=file) for one in arguments)]) == code

    assert said in capsys.readouterr().err
    assert load_bundle(bundle).digest == before


def test_removing_others_is_advised_only_where_it_helps(bundle: Path) -> None:
    usual = load_bundle(bundle).manifest.references["usual"]
    for number in range(REFERENCES_MAX - 1):
        record_reference(bundle, f"usual-{number}", usual)
    with pytest.raises(ModelsError, match=r"references: .*; --remove others first$"):
        record_reference(bundle, "one-more", usual)

    manifest = json.loads((bundle / "manifest.json").read_bytes())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "max_tokens": 1}))

    with pytest.raises(ModelsError, match=r"max_tokens: [^;]*$"):
        record_reference(bundle, "usual", usual)


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
    assert "usual.jsonl: line 2: has no 'text'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": 61}, "label counts 60 texts; texts is 61"),
        ({"abstained": 61}, "abstained is 61; texts is 60"),
        ({"label": {"positive": 60}}, "references.usual.label counts ['positive']"),
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
    manifest["references"]["usual"].update(change)
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    assert main(["reference", str(bundle), str(write_tsv(tmp_path / "texts.tsv", sentences(5)))]) == 3
    assert said in capsys.readouterr().err
