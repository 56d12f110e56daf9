"""Audits of adaptive effort through a real server: what they find, what they count, and what they leave alone."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.errors import BadSettings
from sentiment.lifecycle import effort_audit
from sentiment.settings import load_settings
from tests.conftest import RunningServer
from tests.core.grpc.gate import served_by
from tests.core.servers import until
from tests.tiny import EFFORT, make_bundle

Start = Callable[..., RunningServer]
# Of the first the middle turns the answer, of the second it does not.
TURNED = " ".join(["good"] * 4 + ["awful"] * 9 + ["good"] * 4)
KEPT = " ".join(["good"] * 4 + ["film"] * 9 + ["good"] * 4)


@pytest.fixture
def serve(start: Start, tmp_path: Path) -> Start:
    make_bundle(tmp_path, effort=EFFORT)
    return lambda **changes: start(**{"bundles": (tmp_path,), "effort": "adaptive", "effort_audit_share": 1.0, **changes})


def counted(server: RunningServer) -> dict[str, float]:
    return {differs: server.metric("sentiment_effort_audits_total", differs=differs, model="tiny/1") for differs in ("true", "false")}


def interval(server: RunningServer) -> tuple[float, float]:
    low, high = (server.metric("sentiment_effort_differs", end=end, model="tiny/1") for end in ("low", "high"))
    return low, high


def test_audits_find_the_answers_that_differ_and_count_for_nothing_else(serve: Start) -> None:
    server = serve()
    with server.client() as client:
        answers = client.classify_batch([TURNED] * 3 + [KEPT] * 5 + ["good"])
        until(lambda: sum(counted(server).values()) == 8, "all audits")

    assert [answer.early for answer in answers] == [True] * 8 + [False]  # type: ignore[union-attr]  # all are answered
    assert counted(server) == {"true": 3, "false": 5}
    low, high = interval(server)
    assert low < 3 / 9 < high
    assert server.metric("sentiment_effort_in_full", model="tiny/1") == 0
    assert server.metric("sentiment_deadline_outcome_total", outcome="met", model="tiny/1") == 9
    predicted = [sample for sample in server.samples() if sample.name == "sentiment_predictions_total"]
    assert sum(sample.value for sample in predicted) == 9


def test_a_broken_bound_makes_a_model_read_in_full_where_it_is_set_so(serve: Start) -> None:
    server = serve(effort_fallback=True)
    texts = [f"{TURNED} w{place}" for place in range(8)]
    with server.client() as client, capture_logs() as logs:
        for text in texts:
            client.classify(text)
        until(lambda: server.metric("sentiment_effort_in_full", model="tiny/1") == 1, "the fallback")
        after = client.classify(TURNED)

    assert not after.early
    (line,) = [line for line in logs if line["event"] == "effort_fallback"]
    assert (line["log_level"], line["model"]) == ("error", "tiny/1")


def test_a_model_without_a_rule_is_named_where_adaptive_effort_is_the_default(start: Start, tmp_path: Path) -> None:
    make_bundle(tmp_path)
    with capture_logs() as logs:
        start(bundles=(tmp_path,), effort="adaptive")
        start(bundles=(tmp_path,), effort="full")

    assert [line["model"] for line in logs if line["event"] == "effort_without_rule"] == ["tiny/1"]


def test_without_the_setting_a_broken_bound_is_only_told(serve: Start) -> None:
    server = serve()
    with server.client() as client:
        for place in range(8):
            client.classify(f"{TURNED} w{place}")
        until(lambda: interval(server)[0] > 0.01, "the bound breaks")
        assert client.classify(TURNED).early


def test_dropped_audits_are_counted_and_too_many_leave_the_share_unknown(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()

    def fail(*_: Any) -> Any:
        raise RuntimeError("the kernel failed")

    monkeypatch.setattr(effort_audit, "result_of", fail)
    with server.client() as client:
        client.classify(TURNED)
        dropped = {"reason": "failed", "model": "tiny/1"}
        until(lambda: server.metric("sentiment_effort_audits_dropped_total", **dropped) == 1, "an audit is dropped")
        low, high = interval(server)

    assert math.isnan(low)
    assert math.isnan(high)


def test_a_share_of_the_answers_is_audited_also_of_a_text_that_comes_often(serve: Start) -> None:
    server = serve(effort_audit_share=0.5)
    with server.client() as client:
        client.classify_batch([KEPT] * 60)
    sampling = server.lifecycle._sampling
    assert sampling is not None
    until(lambda: sampling._texts == 0, "no audit waits")

    # Fewer than ten or more than fifty come once in ten million runs.
    assert 10 <= counted(server)["false"] <= 50


def test_a_text_whose_answer_is_known_is_not_audited_again(serve: Start) -> None:
    server = serve(answer_cache_bytes=2**20)
    with server.client() as client:
        client.classify_batch([TURNED] * 20)
        answers = client.classify_batch([TURNED] * 20)
        until(lambda: sum(counted(server).values()) > 0, "an audit")
    sampling = server.lifecycle._sampling
    assert sampling is not None
    until(lambda: sampling._texts == 0, "no audit waits")

    assert all(answer.early and answer.timing.batch_rows == 0 for answer in answers)  # type: ignore[union-attr]  # all are answered
    assert counted(server) == {"true": 1, "false": 0}


def test_texts_that_need_no_audit_do_not_hide_that_others_were_dropped(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()

    def fail(*_: Any) -> Any:
        raise RuntimeError("the kernel failed")

    with server.client() as client:
        client.classify_batch([KEPT] * 2)
        until(lambda: counted(server)["false"] == 2, "both audits")
        monkeypatch.setattr(effort_audit, "result_of", fail)
        client.classify_batch([TURNED, *["good"] * 60])
        until(lambda: server.metric("sentiment_effort_audits_dropped_total", reason="failed", model="tiny/1") == 1, "an audit is dropped")

    assert all(map(math.isnan, interval(server)))


def test_the_interval_begins_again_so_that_a_change_is_noticed(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort_audit, "SEEN_MAX", 20)
    server = serve()
    with server.client() as client:
        client.classify_batch(["good"] * 20)
        client.classify_batch([TURNED] * 8)
        until(lambda: counted(server)["true"] == 8, "all audits")

    assert interval(server)[0] > 0.01


def test_a_fallback_without_audits_is_refused() -> None:
    with pytest.raises(BadSettings, match="effort_fallback is true; with effort_audit_share = 0 it must be false"):
        load_settings({"effort_fallback": True, "effort_audit_share": 0.0}, {})


def test_a_model_without_a_rule_or_with_audits_off_has_none(start: Start, serve: Start) -> None:
    assert served_by(start()).end_audit() is None  # type: ignore[attr-defined]  # a running model
    server = serve(effort_audit_share=0.0)
    with server.client() as client:
        assert client.classify(TURNED).early

    assert counted(server) == {"true": 0, "false": 0}
