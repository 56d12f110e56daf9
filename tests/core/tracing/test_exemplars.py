"""Exemplars link a histogram bucket to the trace of a request."""

import urllib.request
from collections.abc import Callable

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.conftest import RunningServer
from tests.core.tracing.calling import classify, context, http, trace_id
from tests.core.tracing.collector import Collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def buckets(url: str, name: str, **labels: str) -> list[Sample]:
    """The buckets of a histogram that have an exemplar, as Prometheus reads them."""
    request = urllib.request.Request(url + "/metrics", headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families if family.name == f"sentiment_{name}" for sample in family.samples]
    return [sample for sample in samples if sample.exemplar is not None and labels.items() <= sample.labels.items()]


def test_the_times_of_a_sampled_request_name_its_trace_in_openmetrics_only(
    collector: Collector, traced: Callable[..., RunningServer]
) -> None:
    server = traced()

    classify(server, "good", context(trace_id(1)))

    (whole,) = buckets(server.url, "request_seconds", method="Classify")
    assert whole.exemplar.labels == {"trace_id": trace_id(1)}
    assert 0 < whole.exemplar.value <= float(whole.labels["le"])
    stages = buckets(server.url, "stage_seconds")
    assert {sample.labels["stage"] for sample in stages} == {"tokenize", "queue", "run"}
    assert {sample.exemplar.labels["trace_id"] for sample in stages} == {trace_id(1)}
    plain = http(server, "/metrics")[1]
    assert 'sentiment_request_seconds_bucket{le="60.0",method="Classify",model="tiny/1"} 1.0\n' in plain
    assert trace_id(1) not in plain


def test_a_request_that_is_not_sampled_has_no_exemplar(collector: Collector, traced: Callable[..., RunningServer]) -> None:
    server = traced()

    classify(server, "good", context(trace_id(1), sampled=False))

    assert buckets(server.url, "request_seconds") == []
    assert buckets(server.url, "stage_seconds") == []
