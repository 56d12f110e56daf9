"""Servers of several processes, and batches that are held in them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.core.servers import Server, serving
from tests.front_ends.held import HELD, HOLDING, Held
from tests.tiny import SPECIAL, WEIGHTS


@pytest.fixture
def serve(bundles: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of two front ends unless flags say otherwise."""
    with serving(bundles, "--front-ends", "2") as begin:
        yield begin


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Servers started from now on hold batches that contain the word HELD until ``release``."""
    held = Held(tmp_path)
    word = len(SPECIAL) + list(WEIGHTS).index(HELD)
    (tmp_path / "sitecustomize.py").write_text(HOLDING.format(folder=str(tmp_path), word=word))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return held
