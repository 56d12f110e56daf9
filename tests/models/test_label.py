"""Labelling of texts by a teacher."""

import gzip
import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Made, read_examples
from sentiment_models.errors import BadCheckpoint, BadData, ModelsError
from sentiment_models.export.export import Exported
from sentiment_models.training.label import label, sentences_of
from sentiment_models.training.recipe import Recipe
from tests.models.tiny_bert import LABELS, save_tiny_bert, sentences, write_tsv

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("teacher") / "tiny", seed=3)


def test_labels_of_the_file_are_kept_next_to_the_teachers_probabilities(teacher: Path, tmp_path: Path) -> None:
    listed = sentences(100, seed=4)
    source = write_tsv(tmp_path / "texts.tsv", listed)

    assert label(teacher, [str(source)], tmp_path / "soft.jsonl", CPU) == 100

    found = list(read_examples(tmp_path / "soft.jsonl", LABELS))
    assert [(example.label, example.text) for example in found] == listed
    assert all(example.judged and example.target for example in found)
    assert len({example.target for example in found}) > 50
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_a_text_without_a_label_gets_the_teachers_probabilities_alone(teacher: Path, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text('{"text": "good film"}\n{"text": "bad film", "label": "negative"}\n')

    label(teacher, [str(source)], tmp_path / "soft.jsonl", CPU)

    rows = [json.loads(line) for line in (tmp_path / "soft.jsonl").read_text().splitlines()]
    assert [row.get("label") for row in rows] == [None, "negative"]
    assert all(len(row["probabilities"]) == len(LABELS) for row in rows)


def test_what_a_generator_says_of_a_text_is_kept(teacher: Path, tmp_path: Path) -> None:
    rows = [
        {"text": f"film {number}", "label": LABELS[number % 2], "phenomenon": "plain", "held_out": held_out, "pair": number // 2}
        for number, held_out in enumerate((["domain"], ["domain", "words"], [], []))
    ]
    source = tmp_path / "cases.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    label(teacher, [str(source)], tmp_path / "soft.jsonl", CPU)

    before, after = (list(read_examples(path, LABELS)) for path in (source, tmp_path / "soft.jsonl"))
    assert [example.made for example in after] == [example.made for example in before]
    assert after[1].made == Made("plain", "domain, words", "0")


def test_an_answer_does_not_depend_on_the_order_of_the_texts(teacher: Path, tmp_path: Path) -> None:
    listed = [text for _, text in sentences(80, seed=5)]
    for name, texts in (("one", listed), ("two", listed[::-1])):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        label(teacher, [str(tmp_path / f"{name}.txt")], tmp_path / f"{name}.jsonl", CPU)

    one, two = ([json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()] for name in ("one", "two"))

    by_text = {row["text"]: row["probabilities"] for row in two}
    assert all(by_text[row["text"]] == pytest.approx(row["probabilities"], abs=0.02) for row in one)  # bfloat16
    assert all("label" not in row for row in one)


def test_a_bundle_as_teacher_gives_calibrated_probabilities(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    texts = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=6))
    manifest = json.loads((exported[0] / "manifest.json").read_bytes())

    def labelled(temperature: float) -> list[list[float]]:
        bundle, out = tmp_path / str(temperature), tmp_path / f"{temperature}.jsonl"
        shutil.copytree(exported[0], bundle)
        manifest["calibration"]["temperature"] = temperature
        (bundle / "manifest.json").write_text(json.dumps(manifest))
        label(bundle, [str(texts)], out, CPU)
        return [json.loads(line)["probabilities"] for line in out.open()]

    for (one, two), (three, four) in zip(labelled(1.0), labelled(2.0), strict=True):
        assert math.log(one / two) == pytest.approx(2 * math.log(three / four), abs=0.001)  # 5 digits


def test_sentences_are_drawn_from_long_texts_by_the_seed(teacher: Path, tmp_path: Path) -> None:
    reviews = gzip.compress(b"The film was good. Yes! The story was not very good and it was cold.<br /><br />A dull film it was. \n" * 3)
    (tmp_path / "reviews.txt.gz").write_bytes(reviews)

    label(teacher, [str(tmp_path / "reviews.txt.gz")], tmp_path / "soft.jsonl", CPU, sentences=2)

    texts = [json.loads(line)["text"] for line in (tmp_path / "soft.jsonl").open()]
    assert len(set(texts)) == 2
    assert set(texts) <= {"The film was good.", "The story was not very good and it was cold.", "A dull film it was."}
    with pytest.raises(BadData, match="--sentences is 9, but the files have only 3 sentences of 4 to 60 words"):
        label(teacher, [str(tmp_path / "reviews.txt.gz")], tmp_path / "more.jsonl", CPU, sentences=9)
    assert not (tmp_path / "more.jsonl").exists()


def test_too_short_and_too_long_sentences_are_left_out() -> None:
    assert sentences_of("Good. It was a good film! " + "very " * 61 + "good.") == ["It was a good film!"]


def test_a_missing_teacher_is_refused(tmp_path: Path) -> None:
    source = write_tsv(tmp_path / "texts.tsv", sentences(3))

    with pytest.raises(BadCheckpoint, match="nowhere"):
        label(tmp_path / "nowhere", [str(source)], tmp_path / "soft.jsonl", CPU)


def test_the_teacher_reads_pairs_and_writes_pairs(teacher: Path, tmp_path: Path) -> None:
    rows = [{"text": "a film", "text_pair": pair, "label": "positive"} for pair in ("it was good", "it was very very bad")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    label(teacher, [str(tmp_path / "pairs.jsonl")], tmp_path / "soft.jsonl", CPU)

    found = list(read_examples(tmp_path / "soft.jsonl", LABELS))
    assert [example.text_pair for example in found] == ["it was good", "it was very very bad"]
    assert found[0].target != found[1].target


def test_the_record_of_a_run_names_its_teachers(teacher: Path, exported: tuple[Path, Exported], tmp_path: Path) -> None:
    source = write_tsv(tmp_path / "texts.tsv", sentences(40, seed=7))
    for name, model in (("one", teacher), ("two", exported[0])):
        label(model, [str(source)], tmp_path / f"{name}.jsonl", CPU)
    lines = [(tmp_path / f"{name}.jsonl").read_text() for name in ("one", "two")]
    (tmp_path / "both.jsonl").write_text("".join(lines))
    weights = hashlib.sha256((teacher / "model.safetensors").read_bytes()).hexdigest()
    bundle = hashlib.sha256((exported[0] / "manifest.json").read_bytes()).hexdigest()

    files = read_corpus(Recipe("base", (str(tmp_path / "both.jsonl"), str(source)))).files

    assert [file["teachers"] for file in files] == [sorted([f"tiny@{weights[:12]}", f"tiny/1@{bundle[:12]}"]), []]


def test_a_missing_output_folder_is_refused_before_the_work(teacher: Path, tmp_path: Path) -> None:
    source = write_tsv(tmp_path / "texts.tsv", sentences(3))

    with pytest.raises(ModelsError, match="the folder does not exist"):
        label(teacher, [str(source)], tmp_path / "new" / "soft.jsonl", CPU)
