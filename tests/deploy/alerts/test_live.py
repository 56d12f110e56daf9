"""A real Prometheus scrapes a real server under load. Every expression of the rules and the dashboard has data."""

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.client import AsyncClient
from sentiment.observability import expected_accuracy
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.deploy.alerts.expressions import Query, everything
from tests.deploy.alerts.load import Caller
from tests.deploy.alerts.watching import Found, Prometheus
from tests.tiny import WEIGHTS

TEXTS = [" ".join(list(WEIGHTS)[:words]) for words in range(1, 25)]
# It takes about 15 s.
WAIT_S = 60.0


class Meter:
    """A fake meter of a GPU."""

    def memory_bytes(self) -> float:
        return 2.0**30

    def busy_ratio(self) -> float:
        return 0.5


@pytest.fixture
def server(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a journal, a fake GPU and certificate, and traces that cannot be exported."""
    # The texts are unlike the references of its model.
    monkeypatch.setattr(expected_accuracy, "UNLIKE_INDEX", math.inf)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    running = RunningServer(settings.model_copy(update={"tracing": True, "journal": str(tmp_path / "journal")}))
    running.app._metrics.watch_devices({"cuda:0": Meter()})
    # tests/core/security has real certificates; here Prometheus scrapes in plaintext.
    running.app._metrics.watch_certificate(lambda: time.time() + 30 * 86_400)
    yield running
    running.stop()


def within_seconds(query: Query) -> str:
    """The query without thresholds, with subqueries every 10 s instead of 5 min."""
    return query.without_thresholds().replace(":5m]", ":10s]")


def has_data(found: Found) -> bool:
    """Whether there is a finite number."""
    return any(math.isfinite(value) for _, points in found for _, value in points)


@pytest.mark.needs_tool("prometheus")
async def test_every_expression_of_rules_and_board_has_data(server: RunningServer, awake: None, tmp_path: Path) -> None:
    missing: list[Query] = list(everything())
    with Prometheus(tmp_path, {"pod-a": server.url.removeprefix("http://")}) as prometheus:
        async with AsyncClient(server.target) as client:
            calls = asyncio.create_task(Caller(client, TEXTS, seed=0).call(lambda: 40.0))
            give_up_at = time.monotonic() + WAIT_S
            while missing and time.monotonic() < give_up_at and not calls.done():
                # Prometheus does not signal that it has scraped.
                await asyncio.sleep(0.5)
                missing = [query for query in missing if not has_data(await asyncio.to_thread(prometheus.query, within_seconds(query)))]
            calls.cancel()
            await asyncio.wait({calls})
        rules = prometheus.rules()

    assert [query.name for query in missing] == []
    assert calls.cancelled()
    assert {rule["health"] for rule in rules} == {"ok"}, [rule["lastError"] for rule in rules if rule["health"] != "ok"]
