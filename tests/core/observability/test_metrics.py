"""The metrics page: every series exists from the start, at zero, and no caller can add one."""

import asyncio
import json
import math
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sentiment.batching.offered import WINDOW_S
from sentiment.client import AsyncClient, CallFailed, Client
from sentiment.model.bundle import load_bundle
from sentiment.observability.drift import stability_index
from sentiment.observability.expected_accuracy import WITHHELD, interval
from sentiment.observability.metrics import Metrics
from sentiment.observability.observing import OBSERVERS
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.settings import Settings
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.test_oip import asked
from tests.tiny import REFERENCE, make_bundle, read_manifest, write_manifest

# Of the other methods and of parts of explanations, series are there from the first call on.
USUAL = {"Classify", "ClassifyBatch"}
CODES = {
    *("OK", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"),
    *("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNIMPLEMENTED", "INTERNAL"),
}
STAGES = {"receive", "tokenize", "queue", "plan", "pad", "copy", "run", "score", "send"}
PRIORITIES = {"interactive", "bulk"}
ABSTAINED = {"false", "true"}
SIGNALS = {"label", "abstained", "score", "tokens", "unknown", "fragments"}
# For how long an event loop is blocked on purpose.
BLOCKED_S = 0.3
# Each signal has bins of its own.
SERIES = {"signal_texts_total": 2 + 2 + 4 * 3}
# Each metric with its type and, by label, the values that are there from the start.
EXPECTED: dict[str, tuple[str, dict[str, set[str]]]] = {
    "request_seconds": ("histogram", {"method": USUAL, "model": {"tiny/1", ""}}),
    "slow_requests_total": ("counter", {"method": USUAL, "model": {"tiny/1", ""}}),
    "stage_seconds": ("histogram", {"stage": STAGES, "model": {"tiny/1"}}),
    "batch_rows": ("histogram", {"model": {"tiny/1"}}),
    "batch_tokens": ("histogram", {"model": {"tiny/1"}}),
    "requests_total": ("counter", {"method": USUAL, "code": CODES, "model": {"tiny/1", ""}}),
    "items_total": ("counter", {"method": USUAL, "code": CODES, "model": {"tiny/1", ""}}),
    "own_fault_total": ("counter", {"method": USUAL, "reason": {"deadline", "share"}, "model": {"tiny/1", ""}}),
    "tokens_total": ("counter", {"kind": {"real", "padded"}, "model": {"tiny/1"}}),
    "batches_total": ("counter", {"reason": {"full", "alike", "spread", "tight", "retry", "wide"}, "model": {"tiny/1"}}),
    "refused_total": ("counter", {"reason": {"queue_full", "backlog", "deadline", "unavailable", "explanations"}, "model": {"tiny/1"}}),
    "dropped_total": ("counter", {"reason": {"cancelled", "expired", "hopeless"}, "model": {"tiny/1"}}),
    "wasted_rows_total": ("counter", {"reason": {"abandoned", "failed"}, "model": {"tiny/1"}}),
    "deadline_outcome_total": ("counter", {"outcome": {"met", "expired", "refused", "cancelled", "failed"}, "model": {"tiny/1"}}),
    "predictions_total": (
        "counter",
        {"label": {"negative", "positive"}, "abstained": ABSTAINED, "priority": PRIORITIES, "model": {"tiny/1"}},
    ),
    "score": ("histogram", {"abstained": ABSTAINED, "model": {"tiny/1"}}),
    "text_tokens": ("histogram", {"model": {"tiny/1"}}),
    "unknown_tokens_total": ("counter", {"model": {"tiny/1"}}),
    "truncated_texts_total": ("counter", {"model": {"tiny/1"}}),
    "known_rows_total": ("counter", {"how": {"kept", "shared"}, "model": {"tiny/1"}}),
    "answer_cache_bytes": ("gauge", {"model": {"tiny/1"}}),
    "early_texts_total": ("counter", {"model": {"tiny/1"}}),
    "effort_audits_total": ("counter", {"differs": {"true", "false"}, "model": {"tiny/1"}}),
    "effort_audits_dropped_total": ("counter", {"reason": {"queue_full", "failed"}, "model": {"tiny/1"}}),
    "foreign_texts_total": ("counter", {"model": {"tiny/1"}}),
    "expected_accuracy": ("gauge", {"model": {"tiny/1"}}),
    "expected_accuracy_texts": ("gauge", {"model": {"tiny/1"}}),
    "expected_accuracy_low": ("gauge", {"model": {"tiny/1"}}),
    "expected_accuracy_high": ("gauge", {"model": {"tiny/1"}}),
    "expected_accuracy_error": ("gauge", {"model": {"tiny/1"}}),
    "expected_accuracy_withheld": ("gauge", {"reason": set(WITHHELD), "model": {"tiny/1"}}),
    "score_variance_total": ("counter", {"model": {"tiny/1"}}),
    "signal_texts_total": ("counter", {"signal": SIGNALS, "model": {"tiny/1"}}),
    "drift": ("gauge", {"signal": SIGNALS, "model": {"tiny/1"}}),
    "drift_threshold": ("gauge", {"signal": SIGNALS, "model": {"tiny/1"}}),
    "drift_reference_share": ("gauge", {"reference": {"usual"}, "model": {"tiny/1"}}),
    "drift_texts": ("gauge", {"model": {"tiny/1"}}),
    # Only of a bundle with a rule.
    "effort_differs": ("gauge", {"end": set(), "model": set()}),
    "effort_in_full": ("gauge", {"model": set()}),
    # Only with hidden_drift_share.
    "hidden_drift_texts": ("gauge", {"model": set()}),
    "hidden_drift_dropped_total": ("counter", {"reason": set(), "model": set()}),
    # A pair's series come with its first text.
    "shadow_texts_total": ("counter", {"model": set(), "shadow": set()}),
    "shadow_flips_total": ("counter", {"from": set(), "to": set(), "model": set(), "shadow": set()}),
    "shadow_shift_total": ("counter", {"direction": set(), "model": set(), "shadow": set()}),
    "shadow_dropped_total": ("counter", {"reason": set(), "model": set(), "shadow": set()}),
    "feedback_total": ("counter", {"right": {"false", "true"}, "abstained": ABSTAINED, "model": {"tiny/1"}}),
    "measured_accuracy": ("gauge", {"model": {"tiny/1"}}),
    "measured_accuracy_texts": ("gauge", {"model": {"tiny/1"}}),
    "runner_busy_seconds_total": ("counter", {"runner": {"cpu-0", "cpu-1"}}),
    "loop_busy_seconds_total": ("counter", {"process": {"server"}}),
    "log_lines_dropped_total": ("counter", {}),
    "observer_failures_total": ("counter", {"observer": set(OBSERVERS)}),
    "journal_lines_total": ("counter", {}),
    "journal_lines_dropped_total": ("counter", {}),
    "grpc_calls_started_total": ("counter", {}),
    "grpc_calls_ended_total": ("counter", {}),
    "request_bytes": ("gauge", {}),
    "queue_rows": ("gauge", {"model": {"tiny/1"}}),
    "latency_objective_seconds": ("gauge", {}),
    "backlog_seconds": ("gauge", {"model": {"tiny/1"}}),
    "memory_used_bytes": ("gauge", {}),
    "memory_limit_bytes": ("gauge", {}),
    "demand_ratio": ("gauge", {}),
    "run_over_predicted": ("gauge", {"model": {"tiny/1"}}),
    "explain_seconds": ("histogram", {"method": set(), "model": set()}),
    "explanations": ("gauge", {"model": {"tiny/1"}}),
    "http_connections_closed_total": ("counter", {"reason": {"waiting", "new"}}),
    "http_refused_total": ("counter", {"status": {"400", "403", "404", "405", "421"}}),
    "reload_failures_total": ("counter", {"files": {"tls", "tokens", "settings"}}),
    "unauthenticated_total": ("counter", {"transport": {"grpc", "http"}}),
    "model_bytes": ("gauge", {"model": {"tiny/1"}}),
    "model_changes_total": ("counter", {"change": {"loaded", "failed", "used", "unloaded"}}),
    "trace_spans_sent_total": ("counter", {}),
    "trace_spans_dropped_total": ("counter", {"reason": {"queue_full", "not_exported"}}),
}


def scrape(server: RunningServer, accept: str = "") -> tuple[str, str]:
    """Body and content type of /metrics."""
    request = urllib.request.Request(server.url + "/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode(), response.headers["Content-Type"]


def samples(text: str) -> list[Sample]:
    """The service's own samples, without those of libraries."""
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("sentiment_")]
    return [sample for family in families for sample in family.samples]


def series(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples(text)}


def total(text: str, name: str, **labels: str) -> float:
    return sum(sample.value for sample in samples(text) if sample.name == f"sentiment_{name}" and labels.items() <= sample.labels.items())


@pytest.fixture(scope="module")
def fresh(settings: Settings) -> Iterator[str]:
    """The page of a server without any calls."""
    server = RunningServer(settings)
    try:
        yield scrape(server)[0]
    finally:
        server.stop()


def test_every_metric_exists_from_the_start_with_every_label_value(fresh: str) -> None:
    shown = samples(fresh)
    for name, (kind, labels) in EXPECTED.items():
        probe = f"sentiment_{name}_count" if kind == "histogram" else f"sentiment_{name}"
        found = [sample for sample in shown if sample.name == probe]

        assert {label: {sample.labels[label] for sample in found} for label in labels} == labels, name
        assert len(found) == SERIES.get(name, math.prod(map(len, labels.values()))), name
        assert f"# TYPE sentiment_{name} {kind}\n" in fresh


def test_a_method_has_the_series_of_all_codes_from_its_first_call_on(start: Callable[..., RunningServer]) -> None:
    server = start()
    with server.client() as client:
        client.list_models()
        client.explain("good")

    shown = [sample.labels for sample in samples(scrape(server)[0]) if sample.name == "sentiment_requests_total"]
    for method, model in (("ListModels", ""), ("Explain", "tiny/1")):
        assert {labels["code"] for labels in shown if (labels["method"], labels["model"]) == (method, model)} == CODES
    assert {labels["method"] for labels in shown} == USUAL | {"ListModels", "Explain"}


def test_what_ends_after_its_model_is_gone_adds_no_series() -> None:
    metrics = Metrics(("OK",))
    model = metrics.model("tiny/1", [], ["positive"])
    model.forget()

    model.of["ClassifyStream"].items["OK"](1)
    model.explain_seconds["shapley"](0.1)

    assert not [sample for family in metrics.registry.collect() for sample in family.samples if sample.labels.get("model") == "tiny/1"]


def test_everything_starts_at_zero(fresh: str) -> None:
    not_sums = (
        "_info",
        "_run_over_predicted",
        "_demand_ratio",
        *("_expected_accuracy", "_expected_accuracy_low", "_expected_accuracy_high", "_expected_accuracy_error"),
        "_expected_accuracy_withheld",
        *("_drift", "_drift_threshold", "_drift_reference_share"),
        "_measured_accuracy",
        "_loop_busy_seconds_total",
        "_model_bytes",
        *("_memory_used_bytes", "_memory_limit_bytes"),
        "_latency_objective_seconds",
    )
    moved = [sample for sample in samples(fresh) if sample.value and not sample.name.endswith(not_sums)]

    assert moved == []
    assert all(math.isnan(total(fresh, f"expected_accuracy{part}")) for part in ("", "_low", "_high", "_error"))
    assert total(fresh, "expected_accuracy_withheld") == total(fresh, "expected_accuracy_withheld", reason="few_texts") == 1
    assert math.isnan(total(fresh, "drift"))
    assert total(fresh, "run_over_predicted") == 1
    assert total(fresh, "latency_objective_seconds") == 0.5


def test_the_service_has_no_metrics_besides_the_expected_ones(fresh: str) -> None:
    families = {family.name for family in text_string_to_metric_families(fresh) if family.name.startswith("sentiment_")}

    assert families == {f"sentiment_{name.removesuffix('_total')}" for name in EXPECTED} | {"sentiment_model_info", "sentiment_build_info"}


def test_the_info_metrics_describe_model_and_build(fresh: str) -> None:
    model, build = (next(s for s in samples(fresh) if s.name == f"sentiment_{name}_info") for name in ("model", "build"))

    assert model.value == build.value == 1
    assert {key: model.labels[key] for key in ("model", "name", "version", "precision", "provider")} == {
        "model": "tiny/1",
        "name": "tiny",
        "version": "1",
        "precision": "fp32",
        "provider": "CPUExecutionProvider",
    }
    assert len(model.labels["digest"]) == 64
    assert set(build.labels) == {"version", "onnxruntime"}


def test_memory_and_cpu_of_the_process_are_shown(fresh: str) -> None:
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds", "python_info"):
        assert f"\n{name}" in fresh


@pytest.mark.parametrize(("objective_s", "slow"), [(1e-6, 1), (60.0, 0)])
def test_calls_that_take_longer_than_the_objective_are_counted(start: Callable[..., RunningServer], objective_s: float, slow: int) -> None:
    server = start(latency_objective_s=objective_s)
    with server.client() as client:
        client.classify("a good film")

    text = scrape(server)[0]

    assert total(text, "slow_requests_total") == total(text, "slow_requests_total", method="Classify", model="tiny/1") == slow
    assert total(text, "latency_objective_seconds") == objective_s


def test_the_demand_is_what_is_asked_of_the_runners_of_all_models(start: Callable[..., RunningServer]) -> None:
    server = start()
    offered, (running,) = server.lifecycle.offered, server.lifecycle.running
    assert running.batcher.offered is offered

    offered.ask(3 * len(running.loaded.runners) * WINDOW_S, time.monotonic())

    assert total(scrape(server)[0], "demand_ratio") == pytest.approx(3, rel=0.1)


def test_the_demand_is_that_of_the_event_loop_if_that_is_fuller(start: Callable[..., RunningServer]) -> None:
    server = start()
    before = total(scrape(server)[0], "demand_ratio")

    server.loop.call_soon_threadsafe(time.sleep, BLOCKED_S)

    assert 1 - total(scrape(server)[0], "demand_ratio") < (1 - before) * math.exp(-0.9 * BLOCKED_S / WINDOW_S)


def test_a_request_is_counted_once_in_every_place(start: Callable[..., RunningServer]) -> None:
    server = start()
    with server.client() as client:
        client.classify("a good film")
        client.classify_batch(["good", "", "bad"])

    text = scrape(server)[0]

    assert total(text, "requests_total") == total(text, "requests_total", code="OK", model="tiny/1") == 2
    assert total(text, "request_seconds_count") == total(text, "request_seconds_count", model="tiny/1") == 2
    assert total(text, "items_total", method="Classify", code="OK") == 1
    assert total(text, "items_total", method="ClassifyBatch", code="OK") == 2
    assert total(text, "items_total", method="ClassifyBatch", code="INVALID_ARGUMENT") == 1
    assert total(text, "items_total") == 4
    assert total(text, "deadline_outcome_total") == total(text, "deadline_outcome_total", outcome="met") == 3
    assert total(text, "tokens_total", kind="real") == 5 + 3 + 3
    assert total(text, "batch_rows_sum") == 3
    assert total(text, "batch_tokens_sum") == total(text, "tokens_total")
    assert total(text, "batches_total") == total(text, "batch_rows_count") == total(text, "stage_seconds_count", stage="run")
    assert total(text, "runner_busy_seconds_total") > 0
    assert total(text, "queue_rows") == 0


def test_each_answer_is_counted_once_whichever_way_its_text_came(start: Callable[..., RunningServer]) -> None:
    server = start()
    long = "good " * 40 + "unheard " * 20

    with server.client() as client:
        client.classify("a good film")
        client.classify_batch(["good", "", "film"])
        client.classify_batch([long], truncation="windows")
        client.classify(long)
        client.classify("this is nowhere in it", priority="bulk")
    asyncio.run(_stream(server, "good", "awful"))
    with grpc.insecure_channel(server.target) as channel:
        oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked("bad", "great film"), timeout=10)
    posted = urllib.request.Request(server.url + "/v1/classify", json.dumps({"text": "great"}).encode())
    urllib.request.urlopen(posted, timeout=10).read()
    text = scrape(server)[0]

    assert total(text, "predictions_total") == total(text, "score_count") == total(text, "text_tokens_count") == 11
    # "film", and the text of unknown words.
    assert total(text, "predictions_total", label="negative", abstained="true") == total(text, "score_count", abstained="true") == 2
    assert total(text, "predictions_total", label="negative", abstained="false") == 2
    assert total(text, "predictions_total", priority="interactive") == 3
    assert total(text, "text_tokens_sum") == 5 + 3 + 3 + (60 + 2) + 32 + 7 + 3 + 3 + 3 + 4 + 3
    assert total(text, "unknown_tokens_total") == 20 + 5
    assert total(text, "truncated_texts_total") == 1
    assert total(text, "foreign_texts_total") == 1
    assert total(text, "expected_accuracy_texts") == 9


def test_the_expected_accuracy_is_withheld_while_texts_are_unlike_the_references(start: Callable[..., RunningServer]) -> None:
    server = start(call_rows_max=1000)
    with server.client() as client:
        client.classify_batch([*["awful film", "a good film"] * 140, *["w1"] * 20], timeout_s=60)
        stated = scrape(server)[0]
        client.classify_batch(["unheard of it nowhere"] * 300, timeout_s=60)
    withheld = scrape(server)[0]

    texts, probability = total(stated, "expected_accuracy_texts"), total(stated, "score_sum", abstained="false")
    assert total(stated, "expected_accuracy_withheld") == 0
    assert total(stated, "expected_accuracy") == pytest.approx(probability / texts)
    low, high = interval(texts, probability, total(stated, "score_variance_total"))
    assert [total(stated, f"expected_accuracy_{end}") for end in ("low", "high")] == [pytest.approx(low), pytest.approx(high)]
    assert all(math.isnan(total(withheld, f"expected_accuracy{end}")) for end in ("", "_low", "_high"))
    assert total(withheld, "expected_accuracy_withheld") == total(withheld, "expected_accuracy_withheld", reason="drift") == 1


def test_the_recorded_error_of_the_expected_accuracy_is_that_of_the_data_set_that_is_furthest_off(
    start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    path = make_bundle(tmp_path)
    found: dict[str, Any] = read_manifest(path)  # Any: plain JSON
    for name, accuracy, expected in (("near", 0.9, 0.92), ("far", 0.8, 0.73)):
        whole = {"accuracy": 0.7, "macro_f1": 0.7, "ece": 0.1, "rows": 100}
        found["accuracy"][name] = {**whole, "without_abstentions": {"rows": 90, "accuracy": accuracy, "expected_accuracy": expected}}
    write_manifest(path, found)

    text = scrape(start(bundles=(tmp_path,)))[0]

    assert total(text, "expected_accuracy_error", model="tiny/1") == pytest.approx(0.07)


def test_texts_unlike_the_references_are_reported_as_drift(start: Callable[..., RunningServer]) -> None:
    server = start(call_rows_max=1000)
    with server.client() as client:
        client.classify_batch(["awful film", "a good film"] * 490, timeout_s=60)
        before = scrape(server)[0]
        client.classify_batch(["awful and unheard of"] * 100, timeout_s=60)
    after = scrape(server)[0]

    assert total(before, "drift_texts") == 980
    assert math.isnan(total(before, "drift", signal="tokens"))
    assert total(after, "drift_texts") == 1080
    for signal in load_bundle(server.settings.bundles[0] / "tiny/1").manifest.signals:
        window = [total(after, "signal_texts_total", signal=signal.name, bin=name) for name in signal.bins]
        assert sum(window) == 1080
        assert total(after, "drift", signal=signal.name) == pytest.approx(stability_index(window, signal.counts["usual"])), signal.name
        assert total(after, "drift", signal=signal.name) > total(after, "drift_threshold", signal=signal.name) > 0 or signal.name == "label"
    assert total(after, "signal_texts_total", signal="unknown", bin="0.5") == 100
    assert total(after, "signal_texts_total", signal="label", bin="negative") == 490 + 100


def test_drift_is_measured_against_the_nearest_reference_or_a_mixture(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    sure = {"label": {"negative": 2000, "positive": 0}, "abstained": 0, "score": {"edges": [0.6, 0.9], "counts": [0, 0, 2000]}}
    chats = REFERENCE | sure | {"tokens": {"edges": [4, 8], "counts": [2000, 0, 0]}, "unknown": {"edges": [0, 0.5], "counts": [2000, 0, 0]}}
    essays = chats | {"tokens": {"edges": [4, 8], "counts": [0, 0, 2000]}}
    for one in (chats, essays):
        one["fragments"] = one["unknown"]
    write_manifest(bundle, read_manifest(bundle) | {"references": {"chats": chats, "essays": essays}})
    server = start(bundles=(tmp_path,), call_rows_max=1000)
    with server.client() as client:
        client.classify_batch(["awful"] * 1000, timeout_s=60)
        alone = scrape(server)[0]
        client.classify_batch(["awful and the film and the film and awful"] * 1000, timeout_s=60)
        both = scrape(server)[0]
        client.classify_batch(["good film and a great film"] * 1000, timeout_s=60)
        neither = scrape(server)[0]

    assert (total(alone, "drift_reference_share", reference="chats"), total(alone, "drift_reference_share", reference="essays")) == (1, 0)
    assert total(both, "drift_reference_share", reference="chats") == pytest.approx(0.5)
    for text in (alone, both):
        assert total(text, "drift", signal="tokens") == pytest.approx(0, abs=1e-6)
    assert total(neither, "drift", signal="label") > 0.25 > total(neither, "drift_threshold", signal="label")


def test_a_model_without_a_reference_has_no_drift(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    manifest = read_manifest(bundle)
    write_manifest(bundle, {key: value for key, value in manifest.items() if key != "references"})
    server = start(bundles=(tmp_path,))
    with server.client() as client:
        client.classify("good")
    text = scrape(server)[0]

    assert not [sample for sample in samples(text) if sample.name.startswith(("sentiment_drift", "sentiment_signal"))]
    assert total(text, "predictions_total") == 1


async def _stream(server: RunningServer, *texts: str) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        for text in texts:
            yield text, text

    async with AsyncClient(server.target, options=NO_RETRIES) as client:
        assert len([result async for result in client.classify_stream(items())]) == len(texts)


def test_no_caller_can_add_a_series(server: RunningServer, client: Client) -> None:
    before = series(scrape(server)[0])

    for model in ("nosuch", "tiny/2", "x" * 1000, 'a"b\n', "tiny"):
        try:
            client.classify("good", model=model)
        except CallFailed as error:
            assert error.code is grpc.StatusCode.NOT_FOUND
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for method in ("/sentiment.v1.SentimentService/NoSuch", "/no.such.Service/Classify", "/sentiment.v1.SentimentService/Classify"):
            call: Any = channel.unary_unary(method)  # Any: bytes in and out, which grpc does not type
            with pytest.raises(grpc.RpcError):
                call(b"\xff\xff nonsense", timeout=5)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(server.url + "/nosuch?a=b", timeout=5)

    assert series(scrape(server)[0]) == before


@pytest.mark.needs_tool("promtool")
def test_promtool_has_no_complaints(server: RunningServer, client: Client) -> None:
    client.classify("good")

    said = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(server)[0], capture_output=True, text=True, timeout=30, check=False
    )

    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4;q=0.3,*/*;q=0.2", "text/html"])
def test_the_plain_format_is_the_default(server: RunningServer, accept: str) -> None:
    text, content_type = scrape(server, accept)

    assert content_type.startswith("text/plain; version=")
    assert "# EOF" not in text


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0",
        # As Prometheus asks.
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ],
)
def test_openmetrics_is_served_on_request(server: RunningServer, accept: str) -> None:
    text, content_type = scrape(server, accept)

    assert content_type.startswith("application/openmetrics-text; version=")
    assert text.endswith("# EOF\n")
    names = {family.name for family in openmetrics.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]  # untyped there
    assert names >= {"sentiment_requests", "sentiment_request_seconds", "sentiment_queue_rows"}
