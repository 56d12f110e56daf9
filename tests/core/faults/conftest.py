"""Servers to harm, and the record of the outcome."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.faults.english import ENGLISH
from tests.core.faults.evidence import FOLDER, Evidence
from tests.core.faults.own_process import OwnProcess
from tests.front_ends.servers import Server


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Iterator[Evidence]:
    """The test fills it in; it is written if the test passes."""
    record = Evidence(request.node.name.removeprefix("test_"))
    failed = request.session.testsfailed
    yield record
    if FOLDER and request.session.testsfailed == failed:
        record.write(Path(FOLDER))


@pytest.fixture
def serve(bundles: Path) -> Iterator[Callable[..., Server]]:
    """Start ``sentiment serve`` on free ports, with the tiny bundle and one process unless flags say otherwise; stopped afterwards."""
    servers: list[Server] = []

    def begin(*flags: str, ready: bool = True, **arguments: Any) -> Server:
        servers.append(Server(bundles, "--front-ends", "0", *flags, **arguments))
        return servers[-1].wait_ready() if ready else servers[-1]

    yield begin
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def english(bundles: Path) -> Iterator[Server]:
    """One process with the default bundle, shared by tests that leave it as they found it."""
    server = Server(bundles, "--front-ends", "0", *ENGLISH).wait_ready()
    yield server
    server.end()


@pytest.fixture
def serve_two(serve: Callable[..., Server]) -> Callable[..., list[Server]]:
    """Start two servers at the same time."""
    return lambda *flags: [server.wait_ready() for server in [serve(*flags, ready=False) for _ in range(2)]]


@pytest.fixture
def spawn(bundles: Path) -> Iterator[Callable[..., OwnProcess]]:
    """Start a server whose standard error the test provides."""
    servers: list[OwnProcess] = []

    def begin(*flags: str, **how: Any) -> OwnProcess:
        servers.append(OwnProcess(bundles, *flags, **how))
        return servers[-1].wait_ready()

    yield begin
    for server in servers:
        server.end()
