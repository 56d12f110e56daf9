"""Which requests are traced: by the caller's W3C trace context and by the OTEL_ variables."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentiment.errors import BadSettings
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.otel import OtelOutlet, open_outlet
from sentiment.observability.tracing.start import make_tracer
from tests.conftest import RunningServer
from tests.core.tracing.calling import PARENT, classify, context, trace_id
from tests.core.tracing.collector import Collector

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GOOD = f"00-{TRACE}-{PARENT}-01"
Outlets = Callable[[], OtelOutlet]


@pytest.fixture
def outlet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outlets]:
    made: list[OtelOutlet] = []
    # No collector listens there; nothing is sent.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")

    def make() -> OtelOutlet:
        found = open_outlet(Metrics(()), "server")
        assert found is not None
        made.append(found)
        return found

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("parent", "state", "kept_state"),
    [
        (GOOD, "vendor=1,other=2", "vendor=1,other=2"),
        (GOOD.replace("00-", "01-", 1) + "-more", "vendor=1", "vendor=1"),
        (GOOD, "=,=;;\u00e9" * 200, ""),
    ],
    ids=["valid", "of a later version", "with a malformed tracestate"],
)
def test_the_callers_trace_is_continued(outlet: Outlets, parent: str, state: str, kept_state: str) -> None:
    begin = outlet().sample([("user-agent", "x"), ("traceparent", parent), ("tracestate", state)], follow=False)

    assert begin is not None
    assert begin.place.trace_id == int(TRACE, 16)
    assert begin.parent_id == int(PARENT, 16)
    assert begin.place.span_id not in (0, begin.parent_id)
    assert begin.state.to_header() == kept_state


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", value)]
        for value in (
            "",
            "00",
            GOOD[:-3],
            GOOD + "-extra",
            GOOD.upper().replace("00-", "00-", 1),
            GOOD.replace(TRACE, "0" * 32),
            GOOD.replace(PARENT, "0" * 16),
            GOOD.replace("00-", "ff-", 1),
            GOOD.replace(TRACE, TRACE[:-1] + "g"),
            GOOD.replace("-01", "-zz"),
            "x" * 5000,
            "00-\u00e9-" + GOOD,
        )
    ]
    # Two contradict each other, and a binary header is not valid.
    + [[("traceparent", GOOD), ("traceparent", GOOD.replace(TRACE, TRACE[::-1]))], [("traceparent", GOOD.encode())]],
    ids=str,
)
def test_a_malformed_context_is_ignored_and_a_new_trace_begins(outlet: Outlets, headers: list[tuple[str, str | bytes]]) -> None:
    begin = outlet().sample(headers, follow=False)

    assert begin is not None
    assert begin.parent_id == 0
    assert begin.place.trace_id not in (0, int(TRACE, 16))


@pytest.mark.parametrize(
    ("sampler", "none", "yes", "no"),
    [
        ("", True, True, False),
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
        ("parentbased_traceidratio", False, True, False),
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("traceidratio", False, False, False),
    ],
)
def test_a_sampler_decides_with_and_without_a_sampling_caller(
    outlet: Outlets, monkeypatch: pytest.MonkeyPatch, sampler: str, none: bool, yes: bool, no: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    made = outlet()

    sampled = [made.sample(headers, follow=False) is not None for headers in ([], context(TRACE), context(TRACE, sampled=False))]
    followed = [made.sample(headers, follow=True) is not None for headers in ([], context(TRACE), context(TRACE, sampled=False))]

    assert sampled == [none, yes, no]
    assert followed == [False, True, False]


@pytest.mark.parametrize(("ratio", "least", "most"), [("0", 0, 0), ("0.25", 150, 350), ("1", 1000, 1000), ("1.0", 1000, 1000)])
def test_the_ratio_is_the_share_of_requests_that_is_traced(
    outlet: Outlets, monkeypatch: pytest.MonkeyPatch, ratio: str, least: int, most: int
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    made = outlet()

    # 7 standard deviations to either side of 250 of 1,000.
    assert least <= sum(made.sample([], follow=False) is not None for _ in range(1000)) <= most


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_TRACES_SAMPLER", "often", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER", "parentbased_jaeger_remote", "always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5", "0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "0 to 1"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "grpc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "1 to 1000000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "1 to 1000000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5000", "2048"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "zip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "long", "long"),
    ],
)
def test_an_invalid_variable_stops_the_startup_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv(variable, value)

    with pytest.raises(BadSettings, match=r"OTEL_") as error:
        make_tracer(True, Metrics(()))

    assert variable.rpartition("_")[0] in str(error.value) or "OTEL_EXPORTER_OTLP_" in str(error.value)
    assert said in str(error.value)


def test_a_missing_certificate_stops_the_startup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sdk, missing = logging.getLogger("opentelemetry"), tmp_path / "ca.pem"
    monkeypatch.setattr(sdk, "propagate", True)
    monkeypatch.setattr(sdk, "level", logging.NOTSET)
    before = sdk.propagate, sdk.level, list(sdk.handlers)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(missing))

    with pytest.raises(BadSettings) as error:
        make_tracer(True, Metrics(()))

    assert str(missing) in str(error.value)
    assert (sdk.propagate, sdk.level, list(sdk.handlers)) == before


@pytest.mark.parametrize("log_level", [logging.WARNING, logging.ERROR], ids=["warnings", "errors"])
def test_an_invalid_header_stops_the_startup_and_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, log_level: int
) -> None:
    caplog.set_level(log_level)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Bearer sesame")

    with pytest.raises(BadSettings, match="Header format invalid") as error:
        make_tracer(True, Metrics(()))

    assert "sesame" not in str(error.value) + caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_the_standard_switches_override_the_setting(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)

    assert make_tracer(True, Metrics(())) is None


def test_requests_not_sampled_by_their_callers_have_no_spans(collector: Collector, traced: Callable[..., RunningServer]) -> None:
    server = traced()

    for number in range(1, 11):
        classify(server, "good", context(trace_id(number), sampled=False))
    classify(server, "good", context(trace_id(11)))
    collector.wait_for_trace(trace_id(11), "tokenize", "queue", "run")

    # Spans are sent in order.
    assert {span.trace for span in collector.spans if span.name != "batch"} == {trace_id(11)}
    assert sum(span.name == "batch" for span in collector.spans) == 1
