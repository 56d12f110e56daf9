"""One trace across processes: the front end records the request, the executor its row and batch."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from sentiment.observability.tracing.trace import ROWS_MAX
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES
from tests.core.grpc.gate import batch_request
from tests.core.servers import Server
from tests.core.tracing.calling import PARENT, SERVICE, context, trace_id
from tests.core.tracing.collector import Collector, Got
from tests.core.tracing.test_exemplars import buckets

CLASSIFY, EXPLAIN = f"{SERVICE}/Classify", f"{SERVICE}/Explain"
REMOTE = trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
# The sampled traces of all tests that share the server.
SAMPLED = {trace_id(number) for number in (1, 2, 3, 5, 6, 7, 8, 10)}


@pytest.fixture(scope="module")
def environment() -> Iterator[tuple[pytest.MonkeyPatch, Collector]]:
    collector = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        yield patch, collector
    collector.stop()


@pytest.fixture(scope="module")
def collector(environment: tuple[pytest.MonkeyPatch, Collector]) -> Collector:
    return environment[1]


@pytest.fixture(scope="module")
def server(bundles: Path, environment: tuple[pytest.MonkeyPatch, Collector]) -> Iterator[Server]:
    """Traces only requests that their callers sample."""
    running = Server(bundles, "--front-ends", "2", "--tracing").wait_ready()
    yield running
    running.end()


@pytest.fixture
def stub(server: Server) -> Iterator[pb_grpc.SentimentServiceStub]:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        yield pb_grpc.SentimentServiceStub(channel)


def process(span: Got) -> str:
    return str(span.resource["sentiment.process"])


def until(collector: Collector, true: Callable[[dict[str, Got]], bool], trace: str) -> dict[str, Got]:
    """Wait for spans of a trace; returns them by process and name."""

    def found(spans: list[Got]) -> dict[str, Got]:
        return {f"{process(span).partition('-')[0]} {span.name}": span for span in spans if span.trace == trace}

    return found(collector.wait_for(lambda spans: true(found(spans))))


def test_the_front_end_records_the_request_and_the_executor_its_row(collector: Collector, stub: pb_grpc.SentimentServiceStub) -> None:
    stub.Classify(pb.ClassifyRequest(text="good film"), metadata=context(trace_id(1)), timeout=60)

    names = {f"front {CLASSIFY}", "front tokenize", "executor queue", "executor run"}
    spans = until(collector, lambda spans: names <= set(spans), trace_id(1))
    request = spans[f"front {CLASSIFY}"]
    batches = collector.wait_for(lambda spans: any(span.name == "batch" and request.place in span.links for span in spans))

    assert set(spans) == names
    assert (request.parent, request.server) == (PARENT, True)
    assert {spans[name].parent for name in names - {f"front {CLASSIFY}"}} == {request.id}
    (batch,) = [span for span in batches if request.place in span.links]
    assert process(batch) == "executor"
    assert {name for name in names if spans[name].proto.flags & REMOTE} == names - {"front tokenize"}
    assert spans["executor run"].links == {batch.place}


def test_of_many_texts_in_one_frame_only_the_sampled_ones_have_spans(collector: Collector, stub: pb_grpc.SentimentServiceStub) -> None:
    plain = stub.ClassifyBatch.future(batch_request(["w3"] * 20), timeout=60)
    sampled = stub.ClassifyBatch.future(batch_request([f"w{number}" for number in range(20)]), metadata=context(trace_id(2)), timeout=60)

    answers = [result.response.prediction.scores[1].score for result in sampled.result().results]
    assert len(plain.result().results) == 20
    # On the same connection: a process sends its spans in order.
    stub.Classify(pb.ClassifyRequest(text="bad"), metadata=context(trace_id(6)), timeout=60)
    until(collector, lambda spans: {f"front {CLASSIFY}", "executor run"} <= set(spans), trace_id(6))

    told = Counter((process(span).partition("-")[0], span.name) for span in collector.spans if span.trace == trace_id(2))
    assert told == {("front", f"{SERVICE}/ClassifyBatch"): 1, ("front", "tokenize"): 1, ("executor", "queue"): 20, ("executor", "run"): 20}
    # There are no spans of requests that are not sampled.
    assert {span.trace for span in collector.spans if span.name != "batch"} <= SAMPLED
    # Each text has its own answer.
    assert answers == sorted(answers)
    assert len(set(answers)) == 20


def test_the_limit_of_traced_rows_is_that_of_one_process(collector: Collector, stub: pb_grpc.SentimentServiceStub) -> None:
    request = batch_request([" ".join(["good"] * 90)] * 20)
    request.truncation = pb.TRUNCATION_WINDOWS
    stub.ClassifyBatch(request, metadata=context(trace_id(8)), timeout=60)
    stub.Classify(pb.ClassifyRequest(text="bad"), metadata=context(trace_id(10)), timeout=60)
    until(collector, lambda spans: {"executor run"} <= set(spans), trace_id(10))

    told = Counter(span.name for span in collector.spans if span.trace == trace_id(8))
    assert 1 < told["run"] == told["queue"] <= ROWS_MAX


def test_an_explanation_has_spans_of_both_processes(collector: Collector, stub: pb_grpc.SentimentServiceStub) -> None:
    metadata = (*context(trace_id(3)), ("tracestate", "vendor=1"))
    list(stub.Explain(pb.ExplainRequest(text="good"), metadata=metadata, timeout=60))

    names = {f"front {EXPLAIN}", f"executor {EXPLAIN}", "executor explain"}
    spans = until(collector, lambda spans: names <= set(spans), trace_id(3))

    outer, inner = spans[f"front {EXPLAIN}"], spans[f"executor {EXPLAIN}"]
    assert (outer.parent, inner.parent, spans["executor explain"].parent) == (PARENT, outer.id, inner.id)
    assert {span.proto.trace_state for span in spans.values()} == {"vendor=1"}
    assert [bool(spans[name].proto.flags & REMOTE) for name in (f"front {EXPLAIN}", f"executor {EXPLAIN}", "executor explain")] == [
        *(True, True, False)
    ]
    # Only one of them is a server span, so that the request is counted once.
    assert (outer.server, inner.server) == (True, False)


def test_the_executor_does_not_sample_what_the_front_end_did_not(collector: Collector, stub: pb_grpc.SentimentServiceStub) -> None:
    list(stub.Explain(pb.ExplainRequest(text="bad"), timeout=60))
    stub.Classify(pb.ClassifyRequest(text="bad"), metadata=context(trace_id(4), sampled=False), timeout=60)
    stub.Classify(pb.ClassifyRequest(text="bad"), metadata=context(trace_id(5)), timeout=60)
    until(collector, lambda spans: {f"front {CLASSIFY}", "executor run"} <= set(spans), trace_id(5))

    assert {span.trace for span in collector.spans if span.name != "batch"} <= SAMPLED


def test_the_executor_does_not_use_its_own_sampler(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler without a parent decides once per request, in the front end."""
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    server = Server(bundles, "--tracing", "--front-ends", "1").wait_ready()
    try:
        with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
            stub = pb_grpc.SentimentServiceStub(channel)
            for metadata in [(), context(trace_id(9)), context("8" * 32)] * 20:
                stub.GetModel(pb.GetModelRequest(), metadata=metadata, timeout=60)
        server.process.terminate()
        # All processes have sent their last spans now.
        assert server.finish() == 0

        outer = [span for span in collector.spans if process(span) == "front-0"]
        inner = [span for span in collector.spans if process(span) == "executor"]
        # About half of the new traces; of the callers' traces, those with a small id.
        assert 20 < len(outer) < 40
        assert sum(span.trace == trace_id(9) for span in outer) == 20
        assert sorted(span.parent for span in inner) == sorted(span.id for span in outer)
    finally:
        server.end()
        collector.stop()


def test_the_executors_metrics_have_exemplars_of_front_ends(
    collector: Collector, server: Server, stub: pb_grpc.SentimentServiceStub
) -> None:
    stub.ListModels(pb.ListModelsRequest(), metadata=context(trace_id(7)), timeout=60)
    stub.Classify(pb.ClassifyRequest(text="good"), metadata=context(trace_id(7)), timeout=60)

    for method in ("ListModels", "Classify"):
        found = buckets(server.url, "request_seconds", method=method)
        assert trace_id(7) in {sample.exemplar.labels["trace_id"] for sample in found}
        assert all(0 < sample.exemplar.value <= float(sample.labels["le"]) for sample in found)
