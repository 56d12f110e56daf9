"""Every family is fine-tuned as it is served: with its own padding side and segments."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from sentiment.model.bundle import load_bundle
from sentiment_models.cli import main
from sentiment_models.export.export import FLATTENED
from sentiment_models.training.optimizer import freeze_encoder
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.train import train
from tests.models.tiny_bert import sentences
from tests.models.tiny_families import TINY, save_tiny

NAMES = [name for name, tiny in TINY.items() if name == tiny.family]


def write_pairs(path: Path, count: int, labels: tuple[str, ...]) -> Path:
    """Pairs whose second text determines the label; labels alternate."""
    rows = [
        {"text": first, "text_pair": f"{second} {'so ' * (number % len(labels))}", "label": number % len(labels)}
        for number, ((_, first), (_, second)) in enumerate(zip(sentences(count, 1), sentences(count, 2), strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_trained_on_single_texts_and_pairs(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    base = save_tiny(tmp_path / "base", tiny)
    source = write_pairs(tmp_path / "pairs.jsonl", 120, tiny.labels)
    recipe = Recipe(
        str(base), (str(source),), labels=tiny.labels, max_tokens=64, batch_rows=32, dev_fraction=0.2, evaluations_per_epoch=1, dropout=0.0
    )

    best = train(recipe, tmp_path / "out")

    before, after = (load_file(folder / "model.safetensors") for folder in (base, best))
    moved = [key for key, tensor in after.items() if tensor.is_floating_point() and not torch.equal(tensor, before.get(key, tensor + 1))]
    assert len(moved) > len(after) / 2
    assert all("text_pair" in json.loads(line) for line in (tmp_path / "out" / "dev.jsonl").open())


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", {"bert.pooler.dense", "classifier"}),
        ("albert", {"albert.pooler", "classifier"}),
        ("distilbert", {"pre_classifier", "classifier"}),
        ("xlnet", {"sequence_summary.summary", "logits_proj"}),
        ("modernbert", {"head.dense", "head.norm", "classifier"}),
        ("rembert", {"rembert.pooler.dense", "classifier"}),
        *((name, {"pooler.dense", "classifier"}) for name in ("deberta", "deberta-v2")),
        *(
            (name, {"classifier.dense", "classifier.out_proj"})
            for name in ("roberta", "electra", "mpnet", "xlm-roberta", "camembert", "data2vec-text", "roformer")
        ),
    ],
)
def test_only_the_head_of_a_frozen_encoder_learns(name: str, head: set[str], tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(save_tiny(tmp_path / "base", TINY[name]))

    freeze_encoder(model)

    assert {key.rpartition(".")[0] for key, parameter in model.named_parameters() if parameter.requires_grad} == head


@pytest.mark.parametrize("name", ["bert", "xlnet", "roberta"])
def test_padding_changes_nothing_for_a_model_in_training(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    base = save_tiny(tmp_path / "base", tiny)
    source = write_pairs(tmp_path / "pairs.jsonl", 40, tiny.labels)
    # A learning rate so small that the model does not change.
    recipe = Recipe(str(base), (str(source),), labels=tiny.labels, max_tokens=64, dev_fraction=0.5, learning_rate=1e-12, dropout=0.0)

    losses = []
    for rows in (1, 64):
        best = train(replace(recipe, batch_rows=rows, evaluations_per_epoch=1), tmp_path / str(rows))
        losses.append(json.loads((best / "training.json").read_text())["history"][0]["dev_loss"])

    assert losses[0] == pytest.approx(losses[1], abs=0.02)  # bfloat16; padded on the wrong side XLNet's differ by more than 0.1


def test_the_commands_export_and_evaluate_a_bundle_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = TINY["bert"]
    base = save_tiny(tmp_path / "base", tiny)
    source = write_pairs(tmp_path / "pairs.jsonl", 60, tiny.labels)
    bundle = tmp_path / "pairs" / "1"

    assert main(["export", str(base), "--out", str(bundle), "--dev", str(source), "--pairs"]) == 0
    said = capsys.readouterr().err
    assert "has no pairs" not in said
    assert FLATTENED in said.splitlines()
    assert load_bundle(bundle).manifest.pairs
    assert main(["evaluate", str(bundle), str(source), "--json", str(tmp_path / "found.json")]) == 0

    found = json.loads((tmp_path / "found.json").read_text())
    assert next(iter(found["datasets"].values()))["rows"] == 60
    assert found["datasets"].popitem()[1]["tokens"] > 60 * 10


def test_a_family_that_cannot_be_exported_is_not_trained_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = save_tiny(tmp_path / "base", TINY["bert"])
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    source = write_pairs(tmp_path / "pairs.jsonl", 20, ("negative", "positive"))

    assert main(["train", "--base", str(base), "--data", str(source), "--dev-fraction", "0.3", "--out", str(tmp_path / "out")]) == 1

    assert "model_type must be one of bert, roberta" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
