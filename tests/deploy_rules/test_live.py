"""A real Prometheus scrapes a real server under load: every expression of rules and board has data there."""

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.client import AsyncClient
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.deploy_rules.expressions import Query, everything
from tests.deploy_rules.load import Caller
from tests.deploy_rules.watching import Found, Prometheus
from tests.tiny import WEIGHTS

TEXTS = [" ".join(list(WEIGHTS)[:words]) for words in range(1, 25)]
# It takes about 15 s.
WAIT_S = 60.0


class Meter:
    """A GPU's, where there is none."""

    def memory_bytes(self) -> float:
        return 2.0**30

    def busy_ratio(self) -> float:
        return 0.5


@pytest.fixture
def server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """It has a GPU and a certificate, and traces that nobody takes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    running = RunningServer(settings.model_copy(update={"tracing": True}))
    running.app._metrics.watch_devices({"cuda:0": Meter()})
    # Of which tests/security has real ones; Prometheus scrapes in plaintext here.
    running.app._metrics.watch_certificate(lambda: time.time() + 30 * 86_400)
    yield running
    running.stop()


def within_seconds(query: Query) -> str:
    """What a query compares with its thresholds, looked up more often than every five minutes."""
    return query.without_thresholds().replace(":5m]", ":10s]")


def has_data(found: Found) -> bool:
    """Whether there is a number: 0 / 0 is none."""
    return any(math.isfinite(value) for _, points in found for _, value in points)


@pytest.mark.needs_tool("prometheus")
async def test_every_expression_of_rules_and_board_has_data(server: RunningServer, awake: None, tmp_path: Path) -> None:
    missing: list[Query] = list(everything())
    with Prometheus(tmp_path, {"pod-a": server.url.removeprefix("http://")}) as prometheus:
        async with AsyncClient(server.target) as client:
            calls = asyncio.create_task(Caller(client, TEXTS, seed=0).call(lambda: 40.0))
            give_up_at = time.monotonic() + WAIT_S
            while missing and time.monotonic() < give_up_at and not calls.done():
                # Nothing tells that Prometheus has scraped again.
                await asyncio.sleep(1)
                missing = [query for query in missing if not has_data(await asyncio.to_thread(prometheus.query, within_seconds(query)))]
            calls.cancel()
            await asyncio.wait({calls})
        rules = prometheus.rules()

    assert [query.name for query in missing] == []
    assert calls.cancelled()
    assert {rule["health"] for rule in rules} == {"ok"}, [rule["lastError"] for rule in rules if rule["health"] != "ok"]
