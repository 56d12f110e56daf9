"""Drift of hidden states: of a sample of the answered texts, in the budget of explanations."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.errors import BadSettings
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.projections import PROJECTIONS, layer_of, project
from sentiment.lifecycle import hidden_drift, sampling
from sentiment.model.classifier import load_classifier
from sentiment.model.tokenizer import Row, Windows
from sentiment.observability import drift
from sentiment.settings import load_settings
from tests.conftest import RunningServer
from tests.core.lifecycle.conftest import Exchanging
from tests.core.servers import until
from tests.english import ENGLISH, NAME

Start = Callable[..., RunningServer]
TEXTS = (
    *("a gripping, beautifully shot film", "dull from start to finish", "the cast is fine", "not worth the price of a ticket"),
    *("It works. " * 60, "warm and funny", "an hour too long", "see it twice"),
)


@pytest.fixture
def english(start: Start) -> Callable[..., RunningServer]:
    """Start a server of the default bundle."""
    return lambda **changes: start(bundles=(), model="english", hidden_drift_share=1.0, **changes)


def compared(server: RunningServer, model: str = NAME) -> float:
    return server.metric("sentiment_hidden_drift_texts", model=model)


def dropped(server: RunningServer, reason: str) -> float:
    return server.metric("sentiment_hidden_drift_dropped_total", reason=reason, model=NAME)


def test_the_states_of_each_text_are_counted_once_and_compared_with_the_references(
    english: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = TEXTS * 8
    monkeypatch.setattr(drift, "TEXTS_MIN", len(texts))
    server = english()
    classifier = load_classifier(ENGLISH)
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
            assert server.metric("sentiment_signal_texts_total", signal=signal.name, bin=name, model=NAME) == count
    fit = drift.nearest(window, {signal.name: signal.counts for signal in signals})
    for name in window:
        assert server.metric("sentiment_drift", signal=name, model=NAME) == pytest.approx(fit.indexes[name])
        assert server.metric("sentiment_drift_threshold", signal=name, model=NAME) == pytest.approx(fit.thresholds[name])
    assert max(fit.indexes.values()) > 0.25
    # The window of the other signals is its own.
    assert server.metric("sentiment_drift_texts", model=NAME) == len(texts)


def test_of_a_text_in_windows_the_first_one_is_read_once(english: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    read = hidden_drift.project

    def note(*given: Any) -> list[float]:
        rows.append(given[2])
        return read(*given)

    monkeypatch.setattr(hidden_drift, "project", note)
    server = english()
    text = "The plot drags. " * 300

    with server.client() as client:
        client.classify_batch([text], truncation="windows")
        until(lambda: compared(server) == 1)

    windows = load_classifier(ENGLISH).read_on(text, "windows")
    assert isinstance(windows, Windows)
    assert len(windows.rows) > 1
    assert [list(row.ids) for row in rows] == [list(windows.rows[0].ids)]


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
        assert dropped(server, "queue_full") == 1
        let_go.set()
        until(lambda: compared(server) == 2)
    assert next(drawn, None) is None


def test_a_graph_that_cannot_be_used_is_logged_once_and_calls_are_answered(
    english: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> list[float]:
        raise RuntimeError("no such node")

    monkeypatch.setattr(hidden_drift, "project", fail)
    with capture_logs() as logs:
        server = english()
        with server.client() as client:
            assert all(client.classify(text).label for text in TEXTS[:3])
        until(lambda: dropped(server, "failed") == 3)
        server.stop()

    assert [(line["model"], line["reason"]) for line in logs if line["event"] == "hidden_drift_failed"] == [(NAME, "no such node")]


def test_without_references_of_hidden_states_the_log_says_so_and_no_thread_reads(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.Sampling, "add", lambda *_: pytest.fail("a text is to be read"))
    with capture_logs() as logs:
        server = start(hidden_drift_share=1.0)
        with server.client() as client:
            assert client.classify("good").label == "positive"

    assert [line["model"] for line in logs if line["event"] == "no_hidden_drift"] == ["tiny/1"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [({"explain": False}, "without explain it must be 0"), ({"explain_on": "device"}, "with explain_on = device it must be 0")],
)
def test_it_needs_explanations_on_the_cpu(flags: dict[str, object], said: str) -> None:
    with pytest.raises(BadSettings, match=rf"^hidden_drift_share is 0\.1; {said}"):
        load_settings({**flags, "hidden_drift_share": 0.1}, {})


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """A root with english/1 and english/2, which are the same."""
    one = ENGLISH
    for number in (1, 2):
        path = shutil.copytree(one, tmp_path / "versions" / "english" / str(number))
        manifest = json.loads((one / "manifest.json").read_text())
        (path / "manifest.json").unlink()
        (path / "manifest.json").write_text(json.dumps({**manifest, "version": number}))
    return tmp_path / "versions"


@pytest.mark.usefixtures("hasty")
def test_only_the_version_in_use_is_compared_and_each_loaded_one_starts_at_zero(
    exchanging: Callable[..., Exchanging], versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = exchanging(bundles=(versions,), model="english/1", hidden_drift_share=1.0)
    first = server.running("english/1").explaining
    assert first is not None
    offered: list[str] = []
    add = sampling.Sampling.add
    monkeypatch.setattr(sampling.Sampling, "add", lambda self, purpose, *rest: (offered.append(purpose.used.id), add(self, purpose, *rest)))

    def answer(model: str) -> None:
        """The version in use answers one more text, which is counted."""
        before = compared(server, model)
        assert client.classify("good").model.version == int(model[-1])
        until(lambda: compared(server, model) == before + 1)

    with server.client() as client, server.admin() as admin:
        answer("english/1")
        admin.load("english/2")
        # It has given its explain graph back, and calls that name it do not load it again.
        until(lambda: first.explainer._graph is None)
        assert client.classify("good", model="english/1").model.version == 1
        answer("english/2")
        assert first.explainer._graph is None
        admin.use("english/1")
        answer("english/1")
        admin.unload("english/2")
        admin.load("english/2")
        answer("english/2")
        assert compared(server, "english/2") == 1
    assert offered == ["english/1", "english/2", "english/1", "english/2"]


def test_a_stop_while_the_graph_loads_does_not_mark_it_as_bad() -> None:
    explainer = Explainer(load_classifier(ENGLISH))

    def end(_run: Callable[[], None]) -> None:
        raise sampling.Over

    with pytest.raises(sampling.Over):
        explainer.load(end)

    assert explainer.failure == ""
    assert explainer.load() is not None
