"""Evaluating a bundle of three labels with an output for mixed texts and targets, beside one of two labels."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.parts import read_parts
from sentiment_models.cli import main
from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import read_examples
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.compare import Flip, compare
from sentiment_models.evaluation.compare import as_text as compared
from sentiment_models.evaluation.evaluate import Dataset, evaluate, record
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.export.export import Exported
from sentiment_models.reports.card import write_card
from sentiment_models.reports.evaluation_page import as_page, as_text
from sentiment_models.reports.record import Record
from tests.models.tiny_bert import sentences

THREE = ("negative", "positive", "neutral")


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Texts of two labels, of three, of one sign and mixed, and with targets."""
    folder = tmp_path_factory.mktemp("files")
    made = [text for _, text in sentences(90, seed=9)]
    rows = {
        "films/two": [{"label": THREE[place % 2], "text": text} for place, text in enumerate(made[:40])],
        "films/three": [{"label": THREE[place % 3], "text": text} for place, text in enumerate(made)],
        "mixed": [{"label": (*THREE, "mixed")[place % 4], "text": text} for place, text in enumerate(made[:80])],
        "targets": [{"label": THREE[place % 3], "text": text, "text_pair": text.split()[-1]} for place, text in enumerate(made[:30])]
        + [{"label": "neutral", "text": "the film was good", "text_pair": "story"}],
    }
    return {name: Dataset(name, written(folder / f"{name.replace('/', '_')}.jsonl", some)) for name, some in rows.items()}


@pytest.fixture(scope="module")
def evaluation(
    beside: tuple[Path, Exported], exported: tuple[Path, Exported], files: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    undecided = tmp_path_factory.mktemp("undecided") / "u.tsv"
    undecided.write_text("".join(f"{kind}\t{text}\n" for kind in ("en", "fr") for _, text in sentences(30, seed=4)))
    return evaluate(beside[0], list(files.values()), threads=2, undecided=undecided, before=exported[0])


@pytest.fixture
def bundle(beside: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(beside[0], tmp_path / "three" / "1"))


def scores(bundle: Path, dataset: Dataset) -> tuple[list[str], np.ndarray, list[bool]]:
    """The right labels, and what is answered to each text alone."""
    classifier = load_classifier(bundle)
    rows = [json.loads(line) for line in dataset.path.read_text().splitlines()]
    found = [classifier.score(classifier.run([classifier.tokenizer.encode(row["text"])])[0]) for row in rows]
    return [row["label"] for row in rows], np.array([one.scores for one in found]), [one.mixed for one in found]


def test_a_set_of_two_labels_counts_by_the_larger_of_these_and_beside_it_among_all(
    beside: tuple[Path, Exported], files: dict[str, Dataset], evaluation: Evaluation
) -> None:
    labels, stated, _ = scores(beside[0], files["films/two"])
    right = np.array([THREE.index(label) for label in labels])

    found = evaluation.datasets["films/two"]

    assert found.accuracy == pytest.approx((stated[:, :2].argmax(axis=1) == right).mean(), abs=1e-5)
    assert found.all_labels
    assert found.all_labels.accuracy == pytest.approx((stated.argmax(axis=1) == right).mean(), abs=1e-5)
    assert found.accuracy > found.all_labels.accuracy
    assert np.trace(np.array(found.confusion)) / 40 == pytest.approx(found.all_labels.accuracy)
    assert evaluation.datasets["films/three"].all_labels is None


def test_macro_recall_is_the_mean_over_the_labels_that_texts_have(evaluation: Evaluation) -> None:
    found = evaluation.datasets["films/three"]

    assert found.macro_recall == pytest.approx(np.mean([one.recall for one in found.classes.values()]), abs=1e-4)


def test_mixed_texts_count_for_that_output_only_and_false_alarms_are_of_one_sign(
    beside: tuple[Path, Exported], files: dict[str, Dataset], evaluation: Evaluation
) -> None:
    labels, _, mixed = scores(beside[0], files["mixed"])

    found = evaluation.datasets["mixed"]

    assert found.rows == 60
    assert found.mixed
    assert (found.mixed.texts, found.mixed.one_sign) == (20, 40)
    assert found.mixed.found == sum(one for one, label in zip(mixed, labels, strict=True) if label == "mixed")
    assert found.mixed.alarms == sum(one for one, label in zip(mixed, labels, strict=True) if label in THREE[:2])
    assert found.mixed.found_interval[0] <= found.mixed.found / 20 <= found.mixed.found_interval[1]


def test_targets_are_read_as_the_service_reads_them_and_one_that_is_not_named_is_neutral(
    beside: tuple[Path, Exported], files: dict[str, Dataset], evaluation: Evaluation
) -> None:
    classifier = load_classifier(beside[0])
    assert classifier.manifest.targets
    right = 0
    for line in files["targets"].path.read_text().splitlines():
        row = json.loads(line)
        whole = classifier.tokenizer.encode(row["text"])
        read = read_parts(classifier.tokenizer, row["text"], whole, 0, (row["text_pair"],), classifier.manifest.targets.tokens)
        logits = classifier.run(read.rows)
        _, parts = classifier.answer(read, logits)
        assert parts
        right += parts.targets[0][1].label == row["label"]

    found = evaluation.datasets["targets"]

    assert found.accuracy == pytest.approx(right / 31, abs=1e-5)
    assert found.robustness == {}
    assert found.baselines.keys() == {"commonest label"}


def test_the_bundle_before_answers_the_same_texts_and_neutral_where_it_abstains(
    exported: tuple[Path, Exported], files: dict[str, Dataset], evaluation: Evaluation
) -> None:
    labels, stated, _ = scores(exported[0], files["films/three"])
    below = load_classifier(exported[0]).manifest.calibration.abstain_below
    answers = np.where(stated.max(axis=1) < below, 2, stated.argmax(axis=1))

    found = evaluation.datasets["films/three"].baselines

    assert found["tiny/1"].accuracy == pytest.approx(
        np.mean([THREE[answer] == label for answer, label in zip(answers, labels, strict=True)]), abs=1e-5
    )
    assert found["commonest label"].accuracy == pytest.approx(1 / 3, abs=1e-5)


def test_sets_whose_names_begin_alike_are_one_pool(evaluation: Evaluation) -> None:
    assert {name: (one.sets, one.rows) for name, one in evaluation.pools.items()} == {
        "films": (2, 130),
        "mixed": (1, 60),
        "targets": (1, 31),
    }


def test_texts_without_a_label_are_left_open_by_neutral_too_but_not_in_other_languages(evaluation: Evaluation) -> None:
    english, french = evaluation.undecided["en"], evaluation.undecided["fr"]
    assert (english.caught, english.neutral) == (french.caught, french.neutral)
    assert english.neutral > 0

    table = as_text(evaluation)

    lines = {line[:25].strip(): line.split() for line in table[table.index("Texts without an answer") :].splitlines()}
    assert [int(one) for one in lines["English without sentiment"][3:7]] == [
        30,
        english.caught,
        english.neutral,
        english.caught + english.neutral,
    ]
    assert [int(one) for one in lines["other languages"][2:6]] == [30, french.caught, french.neutral, french.caught]


def test_every_table_is_shown_and_the_card_has_the_other_answers(evaluation: Evaluation, bundle: Path) -> None:
    text, page = as_text(evaluation), as_page(evaluation)

    for title in ("Among all labels", "Beside other answers", "Confusion", "Mixed texts", "Calibration of pools"):
        assert title in text
        assert title in page
    assert "fewer than 2,000 texts" in text
    card = write_card(bundle, Record(evaluations=(evaluation,))).read_text(encoding="utf-8")
    assert "| data set | texts | commonest label | tiny/1 | accuracy |" in card
    assert "`mixed` says that a text praises and blames" in card
    assert "it reads at most 32 tokens around it" in card


def test_the_manifest_gets_the_accuracy_among_the_labels_of_each_set(bundle: Path, evaluation: Evaluation) -> None:
    record(bundle, evaluation)

    recorded = load_bundle(bundle).manifest.accuracy
    assert recorded["films/two"].accuracy == evaluation.datasets["films/two"].accuracy
    assert {name: recorded[name].labels for name in ("films/two", "films/three")} == {"films/two": THREE[:2], "films/three": ()}


def test_two_bundles_are_compared_if_one_has_all_labels_of_the_other(
    beside: tuple[Path, Exported], exported: tuple[Path, Exported], files: dict[str, Dataset], evaluation: Evaluation
) -> None:
    found = compare(exported[0], beside[0], [files["films/two"], files["films/three"]], threads=1)

    for name in ("films/two", "films/three"):
        assert found.datasets[name].accuracy == (evaluation.datasets[name].baselines["tiny/1"].accuracy, evaluation.datasets[name].accuracy)


def test_no_probability_is_stated_for_neutral_by_abstaining(
    beside: tuple[Path, Exported], exported: tuple[Path, Exported], files: dict[str, Dataset]
) -> None:
    found = compare(exported[0], beside[0], [files["films/two"], files["films/three"]], threads=1)

    two, three, pooled = (found.datasets[name] for name in ("films/two", "films/three", "all files"))
    assert None not in two.ece + two.expected_accuracy
    for one in (three, pooled):
        assert [side is None for side in one.ece] == [side is None for side in one.expected_accuracy] == [True, False]

    flip = Flip(text="so so", right="neutral", answers=("neutral", "negative"), scores=(None, 0.9))
    shown = compared(found.model_copy(update={"datasets": {"one": three.model_copy(update={"gained": 1, "gained_examples": (flip,)})}}))
    assert shown.rsplit("\n", 1)[-1].split() == ["so", "so", "neutral", "neutral", "negative", "0.90"]
    assert "None" not in shown


def test_a_bundle_before_with_a_further_label_is_refused(
    beside: tuple[Path, Exported], exported: tuple[Path, Exported], files: dict[str, Dataset]
) -> None:
    with pytest.raises(ModelsError, match="has the label neutral, which tiny/1 lacks"):
        evaluate(exported[0], [files["films/two"]], before=beside[0])


def test_a_file_of_mixed_texts_alone_says_what_it_lacks(beside: tuple[Path, Exported], tmp_path: Path) -> None:
    file = written(tmp_path / "only.jsonl", [{"label": "mixed", "text": "good but dull"}])

    with pytest.raises(BadData, match="all texts are labelled mixed; add texts of one sign"):
        evaluate(beside[0], [Dataset("only", file)])


def test_a_reference_counts_whole_texts_of_files_with_targets_and_mixed_texts(
    bundle: Path, files: dict[str, Dataset], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(files[name].path) for name in ("films/three", "mixed", "targets")]

    assert main(["reference", str(bundle), *paths, "--dev", "0.5", "--name", "films", "--record"]) == 0

    reference = load_bundle(bundle).manifest.references["films"]
    assert reference.label.keys() == set(THREE)
    held_out = carve([([one for path in paths for one in read_examples(Path(path), (*THREE, "mixed"))], 1)], 0.5, 1).dev
    assert reference.texts == sum(example.text_pair is None for example in held_out) == 46
    assert f"{reference.texts} texts" in capsys.readouterr().out
