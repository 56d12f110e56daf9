"""Shadow scoring: two versions answer the same live texts, their differences are counted, and live calls do not notice."""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from structlog.testing import capture_logs

from sentiment.client import Classification, Client
from sentiment.lifecycle import sampling, shadow
from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.states import Event
from sentiment.pipeline.queries import QueryReader
from tests.core.lifecycle.conftest import Exchanging
from tests.core.observability.test_metrics import samples, scrape
from tests.core.servers import until
from tests.tiny import SPECIAL, WEIGHTS, make_bundle, read_manifest, write_manifest

Start = Callable[..., Exchanging]
# With these weights "good" and "w8" change their sides.
CHANGED = {"good": -0.5, "w8": -0.25, "great": 2.5}
TEXTS = ("good", "a good film", "bad", "awful film", "w8", "great", "great w8", "w-3 w1", "good " * 40)
PAIR = {"model": "tiny/1", "shadow": "tiny/2"}


def make_other(root: Path, version: int = 2, **changes: object) -> Path:
    """Write ``root/tiny/version``, all at once: with the weights CHANGED, and these changes of its manifest."""
    part = make_bundle(root / ".part", "tiny", version)
    model = onnx.load(part / "fp32.onnx")
    (table,) = [one for one in model.graph.initializer if one.name == "table"]
    weights = numpy_helper.to_array(table).copy()
    for word, weight in CHANGED.items():
        weights[len(SPECIAL) + list(WEIGHTS).index(word)] = -weight, weight
    table.CopyFrom(numpy_helper.from_array(weights.astype(np.float32), "table"))
    onnx.save(model, part / "fp32.onnx")
    golden = {"text": "a good film", "label": "negative", "logits": [0.5, -0.5]}
    write_manifest(part, read_manifest(part) | {"golden": [golden]} | changes)
    (root / "tiny").mkdir(parents=True, exist_ok=True)
    os.rename(part, root / "tiny" / str(version))
    return root / "tiny" / str(version)


def differences(used: list[Any], other: list[Any]) -> tuple[Counter[tuple[str, str]], dict[str, float]]:
    """Flips, and the sums of the shifts up and down, of the answers of two versions to the same texts."""
    flips: Counter[tuple[str, str]] = Counter()
    shift = {"up": 0.0, "down": 0.0}
    for one, two in zip(used, other, strict=True):
        moved = two.scores[one.label] - one.score
        shift["up" if moved > 0 else "down"] += abs(moved)
        flips[one.label, two.label] += one.label != two.label
    return +flips, shift


def compared(server: Exchanging) -> float:
    return server.metric("sentiment_shadow_texts_total", **PAIR)


def dropped(server: Exchanging, reason: str) -> float:
    return server.metric("sentiment_shadow_dropped_total", reason=reason, **PAIR)


def counted_of(server: Exchanging, model: str) -> dict[str, float]:
    """Everything that is counted of one model's live calls, by series; no gauges and no comparison."""
    found = [one for one in samples(scrape(server)[0]) if one.labels.get("model") == model and "shadow" not in one.labels]
    return {f"{one.name}{sorted(one.labels.items())}": one.value for one in found if one.name.endswith(("_total", "_count", "_sum"))}


def classify_all(client: Client) -> list[Any]:
    """Each text once, in all ways."""
    windows = client.classify_batch([TEXTS[-1]], truncation="windows")
    return [*(client.classify(text) for text in TEXTS), *client.classify_batch(list(TEXTS)), *windows]


@pytest.fixture
def server(exchanging: Start, root: Path) -> Exchanging:
    """A server of tiny/1 with tiny/2 beside it; all texts are compared."""
    server = exchanging(shadow_share=1.0)
    make_other(root)
    with server.admin() as admin:
        admin.load("tiny/2", use=False)
    return server


class Held:
    """Holds the runs of shadow scoring until ``let_go``, and notes what they run in."""

    def __init__(self, server: Exchanging, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.priorities: list[int] = []
        session = server.running("tiny/2").loaded.explained.session
        run = session.run

        def hold(*given: Any) -> Any:
            if threading.current_thread().name == "sampling-run":
                self.priorities.append(os.sched_getscheduler(0) if sys.platform == "linux" else -1)
                self.begun.set()
                self.let_go.wait(60)
            return run(*given)

        monkeypatch.setattr(session, "run", hold)


@pytest.fixture
def held(server: Exchanging, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(server, monkeypatch)
    yield held
    held.let_go.set()


def test_texts_flips_and_shift_are_those_of_both_versions_direct_answers(server: Exchanging) -> None:
    with server.client() as client:
        # Not in use, so that these calls are not compared.
        direct = {text: client.classify(text, model="tiny/2") for text in TEXTS}
        (in_windows,) = client.classify_batch([TEXTS[-1]], model="tiny/2", truncation="windows")
        before = counted_of(server, "tiny/2")

        live = classify_all(client)

        until(lambda: compared(server) == len(live))
    flips, shift = differences(live, [*(direct[text] for text in TEXTS * 2), in_windows])
    found = {(one.labels["from"], one.labels["to"]): one.value for one in samples(scrape(server)[0]) if "shadow_flips" in one.name}

    assert all(isinstance(one, Classification) and one.model.version == 1 for one in live)
    assert flips[("positive", "negative")] > 5
    assert +Counter(found) == flips
    for direction, total in shift.items():
        assert server.metric("sentiment_shadow_shift_total", direction=direction, **PAIR) == pytest.approx(total, abs=1e-4)
    assert {dropped(server, reason) for reason in ("queue_full", "failed")} == {0}
    # The other version's own metrics know nothing of it: no prediction, no batch, no token, no refusal.
    assert counted_of(server, "tiny/2") == before
    state, said = server.states()["tiny/2"]
    assert state == "READY"
    assert said.startswith(f"differs from tiny/1 on {100 * flips.total() / len(live):.1f} % (")
    assert f") of {len(live)} texts: positive to negative {flips['positive', 'negative']}" in said


def test_an_exchange_compares_the_other_way_round_and_an_unload_takes_the_series_away(server: Exchanging) -> None:
    with server.client() as client, server.admin() as admin:
        client.classify("good")
        until(lambda: compared(server) == 1)
        admin.use("tiny/2")

        client.classify("good")

        other = {"model": "tiny/2", "shadow": "tiny/1"}
        until(lambda: server.metric("sentiment_shadow_texts_total", **other) == 1)
        assert server.metric("sentiment_shadow_flips_total", **{"from": "negative", "to": "positive"}, **other) == 1
        assert compared(server) == 1
        assert server.states()["tiny/1"][1].startswith("kept; differs from tiny/2 on 100.0 % (")
        admin.unload("tiny/1")
        client.classify("good")
    assert not [one for one in samples(scrape(server)[0]) if "shadow" in one.labels]


def test_the_share_of_the_texts_is_compared(exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_other(root)
    # Both are loaded at the start, without an admin call.
    server = exchanging(shadow_share=0.3, model="tiny/1", models=("tiny/2",))
    drawn = iter([0.29, 0.3, 0.9, 0.0, 0.31])
    monkeypatch.setattr(shadow, "random", SimpleNamespace(random=lambda: next(drawn)))

    with server.client() as client:
        for text in ("bad", "good", "good", "bad", "good"):
            client.classify(text)

    until(lambda: compared(server) == 2)
    assert server.metric("sentiment_shadow_flips_total", **{"from": "positive", "to": "negative"}, **PAIR) == 0


def test_live_calls_do_not_wait_for_a_slow_version_and_what_has_no_room_is_dropped(
    idle: int, server: Exchanging, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "TEXTS_MAX", 4)
    with server.client() as client, server.admin() as admin:
        live = [client.classify("good") for _ in range(10)]
        assert held.begun.wait(60)
        named = client.classify("good", model="tiny/2")

        assert {one.model.version for one in live} == {1}
        assert named.label == "negative"
        assert (dropped(server, "queue_full"), compared(server)) == (6, 0)
        if sys.platform == "linux":
            assert held.priorities == [idle]

        read = QueryReader.read
        readers: list[str] = []

        def note(*given: Any) -> Any:
            readers.append(threading.current_thread().name)
            return read(*given)

        monkeypatch.setattr(QueryReader, "read", note)
        # It is unloaded although its run has not ended.
        admin.unload("tiny/2")
        assert client.classify("good").model.version == 1
        with capture_logs() as logs:
            held.let_go.set()
            admin.load("tiny/2", use=False)
            client.classify("good")
            until(lambda: compared(server) == 1)
    # What waited when the version was unloaded is not even tokenized.
    assert readers.count("sampling") == 1
    assert not [line for line in logs if line["event"] == "shadow_failed"]
    assert {dropped(server, reason) for reason in ("queue_full", "failed")} == {0}


def test_a_version_that_fails_or_refuses_a_text_is_counted_and_logged_once(exchanging: Start, root: Path) -> None:
    server = exchanging(shadow_share=1.0)
    make_other(root, default_truncation="refuse")
    with server.client() as client, server.admin() as admin, capture_logs() as logs:
        admin.load("tiny/2", use=False)
        assert client.classify(TEXTS[-1]).truncated
        until(lambda: dropped(server, "failed") == 1)
        refused = [line for line in logs if line["event"] == "shadow_failed"]
        session = server.running("tiny/2").loaded.explained.session
        session.close()

        assert {client.classify("good").model.version for _ in range(3)} == {1}

        until(lambda: dropped(server, "failed") == 4)
    assert refused == []
    assert [(line["model"], line["shadow"]) for line in logs if line["event"] == "shadow_failed"] == [("tiny/1", "tiny/2")]
    assert server.states()["tiny/2"] == ("READY", "answered none of 4 texts that tiny/1 answered")


def test_a_panic_of_the_tokenizer_fails_one_text_and_the_next_is_compared(server: Exchanging, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As pyo3's, which is not an Exception either."""

    read, texts = QueryReader.read, iter(range(2))

    def panic(reader: QueryReader, queries: Any) -> Any:
        if threading.current_thread().name == "sampling" and next(texts) == 0:
            raise PanicException("called `Option::unwrap()` on a `None` value")
        return read(reader, queries)

    monkeypatch.setattr(QueryReader, "read", panic)
    with server.client() as client:
        client.classify_batch(["good", "bad"])

        until(lambda: compared(server) == 1)
    assert dropped(server, "failed") == 1


def test_while_texts_are_classified_the_thread_rests_for_its_share(server: Exchanging, monkeypatch: pytest.MonkeyPatch) -> None:
    works_s = 0.1
    spans: list[tuple[float, float]] = []
    session = server.running("tiny/2").loaded.explained.session
    run = session.run

    def slow(*given: Any) -> Any:
        begun = time.monotonic()
        time.sleep(works_s)
        spans.append((begun, time.monotonic()))
        return run(*given)

    monkeypatch.setattr(session, "run", slow)
    # However long this machine takes for it.
    monkeypatch.setattr(server.lifecycle, "busy", lambda: True)
    with server.client() as client:
        client.classify_batch(["good"] * 3)
        until(lambda: compared(server) == 3)

    # explain_share is a quarter: three times as long as it works.
    assert all(later[0] - earlier[1] >= 3 * works_s for earlier, later in pairwise(spans))


def test_a_stop_waits_for_no_run(server: Exchanging, held: Held) -> None:
    with server.client() as client:
        client.classify("good")
        assert held.begun.wait(60)

    server.stop()

    assert not held.let_go.is_set()


def test_without_the_setting_there_is_nothing_to_pay_for(exchanging: Start, root: Path) -> None:
    make_other(root)
    before = {thread.ident for thread in threading.enumerate()}

    server = exchanging(models=("tiny/1",), models_max=3)

    started = {thread.name for thread in threading.enumerate() if thread.ident not in before}
    assert not [name for name in started if name.startswith("sampling")]
    assert server.lifecycle.shadow is None
    assert not any(running.samples for running in server.lifecycle.running)


def test_the_version_beside_is_the_highest_other_one_with_the_same_labels() -> None:
    def version(number: int, *labels: str, name: str = "tiny") -> Any:
        manifest = SimpleNamespace(labels=labels or ("negative", "positive"))
        return SimpleNamespace(id=f"{name}/{number}", name=name, version=number, classifier=SimpleNamespace(manifest=manifest))

    models = Models("tiny")
    one, two, nine = version(1), version(2, "positive", "negative"), version(9)
    models.follow([one], [one])
    assert models.beside(one) is None
    others = version(10, "negative", "neutral", "positive"), version(11, name="other")
    models.follow([one, two, nine, *others], [one])

    assert models.beside(one) is nine
    assert models.beside(nine) is None
    models.move("tiny/9", Event.WITHDRAWN)
    assert models.beside(one) is two
    models.use("tiny/2")
    assert models.beside(two) is one
