"""Training logs, read back with TensorBoard's own reader."""

import json
from pathlib import Path

import pytest

from sentiment_models.training.recipe import Recipe
from sentiment_models.training.tracking import Log
from sentiment_models.training.train import train
from tests.models.events import SPEED, read_scalars
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv


def test_a_run_reports_loss_rate_and_speed_of_each_step_and_each_evaluation(tmp_path: Path) -> None:
    base = save_tiny_bert(tmp_path / "base")
    data = write_tsv(tmp_path / "data.tsv", sentences(60, seed=1))
    recipe = Recipe(str(base), (str(data),), learning_rate=1e-3, batch_rows=8, max_tokens=32, dev_fraction=0.2, warmup_fraction=0.3)

    best = train(recipe, tmp_path / "out")
    train(recipe, tmp_path / "out")

    record = json.loads((best / "training.json").read_bytes())
    scalars = read_scalars(tmp_path / "out")
    assert scalars.keys() == {"train/loss", "train/learning_rate", SPEED, "dev/accuracy", "dev/loss"}
    steps = list(range(1, record["steps"] + 1))
    for name in ("train/loss", "train/learning_rate", SPEED):
        assert [step for step, _ in scalars[name]] == steps
        assert all(value >= 0 for _, value in scalars[name])
    assert max(rate for _, rate in scalars["train/learning_rate"]) == pytest.approx(1e-3)
    assert min(speed for _, speed in scalars[SPEED]) > 0
    for name in ("accuracy", "loss"):
        told = [(entry["step"], pytest.approx(entry[f"dev_{name}"])) for entry in record["history"]]
        assert scalars[f"dev/{name}"] == told
    # A repeated call of a finished run writes no further file.
    assert len(list((tmp_path / "out" / "logs").iterdir())) == 1


def test_repeated_steps_of_a_killed_run_are_shown_once(tmp_path: Path) -> None:
    killed = Log(tmp_path, 0)
    for step in range(1, 7):
        killed.report(step, {"train/loss": float(step)})
    killed.flush()
    (file,) = (tmp_path / "logs").iterdir()
    file.write_bytes(file.read_bytes()[:-5])  # the last record is cut off

    resumed = Log(tmp_path, 3)
    for step in range(4, 9):
        resumed.report(step, {"train/loss": step + 0.5})
    resumed.close()
    killed.close()

    assert read_scalars(tmp_path)["train/loss"] == [(1, 1), (2, 2), (3, 3), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5), (8, 8.5)]


def test_a_restarted_run_shows_nothing_of_the_old_one(tmp_path: Path) -> None:
    for start in (0, 3, 0):
        log = Log(tmp_path, start)
        log.report(start + 1, {"train/loss": 1.0})
        log.close()

    assert read_scalars(tmp_path)["train/loss"] == [(1, 1)]


def test_a_log_that_is_not_wanted_writes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, 0, wanted=False)

    log.step(1, 10, {"train/loss": 1.0})
    log.flush()
    log.close()

    assert list(tmp_path.iterdir()) == []
