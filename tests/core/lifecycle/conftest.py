"""Servers whose models are changed while they run. Each version of a bundle has its own temperature, and so its own probabilities."""

import asyncio
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentiment.admin_client import AdminClient
from sentiment.lifecycle.served_model import RunningModel
from sentiment.serving import event_loop
from sentiment.serving.app import App
from sentiment.settings import Settings
from tests.conftest import RunningServer, starting
from tests.tiny import make_bundle, read_manifest, write_manifest

TOKEN = "a-token-of-tests-0123456789"


def make_version(root: Path, version: int, name: str = "tiny") -> Path:
    """Write ``root/name/version``, all at once, and return its folder."""
    part = make_bundle(root / ".part", name, version)
    manifest = read_manifest(part)
    manifest["calibration"] = {"temperature": temperature(version), "abstain_below": 0.6}
    write_manifest(part, manifest)
    (root / name).mkdir(parents=True, exist_ok=True)
    os.rename(part, root / name / str(version))
    return root / name / str(version)


def temperature(version: int) -> float:
    return 1 + version / 10


def score_of_good(version: int) -> float:
    """What this version answers to "good", whose logits are -1 and 1."""
    return 1 / (1 + math.exp(-2 / temperature(version)))


def break_golden(path: Path) -> None:
    """Let a whole bundle answer its golden set wrongly."""
    manifest = read_manifest(path)
    manifest["golden"] = [{"text": "a good film", "label": "positive", "logits": [-1.0, 1.5]}]
    write_manifest(path, manifest)


class Exchanging(RunningServer):
    """A server with an admin port."""

    def admin(self, token: str = TOKEN) -> AdminClient:
        return AdminClient(f"127.0.0.1:{self.app._exchange.port}", token=token)

    def running(self, model: str) -> RunningModel:
        """The loaded model of this ``name/version``."""
        return next(running for running in self.lifecycle.running if running.id == model)

    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason of each version of its own root."""
        with self.admin() as admin:
            return {f"{one.name}/{one.version}": (one.state, one.reason) for one in admin.index() if one.name != "english"}


def run_and_fail(settings: Settings) -> None:
    """Run a server that cannot start; raises its error."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await App(settings).run()

    event_loop.run(run())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with tiny/1."""
    make_version(tmp_path / "bundles", 1)
    return tmp_path / "bundles"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load at normal priority and without rests: on a machine whose cores are all busy a load takes seconds otherwise."""
    monkeypatch.setattr("sentiment.model.lowest_priority.LOAD_NICENESS", 0)
    monkeypatch.setattr("sentiment.model.lowest_priority.LOAD_SHARE", 1.0)


def with_admin_port(root: Path, folder: Path) -> dict[str, Any]:
    """The settings of a server of ``root`` with an admin port. Writes the file of its tokens to ``folder``."""
    (folder / "tokens").write_text(f"# of the tests\n{TOKEN}\n")
    return {"bundles": (root,), "admin_listen": "127.0.0.1:0", "admin_tokens": str(folder / "tokens")}


@pytest.fixture
def exchanging(settings: Settings, root: Path, tmp_path: Path) -> Iterator[Callable[..., Exchanging]]:
    """Start such servers of ``root``; each is stopped at the end."""
    with starting(Exchanging, settings.model_copy(update=with_admin_port(root, tmp_path))) as begin:
        yield begin


@pytest.fixture(scope="module")
def unchanged(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchanging]:
    """A server of tiny/1 for tests that change no models."""
    folder = tmp_path_factory.mktemp("unchanged")
    make_version(folder / "bundles", 1)
    server = Exchanging(settings.model_copy(update=with_admin_port(folder / "bundles", folder)))
    yield server
    server.stop()
