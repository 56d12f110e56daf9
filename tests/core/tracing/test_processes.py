"""Real server processes whose collector is down, hangs, refuses or starts late; and the packages that tracing needs."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentiment.client import Client
from tests.conftest import PLAIN
from tests.core.servers import Server, serving, until
from tests.core.tracing.collector import Collector
from tests.core.tracing.test_exemplars import buckets
from tests.programs import free_port

TEXTS = ["a good film", "awful", "the great and the bad", *(f"w{number}" for number in range(-20, 20))]
SMALL = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
# Read by every Python at its start.
NOT_INSTALLED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "opentelemetry" or name.startswith("opentelemetry."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def answers(server: Server) -> list[tuple[Any, ...]]:
    """What each text is answered, without times."""
    with Client(server.target, options=PLAIN) as client:
        found = [client.classify(text) for text in TEXTS] + list(client.classify_batch(TEXTS))
    return [(one.label, one.score, dict(one.scores), one.abstain, one.tokens, one.truncated, one.model) for one in found]


def dropped(server: Server, reason: str) -> float:
    return server.total("trace_spans_dropped_total", reason=reason)


@pytest.fixture(scope="module")
def untraced(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The answers of a server that does not trace. It needs no packages of OpenTelemetry and shows no exemplars."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NOT_INSTALLED)
    with serving(bundles) as serve:
        server = serve(environment={"PYTHONPATH": str(folder)})
        assert buckets(server.url, "request_seconds") == []
        return answers(server)


def test_a_missing_collector_costs_spans_and_nothing_else(serve: Callable[..., Server], untraced: list[tuple[Any, ...]]) -> None:
    absent = f"127.0.0.1:{free_port()}"
    environment = SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{absent}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    server = serve("--tracing", environment=environment)

    found = answers(server)

    assert found == untraced
    until(lambda: dropped(server, "not_exported"))
    lost = dropped(server, "not_exported")
    # A single text has 4 spans, a batch call more: a queue of 8 overflows while an export of 4 is retried.
    assert dropped(server, "queue_full") > lost
    assert server.total("trace_spans_sent_total") == 0
    assert server.total("requests_total", code="OK") == len(TEXTS) + 1
    server.process.terminate()
    assert server.finish() == 0
    # At most one line a minute.
    assert server.events() == ["ready", "spans_lost", "draining", "drained"]
    said = next(line for line in server.lines if line["event"] == "spans_lost")
    # An export may be refused, or its second try may still be connecting when the timeout ends.
    assert re.search(rf"{absent}\b.*(UNAVAILABLE|DEADLINE_EXCEEDED)", str(said["reason"]))
    assert server.others == []


def test_a_collector_that_hangs_delays_neither_requests_nor_the_exit(
    serve: Callable[..., Server], untraced: list[tuple[Any, ...]], collector: Collector
) -> None:
    collector.hangs = True
    environment = SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
    server = serve("--tracing", environment=environment)

    found = answers(server)

    assert found == untraced
    collector.wait_for_calls(1)
    assert dropped(server, "queue_full") > 0
    server.process.terminate()
    # The exporter's own timeout is an hour.
    assert server.finish() == 0
    assert server.events()[-2:] == ["draining", "drained"] or server.events()[-1] == "spans_lost"
    assert server.events().count("spans_lost") <= 1


def test_a_collector_that_refuses_is_logged_once(
    serve: Callable[..., Server], untraced: list[tuple[Any, ...]], collector: Collector
) -> None:
    collector.refuses = True
    server = serve("--tracing", environment=SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})

    assert answers(server) == untraced
    collector.wait_for_calls(3)
    until(lambda: dropped(server, "not_exported") >= 8)

    server.process.terminate()
    assert server.finish() == 0
    (said,) = [line for line in server.lines if line["event"] == "spans_lost"]
    assert "PERMISSION_DENIED" in str(said["reason"])


def test_a_collector_that_starts_late_gets_the_later_spans(serve: Callable[..., Server]) -> None:
    port = free_port()
    environment = SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    server = serve("--tracing", environment=environment)
    answers(server)
    until(lambda: dropped(server, "not_exported"))

    late = Collector(port)
    try:
        with Client(server.target, options=PLAIN) as client:
            until(lambda: client.classify("good") and late.spans)

        until(lambda: server.total("trace_spans_sent_total") > 0)
    finally:
        late.stop()


def test_the_last_spans_are_sent_before_the_exit(serve: Callable[..., Server], collector: Collector) -> None:
    # No export before the exit.
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "1000000", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    server = serve("--tracing", environment=environment)
    with Client(server.target, options=PLAIN) as client:
        client.classify("good")
    assert collector.spans == []

    server.process.terminate()

    assert server.finish() == 0
    assert {span.name for span in collector.spans} == {"tokenize", "queue", "run", "batch", "sentiment.v1.SentimentService/Classify"}
    assert server.events() == ["ready", "draining", "drained"]


def test_a_server_that_does_not_trace_does_not_even_load_opentelemetry() -> None:
    loaded = "import sentiment.serving.app, sentiment_front_ends.front_end, sys"
    look = f"{loaded}; print([name for name in sys.modules if 'opentelemetry' in name])"

    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)

    assert said.stdout == "[]\n"


def test_tracing_without_the_packages_stops_the_startup_with_the_remedy(serve: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)

    server = serve("--tracing", environment={"PYTHONPATH": str(tmp_path)}, ready=False)

    assert server.finish() == 2
    (reason,) = [str(line["reason"]) for line in server.lines if line["event"] == "cannot_serve"]
    assert "opentelemetry" in reason
    assert "pip install 'sentiment-service[tracing]'" in reason
