"""Servers to harm, and the record of the outcome."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.core.faults.english import ENGLISH
from tests.core.faults.evidence import FOLDER, Evidence
from tests.core.faults.own_process import OwnProcess
from tests.core.servers import Server


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Iterator[Evidence]:
    """The test fills it in; it is written if the test passes."""
    record = Evidence(request.node.name.removeprefix("test_"))
    failed = request.session.testsfailed
    yield record
    if FOLDER and request.session.testsfailed == failed:
        record.write(Path(FOLDER))


@pytest.fixture(scope="session")
def english(bundles: Path) -> Iterator[Server]:
    """One process with the default bundle, shared by tests that leave it as they found it."""
    server = Server(bundles, *ENGLISH).wait_ready()
    yield server
    server.end()


@pytest.fixture
def serve_two(serve: Callable[..., Server]) -> Callable[..., list[Server]]:
    """Start two servers at the same time."""
    return lambda *flags: [server.wait_ready() for server in [serve(*flags, ready=False) for _ in range(2)]]


@pytest.fixture
def spawn(bundles: Path) -> Iterator[Callable[..., OwnProcess]]:
    """Start a server whose standard error the test provides."""
    with ExitStack() as started:

        def begin(*flags: str, **how: Any) -> OwnProcess:
            server = OwnProcess(bundles, *flags, **how)
            started.callback(server.end)
            return server.wait_ready()

        yield begin
