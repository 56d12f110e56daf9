"""The outlet alone: its queue is bounded, and an export that hangs is cut off."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing import otel
from sentiment.observability.tracing.otel import OtelOutlet
from sentiment.observability.tracing.trace import CANCELLED, Begin, Place, Span, StageSpan, Trace, Tracer
from tests.core.tracing.collector import PATIENCE_S, Collector
from tests.core.tracing.kept import Kept


def span(number: int) -> Span:
    return Span("one", Place(1, number), 0, 10, 20, {})


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "Otel" in thread.name or thread.name == "last spans"}


@pytest.fixture
def outlet(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[OtelOutlet, Metrics]]:
    def make(**variables: str) -> tuple[OtelOutlet, Metrics]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        for name, value in variables.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        metrics = Metrics(())
        return OtelOutlet(metrics, "server"), metrics

    return make


def counted(metrics: Metrics, what: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"sentiment_trace_spans_{what}_total", labels) or 0.0


def test_every_span_is_sent_or_counted_as_dropped(
    collector: Collector, outlet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "FLUSH_S", PATIENCE_S)
    collector.hangs = True
    # The long delay: only a full message is sent at once.
    sender, metrics = outlet(BSP_MAX_QUEUE_SIZE="10", BSP_MAX_EXPORT_BATCH_SIZE="4", BSP_SCHEDULE_DELAY="1000000")
    for number in range(1, 5):
        sender.put(span(number))
    # Four are being sent; ten more may wait.
    collector.wait_for_calls(1)
    for number in range(5, 105):
        sender.put(span(number))
    collector.hangs = False
    collector._let.set()
    sender.close()

    assert counted(metrics, "dropped", reason="queue_full") == 90
    assert counted(metrics, "sent") == 14
    assert counted(metrics, "dropped", reason="not_exported") == 0
    assert sorted(int(got.id, 16) for got in collector.spans) == list(range(1, 15))


def test_an_export_that_hangs_is_cut_off_and_counted_and_no_thread_stays(
    collector: Collector, outlet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "FLUSH_S", 0.05)
    monkeypatch.setattr(otel, "CUT_OFF_S", 30)
    before = threads()
    collector.hangs = True
    sender, metrics = outlet(EXPORTER_OTLP_TIMEOUT="3600", BSP_MAX_EXPORT_BATCH_SIZE="2", BSP_SCHEDULE_DELAY="1")
    for number in range(1, 6):
        sender.put(span(number))
    collector.wait_for_calls(1)

    sender.close()

    assert counted(metrics, "dropped", reason="not_exported") == 5
    assert threads() <= before


def test_a_span_after_the_close_is_counted_as_dropped(collector: Collector, outlet: Callable[..., Any]) -> None:
    sender, metrics = outlet()
    sender.close()

    sender.put(span(1))

    assert counted(metrics, "dropped", reason="not_exported") == 1
    assert collector.spans == []


@pytest.mark.parametrize(
    ("variables", "number", "reason"),
    [
        # An id of more than 64 bits cannot be encoded.
        ({}, 2**64, "OverflowError"),
        ({"EXPORTER_OTLP_HEADERS": "authorization=Bearer%0Asesame"}, 1, ""),
    ],
    ids=["span", "header"],
)
def test_spans_that_cannot_be_sent_are_logged_without_headers_and_counted(
    collector: Collector, outlet: Callable[..., Any], variables: dict[str, str], number: int, reason: str
) -> None:
    sender, metrics = outlet(**variables, BSP_SCHEDULE_DELAY="1000000")
    sender.put(span(number))
    with structlog.testing.capture_logs() as logs:
        sender.close()

    assert [(entry["event"], entry["spans"]) for entry in logs] == [("spans_lost", 1)]
    assert reason in logs[0]["reason"]
    assert "sesame" not in str(logs)
    assert counted(metrics, "dropped", reason="not_exported") == 1
    assert collector.calls == 0


def test_the_sdks_logger_is_restored_after_the_close(outlet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = logging.getLogger("opentelemetry")
    monkeypatch.setattr(sdk, "propagate", True)
    monkeypatch.setattr(sdk, "level", logging.NOTSET)
    before = sdk.propagate, sdk.level, list(sdk.handlers)
    sender, _ = outlet()
    meanwhile = sdk.propagate, len(sdk.handlers)

    sender.close()

    assert meanwhile == (False, len(before[2]) + 1)
    assert (sdk.propagate, sdk.level, list(sdk.handlers)) == before


def test_spans_reach_a_collector_on_this_machine_without_a_proxy(
    collector: Collector, outlet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "FLUSH_S", PATIENCE_S)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    # Nothing listens there.
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    sender, metrics = outlet()

    sender.put(span(1))
    sender.close()

    assert counted(metrics, "sent") == 1


def test_many_spans_are_sent_in_small_messages(collector: Collector, outlet: Callable[..., Any]) -> None:
    sender, _ = outlet(BSP_SCHEDULE_DELAY="1000000")
    for number in range(1, 201):
        sender.put(span(number))
    sender.close()

    assert len(collector.spans) == 200
    assert collector.calls == 4


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, {"service.name": "sentiment", "sentiment.process": "front-0", "process.pid": os.getpid()}),
        ({"OTEL_SERVICE_NAME": "words"}, {"service.name": "words", "sentiment.process": "front-0"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=words-0"}, {"service.name": "sentiment", "k8s.pod.name": "words-0"}),
    ],
    ids=["defaults", "name", "attributes"],
)
def test_the_resource_is_ours_with_what_the_variables_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], found: dict[str, object]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    attributes = otel._resource("front-0").attributes

    assert found.items() <= attributes.items()
    assert attributes["service.version"]


def test_a_joined_trace_continues_the_span_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()

    Tracer(kept).join(Place(7, 8)).stage("run", 1.0, 2.0, {})

    (told,) = kept.spans
    assert (told.place.trace_id, told.parent_id) == (7, 8)
    assert told.ended_ns - told.begun_ns == 10**9


def test_spans_of_a_request_stay_consistent_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    trace = Trace(kept, Begin(Place(1, 2), 0, None))

    trace.stage("queue", 1.0, 2.0, {})
    monkeypatch.setattr("time.time_ns", lambda: 0)
    trace.stage("run", 2.0, 3.0, {})

    queue, run = kept.spans
    assert queue.ended_ns == run.begun_ns


def test_a_traceparent_has_the_w3c_form() -> None:
    assert Place(1, 2).traceparent == "00-00000000000000000000000000000001-0000000000000002-01"


async def test_a_stage_has_a_span_however_it_ends() -> None:
    kept = Kept()
    trace = Trace(kept, Begin(Place(1, 2), 0, None))

    with StageSpan(trace, "tokenize") as attributes:
        attributes["sentiment.tokens"] = 3
    with pytest.raises(ValueError, match="of no concern"), StageSpan(trace, "tokenize"):
        raise ValueError("of no concern")
    with pytest.raises(asyncio.CancelledError), StageSpan(trace, "tokenize"):
        raise asyncio.CancelledError
    with StageSpan(None, "tokenize"):
        pass

    told = [(span.error, span.attributes) for span in kept.spans]
    assert told == [("", {"sentiment.tokens": 3}), ("ValueError", {}), ("", {CANCELLED: True})]
