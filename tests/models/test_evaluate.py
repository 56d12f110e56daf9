"""Measuring a bundle through the service's modules, recording the figures, writing the card."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.tokenizer import Row
from sentiment_models.card import write_card
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluate import Dataset, evaluate, record
from sentiment_models.evaluation import Evaluation, read_evaluation
from sentiment_models.export import Exported
from sentiment_models.golden import MEANT
from sentiment_models.inference import Graph, answer, by_length
from tests.models.tiny_bert import sentences, write_tsv


@pytest.fixture
def bundle(exported: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(exported[0], tmp_path / "tiny" / "1"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """100 labelled sentences, one of them longer than the model reads."""
    rows = [*sentences(99, seed=8), (1, "very " * 100 + "good")]
    return Dataset("made/up", write_tsv(tmp_path_factory.mktemp("made") / "up.tsv", rows))


@pytest.fixture(scope="module")
def evaluation(exported: tuple[Path, Exported], dataset: Dataset) -> Evaluation:
    """The served graph's figures on it."""
    return evaluate(exported[0], [dataset], threads=2)


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


@pytest.mark.parametrize("threads", [1, 3])
def test_answers_come_in_the_order_of_the_texts_and_do_not_depend_on_threads(exported: tuple[Path, Exported], threads: int) -> None:
    classifier = load_classifier(exported[0])
    texts = [text for _, text in sentences(70, seed=11)]

    found = answer(Graph(classifier.tokenizer, classifier.session), texts, threads=threads).logits

    wanted = [classifier.run([classifier.tokenizer.encode(text)])[0] for text in texts]
    assert (found == np.array(wanted, np.float32)).all()


@pytest.mark.parametrize("seed", range(3))
def test_batches_by_length_hold_every_row_once_within_the_limits(seed: int) -> None:
    rng = random.Random(seed)
    rows = [Row([0] * rng.randint(2, 512), None, False) for _ in range(500)]

    groups = list(by_length(rows))

    assert sorted(index for group in groups for index in group) == list(range(500))
    assert all(len(group) <= 16 and len(group) * max(rows[index].tokens for index in group) <= 2048 for group in groups)
    assert max(groups[0], key=lambda index: rows[index].tokens) == max(range(500), key=lambda index: rows[index].tokens)


def test_another_graph_is_measured_when_asked_for(exported: tuple[Path, Exported], dataset: Dataset) -> None:
    assert evaluate(exported[0], [dataset], "fp32").graph.file == "fp32.onnx"


def test_a_damaged_bundle_is_refused(bundle: Path, dataset: Dataset) -> None:
    (bundle / "tokenizer.json").write_text("{}")

    with pytest.raises(BadBundle, match=r"tokenizer\.json: has 2 bytes; the manifest says"):
        evaluate(bundle, [dataset])


def test_two_files_of_one_name_are_refused(exported: tuple[Path, Exported], dataset: Dataset) -> None:
    with pytest.raises(BadData, match="two files are called made/up"):
        evaluate(exported[0], [dataset, dataset])


def test_a_data_set_is_called_by_its_folder_and_file_or_as_told() -> None:
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


def test_figures_of_a_graph_that_is_not_served_are_not_recorded(bundle: Path, dataset: Dataset) -> None:
    with pytest.raises(ModelsError, match=r"the figures are of fp32\.onnx; the manifest records those of the served graph, int8\.onnx"):
        record(bundle, evaluate(bundle, [dataset], "fp32"))


def test_figures_of_another_bundle_are_not_recorded(bundle: Path, evaluation: Evaluation) -> None:
    before = load_bundle(bundle).digest

    with pytest.raises(ModelsError, match="the evaluation has temperature 9"):
        record(bundle, evaluation.model_copy(update={"temperature": 9.0}))

    assert load_bundle(bundle).digest == before


def test_an_evaluation_survives_its_file(tmp_path: Path, evaluation: Evaluation) -> None:
    (tmp_path / "e.json").write_text(evaluation.model_dump_json())

    assert read_evaluation(tmp_path / "e.json") == evaluation


def test_a_file_that_is_no_evaluation_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text('{"bundle": "tiny/1"}')

    with pytest.raises(ModelsError, match=r"e\.json: not an evaluation: graph: Field required"):
        read_evaluation(tmp_path / "e.json")


def test_the_card_holds_the_measured_figures_and_the_bundle_stays_valid(bundle: Path, evaluation: Evaluation) -> None:
    digest = load_bundle(bundle).digest

    text = write_card(bundle, [evaluation]).read_text(encoding="utf-8")

    found = evaluation.datasets["made/up"]
    assert f"| int8 | made/up | 100 | {found.accuracy:.4f} | {found.macro_f1:.4f} | {found.ece:.4f} |" in text
    assert "1.0% of the texts of made/up are longer than 64 tokens" in text
    assert "The checkpoint came without a record of its training." in text
    assert digest == load_bundle(bundle).digest
    assert digest in text
    assert load_bundle(bundle).card == text


def test_the_card_names_what_the_model_was_trained_on(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    file = {"file": "sst2/train.tsv.gz", "rows": 58404, "times": 3, "sha256": "ab" * 32}
    tails = {"file": "imdb/train.tsv.gz", "rows": 22422, "times": 1, "tails": True, "sha256": "cd" * 32}
    first = {"files": [tails], "steps": 10, "recipe": {"base": "minilm", "seed": 2}}
    manifest["provenance"]["training"] = {"files": [file], "steps": 4314, "recipe": {"base": "best", "seed": 1}, "base_training": first}
    (bundle / "manifest.json").write_text(json.dumps(manifest))

    text = write_card(bundle, []).read_text(encoding="utf-8")

    assert "| sst2/train.tsv.gz | 58,404 | 3 | `abababababababab` |" in text
    assert "none of the sources states one; all are research releases" in text
    assert "4,314 steps" in text
    assert (
        text.index("Stage 1 of 2") < text.index("imdb/train.tsv.gz, last sentences") < text.index("Stage 2 of 2") < text.index("sst2/train")
    )
    assert "Not evaluated." in text


def test_the_card_owns_up_to_golden_texts_that_are_answered_wrongly(bundle: Path) -> None:
    manifest = load_bundle(bundle).manifest
    wrong = [golden for golden in manifest.golden if golden.label != MEANT[golden.text]]
    assert 0 < len(wrong) < len(manifest.golden)

    text = write_card(bundle, []).read_text(encoding="utf-8")

    line = next(line for line in text.splitlines() if "golden texts, written by hand" in line)
    assert f"answers {len(wrong)} wrongly" in line
    assert all((golden.text[:30] in line) == (golden in wrong) for golden in manifest.golden)


def test_the_card_refuses_figures_of_another_bundle(bundle: Path, evaluation: Evaluation) -> None:
    other = evaluation.model_copy(update={"graph": evaluation.graph.model_copy(update={"sha256": "0" * 64})})

    with pytest.raises(ModelsError, match=r"the evaluation is of a int8\.onnx with SHA-256 000000000000; the bundle has one with"):
        write_card(bundle, [other])
    with pytest.raises(ModelsError, match="the evaluation has temperature 9"):
        write_card(bundle, [evaluation.model_copy(update={"temperature": 9.0})])
