"""From a bucket of a histogram to the trace of a request that it counted."""

import urllib.request
from collections.abc import Callable

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.conftest import RunningServer
from tests.tracing.calling import classify, context, trace_id
from tests.tracing.collector import Collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def buckets(url: str, name: str, **labels: str) -> list[Sample]:
    """Those of a histogram that name a request, as Prometheus reads them."""
    request = urllib.request.Request(url + "/metrics", headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families if family.name == f"sentiment_{name}" for sample in family.samples]
    return [sample for sample in samples if sample.exemplar is not None and labels.items() <= sample.labels.items()]


def test_the_times_of_a_sampled_request_name_its_trace(collector: Collector, traced: Callable[..., RunningServer]) -> None:
    server = traced()

    classify(server, "good", context(trace_id(1)))

    (whole,) = buckets(server.url, "request_seconds", method="Classify")
    assert whole.exemplar.labels == {"trace_id": trace_id(1)}
    assert 0 < whole.exemplar.value <= float(whole.labels["le"])
    stages = buckets(server.url, "stage_seconds")
    assert {sample.labels["stage"] for sample in stages} == {"tokenize", "queue", "run"}
    assert {sample.exemplar.labels["trace_id"] for sample in stages} == {trace_id(1)}


def test_a_request_that_is_not_sampled_is_no_example(collector: Collector, traced: Callable[..., RunningServer]) -> None:
    server = traced()

    classify(server, "good", context(trace_id(1), sampled=False))

    assert buckets(server.url, "request_seconds") == []
    assert buckets(server.url, "stage_seconds") == []


def test_the_plain_format_has_no_examples(collector: Collector, traced: Callable[..., RunningServer]) -> None:
    server = traced()
    classify(server, "good", context(trace_id(1)))

    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as response:
        text = response.read().decode()

    assert 'sentiment_request_seconds_bucket{le="60.0",method="Classify",model="tiny/1"} 1.0\n' in text
    assert trace_id(1) not in text
