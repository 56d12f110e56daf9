"""What a real collector gets of a real server's requests."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from sentiment.client import CallFailed
from sentiment.observability.tracing.trace import ROWS_MAX, TEXTS_MAX
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.api_grpc.gate import (
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
    total,
)
from tests.api_grpc.test_oip import asked
from tests.conftest import NO_RETRIES, RunningServer
from tests.tracing.calling import PARENT, SERVICE, classify, context, http, stub_of, trace_id
from tests.tracing.collector import Collector

CLASSIFY = f"{SERVICE}/Classify"
Start = Callable[..., RunningServer]


def test_a_request_its_stages_and_its_batch_are_one_picture(collector: Collector, traced: Start) -> None:
    server = traced()

    classify(server, "a good film", context(trace_id(1)))
    spans = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")

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
    (batch,) = [span for span in collector.spans if span.name == "batch"]
    assert batch.links == {request.place}
    assert spans["run"].links == {batch.place}
    assert (batch.parent, batch.server, batch.trace == trace_id(1)) == ("", False, False)


def test_the_open_inference_protocol_is_traced_alike(collector: Collector, traced: Start) -> None:
    server = traced()

    with grpc.insecure_channel(server.target) as channel:
        oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked("good", "bad"), metadata=context(trace_id(1)))
    spans = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")

    request = spans["inference.GRPCInferenceService/ModelInfer"]
    assert (request.parent, request.server, request.attributes["sentiment.texts"]) == (PARENT, True, 2)
    assert spans["run"].parent == request.id


def test_a_tracestate_goes_with_every_span_and_only_the_request_has_a_parent_elsewhere(collector: Collector, traced: Start) -> None:
    server = traced()
    remote = trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

    classify(server, "a good film", (*context(trace_id(1)), ("tracestate", "vendor=1")))
    spans = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")

    assert {span.proto.trace_state for span in spans.values()} == {"vendor=1"}
    assert {name for name, span in spans.items() if span.proto.flags & remote} == {CLASSIFY}


def test_stages_follow_each_other_within_the_request(collector: Collector, traced: Start) -> None:
    server = traced()

    classify(server, "a good film", context(trace_id(1)))
    spans = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")

    request, tokenize, queue, run = (spans[name].proto for name in (CLASSIFY, "tokenize", "queue", "run"))
    instants = [
        *(request.start_time_unix_nano, tokenize.start_time_unix_nano, tokenize.end_time_unix_nano, queue.start_time_unix_nano),
        *(queue.end_time_unix_nano, run.end_time_unix_nano, request.end_time_unix_nano),
    ]
    assert instants == sorted(instants)
    assert queue.end_time_unix_nano == run.start_time_unix_nano


def test_a_batch_tells_what_it_ran(collector: Collector, traced: Start) -> None:
    server = traced()

    classify(server, "a good film", context(trace_id(1)))
    (batch,) = [span for span in collector.wait_for(lambda spans: any(s.name == "batch" for s in spans)) if span.name == "batch"]

    told = batch.attributes
    seconds = [told.pop(f"sentiment.batch.{name}_s") for name in ("pad", "copy", "run")]
    assert told.pop("sentiment.runner") in ("cpu-0", "cpu-1")
    assert told == {
        "sentiment.model": "tiny/1",
        "sentiment.batch.rows": 1,
        "sentiment.batch.tokens": 5,
        "sentiment.batch.computed_tokens": 5,
        "sentiment.batch.reason": "alike",
    }
    assert seconds[0] > 0 == seconds[1] < seconds[2]


def test_a_batch_is_linked_to_every_sampled_request_in_it_and_to_no_other(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate]
) -> None:
    server = traced(runners=1)
    set_cost(server, FixedCost(0.0001, 0.01))
    gate = hold(server)

    async def run() -> None:
        async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
            stub = pb_grpc.SentimentServiceStub(channel)
            first = asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="film"), timeout=60)))
            await gate.begun()
            others = [
                asyncio.create_task(
                    outcome_of(
                        stub.Classify(pb.ClassifyRequest(text="good film"), metadata=context(trace_id(number), number != 3), timeout=60)
                    )
                )
                for number in range(1, 6)
            ]
            await queued(server, 5)
            gate.open()
            answers = await bounded(asyncio.gather(first, *others))
            assert all(isinstance(answer, pb.ClassifyResponse) for answer in answers)

    asyncio.run(run())
    sampled = [trace_id(number) for number in (1, 2, 4, 5)]
    requests = [collector.wait_for_trace(trace, "tokenize", "queue", "run")[CLASSIFY] for trace in sampled]

    (batch,) = [span for span in collector.spans if span.name == "batch" and span.attributes["sentiment.batch.rows"] == 5]
    assert batch.links == {request.place for request in requests}
    assert [span for span in collector.spans if span.trace == trace_id(3)] == []
    runs = [span for span in collector.spans if span.name == "run" and span.trace in sampled]
    assert len(runs) == 4
    assert all(span.links == {batch.place} for span in runs)


def test_what_is_sent_holds_no_text_and_no_header(collector: Collector, traced: Start) -> None:
    server = traced()
    secret = "XyzzySecret"

    answer = classify(server, f"good {secret}", (*context(trace_id(1)), ("x-request-id", secret), ("x-other", secret)))
    http(server, "/v1/classify", {"text": secret, secret: 1}, traceparent=context(trace_id(2))[0][1])
    http(server, f"/v1/models/{secret}", traceparent=context(trace_id(3))[0][1])
    for number in (1, 2, 3):
        collector.wait_for_trace(trace_id(number))

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
def test_only_the_servers_faults_are_errors_of_its_span(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate], request_: pb.ClassifyRequest, code: str, failed: bool
) -> None:
    server = traced()
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    with stub_of(server) as stub, pytest.raises(grpc.RpcError):
        stub.Classify(request_, metadata=context(trace_id(1)), timeout=60)
    spans = collector.wait_for_trace(trace_id(1))

    assert spans[CLASSIFY].attributes["rpc.response.status_code"] == code
    assert (spans[CLASSIFY].failed, spans[CLASSIFY].attributes.get("error.type")) == (failed, code if failed else None)
    assert spans[CLASSIFY].proto.status.message == ""


def test_a_batch_that_fails_says_so_and_is_linked_to_its_requests(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate]
) -> None:
    server = traced()
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    with stub_of(server) as stub, pytest.raises(grpc.RpcError):
        stub.Classify(pb.ClassifyRequest(text="awful"), metadata=context(trace_id(1)), timeout=60)
    spans = collector.wait_for_trace(trace_id(1), "queue", "run")

    (batch,) = collector.wait_for(lambda spans: any(s.name == "batch" for s in spans)) and [
        span for span in collector.spans if span.name == "batch"
    ]
    assert (batch.failed, batch.attributes["error.type"]) == (True, "RuntimeError")
    assert batch.links == {spans[CLASSIFY].place}
    assert (spans["run"].failed, spans["run"].attributes["error.type"]) == (True, "ModelFailed")
    assert spans["run"].links == {batch.place}
    assert not spans["queue"].failed


def test_who_leaves_is_told_of_with_the_row_that_waited(collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate]) -> None:
    server = traced(runners=1)
    gate = hold(server)

    async def run() -> None:
        async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
            stub = pb_grpc.SentimentServiceStub(channel)
            first = asyncio.create_task(outcome_of(stub.Classify(pb.ClassifyRequest(text="film"), timeout=60)))
            await gate.begun()
            left = stub.Classify(pb.ClassifyRequest(text="good"), metadata=context(trace_id(1)), timeout=60)
            waiting = asyncio.create_task(outcome_of(left))
            await queued(server, 1)
            left.cancel()
            await asyncio.wait({waiting})
            await queued(server, 0)
            gate.open()
            await bounded(first)

    asyncio.run(run())
    spans = collector.wait_for_trace(trace_id(1), "queue")

    assert set(spans) == {CLASSIFY, "tokenize", "queue"}
    assert spans["queue"].attributes["sentiment.cancelled"] is True
    assert spans[CLASSIFY].attributes["rpc.response.status_code"] == "CANCELLED"
    assert not any(span.failed for span in spans.values())


def test_without_context_a_request_begins_a_trace_of_its_own(collector: Collector, traced: Start) -> None:
    server = traced()

    for _ in range(3):
        classify(server, "good")
    spans = collector.wait_for(lambda spans: sum(span.server for span in spans) == 3)

    roots = [span for span in spans if span.server]
    assert len({span.trace for span in roots}) == 3
    assert {span.parent for span in roots} == {""}


def test_http_requests_are_traced_alike(collector: Collector, traced: Start) -> None:
    server = traced()

    assert http(server, "/v1/classify", {"text": "good film"}, Traceparent=context(trace_id(1))[0][1])[0] == 200
    assert http(server, "/v1/classify", {"text": ""}, traceparent=context(trace_id(2))[0][1])[0] == 400
    spans = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")
    refused = collector.wait_for_trace(trace_id(2))["POST /v1/classify"]

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


def test_a_fault_over_http_is_an_error(collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate]) -> None:
    server = traced()
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    assert http(server, "/v1/classify", {"text": "awful"}, traceparent=context(trace_id(1))[0][1])[0] == 500

    request = collector.wait_for_trace(trace_id(1))["POST /v1/classify"]
    assert (request.failed, request.attributes["error.type"]) == (True, "500")


def test_what_goes_wrong_after_the_first_line_has_the_status_that_was_sent(
    collector: Collector, traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = traced()
    session = served_by(server).classifier.session
    run, runs = session.run, 0

    def fail_later(feeds: Any, stop: Any = None) -> Any:
        nonlocal runs
        runs += 1
        if runs > 1:
            raise RuntimeError("kernel failed")
        return run(feeds, stop)

    monkeypatch.setattr(session, "run", fail_later)
    sent, lines = http(server, "/v1/explain", {"text": "a good film and the awful w3"}, traceparent=context(trace_id(1))[0][1])
    spans = collector.wait_for_trace(trace_id(1), "explain")

    assert (sent, json.loads(lines.splitlines()[-1])["error"]["status"]) == (200, "INTERNAL")
    request = spans["POST /v1/explain"]
    assert (request.attributes["http.response.status_code"], request.failed, request.attributes["error.type"]) == (200, True, "INTERNAL")
    assert spans["explain"].failed


def test_health_reflection_and_scrapes_are_not_traced(collector: Collector, traced: Start) -> None:
    server = traced()

    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        health.Check(health_pb2.HealthCheckRequest(), metadata=context(trace_id(1)), timeout=60)
        next(health.Watch(health_pb2.HealthCheckRequest(), metadata=context(trace_id(1)), timeout=60))
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, metadata=context(trace_id(1)), timeout=60))
    for path in ("/healthz", "/readyz", "/metrics", "/", "/nosuch"):
        http(server, path, traceparent=context(trace_id(1))[0][1])
    classify(server, "good", context(trace_id(2)))
    collector.wait_for_trace(trace_id(2))

    # What is sent goes in the order in which it came.
    assert [span.name for span in collector.spans if span.trace == trace_id(1)] == []


def test_a_batch_call_tells_of_its_first_texts(collector: Collector, traced: Start) -> None:
    server = traced()

    with stub_of(server) as stub:
        stub.ClassifyBatch(batch_request(["good film"] * 100), metadata=context(trace_id(1)), timeout=60)
    collector.wait_for_trace(trace_id(1))

    mine = [span for span in collector.spans if span.trace == trace_id(1)]
    (request,) = [span for span in mine if span.server]
    assert request.attributes["sentiment.texts"] == 100
    assert [sum(span.name == name for span in mine) for name in ("queue", "run")] == [TEXTS_MAX] * 2
    # In chunks of 64, of which the first has texts that are told of.
    assert [span.attributes["sentiment.texts"] for span in mine if span.name == "tokenize"] == [64]


def test_a_stream_tells_of_its_first_items(collector: Collector, traced: Start) -> None:
    server = traced()

    with stub_of(server) as stub:
        answers = list(stub.ClassifyStream(iter(stream_requests(["good"] * 50)), metadata=context(trace_id(1)), timeout=60))
    collector.wait_for_trace(trace_id(1))

    mine = [span for span in collector.spans if span.trace == trace_id(1)]
    assert len(answers) == 50
    assert [sum(span.name == name for span in mine) for name in ("tokenize", "queue", "run")] == [TEXTS_MAX] * 3
    (request,) = [span for span in mine if span.server]
    assert (request.name, request.attributes["sentiment.texts"]) == (f"{SERVICE}/ClassifyStream", 50)


def test_windows_are_rows_of_one_request(collector: Collector, traced: Start) -> None:
    server = traced()

    classify(server, " ".join(["good"] * 90), context(trace_id(1)), truncation=pb.TRUNCATION_WINDOWS)
    request = collector.wait_for_trace(trace_id(1), "tokenize", "queue", "run")[CLASSIFY]

    runs = [span for span in collector.spans if span.trace == trace_id(1) and span.name == "run"]
    batches = [span for span in collector.spans if span.name == "batch"]
    assert len(runs) == sum(batch.attributes["sentiment.batch.rows"] for batch in batches) > 1
    # Once each, however many of its rows are in it.
    assert [list(batch.links) for batch in batches] == [[request.place]] * len(batches)
    assert all(len(batch.proto.links) == 1 for batch in batches)


def test_a_call_of_many_windows_tells_of_its_first_rows(collector: Collector, traced: Start) -> None:
    server = traced()
    request = batch_request([" ".join(["good"] * 90)] * 20)
    request.truncation = pb.TRUNCATION_WINDOWS

    with stub_of(server) as stub:
        answers = stub.ClassifyBatch(request, metadata=context(trace_id(1)), timeout=60).results
    collector.wait_for_trace(trace_id(1))

    mine = [span.name for span in collector.spans if span.trace == trace_id(1)]
    assert all(answer.HasField("response") for answer in answers)
    assert total(server, "tokens", kind="real") > 20 * 90
    assert (mine.count("queue"), mine.count("run")) == (ROWS_MAX, ROWS_MAX)


def test_an_explanation_is_a_part_of_its_request(collector: Collector, traced: Start) -> None:
    server = traced()

    with stub_of(server) as stub:
        messages = list(stub.Explain(pb.ExplainRequest(text="good"), metadata=context(trace_id(1)), timeout=60))
    spans = collector.wait_for_trace(trace_id(1), "explain")

    assert messages[0].HasField("header")
    assert spans["explain"].parent == spans[f"{SERVICE}/Explain"].id
    assert not spans["explain"].failed


def test_the_collector_is_told_whose_spans_they_are(collector: Collector, traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=words-0")
    server = traced()

    classify(server, "good")
    resource = collector.wait_for(lambda spans: spans)[0].resource

    known = ("service.name", "process.pid", "sentiment.process", "k8s.pod.name")
    assert [resource[key] for key in known] == ["sentiment", os.getpid(), "server", "words-0"]
    assert resource["service.version"]


def test_the_service_may_have_another_name(collector: Collector, traced: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "words")
    server = traced()

    classify(server, "good")

    assert collector.wait_for(lambda spans: spans)[0].resource["service.name"] == "words"


def test_what_is_logged_of_a_sampled_request_names_its_trace(
    collector: Collector, traced: Start, hold: Callable[[RunningServer], Gate], capfd: pytest.CaptureFixture[str]
) -> None:
    server = traced(log_level="debug")
    # As ``serve`` does; the fixture of all tests undoes it.
    from sentiment.observability import logs

    logs.configure("debug", "json")
    gate = hold(server)
    gate.poison = id_of("awful")
    gate.open()

    classify(server, "good", context(trace_id(1)))
    classify(server, "good", context(trace_id(2), sampled=False))
    with pytest.raises(CallFailed), server.client() as client:
        client.classify("awful")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]

    calls = [line for line in lines if line["event"] == "call"]
    assert [line.get("trace_id") for line in calls[:2]] == [trace_id(1), None]
    (failed,) = [line for line in lines if line["event"] == "call_failed"]
    assert failed["trace_id"] == calls[2]["trace_id"]
    assert len(failed["trace_id"]) == 32
