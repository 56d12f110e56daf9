"""Average weights of checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sentiment_models.errors import BadCheckpoint
from sentiment_models.training.average import average
from sentiment_models.training.bases import teacher_name
from tests.models.tiny_bert import save_tiny_bert


def test_the_average_is_the_mean_of_every_weight_and_names_what_it_was_made_of(tmp_path: Path) -> None:
    first, second = (save_tiny_bert(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    (second / "training.json").write_text('{"steps": 2}')

    average([first, second, second], tmp_path / "mean")

    before = [load_file(path / "model.safetensors") for path in (first, second)]
    for name, tensor in load_file(tmp_path / "mean" / "model.safetensors").items():
        assert torch.allclose(tensor, (before[0][name] + 2 * before[1][name]) / 3, atol=1e-6), name
    record = json.loads((tmp_path / "mean" / "training.json").read_text())
    assert record == {
        "steps": 2,
        "averaged_with": [teacher_name(first), "this stage"],
    }


def test_rows_of_labels_that_a_checkpoint_lacks_are_those_of_the_others(tmp_path: Path) -> None:
    three, two = (
        save_tiny_bert(tmp_path / str(len(names)), seed=len(names), labels=names) for names in (("no", "yes", "so"), ("yes", "no"))
    )

    average([three, three, two], tmp_path / "mean")

    wide, narrow, mean = (load_file(path / "model.safetensors") for path in (three, two, tmp_path / "mean"))
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.allclose(mean[name][:2], (2 * wide[name][:2] + narrow[name].flip(0)) / 3, atol=1e-6)
        assert torch.equal(mean[name][2], wide[name][2])
    with pytest.raises(BadCheckpoint, match="labels are no, yes, so, but those of"):
        average([two, three], tmp_path / "other")


def test_checkpoints_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
    one = save_tiny_bert(tmp_path / "one")
    other_words = save_tiny_bert(tmp_path / "other", known=("words", "more"))

    with pytest.raises(BadCheckpoint, match="average needs at least 2 checkpoints, got 1"):
        average([one], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match="names or shapes of the weights differ from those of"):
        average([one, other_words], tmp_path / "mean")
    with pytest.raises(BadCheckpoint, match=r"nosuch: no such folder"):
        average([one, tmp_path / "nosuch"], tmp_path / "mean")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
