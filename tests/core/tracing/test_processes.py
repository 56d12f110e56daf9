"""Real server processes whose collector is down, hangs, refuses or starts late; and the packages that tracing needs."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sentiment.client import Client
from tests.conftest import PLAIN
from tests.core.serving.test_processes import Process, free_port
from tests.core.tracing.collector import PATIENCE_S, Collector
from tests.core.tracing.test_exemplars import buckets

TEXTS = ["a good film", "awful", "the great and the bad", *(f"w{number}" for number in range(-20, 20))]
# The flush, the cut-off, and a drain on a busy machine.
DRAIN_S = 30
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


def spawning(bundles: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def begin(*flags: str, **environment: str) -> Process:
        own = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0")
        processes.append(Process(bundles, *own, *flags, environment=environment))
        return processes[-1]

    yield begin
    for process in processes:
        process.process.kill()
        process.process.communicate()


spawn = pytest.fixture(spawning)
spawn_once = pytest.fixture(scope="module")(spawning)


def answers(server: Process) -> list[tuple[Any, ...]]:
    """What each text is answered, without times."""
    with Client(server.target, options=PLAIN) as client:
        found = [client.classify(text) for text in TEXTS] + list(client.classify_batch(TEXTS))
    return [(one.label, one.score, dict(one.scores), one.abstain, one.tokens, one.truncated, one.model) for one in found]


def metric(server: Process, name: str, **labels: str) -> float:
    samples = [sample for family in text_string_to_metric_families(server.metrics()) for sample in family.samples]
    return sum(one.value for one in samples if one.name == f"sentiment_{name}" and labels.items() <= one.labels.items())


def dropped(server: Process, reason: str) -> float:
    return metric(server, "trace_spans_dropped_total", reason=reason)


def eventually(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def untraced(spawn_once: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The answers of a server that does not trace. It needs no packages of OpenTelemetry and shows no exemplars."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NOT_INSTALLED)
    server = spawn_once(PYTHONPATH=str(folder)).wait_ready()
    found = answers(server)
    assert buckets(f"http://{server.url}", "request_seconds") == []
    return found


def test_a_missing_collector_costs_spans_and_nothing_else(spawn: Callable[..., Process], untraced: list[tuple[Any, ...]]) -> None:
    absent = f"127.0.0.1:{free_port()}"
    environment = SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{absent}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    server = spawn("--tracing", **environment).wait_ready()

    found = answers(server)

    assert found == untraced
    lost = eventually(lambda: dropped(server, "not_exported"))
    # A single text has 4 spans, a batch call more: a queue of 8 overflows while an export of 4 is retried.
    assert dropped(server, "queue_full") > lost
    assert metric(server, "trace_spans_sent_total") == 0
    assert metric(server, "requests_total", code="OK") == len(TEXTS) + 1
    server.process.terminate()
    assert server.finish(DRAIN_S) == 0
    # At most one line a minute.
    assert server.events() == ["ready", "spans_lost", "draining", "drained"]
    said = next(line for line in server.lines if line["event"] == "spans_lost")
    # An export may be refused, or its second try may still be connecting when the timeout ends.
    assert re.search(rf"{absent}\b.*(UNAVAILABLE|DEADLINE_EXCEEDED)", str(said["reason"]))
    assert server.others == []


def test_a_collector_that_hangs_delays_neither_requests_nor_the_exit(
    spawn: Callable[..., Process], untraced: list[tuple[Any, ...]], collector: Collector
) -> None:
    collector.hangs = True
    server = spawn("--tracing", **SMALL, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_TIMEOUT="3600").wait_ready()

    found = answers(server)

    assert found == untraced
    collector.wait_for_calls(1)
    assert dropped(server, "queue_full") > 0
    server.process.terminate()
    # The exporter's own timeout is an hour.
    assert server.finish(DRAIN_S) == 0
    assert server.events()[-2:] == ["draining", "drained"] or server.events()[-1] == "spans_lost"
    assert server.events().count("spans_lost") <= 1


def test_a_collector_that_refuses_is_logged_once(
    spawn: Callable[..., Process], untraced: list[tuple[Any, ...]], collector: Collector
) -> None:
    collector.refuses = True
    server = spawn("--tracing", **SMALL, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url).wait_ready()

    assert answers(server) == untraced
    collector.wait_for_calls(3)
    eventually(lambda: dropped(server, "not_exported") >= 8)

    server.process.terminate()
    assert server.finish(DRAIN_S) == 0
    (said,) = [line for line in server.lines if line["event"] == "spans_lost"]
    assert "PERMISSION_DENIED" in str(said["reason"])


def test_a_collector_that_starts_late_gets_the_later_spans(spawn: Callable[..., Process]) -> None:
    port = free_port()
    environment = SMALL | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    server = spawn("--tracing", **environment).wait_ready()
    answers(server)
    eventually(lambda: dropped(server, "not_exported"))

    late = Collector(port)
    try:
        with Client(server.target, options=PLAIN) as client:
            eventually(lambda: client.classify("good") and late.spans)

        eventually(lambda: metric(server, "trace_spans_sent_total") > 0)
    finally:
        late.stop()


def test_the_last_spans_are_sent_before_the_exit(spawn: Callable[..., Process], collector: Collector) -> None:
    # No export before the exit.
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "1000000", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    server = spawn("--tracing", **environment).wait_ready()
    with Client(server.target, options=PLAIN) as client:
        client.classify("good")
    assert collector.spans == []

    server.process.terminate()

    assert server.finish(DRAIN_S) == 0
    assert {span.name for span in collector.spans} == {"tokenize", "queue", "run", "batch", "sentiment.v1.SentimentService/Classify"}
    assert server.events() == ["ready", "draining", "drained"]


def test_a_server_that_does_not_trace_does_not_even_load_opentelemetry() -> None:
    loaded = "import sentiment.serving.app, sentiment_front_ends.front_end, sys"
    look = f"{loaded}; print([name for name in sys.modules if 'opentelemetry' in name])"

    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)

    assert said.stdout == "[]\n"


def test_tracing_without_the_packages_stops_the_startup_with_the_remedy(spawn: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)

    server = spawn("--tracing", PYTHONPATH=str(tmp_path))

    assert server.finish(PATIENCE_S) == 2
    (reason,) = [str(line["reason"]) for line in server.lines if line["event"] == "cannot_serve"]
    assert "opentelemetry" in reason
    assert "pip install 'sentiment-service[tracing]'" in reason
