"""The head that a run starts with: the base's for the same labels, whatever their order, and a fresh one if that is asked for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import base_tokenizer, from_pretrained
from sentiment_models.export.graphs.quantize import INT8, columns_int8, factor_int8
from sentiment_models.export.labels import named_labels
from sentiment_models.export.manifest import MANIFEST_FILE, WEIGHTS_FILE
from sentiment_models.export.weights import dithered
from sentiment_models.training.label import answers_of
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.train import load_base
from tests.english import ENGLISH
from tests.models import tampered
from tests.models.tiny_bert import BAD, GOOD, LABELS, save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import TINY, save_tiny

OTHERS = ("ham", "eggs", "spam")


def change(folder: Path, **settings: object) -> Path:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def without_head(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in weights.items() if "classifier" not in name}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("name", [name for name, tiny in TINY.items() if name == tiny.family])
def test_labels_in_another_order_keep_their_answers_in_every_family(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    base = save_tiny(tmp_path / "base", tiny)
    ids = torch.tensor([tiny.tokens().encode("a good film").ids])

    model, *_ = load_base(Recipe(str(base), (), labels=tiny.labels[::-1], max_tokens=64), [])

    with torch.no_grad():
        found, before = model.eval()(input_ids=ids).logits, from_pretrained(base).eval()(input_ids=ids).logits
    torch.testing.assert_close(found, before.flip(-1))
    assert model.config.id2label == dict(enumerate(tiny.labels[::-1]))


@pytest.mark.parametrize("name", [name for name, tiny in TINY.items() if name == tiny.family])
def test_a_new_head_keeps_the_encoder_of_every_family_and_begins_with_equally_likely_labels(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    base = save_tiny(tmp_path / "base", tiny)
    ids = torch.tensor([tiny.tokens().encode("a good film").ids])

    model, *_ = load_base(Recipe(str(base), (), labels=OTHERS, new_head=True, max_tokens=64), [])

    before, after = from_pretrained(base).base_model.state_dict(), model.base_model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    with torch.no_grad():
        assert model.eval()(input_ids=ids).logits.tolist() == [[0, 0, 0]]
    assert model.config.id2label == dict(enumerate(OTHERS))


def test_labels_of_a_new_head_that_the_base_has_in_any_case_begin_as_they_are_there_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=("Negative", "POSITIVE"))

    model, *_ = load_base(Recipe(str(base), (), labels=("positive", "neutral", "negative"), new_head=True, max_tokens=32), [])

    before = from_pretrained(base).classifier.weight
    assert torch.equal(model.classifier.weight, torch.stack((before[1], torch.zeros_like(before[0]), before[0])))
    assert capsys.readouterr().err == f"{base}: the labels positive,negative begin as they are there\n"


@pytest.mark.parametrize(
    ("own", "labels"), [(("negative", "positive"), ("positive", "spam")), (("good", "Good", "bad"), ("GOOD", "bad", "ugly"))]
)
def test_one_label_alone_or_one_that_may_be_two_of_the_base_s_begins_as_all_others(
    own: tuple[str, ...], labels: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=own)

    model, *_ = load_base(Recipe(str(base), (), labels=labels, new_head=True, max_tokens=32), [])

    assert not model.classifier.weight.any()
    assert capsys.readouterr().err == ""


def test_labels_in_another_order_are_said_and_answered_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, data = save_tiny_bert(tmp_path / "base"), tmp_path / "data.tsv"
    texts = [text for _, text in sentences(120, seed=2)]
    answers = answers_of(base, 1.0, texts, torch.device("cpu"), 32)
    data.write_text("".join(f"{LABELS[answer[1] > answer[0]]}\t{text}\n" for text, answer in zip(texts, answers, strict=True)))

    for labels in ("negative,positive", "positive,negative"):
        out = tmp_path / labels
        command = ["--labels", labels, "--learning-rate", "0", "--max-tokens", "32", "--dev-fraction", "0.5", "--out", str(out)]
        assert main(["train", "--base", str(base), "--data", str(data), *command]) == 0
        assert json.loads((out / "best" / "training.json").read_bytes())["dev_accuracy"] == 1
    assert f"{base}: its labels negative,positive are put in the order positive,negative\n" in capsys.readouterr().err


def test_without_labels_a_run_has_those_that_the_base_names(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=("1", "2", "3"))
    data = write_tsv(tmp_path / "data.tsv", [(1 + number % 3, text) for number, (_, text) in enumerate(sentences(60))])

    command = ["--max-tokens", "32", "--dev-fraction", "0.2", "--out", str(tmp_path / "run")]
    assert main(["train", "--base", str(base), "--data", str(data), *command]) == 0

    assert json.loads((tmp_path / "run" / "best" / "config.json").read_bytes())["id2label"] == {"0": "1", "1": "2", "2": "3"}


@pytest.mark.parametrize("labels", [("ham", "spam"), OTHERS, ("negative", "spam")])
def test_a_head_for_other_labels_is_refused_with_both_sets_and_the_way(labels: tuple[str, ...], tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")

    with pytest.raises(BadCheckpoint) as caught:
        load_base(Recipe(str(base), (), labels=labels, max_tokens=32), [])

    assert str(caught.value) == (
        f"{base}: has a head for the labels negative,positive, and the run is for {','.join(labels)}; train these labels with "
        "--labels negative,positive, or add --new-head, which keeps the encoder and learns a fresh head"
    )


def test_names_that_differ_in_case_alone_are_the_same_labels(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=("POSITIVE", "NEGATIVE"))

    model, *_ = load_base(Recipe(str(base), (), max_tokens=32), [])

    assert torch.equal(model.classifier.weight, from_pretrained(base).classifier.weight.flip(0))
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_a_base_without_names_is_taken_in_the_order_given_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = save_tiny_bert(tmp_path / "base", labels=("LABEL_0", "LABEL_1"))

    model, *_ = load_base(Recipe(str(base), (), labels=("ham", "spam"), max_tokens=32), [])

    assert torch.equal(model.classifier.weight, from_pretrained(base).classifier.weight)
    assert capsys.readouterr().err == f"{base}: does not name its labels; they are taken to be ham,spam, in this order\n"


def test_an_encoder_without_a_head_gets_one_for_any_labels(tmp_path: Path) -> None:
    base = without_head(save_tiny_bert(tmp_path / "base"))

    model, _, fresh = load_base(Recipe(str(base), (), labels=OTHERS, max_tokens=32), [])

    assert model.classifier.weight.shape[0] == 3
    assert fresh


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type is multi_label_classification, in which a text may have several"),
        ({"problem_type": "regression"}, "problem_type is regression, which answers a number"),
    ],
)
def test_a_base_of_another_task_is_refused_by_name_and_its_encoder_is_taken_with_a_new_head(
    settings: dict[str, object], told: str, tmp_path: Path
) -> None:
    base = change(save_tiny_bert(tmp_path / "base"), **settings)
    recipe = Recipe(str(base), (), max_tokens=32)

    with pytest.raises(BadCheckpoint, match=told):
        load_base(recipe, [])
    model, *_ = load_base(replace(recipe, new_head=True), [])

    assert model.config.problem_type is None


def test_what_is_not_trained_keeps_its_steps_and_the_calibration_of_a_base_in_any_order(tmp_path: Path) -> None:
    base, data = tmp_path / "tiny" / "1", tmp_path / "data.tsv"
    data.write_text("".join(f"{LABELS[label]}\t{text}\n" for label, text in sentences(60)))
    assert main(["export", str(save_tiny_bert(tmp_path / "base")), "--out", str(base)]) == 0
    tampered.change_json(base, MANIFEST_FILE, lambda manifest: manifest.update(calibration={"temperature": 2.5, "abstain_below": 0.6}))
    steps = {name: one for name, one in load_file(base / WEIGHTS_FILE).items() if name.endswith(INT8)}

    for version, labels in (("2", "negative,positive"), ("3", "positive,negative")):
        run, bundle = tmp_path / f"run{version}", tmp_path / "tiny" / version
        command = ["--labels", labels, "--head-only", "--learning-rate", "0", "--max-tokens", "32", "--dev-fraction", "0.2"]
        assert main(["train", "--base", str(base), "--data", str(data), *command, "--out", str(run)]) == 0
        assert main(["export", str(run / "best"), "--dev", str(run / "dev.jsonl"), "--out", str(bundle)]) == 0

        again = load_file(bundle / WEIGHTS_FILE)
        # fp16 rounds a few over a border.
        assert all((again[name] != one).float().mean() < 2e-3 for name, one in steps.items())
        manifest = load_bundle(bundle).manifest
        assert ",".join(manifest.labels) == labels
        # Of twelve texts, which say less than the base.
        assert (manifest.calibration.temperature, manifest.calibration.abstain_below) == (2.5, 0.6)


def test_a_random_start_rounds_to_the_steps_that_it_was_drawn_from() -> None:
    factor = np.random.default_rng(1).normal(size=(64, 40)).astype(np.float32)
    table = np.random.default_rng(2).normal(size=(30, 64)).astype(np.float32)
    steps, scale = factor_int8(factor)
    rows, row_scale = columns_int8(table.T)
    # As ``rounded`` stores them: a factor transposed. Some of its columns have their scales from two neighbours.
    assert 0 < (np.abs(steps).max(axis=0) < 127).sum() < 40
    stored = {"factor.int8": steps.T, "factor.scale": scale[:, None], "table.int8": rows.T, "table.scale": row_scale[:, None]}

    found = dithered(stored, seed=1)

    for name, again, before in (("factor", factor_int8, (steps, scale)), ("table", columns_int8, (rows, row_scale))):
        whole, scales = again(found[name].T)
        np.testing.assert_allclose(scales, before[1], rtol=1e-6)
        assert (whole != before[0]).mean() < 1e-3
        assert (before[0] * before[1] != found[name].T).mean() > 0.9


def test_a_random_start_of_the_default_bundle_answers_nearly_as_it_does() -> None:
    ids = torch.tensor([base_tokenizer(str(ENGLISH))(f"The film was {word}.")["input_ids"] for word in (*GOOD, *BAD)])

    with torch.no_grad():
        before, found = (from_pretrained(ENGLISH, dither=dither).eval()(input_ids=ids).logits for dither in (None, 1))

    moved = (found - before).abs()
    assert moved.max() > 0
    # On 200 hard and plain texts 0.03 in the mean.
    assert moved.mean() < 0.1


def test_from_scratch_no_folder_names_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(save_tiny_bert(tmp_path / "base", labels=OTHERS))

    assert named_labels(".") == OTHERS
    assert named_labels("") is None


def test_a_bundle_with_a_new_head_serves_the_new_labels(tmp_path: Path) -> None:
    base, data = save_tiny_bert(tmp_path / "base"), tmp_path / "data.tsv"
    data.write_text("".join(f"{OTHERS[number % 3]}\t{text}\n" for number, (_, text) in enumerate(sentences(90))))
    assert main(["export", str(base), "--out", str(tmp_path / "tiny" / "1")]) == 0

    command = ["--labels", ",".join(OTHERS), "--new-head", "--max-tokens", "32", "--dev-fraction", "0.2", "--out", str(tmp_path / "run")]
    assert main(["train", "--base", str(tmp_path / "tiny" / "1"), "--data", str(data), *command]) == 0
    assert main(["export", str(tmp_path / "run" / "best"), "--out", str(tmp_path / "other" / "1")]) == 0

    assert load_bundle(tmp_path / "other" / "1").manifest.labels == OTHERS
