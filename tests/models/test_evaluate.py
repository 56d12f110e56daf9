"""Measuring a bundle through the service's modules, and recording the figures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.tokenizer import Windows
from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint, BadData, ModelsError
from sentiment_models.evaluation.compare import compare
from sentiment_models.evaluation.evaluate import Dataset, evaluate, record
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.evaluation.probes import read_kinds
from sentiment_models.explanations.subject import Subject
from sentiment_models.export.export import Exported
from sentiment_models.export.inference import Graph, answer, serve
from sentiment_models.export.manifest import sha256
from sentiment_models.reports import plots
from sentiment_models.reports.card import write_card
from sentiment_models.reports.evaluation_page import as_page, as_text
from sentiment_models.reports.record import Record
from sentiment_models.stored import stored
from tests.models import tampered
from tests.models.tiny_bert import sentences, write_tsv


@pytest.fixture
def no_behaviours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The behavioural tests are most of an evaluation's texts."""
    monkeypatch.setattr("sentiment_models.evaluation.evaluate.behave", lambda classifier, threads: [])


def test_figures_are_those_of_the_services_answers_one_by_one(
    exported: tuple[Path, Exported], dataset: Dataset, evaluation: Evaluation
) -> None:
    classifier = load_classifier(exported[0])
    lines = [line.split("\t") for line in dataset.path.read_text().splitlines()]
    answers = [classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0]) for _, text in lines]

    right = sum(one.label == classifier.manifest.labels[int(label)] for one, (label, _) in zip(answers, lines, strict=True))

    found = evaluation.datasets["made/up"]
    assert evaluation.graph.precision == "int8"
    assert found.accuracy == pytest.approx(right / 100)
    assert found.abstained == sum(one.abstain for one in answers)
    assert (found.rows, found.truncated) == (100, 1)
    assert evaluation.truncation == "head"


@pytest.mark.smoke
def test_confusion_slices_and_intervals_agree_with_the_accuracy(evaluation: Evaluation) -> None:
    found = evaluation.datasets["made/up"]
    counts = np.array(found.confusion)

    assert counts.sum() == 100
    assert np.trace(counts) / 100 == pytest.approx(found.accuracy)
    assert [one.rows for one in found.classes.values()] == counts.sum(axis=1).tolist()
    assert [one.answered for one in found.classes.values()] == counts.sum(axis=0).tolist()
    assert np.mean([one.f1 for one in found.classes.values()]) == pytest.approx(found.macro_f1, abs=1e-4)
    assert sum(one.rows * one.accuracy for one in found.lengths.values()) == pytest.approx(100 * found.accuracy, abs=0.01)
    assert found.lengths["over the limit"].rows == 1
    assert found.lengths.keys() == {"1 to 16 tokens", "17 to 64 tokens", "over the limit"}
    assert found.accuracy_interval[0] < found.accuracy < found.accuracy_interval[1]
    assert found.macro_f1_interval[0] < found.macro_f1 < found.macro_f1_interval[1]
    assert 0 < found.calibration.p_value <= 1
    assert sum(one.rows for one in found.reliability) == 100


@pytest.mark.usefixtures("no_behaviours")
def test_domains_are_slices_that_agree_with_the_whole(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    rows = [(label, text, ("films", "food", "")[place % 3]) for place, (label, text) in enumerate(sentences(60, seed=8))]
    table, lines = tmp_path / "mixed.csv", tmp_path / "mixed.jsonl"
    table.write_text("domain,label,text\n" + "".join(f"{domain},{label},{text}\n" for label, text, domain in rows))
    lines.write_text("".join(json.dumps({"label": label, "text": text, "domain": domain or None}) + "\n" for label, text, domain in rows))
    alone = write_tsv(tmp_path / "food.tsv", [(label, text) for label, text, domain in rows if domain == "food"])

    found = evaluate(exported[0], [Dataset("csv", table), Dataset("jsonl", lines), Dataset("food", alone)], threads=2)

    domains = found.datasets["csv"].domains
    assert {name: one.rows for name, one in domains.items()} == {"films": 20, "food": 20}
    assert domains == found.datasets["jsonl"].domains
    assert (domains["food"].accuracy, domains["food"].ece) == (found.datasets["food"].accuracy, found.datasets["food"].ece)
    assert found.datasets["food"].domains == {}
    assert "By domain" in as_text(found)
    assert "By domain" in as_page(found)


@pytest.mark.usefixtures("no_behaviours")
def test_generated_texts_are_judged_by_phenomenon_and_by_pairs(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    classifier = load_classifier(exported[0])
    rows = [(label, text) for label, text in sentences(80, seed=9)]
    answers = [classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0]).label for _, text in rows]
    made: list[dict[str, object]] = []
    # Neighbours are pairs. Every eleventh pair is not generated, and the last text has lost its neighbour.
    for place, (label, text) in enumerate(rows[:-1]):
        facts = {"phenomenon": ("change", "irony")[place % 4 // 2], "pair": place // 2, "held_out": ["template"] * (place % 2)}
        facts["register"] = ("tweet", "ticket")[place % 2]
        made.append({"text": text, "label": label} | (facts if place % 22 < 20 else {}))
    file = tmp_path / "made.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in made))

    found = evaluate(exported[0], [Dataset("made", file)], threads=2)

    names = classifier.manifest.labels
    right = [answer == names[int(label)] for answer, (label, _) in zip(answers, rows[:-1], strict=False)]
    wanted = {
        phenomenon: [answered for answered, one in zip(right, made, strict=True) if one.get("phenomenon") == phenomenon]
        for phenomenon in ("change", "irony")
    }
    one = found.datasets["made"]
    assert {name: (part.rows, round(part.accuracy * part.rows)) for name, part in one.phenomena.items()} == {
        name: (len(each), sum(each)) for name, each in wanted.items()
    }
    assert one.held_out.keys() == {"template"}
    assert one.registers.keys() == {"tweet", "ticket"}
    pairs = [right[2 * number] and right[2 * number + 1] for number in range(39) if 2 * number % 22 < 20]
    assert (one.pairs["all"].pairs, one.pairs["all"].right) == (len(pairs), sum(pairs))
    assert one.pairs["change"].pairs + one.pairs["irony"].pairs == len(pairs)
    for part in (*one.phenomena.values(), *one.held_out.values()):
        assert part.accuracy_interval[0] <= part.accuracy <= part.accuracy_interval[1]
    for heading in ("By phenomenon", "By what training lacks", "By register", "Pairs"):
        assert heading in as_text(found)
        assert heading in as_page(found)


@pytest.mark.usefixtures("no_behaviours")
def test_a_column_of_too_many_domains_is_refused(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    for name, count in (("many", 51), ("most", 50)):
        rows = "".join(f"{number % 2},a film,product {number}\n" for number in range(count))
        (tmp_path / f"{name}.csv").write_text(f"label,text,domain\n{rows}1,a film of none,\n")

    with pytest.raises(BadData, match=r"many\.csv: the domain column has 51 values; the limit is 50"):
        evaluate(exported[0], [Dataset("many", tmp_path / "many.csv")])
    assert len(evaluate(exported[0], [Dataset("most", tmp_path / "most.csv")]).datasets["most"].domains) == 50


def test_robustness_compares_the_same_texts_typed_otherwise(evaluation: Evaluation) -> None:
    found = evaluation.datasets["made/up"].robustness

    assert found.keys() == {"typos", "casing"}
    assert all(one.rows == 100 and one.accuracy_before == evaluation.datasets["made/up"].accuracy for one in found.values())
    # The tiny tokenizer lowers its text; a slip of this many in a tiny random model's words shows.
    assert found["casing"].changed == 0
    assert found["typos"].changed > 0


def test_behaviours_are_held_against_a_model_that_calls_its_labels_negative_and_positive(evaluation: Evaluation) -> None:
    assert len(evaluation.behaviours) >= 12
    assert all(one.cases >= one.failures >= len(one.examples) for one in evaluation.behaviours)
    assert any(one.failures for one in evaluation.behaviours)


def test_texts_without_an_answer_are_counted_by_kind(exported: tuple[Path, Exported], evaluation: Evaluation) -> None:
    classifier = load_classifier(exported[0])
    texts = ("le film", "il fait froid", "the film")

    found = evaluation.undecided

    abstained = [classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0]).abstain for text in texts]
    assert {kind: one.rows for kind, one in found.items()} == {"fr": 2, "en": 1}
    assert [found["fr"].caught, found["en"].caught] == [sum(abstained[:2]), abstained[2]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"fr\tbon\nbon\n", r": line 2: expected kind<TAB>text, but the line has no tab"),
        (b"fr\tbon\nen\t \n", ": line 2: the text is empty"),
        (b"fr\tcaf\xe9\n", ": line 1: has bytes"),
        (b"", ": has no texts"),
    ],
)
def test_a_file_of_undecided_texts_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "u.tsv").write_bytes(content)

    with pytest.raises(BadData, match=r"u\.tsv" + said):
        read_kinds(tmp_path / "u.tsv")


def test_long_texts_are_read_as_asked(exported: tuple[Path, Exported], dataset: Dataset) -> None:
    classifier = load_classifier(exported[0])
    text = dataset.path.read_text().splitlines()[-1].split("\t")[1]

    head = serve(classifier, [text], "t", 1)
    windows = serve(classifier, [text, "good"], "t", 1, "windows")

    reading = classifier.read_on(text, "windows")
    assert isinstance(reading, Windows)
    assert windows.stated[0] == pytest.approx(classifier.score_windows([classifier.run([row])[0] for row in reading.rows]).scores)
    assert (head.truncated.tolist(), head.long.tolist()) == ([True], [True])
    assert (windows.truncated.tolist(), windows.long.tolist()) == ([reading.truncated, False], [True, False])
    assert windows.lengths[0] == reading.tokens > head.lengths[0]


def test_an_evaluation_can_be_read_on_a_terminal_and_as_a_page(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    text, html = as_text(evaluation), as_page(evaluation)
    monkeypatch.setattr(plots, "as_png", lambda figure: b"")
    skipped = evaluation.model_copy(update={"behaviours": ()})
    without_behaviours = as_text(skipped), as_page(skipped)

    assert "made/up" in text
    assert "macro F1" in text
    assert max(map(len, text.splitlines())) <= 140
    for heading in ("Accuracy", "Calibration", "Labels", "By length", "Robustness", "Behaviours", "Failed cases", "Speed and size"):
        assert f"<h2>{heading}</h2>" in html
    assert html.count("<img ") == 2
    assert "<script" not in html
    assert all("need labels called negative and positive" in one for one in without_behaviours)


def test_answers_come_in_the_order_of_the_texts_and_do_not_depend_on_threads(exported: tuple[Path, Exported]) -> None:
    classifier = load_classifier(exported[0])
    texts = [text for _, text in sentences(70, seed=11)]

    found = [answer(Graph(classifier.tokenizer, classifier.session), texts, threads=threads) for threads in (1, 3)]

    expected = np.array([classifier.run([classifier.tokenizer.encode(text)])[0] for text in texts], np.float32)
    assert (found[0] == expected).all()
    assert (found[1] == expected).all()


@pytest.mark.usefixtures("no_behaviours")
def test_a_file_that_the_bundle_was_trained_on_is_marked_and_said(
    bundle: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    base = {"files": [{"file": "up.tsv", "sha256": sha256(dataset.path)}]}
    manifest["provenance"]["training"] = {"files": [], "base_training": base}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    other = Dataset("made/other", write_tsv(bundle.parent / "other.tsv", sentences(20, seed=4)))

    found = evaluate(bundle, [dataset, other], threads=2)

    assert [one.also_trained_on for one in found.datasets.values()] == [True, False]
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert [f"{dataset.path}: tiny/1 was trained on this file; figures on it flatter" in line for line in warnings] == [True]
    assert "made/up (also trained on)" in as_text(found)
    assert "made/up (also trained on)" in as_page(found)
    assert "made/up (also trained on) | 100 |" in (card := write_card(bundle, Record(evaluations=(found,))).read_text(encoding="utf-8"))
    assert re.search(r"lowest accuracy of a data set is 0\.\d{4}, on made/other: ", card)
    alone = found.model_copy(update={"datasets": {"made/up": found.datasets["made/up"]}})
    card = write_card(bundle, Record(evaluations=(alone,))).read_text(encoding="utf-8")
    assert "how well it answers new texts was not measured" in card
    assert "lowest accuracy" not in card


def test_a_damaged_bundle_is_refused(bundle: Path, dataset: Dataset) -> None:
    (bundle / "tokenizer.json").write_text("{}")

    with pytest.raises(BadBundle, match=r"tokenizer\.json: has 2 bytes; the manifest says"):
        evaluate(bundle, [dataset])


def test_two_files_of_one_name_are_refused(exported: tuple[Path, Exported], dataset: Dataset) -> None:
    with pytest.raises(BadData, match="two files have the name made/up"):
        evaluate(exported[0], [dataset, dataset])


def test_a_data_sets_name_is_given_or_that_of_folder_and_file() -> None:
    assert Dataset.parse("/data/sst2/dev.tsv.gz") == Dataset("sst2/dev", Path("/data/sst2/dev.tsv.gz"))
    assert Dataset.parse("imdb=/data/x.tsv") == Dataset("imdb", Path("/data/x.tsv"))


def test_recorded_figures_stand_in_the_manifest_and_the_bundle_still_loads(bundle: Path, evaluation: Evaluation) -> None:
    before = load_bundle(bundle)

    record(bundle, evaluation)

    after = load_bundle(bundle)
    assert after.digest != before.digest
    assert after.manifest.accuracy.keys() == {"dev", "made/up"}
    assert after.manifest.accuracy["made/up"].rows == 100
    assert after.manifest.files == before.manifest.files
    assert {path.name for path in bundle.iterdir()} == {path.name for path in before.path.iterdir()}


@pytest.mark.usefixtures("no_behaviours")
def test_another_graph_is_measured_when_asked_for_and_its_figures_are_not_recorded(bundle: Path, dataset: Dataset) -> None:
    found = evaluate(bundle, [dataset], "fp32")

    assert found.graph.file == "fp32.onnx"
    with pytest.raises(ModelsError, match=r"measured on fp32\.onnx; the manifest records only figures of the served graph, int8\.onnx"):
        record(bundle, found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": 9.0}, "the evaluation has temperature 9"),
        ({"truncation": "windows"}, "measured with truncation windows; the manifest records only figures of its default truncation, head"),
    ],
)
def test_figures_of_another_bundle_or_truncation_are_not_recorded(
    bundle: Path, evaluation: Evaluation, changes: dict[str, object], said: str
) -> None:
    before = load_bundle(bundle).digest

    with pytest.raises(ModelsError, match=said):
        record(bundle, evaluation.model_copy(update=changes))

    assert load_bundle(bundle).digest == before


def test_an_evaluation_is_read_from_its_file_and_one_of_an_earlier_version_is_refused(tmp_path: Path, evaluation: Evaluation) -> None:
    file = tmp_path / "e.json"
    file.write_text(evaluation.model_dump_json())
    assert stored(file, Evaluation, "evaluate --json") == evaluation

    old = json.loads(file.read_bytes())
    del old["datasets"]["made/up"]["classes"]
    file.write_text(json.dumps(old))

    where = r"e\.json: not written by evaluate --json of this version: datasets\.made/up\.classes: Field required; run the command again"
    with pytest.raises(ModelsError, match=where):
        stored(file, Evaluation, "evaluate --json")


@pytest.mark.usefixtures("no_behaviours")
def test_the_command_writes_json_and_a_page(
    exported: tuple[Path, Exported], dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.tsv").write_text("fr\tle film\nen\tthe film\n", encoding="utf-8")
    json_file, page = tmp_path / "e.json", tmp_path / "e.html"
    options = ["--undecided", str(tmp_path / "u.tsv"), "--truncation", "windows", "--threads", "1"]

    assert main(["evaluate", str(exported[0]), f"up={dataset.path}", "--json", str(json_file), "--html", str(page), *options]) == 0

    written = stored(json_file, Evaluation, "evaluate --json")
    assert (written.truncation, written.undecided["fr"].rows, list(written.datasets)) == ("windows", 1, ["up"])
    assert "<h2>Texts without an answer</h2>" in page.read_text(encoding="utf-8")
    assert "English without sentiment" in capsys.readouterr().out


def test_a_bundle_of_another_task_is_not_measured(exported: tuple[Path, Exported], dataset: Dataset, tmp_path: Path) -> None:
    bundle = tampered.copy(exported[0], tmp_path)
    tampered.change_json(bundle, "config.json", lambda config: config.update(problem_type="multi_label_classification"))

    for measure in (lambda: evaluate(bundle, [dataset]), lambda: compare(bundle, bundle, [dataset]), lambda: Subject(bundle)):
        with pytest.raises(BadCheckpoint, match=r"config\.json: problem_type is multi_label_classification"):
            measure()
