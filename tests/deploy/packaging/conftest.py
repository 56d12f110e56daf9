"""What is installed in the tests of packages: the wheel that is built, in environments of their own.

The environments are made once and kept in build/tools, as long as the wheel asks for the same packages.
"""

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from sentiment_models.export.wheel import pack
from tests.english import ENGLISH
from tests.environments import environment

ROOT = Path(__file__).parents[3]
RUN_S_MAX = 600
READY_S_MAX = 60


def run(*command: str | Path, **arguments: object) -> str:
    """The command's standard output; a command that fails fails the test with what it printed."""
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=RUN_S_MAX, **arguments)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is built from it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


@pytest.fixture(scope="session")
def bundle_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(ENGLISH, tmp_path_factory.mktemp("bundle"))


def requirements(metadata: Message, extra: str = "") -> list[str]:
    """What the wheel asks for, with an extra or without."""
    asked = [line.partition("; extra == ") for line in metadata.get_all("Requires-Dist", [])]
    return [package for package, _, of in asked if of.strip("'\"") in ("", extra)]


def installed(name: str, packages: Sequence[str], *wheels: Path) -> Path:
    """The Python of an environment with packages and our wheels, whose requirements the packages meet.

    Skips the test if the packages cannot be installed.
    """
    python = environment(name, packages)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--force-reinstall", *wheels)
    run(*pip, "check")
    return python


@pytest.fixture(scope="session")
def program(wheel: Path, metadata: Message, bundle_wheel: Path) -> Path:
    """``sentiment`` in an environment with the wheel, its extra ``cpu`` and the default bundle's wheel, and nothing else."""
    return installed("packaging", requirements(metadata, "cpu"), wheel, bundle_wheel).with_name("sentiment")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that is the current one, and an environment without paths or settings."""
    for name in [name for name in os.environ if name.startswith(("SENTIMENT_", "PYTHON", "VIRTUAL_ENV"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def serving(program: Path, *flags: str | Path) -> Iterator[dict[str, object]]:
    """Run the server on free ports; gives its line ``ready``. Afterwards it must have ended with 0."""
    command = [program, "serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0", *flags]
    server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    late = threading.Timer(READY_S_MAX, server.kill)
    late.start()
    try:
        assert server.stderr is not None
        lines = (json.loads(line) for line in server.stderr)
        ready = next((line for line in lines if line["event"] in ("ready", "cannot_serve")), {"event": "ended before it was ready"})
        assert ready["event"] == "ready", ready
        yield ready
        server.terminate()
        assert server.wait(READY_S_MAX) == 0
    finally:
        late.cancel()
        server.kill()
        server.communicate()
