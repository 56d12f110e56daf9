"""A real Prometheus scrapes a real server under load. Every expression of the rules and the dashboard has data."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from sentiment.client import AsyncClient, CallFailed
from sentiment.observability import expected_accuracy
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.deploy.alerts.expressions import Query, everything
from tests.deploy.alerts.watching import Prometheus
from tests.tiny import WEIGHTS

TEXTS = [" ".join(list(WEIGHTS)[:words]) for words in range(1, 25)]
# It takes about 15 s.
WAIT_S = 60.0
TIMEOUT_S, IMPATIENT_S = 2.0, 0.02


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
    # As with tokens, and in a container with a limit.
    running.app._metrics.count_callers(())
    running.app._metrics.memory_limit_bytes.set(2**33)
    # tests/core/security has real certificates; here Prometheus scrapes in plaintext.
    running.app._metrics.watch_certificate(lambda: time.time() + 30 * 86_400)
    yield running
    running.stop()


def within_seconds(query: Query) -> str:
    """The query without thresholds, of now instead of the past, with subqueries every 10 s instead of 5 min."""
    return re.sub(r" offset \w+", "", query.without_thresholds().replace(":5m]", ":10s]"))


async def call(client: AsyncClient) -> None:
    """Calls of every kind, good and bad, so that every metric of a server moves."""

    async def items() -> AsyncIterator[tuple[str, str]]:
        for number, text in enumerate(TEXTS):
            yield str(number), text

    async def stream() -> None:
        async for _ in client.classify_stream(items()):
            pass

    kinds: list[Callable[[], Awaitable[object]]] = [
        # They run each time; those of the batch and the stream are known from the second time on.
        *(partial(client.classify, text, no_cache=True, timeout_s=TIMEOUT_S) for text in TEXTS),
        partial(client.classify, TEXTS[-1], no_cache=True, timeout_s=IMPATIENT_S),
        lambda: asyncio.wait_for(client.classify(TEXTS[-1], no_cache=True), IMPATIENT_S),
        partial(client.classify, ""),
        partial(client.classify, TEXTS[0], model="nosuch"),
        partial(client.classify_batch, TEXTS),
        stream,
        partial(client.explain, TEXTS[0], timeout_s=10 * TIMEOUT_S),
    ]
    while True:
        for one in kinds:
            with suppress(CallFailed, TimeoutError):
                await one()


@pytest.mark.needs_tool("prometheus")
async def test_every_expression_of_rules_and_board_has_data(server: RunningServer, awake: None, tmp_path: Path) -> None:
    missing: list[Query] = list(everything())
    with Prometheus(tmp_path, server.url.removeprefix("http://")) as prometheus:
        async with AsyncClient(server.target) as client:
            calls = asyncio.create_task(call(client))
            give_up_at = time.monotonic() + WAIT_S
            while missing and time.monotonic() < give_up_at and not calls.done():
                # Prometheus does not signal that it has scraped.
                await asyncio.sleep(0.5)
                found = {query: await asyncio.to_thread(prometheus.query, within_seconds(query)) for query in missing}
                missing = [query for query, values in found.items() if not any(map(math.isfinite, values))]
            calls.cancel()
            await asyncio.wait({calls})
        rules = prometheus.rules()

    assert [query.name for query in missing] == []
    assert calls.cancelled()
    assert {rule["health"] for rule in rules} == {"ok"}, [rule["lastError"] for rule in rules if rule["health"] != "ok"]
