"""Batches that are held in the executor."""

from collections.abc import Callable
from pathlib import Path

from tests.core.servers import until

HELD = "w7"
# The most rows of the batch that is held.
BATCH_ROWS_HELD = 7
# Read by every Python at its start.
HOLDING = """
import pathlib, sys, time

if "sentiment_front_ends" in sys.orig_argv:
    from sentiment.model.session import Session

    run, folder = Session.run, pathlib.Path({folder!r})

    def hold(self, feeds, stop=None):
        if (feeds["input_ids"] == {word}).any():
            (folder / "held").touch()
            while not (folder / "released").exists():
                time.sleep(0.005)
        return run(self, feeds, stop)

    Session.run = hold
"""


class Held:
    """Batches that are held in the executor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, true: Callable[[], bool] = lambda: True) -> None:
        """Wait until a batch is held and ``true`` holds."""
        until(lambda: (self._folder / "held").exists() and true(), "a batch is held")

    def release(self) -> None:
        """Release all batches, also later ones."""
        (self._folder / "released").touch()
