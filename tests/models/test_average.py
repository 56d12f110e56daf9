"""Average weights of checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sentiment_models.errors import BadCheckpoint
from sentiment_models.training.average import average
from tests.models.tiny_bert import save_tiny_bert


def test_the_average_is_the_mean_of_every_weight_and_keeps_both_records(tmp_path: Path) -> None:
    first, second = (save_tiny_bert(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    (first / "training.json").write_text('{"steps": 1}')
    (second / "training.json").write_text('{"steps": 2}')

    average([first, second], tmp_path / "mean")

    before = [load_file(path / "model.safetensors") for path in (first, second)]
    for name, tensor in load_file(tmp_path / "mean" / "model.safetensors").items():
        assert torch.allclose(tensor, (before[0][name] + before[1][name]) / 2), name
    assert json.loads((tmp_path / "mean" / "training.json").read_text()) == {"steps": 2, "averaged_with": [{"steps": 1}]}


def test_checkpoints_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
    one = save_tiny_bert(tmp_path / "one")
    other_words = save_tiny_bert(tmp_path / "other", known=("words", "more"))

    with pytest.raises(BadCheckpoint, match="average needs at least 2 checkpoints, got 1"):
        average([one], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match="names or shapes of the weights differ from those of"):
        average([one, other_words], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match=r"nosuch: not a checkpoint directory: it has no config.json"):
        average([one, tmp_path / "nosuch"], tmp_path / "mean")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
