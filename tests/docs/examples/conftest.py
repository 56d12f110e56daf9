"""What runs the examples: the packages that they name, in an environment of its own, and servers beside them."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environments import environment

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs/examples"
# A busy machine takes half a minute to import Streamlit or moto.
PATIENCE_S = 120


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of an environment with ``requirements.txt`` of the examples."""
    lines = (EXAMPLES / "requirements.txt").read_text().splitlines()
    return environment("examples", [line for line in lines if line and not line.startswith("#")], sees_ours=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


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


def until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, f"not within {PATIENCE_S} s"
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
