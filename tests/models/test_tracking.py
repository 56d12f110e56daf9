"""Training logs, read back with TensorBoard's own reader."""

from pathlib import Path

from sentiment_models.training.tracking import Log
from tests.models.events import read_scalars


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
