"""Environments of others' clients, which cannot stand in ours."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import leave_out

# Its generated code wants protobuf 6 and has the same names as ours.
TRITONCLIENT = ("tritonclient[grpc,http]==2.73.0", "numpy>=2,<3")
FOLDER = Path(__file__).parents[2] / "build" / "tools" / "tritonclient"
INSTALL_S_MAX = 240


@pytest.fixture(scope="session")
def tritonclient() -> Path:
    """The Python of an environment that has it; made at the first run, and kept."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / ".installed"
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        # Several processes run tests: one of them makes the environment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.is_file() and stamp.read_text() == "\n".join(TRITONCLIENT)):
            try:
                for command in (
                    [sys.executable, "-m", "venv", "--clear", FOLDER],
                    [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TRITONCLIENT],
                ):
                    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S_MAX)
            except (OSError, subprocess.SubprocessError) as error:
                leave_out("tritonclient", f"could not be installed ({type(error).__name__})")
            stamp.write_text("\n".join(TRITONCLIENT))
    return python
