"""A team's own labels, few texts: the head first, what is wrong with the data, and two commands to a bundle."""

import csv
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.data.carving import copies
from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Example, read_examples
from sentiment_models.errors import BadData
from sentiment_models.evaluation.resample import f1_difference_interval
from sentiment_models.export.labels import label_names
from sentiment_models.training import frozen
from sentiment_models.training.recipe import FEW, Recipe, defaults_for
from sentiment_models.training.train import DOUBTFUL_FILE, train
from tests.models import processes
from tests.models.tiny_bert import LABELS, save_tiny_bert, sentences, write_tsv

OWN = ("complaint", "praise")


def clouds(texts: int, seed: int, spread: float = 0.3) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of three labels, the last of which is rare, and the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=texts, p=(0.5, 0.4, 0.1))
    centres = np.eye(3, 8)
    return (centres[labels] + spread * rng.normal(size=(texts, 8))).astype(np.float32), labels


def write_csv(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("label,text\n" + "".join(f"{label},{text}\n" for label, text in rows), encoding="utf-8")
    return path


def test_a_fitted_head_answers_texts_that_it_has_not_seen_and_stays_near_its_start_with_few() -> None:
    features, labels = clouds(300, seed=1)
    others, wanted = clouds(300, seed=2)
    targets = np.eye(3, dtype=np.float32)[labels]

    told = frozen.answers(frozen.fit(features, targets), others)
    start = torch.ones(3, 8), torch.zeros(3)
    near, far = (frozen.fit(features[:count], targets[:count], start)[0] for count in (2, 300))

    assert (told.argmax(1) == wanted).mean() > 0.9
    np.testing.assert_allclose(told.sum(1), 1)
    assert (near - start[0]).norm() < (far - start[0]).norm()


def test_texts_of_a_group_are_in_one_fold_and_each_text_is_answered_once() -> None:
    groups = [str(number // 3) for number in range(60)]

    found = list(frozen.folds(groups, seed=1))

    assert sorted(np.concatenate([held_out for _, held_out in found])) == list(range(60))
    for learned, held_out in found:
        assert {groups[place] for place in learned}.isdisjoint(groups[place] for place in held_out)


def test_the_curve_says_whether_more_texts_would_help() -> None:
    easy, hard = clouds(400, seed=3, spread=0.05), clouds(64, seed=4, spread=0.35)

    (_, enough), (_, few) = (
        frozen.cross_validated(features, labels, 3, list(map(str, range(len(labels)))), seed=1) for features, labels in (easy, hard)
    )

    assert enough.texts == (40, 80, 160, 320)
    assert enough.macro_f1[-1] == 1
    assert enough.said().endswith("that may be chance, so more such texts may bring little")
    assert few.macro_f1[-1] > few.macro_f1[0]
    assert replace(few, gain=(0.01, 0.2)).said().endswith("more texts would help")


def test_labels_that_were_changed_are_doubtful_and_the_surest_come_first() -> None:
    features, labels = clouds(400, seed=5, spread=0.2)
    wrong = np.random.default_rng(1).choice(400, size=30, replace=False)
    given = labels.copy()
    given[wrong] = (given[wrong] + 1) % 3
    told, _ = frozen.cross_validated(features, given, 3, list(map(str, range(400))), seed=1)

    found = frozen.doubtful(told, given)

    assert len(set(found) & set(wrong)) >= 27
    assert len(set(found[:20]) & set(wrong)) >= 19
    own, best = told[found, given[found]], told[found].max(1)
    assert (np.diff(own - best) >= 0).all()


def test_a_label_is_doubtful_only_where_the_other_is_likelier_than_usual() -> None:
    told = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.1, 0.9], [0.05, 0.95]])
    labels = np.array([0, 0, 0, 1, 1, 0])

    assert frozen.doubtful(told, labels).tolist() == [5]


def test_the_interval_of_a_difference_in_macro_f1_holds_it() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 300)
    first, second = (np.where(rng.random(300) < right, labels, (labels + 1) % 3) for right in (0.6, 0.8))

    low, high = f1_difference_interval(first, second, labels, 3)

    assert 0 < low < 0.2 < high < 0.35
    assert f1_difference_interval(first, first, labels, 3) == (0, 0)


@pytest.mark.parametrize(
    ("texts", "epochs", "rows"), [(0, 10, 16), (200, 10, 16), (1000, 5, 16), (5000, 3, 16), (FEW, 3, 16), (FEW + 1, 1, 64)]
)
def test_few_texts_are_shown_more_often_in_smaller_batches(texts: int, epochs: int, rows: int) -> None:
    found = defaults_for(texts)

    assert (found["epochs"], found["batch_rows"], found["learning_rate"]) == (epochs, rows, 5e-5)


@pytest.mark.parametrize(
    ("texts", "width", "rate"), [(200, 384, 2e-4), (1000, 32, 2e-4), (1001, 384, 5e-5), (200, 768, 5e-5), (200, 0, 5e-5)]
)
def test_few_texts_teach_a_new_head_on_a_small_encoder_by_a_higher_rate(texts: int, width: int, rate: float) -> None:
    assert defaults_for(texts, width)["learning_rate"] == rate


def test_copies_are_grouped_by_their_letters_and_count_once_a_line() -> None:
    one, two, three = (
        Example("A film!", 0, where="a: line 1"),
        Example("a  film", 1, where="a: line 2"),
        Example("other", 1, where="a: line 3"),
    )

    assert copies([one, one, two, three, Example("a film", 0)]) == [[one, two]]


def test_copies_and_training_texts_in_files_that_are_kept_apart_are_named_by_line_and_never_by_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sentences(60, seed=1)
    data = write_tsv(tmp_path / "data.tsv", [*rows, (1 - rows[0][0], f"{rows[0][1].upper()} !"), rows[1], rows[2]])
    dev = write_tsv(tmp_path / "dev.tsv", [*rows[10:14], *sentences(30, seed=2)])
    test = write_tsv(tmp_path / "test.tsv", [*rows[20:22], rows[10]])

    corpus = read_corpus(Recipe("base", (str(data),), labels=LABELS, dev=(str(dev),), test=(str(test),)))

    said = capsys.readouterr().err
    assert "copies but for case, spacing or punctuation, none of them on the other side of the split: 3 (" in said
    assert f"copies with another label, to be corrected or deleted: 1 ({data}: line 1 and {data}: line 61)" in said
    assert "left out as copies, parts or wholes of texts of --dev or --test: " in said
    assert "left out as copies, parts or wholes of texts of --test: " in said
    assert f"{data}: line 11" in said
    assert f"({dev}: line 1)" in said
    assert not any(text in said for _, text in rows if len(text.split()) > 2)
    trained, kept = ({example.text for example in examples} for examples in (corpus.split.train, corpus.split.dev))
    assert rows[11][1] in kept
    assert trained.isdisjoint(text for _, text in (*rows[10:14], *rows[20:22]))
    assert rows[10][1] not in kept
    assert [(file["file"], file["use"]) for file in corpus.apart] == [("dev.tsv", "dev"), ("test.tsv", "test")]
    assert [file["file"] for file in corpus.files] == ["data.tsv"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[int]]:
    """A tiny bundle, texts with labels that it has not, nine to one, and the lines whose labels are wrong."""
    folder = tmp_path_factory.mktemp("own")
    assert main(["export", str(save_tiny_bert(folder / "base")), "--out", str(folder / "tiny" / "1")]) == 0
    texts = list(dict.fromkeys(sentences(400, seed=9, words_max=6)))
    rare = [(OWN[1], text) for label, text in texts if label][:30]
    rows = [(OWN[0], text) for label, text in texts if not label] + rare
    wrong = [3, 50, 90]
    rows = [(OWN[1] if place in wrong else label, text) for place, (label, text) in enumerate(rows)]
    return folder / "tiny" / "1", write_csv(folder / "own.csv", rows), [place + 2 for place in wrong]


@pytest.fixture(scope="module")
def run(own: tuple[Path, Path, list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the first of two commands."""
    base, data, _ = own
    out = tmp_path_factory.mktemp("run") / "own"
    command = ["train", "--base", str(base), "--new-head", "--data", str(data), "--max-tokens", "32", "--learning-rate", "1e-3"]
    assert main([*command, "--output", str(out)]) == 0
    return out


def test_two_commands_make_a_bundle_for_the_labels_of_the_data(
    own: tuple[Path, Path, list[int]], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run / "best"), "--dev", str(run / "dev.jsonl"), "--output", str(tmp_path / "own" / "1")]) == 0

    assert load_bundle(tmp_path / "own" / "1").manifest.labels == OWN
    assert main(["compare", str(tmp_path / "own" / "1"), str(tmp_path / "own" / "1"), str(run / "dev.jsonl")]) == 0


def test_a_fresh_head_is_fitted_before_the_encoder_learns_and_the_best_macro_f1_is_kept(run: Path) -> None:
    record = json.loads((run / "best" / "training.json").read_bytes())

    looks = record["history"]
    assert [look["epoch"] for look in looks] == list(range(len(looks)))
    assert looks[0]["step"] == 0 and looks[0]["train_accuracy"] > 0.5
    assert record["dev_macro_f1"] == max(look["dev_macro_f1"] for look in looks)
    assert record["dev_accuracy"] in {look["dev_accuracy"] for look in looks if look["dev_macro_f1"] == record["dev_macro_f1"]}
    assert record["recipe"]["batch_rows"] == 16 and record["recipe"]["epochs"] == 10
    assert record["frozen"]["texts"] == record["train_examples"] + record["dev_examples"]


def test_the_doubtful_labels_are_a_table_with_lines_texts_and_the_likelier_label(run: Path, own: tuple[Path, Path, list[int]]) -> None:
    with (run / DOUBTFUL_FILE).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))

    texts = {f"{own[1]}: line {number}": text for number, text in enumerate(own[1].read_text().splitlines(), 1)}
    assert rows
    for row in rows:
        assert texts[row["where"]] == f"{row['label']},{row['text']}"
        assert row["likelier"] in OWN and row["likelier"] != row["label"]
        assert float(row["of_likelier"]) > float(row["probability"])


def test_a_killed_run_with_a_fresh_head_ends_like_an_uninterrupted_one(own: tuple[Path, Path, list[int]], tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{OWN[label]}\t{text}\n" for label, text in sentences(90, seed=3)))
    recipe = Recipe(str(own[0]), (str(data),), labels=OWN, new_head=True, batch_rows=8, max_tokens=32, class_weights=True, ema=0.5)

    assert processes.run(processes.killed_in_step_5, ("train", recipe, tmp_path / "killed", torch.get_num_threads())) == [-signal.SIGKILL]
    found, wanted = (train(recipe, tmp_path / name, checkpoint_steps=2) for name in ("killed", "whole"))

    for name in ("model.safetensors", "training.json"):
        assert (found / name).read_bytes() == (wanted / name).read_bytes()
    assert (found.parent / DOUBTFUL_FILE).read_bytes() == (wanted.parent / DOUBTFUL_FILE).read_bytes()


def test_class_weights_let_a_rare_label_be_found_more_often(own: tuple[Path, Path, list[int]], tmp_path: Path) -> None:
    recipe = Recipe(str(own[0]), (str(own[1]),), labels=OWN, new_head=True, learning_rate=0.0, max_tokens=32)

    found = {}
    for weighted in (False, True):
        best = train(replace(recipe, class_weights=weighted), tmp_path / str(weighted))
        path = tmp_path / f"{weighted}.jsonl"
        assert main(["label", str(best), str(own[1]), "--output", str(path)]) == 0
        told = [json.loads(line)["probabilities"] for line in path.read_text(encoding="utf-8").splitlines()]
        found[weighted] = sum(praise > complaint for complaint, praise in told)

    assert found[True] > found[False]


def test_labels_that_differ_in_case_alone_or_are_texts_are_not_taken_from_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = str(save_tiny_bert(tmp_path / "base"))
    alike = write_csv(tmp_path / "alike.csv", [("Praise", "good"), ("praise", "fine")])
    texts = write_csv(tmp_path / "texts.csv", [(f"text {number}", "good") for number in range(101)])

    for data in (alike, texts):
        assert main(["train", "--base", base, "--new-head", "--data", str(data), "--output", str(tmp_path / "out")]) == 1

    said = capsys.readouterr().err
    assert "the labels Praise,praise of the data differ in case alone; write them alike, or name them with --labels" in said
    assert "the data have 101 different labels; at most 100 are taken from data: name them with --labels" in said
    assert not (tmp_path / "out").exists()


def test_numbers_need_names_blanks_around_a_label_are_not_of_it_and_a_rare_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = str(save_tiny_bert(tmp_path / "base"))
    numbers = write_csv(tmp_path / "numbers.csv", [("0", "good"), ("1", "bad"), ("2", "so so")])
    typed = write_csv(tmp_path / "typed.csv", [(("Delay", " Delay", "Delay\u00a0")[number % 3], f"late {number}") for number in range(30)])
    with typed.open("a") as file:
        file.writelines([*(f"Praise,thanks {number}\n" for number in range(30)), "Refnd,money back\n"])

    assert main(["train", "--base", base, "--new-head", "--data", str(numbers), "--output", str(tmp_path / "out")]) == 1
    assert "the data have numbers for labels (0, 1, 2); name them, from 0 on, with --labels NAME,NAME" in capsys.readouterr().err

    small = ["--epochs", "1", "--max-tokens", "16", "--encoding", "utf-8"]
    assert main(["train", "--base", base, "--new-head", "--data", str(typed), "--output", str(tmp_path / "out"), *small]) == 0

    said = capsys.readouterr()
    assert "texts by label: Delay 30, Praise 30, Refnd 1\n" in said.err
    assert "labels of fewer than 5 texts, too few to learn from: Refnd; is one of them a slip?" in said.err
    assert label_names(tmp_path / "out" / "best") == ["Delay", "Praise", "Refnd"]
    # The next command reads the file as this one did.
    assert "--encoding utf-8 --output ..." in said.out


def test_a_line_that_was_read_is_named(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", [("negative", "dull"), ("positive", "fine")])

    assert [example.where for example in read_examples(data, LABELS)] == [f"{data}: line 2", f"{data}: line 3"]
    with pytest.raises(BadData):
        list(read_examples(write_csv(tmp_path / "none.csv", []), LABELS))
