"""Exports spans: OpenTelemetry's sampling, W3C context, batching and OTLP over gRPC. Only this module imports OpenTelemetry.

A collector that is down, hangs or refuses costs spans and nothing else. Spans wait in a bounded queue; those that do not fit are dropped
and counted. A separate thread sends them, and a process that exits waits at most ``FLUSH_S`` for it.
"""

import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from sentiment.addresses import channel_arguments
from sentiment.errors import BadSettings
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import TRACE_HEADERS, Begin, Headers, Place, Span

NAME = "sentiment"
# How long a drain waits for the last spans.
FLUSH_S = 2.0
# How long to wait for the sending thread after its call is cut off. A daemon thread that does not end is abandoned.
CUT_OFF_S = 0.5
# During an outage, log at most one line in this many seconds.
LOG_EVERY_S = 60.0
QUEUE_MAX = 2048
# Encoding holds the GIL for about 40 us per span: the SDK's default of 512 would block the event loop for 20 ms.
EXPORT_MAX = 64
SCHEDULE_MS = 5000
PARENT_BASED = "parentbased_"
RATIO = "traceidratio"
SAMPLERS = ("always_on", "always_off", RATIO)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
NO_CONTEXT = Context()


def open_outlet(metrics: Metrics, process: str) -> "OtelOutlet | None":
    """An outlet configured by the OTEL_ variables; None if they turn it off. Connects later.

    Raises:
        BadSettings: a variable is invalid.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        logger().info("tracing_off", reason="OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER turns it off")
        return None
    for variable, known in (
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
    ):
        if (value := os.environ.get(variable) or known) != known:
            raise BadSettings(f"{variable} = {value!r}: only {known} is supported; unset the variable or turn tracing off")
    return OtelOutlet(metrics, process)


class OtelOutlet:
    """See trace.Outlet. Everything except sending runs on the event loop."""

    def __init__(self, metrics: Metrics, process: str) -> None:
        """Start the sending thread.

        Raises:
            BadSettings: see open_outlet.
        """
        self._sampler = _sampler()
        self._follower = ParentBased(ALWAYS_OFF)
        self._queue_max = _count("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
        export_max = _count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(EXPORT_MAX, self._queue_max))
        schedule_ms = _count("OTEL_BSP_SCHEDULE_DELAY", SCHEDULE_MS)
        if export_max > self._queue_max:
            raise BadSettings(f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE = {export_max}: must be at most {self._queue_max} (OTEL_BSP_MAX_QUEUE_SIZE)")
        self._ids = RandomIdGenerator()
        self._w3c = TraceContextTextMapPropagator()
        self._scope = InstrumentationScope(NAME, importlib.metadata.version("sentiment-service"))
        self._resource = _resource(process)
        self._drop = metrics.spans_dropped.labels("queue_full").inc
        self._drop_late = metrics.spans_dropped.labels("not_exported").inc
        self._sdk_errors = _SdkErrors()
        self._exporter = _Exporter(_sender(self._sdk_errors), metrics, self._sdk_errors)
        self._given = 0
        self._closed = False
        self._processor = BatchSpanProcessor(self._exporter, self._queue_max, schedule_ms, export_max)

    def sample(self, headers: Headers, follow: bool) -> Begin | None:
        """See Outlet. Malformed context is ignored."""
        context = self._context(headers)
        parent = get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        sampler = self._follower if follow else self._sampler
        if sampler.should_sample(context, trace_id, NAME, SpanKind.SERVER).decision is not Decision.RECORD_AND_SAMPLE:
            return None
        place = Place(trace_id, self._ids.generate_span_id())
        return Begin(place, parent.span_id, parent.trace_state) if parent.is_valid else Begin(place, 0, None)

    def new_place(self) -> Place:
        """See Outlet."""
        return Place(self._ids.generate_trace_id(), self._ids.generate_span_id())

    def put(self, span: Span) -> None:
        """See Outlet. The queue's length is computed here, because the SDK does not report what it drops."""
        if self._closed:
            self._drop_late()
            return
        if self._given - self._exporter.taken >= self._queue_max:
            self._drop()
            return
        self._given += 1
        parent = _context_of(Place(span.place.trace_id, span.parent_id), span.state, span.remote) if span.parent_id else None
        attributes = {**span.attributes, "error.type": span.error} if span.error else span.attributes
        # Not made by the SDK's Tracer, which takes 15 us per span: a finished span needs no locks and no checks.
        made = ReadableSpan(
            span.name,
            context=_context_of(span.place, span.state),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=[Link(_context_of(place)) for place in span.links],
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR) if span.error else Status(),
            start_time=span.begun_ns,
            end_time=span.ended_ns,
        )
        self._processor.on_end(made)

    def close(self) -> None:
        """See Outlet: at most FLUSH_S and CUT_OFF_S."""
        self._closed = True
        # The SDK's own limit is 30 s.
        ending = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        self._exporter.shutdown()
        ending.join(CUT_OFF_S)
        self._sdk_errors.close()

    def _context(self, headers: Headers) -> Context:
        found: dict[str, list[str]] = {}
        for key, value in headers:
            if (name := key.lower()) in TRACE_HEADERS and isinstance(value, str):
                found.setdefault(name, []).append(value)
        # With two parents, neither can be trusted.
        return self._w3c.extract(found, NO_CONTEXT) if len(found.get("traceparent", ())) == 1 else NO_CONTEXT


class _SdkErrors(logging.Handler):
    """Keeps the SDK's messages out of the log, except the last one: it repeats them while a collector is down, and they quote headers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._sdk = logging.getLogger("opentelemetry")
        self._found = self._sdk.propagate, self._sdk.level
        self._sdk.addHandler(self)
        self._sdk.propagate = False
        # Independent of the log level of other libraries.
        self._sdk.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message; of a warning without its argument, which may be a header with a token."""
        self.last = record.getMessage() if record.levelno >= logging.ERROR else str(record.msg).removesuffix(": %s")

    def close(self) -> None:
        """Restore the SDK's logger."""
        self._sdk.removeHandler(self)
        self._sdk.propagate, level = self._found
        self._sdk.setLevel(level)
        super().close()


class _Exporter(SpanExporter):
    """Wraps the SDK's exporter and counts its outcomes. Used in the sending thread."""

    def __init__(self, inner: OTLPSpanExporter, metrics: Metrics, sdk_errors: _SdkErrors) -> None:
        self.taken = 0
        self._inner = inner
        self._sdk_errors = sdk_errors
        self._sent: Callable[[float], None] = metrics.spans_sent.inc
        self._lost: Callable[[float], None] = metrics.spans_dropped.labels("not_exported").inc
        self._shut = False
        self._unlogged = 0
        self._logged_at = float("-inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans, with retries for at most OTEL_EXPORTER_OTLP_TIMEOUT (10 s)."""
        self.taken += len(spans)
        try:
            result = self._inner.export(spans)
        except Exception as error:  # its message may quote a header
            self._sdk_errors.last = type(error).__name__
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._sent(len(spans))
        else:
            self._lost(len(spans))
            self._log_lost(len(spans))
        return result

    def shutdown(self) -> None:
        """Cut off the current export. May be called twice."""
        if not self._shut:
            self._shut = True
            self._inner.shutdown()

    def _log_lost(self, spans: int) -> None:
        self._unlogged += spans
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            logger().warning("spans_lost", spans=self._unlogged, reason=self._sdk_errors.last)
            self._unlogged, self._logged_at = 0, now


def _sender(sdk_errors: _SdkErrors) -> OTLPSpanExporter:
    """The SDK's exporter. Afterwards ``sdk_errors`` keeps errors only, no warnings.

    Raises:
        BadSettings: the exporter rejects its variables. It only logs some problems (such as a missing certificate), so any message counts.
    """
    try:
        # Typed for one text option; it takes what gRPC takes.
        direct: Any = tuple(channel_arguments(_collector()))
        sender = OTLPSpanExporter(channel_options=direct)
    except Exception as error:
        sdk_errors.last = repr(error)
    if sdk_errors.last:
        sdk_errors.close()
        raise BadSettings(f"the trace exporter rejects the OTEL_EXPORTER_OTLP_ variables: {sdk_errors.last}")
    sdk_errors.setLevel(logging.ERROR)
    return sender


def _collector() -> str:
    """The target of the exporter, as its variables name it."""
    found = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or "localhost:4317"
    return found.partition("://")[2].partition("/")[0] or found


def _context_of(place: Place, state: object = None, remote: bool = False) -> SpanContext:
    return SpanContext(place.trace_id, place.span_id, remote, SAMPLED, state if isinstance(state, TraceState) else None)


def _sampler() -> Sampler:
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or PARENT_BASED + SAMPLERS[0]
    root = name.removeprefix(PARENT_BASED)
    if root not in SAMPLERS:
        known = ", ".join([*SAMPLERS, *(PARENT_BASED + each for each in SAMPLERS)])
        raise BadSettings(f"OTEL_TRACES_SAMPLER = {name!r}: must be one of {known}")
    sampler: Sampler = {SAMPLERS[0]: ALWAYS_ON, SAMPLERS[1]: ALWAYS_OFF}.get(root) or TraceIdRatioBased(_ratio())
    return ParentBased(sampler) if name.startswith(PARENT_BASED) else sampler


def _ratio() -> float:
    value = os.environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        ratio = float(value)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise BadSettings(f"OTEL_TRACES_SAMPLER_ARG = {value!r}: must be the share of requests to trace, from 0 to 1")
    return ratio


def _count(variable: str, default: int) -> int:
    value = os.environ.get(variable) or str(default)
    if not value.isdecimal() or not 1 <= int(value) <= 10**6:
        raise BadSettings(f"{variable} = {value!r}: must be a whole number from 1 to 1000000")
    return int(value)


def _resource(process: str) -> Resource:
    """The resource: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, with our defaults for what they leave out."""
    configured = {
        key: value
        for key, value in Resource.create().attributes.items()
        if key != SERVICE_NAME or not str(value).startswith("unknown_service")
    }
    own: dict[str, AttributeValue] = {
        SERVICE_NAME: NAME,
        "service.version": importlib.metadata.version("sentiment-service"),
        "process.pid": os.getpid(),
        "sentiment.process": process,
    }
    return Resource({**own, **configured})
