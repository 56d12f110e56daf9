"""Weights averaged over checkpoints, and what of long texts is shown besides them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sentiment_models.average import average
from sentiment_models.carving import carve
from sentiment_models.data import Example, last_sentences
from sentiment_models.errors import BadCheckpoint, BadData
from tests.models.tiny_bert import save_tiny_bert


def test_the_average_is_the_mean_of_every_weight_and_tells_both_trainings(tmp_path: Path) -> None:
    first, second = (save_tiny_bert(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    (first / "training.json").write_text('{"steps": 1}')
    (second / "training.json").write_text('{"steps": 2}')

    average([first, second], tmp_path / "mean")

    before = [load_file(path / "model.safetensors") for path in (first, second)]
    for name, tensor in load_file(tmp_path / "mean" / "model.safetensors").items():
        assert torch.allclose(tensor, (before[0][name] + before[1][name]) / 2), name
    assert json.loads((tmp_path / "mean" / "training.json").read_text()) == {"steps": 2, "averaged_with": [{"steps": 1}]}


def test_what_cannot_be_averaged_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    one = save_tiny_bert(tmp_path / "one")
    three_labels = save_tiny_bert(tmp_path / "three", labels=("bad", "fair", "good"))

    with pytest.raises(BadCheckpoint, match="1 checkpoints to average; at least 2"):
        average([one], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match="its weights are not those of"):
        average([one, three_labels], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match="cannot be loaded"):
        average([one, tmp_path / "nosuch"], tmp_path / "mean")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("It was long. Two hours I will never get back! Avoid.", "Two hours I will never get back! Avoid."),
        ("One sentence of six words only", "sentence of six words only"),
        ("First.<br /><br />Second one.", "First. Second one."),
    ],
)
def test_the_last_whole_sentences_are_kept_at_least_the_last_words(text: str, kept: str) -> None:
    limit = 5 if text.startswith("One") else 8

    assert last_sentences(text, limit) == kept


def test_a_fraction_shows_about_that_share_and_always_the_same_texts() -> None:
    examples = [Example(f"text number {number}", number % 2) for number in range(2000)]

    once, again = (carve([(examples, 0.25)], 0.03, 1) for _ in range(2))

    assert once == again
    assert 400 < len(once.train) < 560
    assert len(carve([(examples, 2.5)], 0.03, 1).train) > 2 * len(carve([(examples, 1)], 0.03, 1).train)
    with pytest.raises(BadData, match="the dev split is empty"):
        carve([(examples[:3], 1)], 1e-9, 1)
