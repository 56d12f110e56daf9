"""The spans that a real collector gets from a real server."""

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from sentiment.client import CallFailed
from sentiment.observability import logs
from sentiment.observability.tracing.trace import TEXTS_MAX
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    FixedCost,
    Gate,
    batch_request,
    bounded,
    id_of,
    outcome_of,
    queued,
    served_by,
    set_cost,
    stream_requests,
)
from tests.core.grpc.test_oip import asked
from tests.core.tracing.calling import PARENT, SERVICE, classify, context, http, stub_of, trace_id
from tests.core.tracing.collector import Collector, Got

CLASSIFY = f"{SERVICE}/Classify"
Start = Callable[..., RunningServer]
_NUMBERS = itertools.count(1)


def new_trace() -> str:
    """An id that no other test uses: all share one collector."""
    return trace_id(next(_NUMBERS))


@pytest.fixture
def trace() -> str:
    return new_trace()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(collector: Collector, settings: Settings) -> Iterator[RunningServer]:
    """Traces everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
        running = RunningServer(settings.model_copy(update={"tracing": True}))
    yield running
    running.stop()


def batches_of(collector: Collector, *requests: Got) -> list[Got]:
    """The batches with rows of one of these requests."""
    places = {request.place for request in requests}
    return [span for span in collector.spans if span.name == "batch" and span.links & places]


def test_a_request_its_stages_and_its_batch_are_linked_and_name_their_process(
    trace: str, collector: Collector, server: RunningServer
) -> None:
    classify(server, "a good film", context(trace))
    spans = collector.wait_for_trace(trace, "tokenize", "queue", "run")

    request = spans.pop(CLASSIFY)
    assert set(spans) == {"tokenize", "queue", "run"}
    assert (request.parent, request.server, request.failed) == (PARENT, True, False)
    assert request.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": CLASSIFY,
        "rpc.response.status_code": "OK",
        "sentiment.model": "tiny/1",
    }
    assert {span.parent for span in spans.values()} == {request.id}
    assert [spans[name].attributes for name in ("tokenize", "queue", "run")] == [{"sentiment.tokens": 5}] * 3
    (batch,) = batches_of(collector, request)
    assert batch.links == {request.place}
    assert spans["run"].links == {batch.place}
    assert (batch.parent, batch.server, batch.trace == trace) == ("", False, False)
    shown = batch.attributes
    seconds = [shown.pop(f"sentiment.batch.{name}_s") for name in ("pad", "copy", "run")]
    assert seconds[0] > 0 == seconds[1] < seconds[2]
    assert shown.pop("sentiment.runner") in ("cpu-0", "cpu-1")
    assert shown == {
        "sentiment.model": "tiny/1",
        "sentiment.batch.rows": 1,
        "sentiment.batch.tokens": 5,
        "sentiment.batch.computed_tokens": 5,
        "sentiment.batch.reason": "alike",
    }
    assert [request.resource[key] for key in ("service.name", "process.pid", "sentiment.process")] == ["sentiment", os.getpid(), "server"]
    assert request.resource["service.version"]


def test_the_open_inference_protocol_is_traced_too(trace: str, collector: Collector, server: RunningServer) -> None:
    with grpc.insecure_channel(server.target) as channel:
        oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked("good", "bad"), metadata=context(trace))
    spans = collector.wait_for_trace(trace, "tokenize", "queue", "run")

    request = spans["inference.GRPCInferenceService/ModelInfer"]
    assert (request.parent, request.server, request.attributes["sentiment.texts"]) == (PARENT, True, 2)
    assert spans["run"].parent == request.id


def test_every_span_has_the_tracestate_and_only_the_request_a_remote_parent(
    trace: str, collector: Collector, server: RunningServer
) -> None:
    remote = trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

    classify(server, "a good film", (*context(trace), ("tracestate", "vendor=1")))
    spans = collector.wait_for_trace(trace, "tokenize", "queue", "run")

    assert {span.proto.trace_state for span in spans.values()} == {"vendor=1"}
    assert {name for name, span in spans.items() if span.proto.flags & remote} == {CLASSIFY}


def test_stages_follow_each_other_within_the_request(trace: str, collector: Collector, server: RunningServer) -> None:
    classify(server, "a good film", context(trace))
    spans = collector.wait_for_trace(trace, "tokenize", "queue", "run")

    request, tokenize, queue, run = (spans[name].proto for name in (CLASSIFY, "tokenize", "queue", "run"))
    instants = [
        *(request.start_time_unix_nano, tokenize.start_time_unix_nano, tokenize.end_time_unix_nano, queue.start_time_unix_nano),
        *(queue.end_time_unix_nano, run.end_time_unix_nano, request.end_time_unix_nano),
    ]
    assert instants == sorted(instants)
    assert queue.end_time_unix_nano == run.start_time_unix_nano


def test_a_batch_is_linked_to_every_sampled_request_in_it_and_to_no_other(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate]
) -> None:
    server = traced(runners=1)
    set_cost(server, FixedCost(0.0001, 0.01))
    gate = hold(server)

    traces = [new_trace() for _ in range(5)]
    unsampled = traces[2]

    async def run() -> None:
        async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
            stub = pb_grpc.SentimentServiceStub(channel)
            first = asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="film"), timeout=60)))
            await gate.begun()
            others = [
                asyncio.create_task(
                    outcome_of(stub.Classify(pb.ClassifyRequest(text="good film"), metadata=context(trace, trace != unsampled), timeout=60))
                )
                for trace in traces
            ]
            await queued(server, 5)
            gate.open()
            answers = await bounded(asyncio.gather(first, *others))
            assert all(isinstance(answer, pb.ClassifyResponse) for answer in answers)

    asyncio.run(run())
    sampled = [trace for trace in traces if trace != unsampled]
    requests = [collector.wait_for_trace(trace, "tokenize", "queue", "run")[CLASSIFY] for trace in sampled]

    (batch,) = batches_of(collector, *requests)
    assert batch.attributes["sentiment.batch.rows"] == 5
    assert batch.links == {request.place for request in requests}
    assert [span for span in collector.spans if span.trace == unsampled] == []
    runs = [span for span in collector.spans if span.name == "run" and span.trace in sampled]
    assert len(runs) == 4
    assert all(span.links == {batch.place} for span in runs)


def test_spans_hold_no_text_and_no_header(collector: Collector, server: RunningServer) -> None:
    secret = "XyzzySecret"

    traces = [new_trace() for _ in range(3)]
    by_grpc, *by_http = map(context, traces)

    answer = classify(server, f"good {secret}", (*by_grpc, ("x-request-id", secret), ("x-other", secret)))
    http(server, "/v1/classify", {"text": secret, secret: 1}, traceparent=by_http[0][0][1])
    http(server, f"/v1/models/{secret}", traceparent=by_http[1][0][1])
    for trace in traces:
        collector.wait_for_trace(trace)

    assert answer.tokens == 4
    assert not any(secret.encode() in raw for raw in collector.raw)


@pytest.mark.parametrize(
    ("request_", "code", "failed"),
    [
        (pb.ClassifyRequest(text=""), "INVALID_ARGUMENT", False),
        (pb.ClassifyRequest(text="good", model="nosuch"), "NOT_FOUND", False),
        (pb.ClassifyRequest(text="awful"), "INTERNAL", True),
    ],
    ids=["INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL"],
)
def test_only_server_faults_are_errors_of_the_request_span(
    trace: str,
    collector: Collector,
    server: RunningServer,
    hold: Callable[[RunningServer], Gate],
    request_: pb.ClassifyRequest,
    code: str,
    failed: bool,
) -> None:
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    with stub_of(server) as stub, pytest.raises(grpc.RpcError):
        stub.Classify(request_, metadata=context(trace), timeout=60)
    spans = collector.wait_for_trace(trace)

    assert spans[CLASSIFY].attributes["rpc.response.status_code"] == code
    assert (spans[CLASSIFY].failed, spans[CLASSIFY].attributes.get("error.type")) == (failed, code if failed else None)
    assert spans[CLASSIFY].proto.status.message == ""


def test_a_cancelled_request_does_not_count_as_an_error(
    trace: str, collector: Collector, server: RunningServer, hold: Callable[[RunningServer], Gate]
) -> None:
    gate = hold(server)

    with stub_of(server) as stub:
        call = stub.Classify.future(pb.ClassifyRequest(text="good"), metadata=context(trace), timeout=60)
        asyncio.run(gate.begun())
        call.cancel()
        request = collector.wait_for_trace(trace)[CLASSIFY]
    gate.open()

    assert (request.attributes["rpc.response.status_code"], request.failed) == ("CANCELLED", False)


def test_without_context_a_request_begins_a_trace_of_its_own(collector: Collector, server: RunningServer) -> None:
    before = {span.place for span in collector.spans}

    for _ in range(3):
        classify(server, "good")
    spans = collector.wait_for(lambda spans: sum(span.server and span.place not in before for span in spans) == 3)

    roots = [span for span in spans if span.server and span.place not in before]
    assert len({span.trace for span in roots}) == 3
    assert {span.parent for span in roots} == {""}


def test_http_requests_are_traced_too(collector: Collector, server: RunningServer) -> None:
    answered, invalid = new_trace(), new_trace()

    assert http(server, "/v1/classify", {"text": "good film"}, Traceparent=context(answered)[0][1])[0] == 200
    assert http(server, "/v1/classify", {"text": ""}, traceparent=context(invalid)[0][1])[0] == 400
    spans = collector.wait_for_trace(answered, "tokenize", "queue", "run")
    refused = collector.wait_for_trace(invalid)["POST /v1/classify"]

    request = spans["POST /v1/classify"]
    assert request.parent == PARENT
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "sentiment.model": "tiny/1",
    }
    assert {spans[name].parent for name in ("tokenize", "queue", "run")} == {request.id}
    assert (refused.attributes["http.response.status_code"], refused.failed) == (400, False)


def test_a_server_fault_over_http_is_an_error(
    trace: str, collector: Collector, server: RunningServer, hold: Callable[[RunningServer], Gate]
) -> None:
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    assert http(server, "/v1/classify", {"text": "awful"}, traceparent=context(trace)[0][1])[0] == 500

    request = collector.wait_for_trace(trace)["POST /v1/classify"]
    assert (request.failed, request.attributes["error.type"]) == (True, "500")


def test_a_failure_after_the_first_line_keeps_the_status_that_was_sent(
    trace: str, collector: Collector, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = served_by(server).classifier.session
    run, runs = session.run, 0

    def fail_later(feeds: Any, stop: Any = None) -> Any:
        nonlocal runs
        runs += 1
        if runs > 1:
            raise RuntimeError("kernel failed")
        return run(feeds, stop)

    monkeypatch.setattr(session, "run", fail_later)
    # With little time left there would be no second run.
    headers = {"traceparent": context(trace)[0][1], "Grpc-Timeout": "60S"}
    sent, lines = http(server, "/v1/explain", {"text": "a good film and the awful w3"}, **headers)
    spans = collector.wait_for_trace(trace, "explain")

    assert (sent, json.loads(lines.splitlines()[-1])["error"]["status"]) == (200, "INTERNAL")
    request = spans["POST /v1/explain"]
    assert (request.attributes["http.response.status_code"], request.failed, request.attributes["error.type"]) == (200, True, "INTERNAL")
    assert spans["explain"].failed


def test_health_reflection_and_scrapes_are_not_traced(collector: Collector, server: RunningServer) -> None:
    untraced, traced = new_trace(), new_trace()

    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        health.Check(health_pb2.HealthCheckRequest(), metadata=context(untraced), timeout=60)
        next(health.Watch(health_pb2.HealthCheckRequest(), metadata=context(untraced), timeout=60))
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, metadata=context(untraced), timeout=60))
    for path in ("/healthz", "/readyz", "/metrics", "/", "/nosuch"):
        http(server, path, traceparent=context(untraced)[0][1])
    classify(server, "good", context(traced))
    collector.wait_for_trace(traced)

    # Spans are sent in order.
    assert [span.name for span in collector.spans if span.trace == untraced] == []


def test_a_batch_call_has_spans_of_its_first_texts(trace: str, collector: Collector, server: RunningServer) -> None:
    with stub_of(server) as stub:
        stub.ClassifyBatch(batch_request(["good film"] * 100), metadata=context(trace), timeout=60)
    collector.wait_for_trace(trace)

    mine = [span for span in collector.spans if span.trace == trace]
    (request,) = [span for span in mine if span.server]
    assert request.attributes["sentiment.texts"] == 100
    assert [sum(span.name == name for span in mine) for name in ("queue", "run")] == [TEXTS_MAX] * 2
    # Texts are tokenized in chunks of 64; only the first has texts with spans.
    assert [span.attributes["sentiment.texts"] for span in mine if span.name == "tokenize"] == [64]


def test_a_stream_has_spans_of_its_first_items(trace: str, collector: Collector, server: RunningServer) -> None:
    with stub_of(server) as stub:
        answers = list(stub.ClassifyStream(iter(stream_requests(["good"] * 50)), metadata=context(trace), timeout=60))
    collector.wait_for_trace(trace)

    mine = [span for span in collector.spans if span.trace == trace]
    assert len(answers) == 50
    assert [sum(span.name == name for span in mine) for name in ("tokenize", "queue", "run")] == [TEXTS_MAX] * 3
    (request,) = [span for span in mine if span.server]
    assert (request.name, request.attributes["sentiment.texts"]) == (f"{SERVICE}/ClassifyStream", 50)


def test_windows_are_rows_of_one_request(trace: str, collector: Collector, server: RunningServer) -> None:
    classify(server, " ".join(["good"] * 90), context(trace), truncation=pb.TRUNCATION_WINDOWS)
    request = collector.wait_for_trace(trace, "tokenize", "queue", "run")[CLASSIFY]

    runs = [span for span in collector.spans if span.trace == trace and span.name == "run"]
    batches = batches_of(collector, request)
    assert len(runs) == sum(batch.attributes["sentiment.batch.rows"] for batch in batches) > 1
    # One link, however many rows of the request are in the batch.
    assert [list(batch.links) for batch in batches] == [[request.place]] * len(batches)
    assert all(len(batch.proto.links) == 1 for batch in batches)


def test_an_explanation_is_a_child_of_its_request(trace: str, collector: Collector, server: RunningServer) -> None:
    with stub_of(server) as stub:
        messages = list(stub.Explain(pb.ExplainRequest(text="good"), metadata=context(trace), timeout=60))
    spans = collector.wait_for_trace(trace, "explain")

    assert messages[0].HasField("header")
    assert spans["explain"].parent == spans[f"{SERVICE}/Explain"].id
    assert not spans["explain"].failed


def test_log_lines_of_a_sampled_request_name_its_trace(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate], capfd: pytest.CaptureFixture[str]
) -> None:
    sampled, unsampled = new_trace(), new_trace()
    server = traced(log_level="debug")
    # As ``serve`` does; the fixture of all tests undoes it.
    logs.configure("debug", "json")
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    classify(server, "good", context(sampled))
    classify(server, "good", context(unsampled, sampled=False))
    with pytest.raises(CallFailed), server.client() as client:
        client.classify("awful")
    # A reader of the counts sees every call that has ended; they are logged with them.
    server.samples()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]

    calls = [line for line in lines if line["event"] == "call"]
    assert [line.get("trace_id") for line in calls[:2]] == [sampled, None]
    (failed,) = [line for line in lines if line["event"] == "call_failed"]
    assert failed["trace_id"] == calls[2]["trace_id"]
    assert len(failed["trace_id"]) == 32
