"""Counters and histograms export what those of the client library export."""

import random
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition

from sentiment.observability.instruments import Counter, Histogram

EDGES = (2e-5, 0.001, 0.5, 1, 16384)
KINDS = [
    pytest.param(Counter, prometheus_client.Counter, {}, "inc", id="counter"),
    pytest.param(Histogram, prometheus_client.Histogram, {"buckets": EDGES}, "observe", id="histogram"),
]


@pytest.mark.parametrize(("ours", "theirs", "options", "change"), KINDS)
def test_the_page_is_the_same_as_with_the_library(ours: Any, theirs: Any, options: dict[str, Any], change: str) -> None:
    pages = []
    for make, name in ((ours, "work"), (theirs, "sentiment_work")):
        registry, rng = CollectorRegistry(), random.Random(1)
        instrument = make(name, "Work.", ["kind", "model"], registry=registry, **options)
        for kind in ("a", "b", "never"):
            instrument.labels(kind, "tiny/1")
        for _ in range(200):
            amount = rng.choice((*EDGES, 0, rng.expovariate(1), 1e5))
            getattr(instrument.labels(rng.choice("ab"), "tiny/1"), change)(amount)
        pages.append(exposition.generate_latest(registry).decode())

    assert pages[0] == pages[1]
    assert 'kind="never"' in pages[0]


def test_a_bucket_shows_its_last_exemplar() -> None:
    registry = CollectorRegistry()
    observe = Histogram("work", "Work.", ["kind"], buckets=EDGES, registry=registry).labels("a").observe
    for amount, trace in ((0.7, "1"), (0.6, "2"), (0.9, None)):
        observe(amount, None if trace is None else {"trace_id": trace})

    lines = [line for line in exposition.generate_latest(registry).decode().splitlines() if "#" in line and "_bucket" in line]

    assert len(lines) == 1
    assert lines[0].startswith('sentiment_work_bucket{kind="a",le="1.0"} 3.0 # {trace_id="2"} 0.6 ')


def test_series_are_removed_by_the_value_of_a_label() -> None:
    registry = CollectorRegistry()
    counter = Counter("work", "Work.", ["kind", "model"], registry=registry)
    gone, stays = counter.labels("a", "old/1"), counter.labels("a", "new/1")
    counter.remove("model", "old/1")
    counter.remove("other", "new/1")
    gone.inc()
    stays.inc(2)

    assert registry.get_sample_value("sentiment_work_total", {"kind": "a", "model": "old/1"}) is None
    assert registry.get_sample_value("sentiment_work_total", {"kind": "a", "model": "new/1"}) == 2
