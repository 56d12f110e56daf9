"""What is installed in the tests of packages: the wheel that is built, in environments of their own.

The environments are made once and kept in build/tools, as long as the wheel asks for the same packages.
"""

import fcntl
import os
import sys
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from sentiment_models.export.wheel import pack
from tests.english import ENGLISH
from tests.environments import TOOLS, environment
from tests.programs import run

ROOT = Path(__file__).parents[3]


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
    files = repr([(file.filename, file.CRC) for wheel in wheels for file in zipfile.ZipFile(wheel).infolist()])
    stamp = TOOLS / name / ".wheels"
    with (TOOLS / name).with_suffix(".lock").open("w") as lock:
        # Several processes run tests, each with wheels that it has built of the same files.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.is_file() and stamp.read_text() == files):
            stamp.unlink(missing_ok=True)
            run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--force-reinstall", *wheels)
            run(*pip, "check")
            stamp.write_text(files)
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
