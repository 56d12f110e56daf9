"""What the tests of the clients share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment import Local
from sentiment.settings import Settings
from tests.conftest import RunningServer


@pytest.fixture(scope="session")
def documented(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a journal, for the examples of the documentation."""
    server = RunningServer(settings.model_copy(update={"journal": str(tmp_path_factory.mktemp("journal"))}))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def local(bundles: Path) -> Iterator[Local]:
    with Local("tiny", bundles=bundles, threads=2) as opened:
        yield opened
