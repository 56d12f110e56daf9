"""Two bundles on the same texts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sentiment.model.classifier import load_classifier
from sentiment_models.cli import main
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.compare import Comparison, as_page, as_text, compare, in_words
from sentiment_models.evaluation.evaluate import Dataset
from sentiment_models.evaluation.metrics import figures_of, probabilities
from sentiment_models.evaluation.resample import mcnemar
from sentiment_models.export.export import Exported, export
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of another random model."""
    folder = tmp_path_factory.mktemp("other")
    export(save_tiny_bert(folder / "checkpoint", seed=2), folder / "other" / "2", name="other", version=2)
    return folder / "other" / "2"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Two files of labelled sentences."""
    folder = tmp_path_factory.mktemp("made")
    return [Dataset(name, write_tsv(folder / f"{name}.tsv", sentences(60, seed=seed))) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def comparison(exported: tuple[Path, Exported], other: Path, datasets: list[Dataset]) -> Comparison:
    """The first against the other on both."""
    return compare(exported[0], other, datasets, threads=1)


def labels_of(bundle: Path, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Answers one by one, and the right labels, as indices."""
    classifier = load_classifier(bundle)
    lines = [line.split("\t") for line in dataset.path.read_text().splitlines()]
    return (
        np.array([np.argmax(classifier.run([classifier.tokenizer.encode(text)])[0]) for _, text in lines]),
        np.array([int(label) for label, _ in lines]),
    )


def test_flips_are_those_of_the_answers_one_by_one(
    exported: tuple[Path, Exported], other: Path, datasets: list[Dataset], comparison: Comparison
) -> None:
    first, right = labels_of(exported[0], datasets[0])
    second, _ = labels_of(other, datasets[0])

    found = comparison.datasets["one"]

    assert found.accuracy == (pytest.approx((first == right).mean(), abs=1e-5), pytest.approx((second == right).mean(), abs=1e-5))
    assert (found.lost, found.gained) == (
        int(((first == right) & (second != right)).sum()),
        int(((first != right) & (second == right)).sum()),
    )
    assert found.changed == (first != second).sum() > 0
    assert found.p_value == mcnemar(found.lost, found.gained)
    difference = found.accuracy[1] - found.accuracy[0]
    assert found.interval[0] <= difference <= found.interval[1]


def test_examples_are_texts_that_flip(datasets: list[Dataset], comparison: Comparison) -> None:
    found = comparison.datasets["one"]
    texts = {line.split("\t")[1] for line in datasets[0].path.read_text().splitlines()}

    assert found.lost_examples or found.gained_examples
    for flips, side in ((found.lost_examples, 0), (found.gained_examples, 1)):
        assert len(flips) <= 12
        for flip in flips:
            assert flip.text in texts
            assert flip.answers[side] == flip.right != flip.answers[1 - side]
        assert [flip.scores[1] for flip in flips] == sorted((flip.scores[1] for flip in flips), reverse=True)


def test_several_files_are_pooled(comparison: Comparison) -> None:
    one, two, whole = (comparison.datasets[name] for name in ("one", "two", "all files"))

    assert whole.rows == one.rows + two.rows == 120
    assert (whole.lost, whole.gained) == (one.lost + two.lost, one.gained + two.gained)
    assert whole.accuracy[1] - whole.accuracy[0] == pytest.approx((whole.gained - whole.lost) / 120, abs=2e-5)


def test_a_bundle_is_called_better_only_where_mcnemars_test_says_so(comparison: Comparison) -> None:
    one = comparison.datasets["one"]
    cases = ((0.049, 1, 9, "B"), (0.049, 9, 1, "A"), (0.05, 1, 9, "not shown"), (1.0, 0, 0, "not shown"))

    for p_value, lost, gained, verdict in cases:
        assert one.model_copy(update={"p_value": p_value, "lost": lost, "gained": gained}).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "advice"),
    [
        (("B", "B"), "Take B"),
        (("B", "not shown"), "Take B"),
        (("not shown", "A"), "Keep A"),
        (("A", "B"), "Each is better somewhere"),
        (("not shown", "not shown"), "Neither is shown to be better"),
    ],
)
def test_the_comparison_begins_with_what_to_do(comparison: Comparison, verdicts: tuple[str, str], advice: str) -> None:
    counts = {"A": {"p_value": 0.01, "lost": 9, "gained": 1}, "B": {"p_value": 0.01, "lost": 1, "gained": 9}, "not shown": {"p_value": 1.0}}
    one = comparison.datasets["one"]
    found = {name: one.model_copy(update=counts[verdict]) for name, verdict in zip(("one", "two"), verdicts, strict=True)}

    first, *sentences, cost = in_words(comparison.model_copy(update={"datasets": found}))

    assert first.startswith(advice)
    assert [sentence.split(";")[0] for sentence in sentences] == [
        f"{name}: {'no difference is shown' if verdict == 'not shown' else f'{verdict} is better'}"
        for name, verdict in zip(found, verdicts, strict=True)
    ]
    assert f"of 60 texts A answers {100 * one.accuracy[0]:.1f} % correctly and B {100 * one.accuracy[1]:.1f} %" in sentences[0]
    assert cost.startswith("A text costs B ")


def test_the_probabilities_that_each_bundle_states_are_held_against_the_truth(
    exported: tuple[Path, Exported], datasets: list[Dataset], comparison: Comparison
) -> None:
    classifier = load_classifier(exported[0])
    lines = [line.split("\t") for line in datasets[0].path.read_text().splitlines()]
    logits = np.concatenate([classifier.run([classifier.tokenizer.encode(text)]) for _, text in lines])
    stated = probabilities(logits, classifier.manifest.calibration.temperature)

    found = comparison.datasets["one"]

    assert found.ece[0] == pytest.approx(figures_of(stated, np.array([int(label) for label, _ in lines])).ece, abs=1e-3)
    assert found.expected_accuracy[0] == pytest.approx(stated.max(axis=1).mean(), abs=1e-3)
    assert all(shown in as_text(comparison) for shown in ("expected accuracy A", "ECE B"))


def test_a_bundle_does_not_differ_from_itself(exported: tuple[Path, Exported], datasets: list[Dataset]) -> None:
    found = compare(exported[0], exported[0], datasets[:1], threads=1)

    same = found.datasets["one"]
    assert (same.lost, same.gained, same.changed, same.p_value) == (0, 0, 0, 1.0)
    assert same.interval == pytest.approx((-3 / same.rows, 3 / same.rows), abs=1e-5)
    assert found.datasets.keys() == {"one"}


def test_other_labels_and_files_of_one_name_are_refused(exported: tuple[Path, Exported], datasets: list[Dataset], tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(exported[0], tmp_path / "1"))
    renamed = (bundle / "manifest.json").read_text().replace('"positive"', '"good"')
    (bundle / "manifest.json").write_text(renamed)

    with pytest.raises(ModelsError, match=r"has labels negative, good; .* has negative, positive; compare needs equal labels"):
        compare(exported[0], bundle, datasets)
    with pytest.raises(BadData, match="two files have the name one"):
        compare(exported[0], exported[0], [datasets[0], datasets[0]])


def test_the_comparison_is_shown_on_a_terminal_and_as_a_page(comparison: Comparison) -> None:
    text, html = as_text(comparison), as_page(comparison)

    assert "A is tiny/1 (int8), B is other/2 (int8); 1 threads." in text
    assert all(sentence in text and sentence in html for sentence in in_words(comparison))
    assert all(shown in html for shown in ("McNemar", "one: ", "two: ", "bundle, MB"))
    assert "<script" not in html


def test_the_command_writes_json_and_a_page(
    exported: tuple[Path, Exported], other: Path, datasets: list[Dataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", str(exported[0]), str(other), f"mine={datasets[0].path}", "--threads", "1"]

    assert main([*argv, "--json", str(tmp_path / "c.json"), "--html", str(tmp_path / "c.html")]) == 0

    written = Comparison.model_validate_json((tmp_path / "c.json").read_bytes())
    assert written.datasets.keys() == {"mine"}
    assert json.loads((tmp_path / "c.json").read_bytes())["second"]["bundle"] == "other/2"
    assert "<h2>Cost</h2>" in (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "McNemar" not in capsys.readouterr().out


def test_graphs_of_one_bundle_can_be_compared_and_the_size_of_one_counts_its_weights(
    exported: tuple[Path, Exported], datasets: list[Dataset]
) -> None:
    found = compare(exported[0], exported[0], datasets[:1], ("fp32", "int8"), threads=1)

    assert (found.first.graph.file, found.second.graph.file) == ("fp32.onnx", "int8.onnx")
    files = {path.name: path.stat().st_size for path in exported[0].iterdir()}
    assert found.first.graph.bytes == files["fp32.onnx"] + files["model.safetensors"]
    assert found.second.graph.bytes == files["int8.onnx"] + files["model.safetensors"]
