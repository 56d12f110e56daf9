"""A collector, and servers that send to it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import RunningServer
from tests.core.grpc.conftest import hold  # noqa: F401  # a fixture
from tests.core.tracing.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.stop()


@pytest.fixture
def traced(collector: Collector, monkeypatch: pytest.MonkeyPatch, start: Callable[..., RunningServer]) -> Callable[..., RunningServer]:
    """Start a server that traces everything, or as the variables given say."""

    def begin(sampler: str = "parentbased_always_on", argument: str = "", **changes: Any) -> RunningServer:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
        return start(tracing=True, **changes)

    return begin
