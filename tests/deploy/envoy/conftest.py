"""Envoy before a fleet: two servers, a canary, and one that gets copies."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.deploy.envoy.proxy import Proxy

CLUSTERS = {"stable": 2, "canary": 1, "mirror": 1}
Fleet = dict[str, list[RunningServer]]


def targets(fleet: Fleet) -> dict[str, list[str]]:
    return {name: [server.target for server in servers] for name, servers in fleet.items()}


@pytest.fixture(scope="package")
def fleet(settings: Settings) -> Iterator[Fleet]:
    """By cluster. The tests leave them as they found them."""
    servers = {name: [RunningServer(settings) for _ in range(count)] for name, count in CLUSTERS.items()}
    yield servers
    for running in (one for several in servers.values() for one in several):
        running.stop()


@pytest.fixture(scope="package")
def proxy(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """As it is configured, for all tests."""
    running = Proxy(tmp_path_factory.mktemp("envoy"), targets(fleet))
    yield running
    running.end()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    """Start one of one's own."""
    running: list[Proxy] = []

    def start(clusters: dict[str, list[str]], change: Callable[[Any], None] = lambda _: None) -> Proxy:
        running.append(Proxy(tmp_path, clusters, change))
        return running[-1]

    yield start
    for proxy in running:
        proxy.end()


def answered(server: RunningServer, method: str = "Classify") -> float:
    """Calls of a method that a server has answered so far."""
    return server.metric("sentiment_requests_total", method=method, code="OK", model="tiny/1")
