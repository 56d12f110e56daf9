"""Servers to be harmed, and the record of what came of it."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.evidence import FOLDER, Evidence
from tests.front_ends.servers import Server


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Iterator[Evidence]:
    """Filled in by the test; written if the test passes."""
    name = request.node.name.removeprefix("test_")
    record = Evidence(name, inspect.getdoc(request.module) or "", " ".join((inspect.getdoc(request.function) or "").split()))
    failed = request.session.testsfailed
    yield record
    if FOLDER and request.session.testsfailed == failed:
        record.write(Path(FOLDER))


@pytest.fixture
def serve(bundles: Path) -> Iterator[Callable[..., Server]]:
    """``sentiment serve`` in one process (``--front-ends N`` for several), of the tiny bundle, on free ports, ready; ended by the end."""
    servers: list[Server] = []

    def begin(*flags: str, ready: bool = True, **arguments: Any) -> Server:
        servers.append(Server(bundles, "--front-ends", "0", *flags, **arguments))
        return servers[-1].wait_ready() if ready else servers[-1]

    yield begin
    for server in servers:
        server.end()
