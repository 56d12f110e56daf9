"""The annotations of the client, from a wheel in an environment of its own, as its users' type checkers see them."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.conftest import leave_out

ROOT = Path(__file__).parents[3]
USER = """
import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from sentiment import Local
from sentiment.client import AsyncClient, CallFailed, Classification, Client, Priority, Result, Results, Truncation


def lines() -> Iterator[str]:
    yield "good"


async def arriving() -> AsyncIterator[tuple[str, str]]:
    yield "good", "film"


class ArrowLike:
    def __len__(self) -> int:
        return 0

    def to_pylist(self) -> list[object]:
        return []


def long(client: Client, truncation: Truncation, priority: Priority = "bulk") -> Results:
    return client.classify(["good"], truncation=truncation, priority=priority).raise_on_error()


def use(client: Client) -> None:
    assert_type(long(client, "windows"), Results)
    assert_type(client.classify("good"), Classification)
    assert_type(client.classify("good", "film", request_id="1"), Classification)
    assert_type(client.classify("good", progress=True), Classification)
    assert_type(client.classify(["good", None, ("good", "film")], progress=True), Results)
    assert_type(client.classify(lines(), lines()), Results)
    assert_type(client.classify(ArrowLike()), Results)
    assert_type(client.classify_batch(["good"]), list[Result])
    results = client.classify(["good"])
    assert_type(results[0], Classification | CallFailed)
    assert_type(results[:1], Results)
    for result in client.classify_all(lines()):
        assert_type(result, Classification | CallFailed)
        if isinstance(result, Classification):
            assert_type(result.score, float)


def use_without_a_server(local: Local) -> None:
    assert_type(local.classify("good", "film", explain=None, progress=True), Classification)
    assert_type(local.classify(["good", None], progress=True), Results)
    assert_type(local.classify(ArrowLike()), Results)
    assert_type(local.classify_batch(["good"]), list[Result])
    for result in local.classify_all(lines()):
        assert_type(result, Classification | CallFailed)


async def use_later(client: AsyncClient) -> None:
    assert_type(await client.classify("good"), Classification)
    assert_type(await client.classify(["good"]), Results)
    assert_type(await client.classify(arriving()), Results)
    async for result in client.classify_all(arriving()):
        assert_type(result, Classification | CallFailed)
"""
# Each is one error.
WRONG = """
from sentiment.client import Client


def misuse(client: Client) -> None:
    client.classify(3)
    client.classify([3])
    client.classify(["good"], request_id="1")
    client.classify("good").to_pandas()
    client.classify(["good"]).label
    client.classify("good", truncation="middle")
    client.explain("good", truncation="middle")
    client.classify_batch(["good"], priority="high")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the wheel, and nothing else."""
    if importlib.util.find_spec("hatchling") is None:
        leave_out("hatchling", "is not installed")
    folder = tmp_path_factory.mktemp("typed")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if name.startswith("sentiment/")])
    (folder / "user.py").write_text(USER)
    (folder / "wrong.py").write_text(WRONG)
    return folder


def expected(folder: Path) -> list[int]:
    lines = (folder / "wrong.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.strip().startswith("client.")]


def check(folder: Path, *command: str) -> str:
    # PYTHONPATH would find the checkout, where mypy does not ask for py.typed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run([*command, "user.py", "wrong.py"], check=False, cwd=folder, capture_output=True, text=True, env=environment)
    assert said.returncode == 1, said.stderr
    return said.stdout


def test_mypy_knows_what_each_call_gives(installed: Path) -> None:
    options = ["--strict", "--python-executable=env/bin/python", "--cache-dir=cache", "--no-error-summary"]

    said = check(installed, sys.executable, "-m", "mypy", *options)

    assert [line for line in said.splitlines() if not line.startswith("wrong.py")] == []
    assert [int(number) for number in re.findall(r"^wrong.py:(\d+): error", said, re.MULTILINE)] == expected(installed)


@pytest.mark.needs_tool("node")
@pytest.mark.needs_tool("pyright")
def test_pyright_knows_what_each_call_gives(installed: Path) -> None:
    said = check(installed, shutil.which("pyright") or "", "--pythonpath", "env/bin/python")

    found = re.findall(r"(\w+\.py):(\d+):\d+ - error", said)
    assert [line for file, line in found if file == "user.py"] == [], said
    assert sorted({int(line) for file, line in found if file == "wrong.py"}) == expected(installed), said
