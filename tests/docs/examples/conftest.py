"""What runs the examples: the packages that they name, in an environment of its own, and servers beside them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environments import environment
from tests.programs import listens, until

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs/examples"


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of an environment with ``requirements.txt`` of the examples."""
    lines = (EXAMPLES / "requirements.txt").read_text().splitlines()
    return environment("examples", [line for line in lines if line and not line.startswith("#")], sees_ours=True)


@contextmanager
def running(command: list[str | Path], port: int | None = None, **variables: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A program beside the test, killed at its end; once it listens on ``port``."""
    process = subprocess.Popen(command, env={**os.environ, **variables}, cwd=EXAMPLES)
    try:
        if port is not None:
            until(lambda: listens(port) or process.poll() is not None)
            assert process.poll() is None, f"{command} ended with {process.returncode}"
        yield process
    finally:
        process.kill()
        process.wait(30)
