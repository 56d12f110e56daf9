"""Drift of hidden states: of a sample of the answered texts, in the budget of explanations."""

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.errors import BadSettings
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.projections import PROJECTIONS, layer_of, project
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import load_classifier
from sentiment.observability import drift
from sentiment.serving.lifecycle import hidden_drift, sampling
from sentiment.settings import load_settings
from tests.conftest import RunningServer
from tests.lifecycle.test_shadow import until

pytestmark = pytest.mark.usefixtures("awake")

Start = Callable[..., RunningServer]
TEXTS = (
    *("a gripping, beautifully shot film", "dull from start to finish", "the cast is fine", "not worth the price of a ticket"),
    *("It works. " * 60, "warm and funny", "an hour too long", "see it twice"),
)


@pytest.fixture
def english(start: Start) -> Callable[..., RunningServer]:
    """Start a server of the default bundle."""
    return lambda **changes: start(bundles=(), model="english", hidden_drift_share=1.0, **changes)


def compared(server: RunningServer) -> float:
    return server.metric("sentiment_hidden_drift_texts", model="english/1")


def test_the_states_of_each_text_are_counted_once_and_compared_with_the_references(
    english: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = TEXTS * 8
    monkeypatch.setattr(drift, "TEXTS_MIN", len(texts))
    server = english()
    classifier = load_classifier(find_bundle("english", bundle_roots([])))
    graph, layer = Explainer(classifier).load(), classifier.manifest.hidden_layer
    assert graph is not None
    assert layer == layer_of(graph.session.layers) == 2

    with server.client() as client:
        client.classify_batch(list(texts))
        until(lambda: compared(server) == len(texts))

    signals = classifier.manifest.hidden_signals
    assert [signal.name for signal in signals] == [f"hidden_{number}" for number in range(1, PROJECTIONS + 1)]
    values = [project(classifier, graph.session, classifier.tokenizer.encode(text), layer) for text in TEXTS]
    window: dict[str, list[float]] = {}
    for place, signal in enumerate(signals):
        expected = Counter(signal.place(one[place]) for one in values)
        window[signal.name] = [8 * expected[bin_] for bin_ in range(len(signal.bins))]
        for name, count in zip(signal.bins, window[signal.name], strict=True):
            assert server.metric("sentiment_signal_texts_total", signal=signal.name, bin=name, model="english/1") == count
    fit = drift.nearest(window, {signal.name: signal.counts for signal in signals})
    for name in window:
        assert server.metric("sentiment_drift", signal=name, model="english/1") == pytest.approx(fit.indexes[name])
        assert server.metric("sentiment_drift_threshold", signal=name, model="english/1") == pytest.approx(fit.thresholds[name])
    assert max(fit.indexes.values()) > 0.25
    # The window of the other signals is its own.
    assert server.metric("sentiment_drift_texts", model="english/1") == len(texts)


def test_the_share_of_the_texts_is_read_and_what_has_no_room_is_left_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, read = threading.Event(), hidden_drift.project

    def hold(*given: Any) -> list[float]:
        let_go.wait(60)
        return read(*given)

    monkeypatch.setattr(hidden_drift, "project", hold)
    monkeypatch.setattr(sampling, "TEXTS_MAX", 2)
    drawn = iter([0.3, 0.29, 0.0, 0.1, 0.9])
    monkeypatch.setattr(hidden_drift, "random", SimpleNamespace(random=lambda: next(drawn)))
    server = start(bundles=(), model="english", hidden_drift_share=0.3)

    with server.client() as client:
        for text in TEXTS[:5]:
            assert client.classify(text).label
        let_go.set()
        until(lambda: compared(server) == 2)
    assert next(drawn, None) is None


def test_a_graph_that_cannot_be_used_is_logged_once_and_calls_are_answered(
    english: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Semaphore(0)

    def fail(*_: Any) -> list[float]:
        failed.release()
        raise RuntimeError("no such node")

    monkeypatch.setattr(hidden_drift, "project", fail)
    with capture_logs() as logs:
        server = english()
        with server.client() as client:
            assert all(client.classify(text).label for text in TEXTS[:3])
        assert all(failed.acquire(timeout=60) for _ in range(3))
        server.stop()

    assert [(line["model"], line["reason"]) for line in logs if line["event"] == "hidden_drift_failed"] == [("english/1", "no such node")]


def test_without_references_of_hidden_states_the_log_says_so_and_no_thread_reads(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.Sampling, "add", lambda *_: pytest.fail("a text is to be read"))
    with capture_logs() as logs:
        server = start(hidden_drift_share=1.0)
        with server.client() as client:
            assert client.classify("good").label == "positive"

    assert [line["model"] for line in logs if line["event"] == "no_hidden_drift"] == ["tiny/1"]


def test_it_needs_explanations() -> None:
    with pytest.raises(BadSettings, match=r"^hidden_drift_share is 0\.1; without explain it must be 0"):
        load_settings({"explain": False, "hidden_drift_share": 0.1}, {})
