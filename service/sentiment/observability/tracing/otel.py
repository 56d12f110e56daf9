"""Spans to a collector: OpenTelemetry's sampling, W3C context, batching and OTLP over gRPC. Alone imports OpenTelemetry.

A collector that is away, hangs or refuses costs spans and nothing else: they wait in a bounded queue, what does not fit is dropped and
counted, a thread of its own sends, and the process's end waits at most ``FLUSH_S`` for it.
"""

import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from sentiment.errors import BadSettings
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import TRACE_HEADERS, Begin, Headers, Place, Span

NAME = "sentiment"
# A drain waits so long for the last spans.
FLUSH_S = 2.0
# A thread whose call was cut off ends at once; one that does not is left behind.
CUT_OFF_S = 0.5
# In an outage one line in so many seconds says so.
SAY_EVERY_S = 60.0
QUEUE_MAX = 2048
# Encoding takes about 40 us a span and holds the GIL meanwhile: the 512 of the SDK would hold the event loop up for 20 ms.
EXPORT_MAX = 64
SCHEDULE_MS = 5000
PARENT_BASED = "parentbased_"
RATIO = "traceidratio"
SAMPLERS = ("always_on", "always_off", RATIO)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
NO_CONTEXT = Context()


def open_outlet(metrics: Metrics, process: str) -> "OtelOutlet | None":
    """As the OTEL_ variables say; None if they switch it off. Connects later.

    Raises:
        BadSettings: a variable has no acceptable value.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        logger().info("tracing_off", reason="OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER says so")
        return None
    for variable, known in (
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
    ):
        if (value := os.environ.get(variable) or known) != known:
            raise BadSettings(f"{variable} = {value!r}: traces go out by {known} only; unset it, or switch tracing off")
    return OtelOutlet(metrics, process)


class OtelOutlet:
    """See trace.Outlet. Everything but the sending happens on the event loop."""

    def __init__(self, metrics: Metrics, process: str) -> None:
        """Begin to take spans.

        Raises:
            BadSettings: see open_outlet.
        """
        self._sampler = _sampler()
        self._follower = ParentBased(ALWAYS_OFF)
        self._queue_max = _count("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
        export_max = _count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(EXPORT_MAX, self._queue_max))
        schedule_ms = _count("OTEL_BSP_SCHEDULE_DELAY", SCHEDULE_MS)
        if export_max > self._queue_max:
            raise BadSettings(f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE = {export_max}: more than the queue holds, {self._queue_max}")
        self._ids = RandomIdGenerator()
        self._w3c = TraceContextTextMapPropagator()
        self._scope = InstrumentationScope(NAME, importlib.metadata.version("sentiment-service"))
        self._resource = _resource(process)
        self._drop = metrics.spans_dropped.labels("queue_full").inc
        self._drop_late = metrics.spans_dropped.labels("not_exported").inc
        self._said = _Said()
        self._exporter = _Exporter(_sender(self._said), metrics, self._said)
        self._given = 0
        self._closed = False
        self._processor = BatchSpanProcessor(self._exporter, self._queue_max, schedule_ms, export_max)

    def sample(self, headers: Headers, follow: bool) -> Begin | None:
        """See Outlet. Malformed context is none."""
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
        """See Outlet. The queue's length is reckoned here, for the SDK drops without a word that could be counted."""
        if self._closed:
            self._drop_late()
            return
        if self._given - self._exporter.taken >= self._queue_max:
            self._drop()
            return
        self._given += 1
        parent = _context_of(Place(span.place.trace_id, span.parent_id), span.state, span.remote) if span.parent_id else None
        attributes = {**span.attributes, "error.type": span.error} if span.error else span.attributes
        # Not by the SDK's Tracer, which takes 15 us a span: what is over needs no locks and no checks.
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
        # Not the SDK's own limit, which is 30 s.
        ending = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        self._exporter.shutdown()
        ending.join(CUT_OFF_S)
        self._said.close()

    def _context(self, headers: Headers) -> Context:
        found: dict[str, list[str]] = {}
        for key, value in headers:
            if (name := key.lower()) in TRACE_HEADERS and isinstance(value, str):
                found.setdefault(name, []).append(value)
        # Of two parents neither is to be believed.
        return self._w3c.extract(found, NO_CONTEXT) if len(found.get("traceparent", ())) == 1 else NO_CONTEXT


class _Said(logging.Handler):
    """Keeps from the log what the SDK says, but for the last: it says it again and again while a collector is away, and quotes headers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._sdk = logging.getLogger("opentelemetry")
        self._found = self._sdk.propagate, self._sdk.level
        self._sdk.addHandler(self)
        self._sdk.propagate = False
        # Whatever is logged of other libraries.
        self._sdk.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it. A warning without what it is about: that may be a header with a token."""
        self.last = record.getMessage() if record.levelno >= logging.ERROR else str(record.msg).removesuffix(": %s")

    def close(self) -> None:
        """What the SDK says goes its own way again."""
        self._sdk.removeHandler(self)
        self._sdk.propagate, level = self._found
        self._sdk.setLevel(level)
        super().close()


class _Exporter(SpanExporter):
    """The SDK's exporter, whose outcomes are counted. Lives in the thread that sends."""

    def __init__(self, inner: OTLPSpanExporter, metrics: Metrics, said: _Said) -> None:
        self.taken = 0
        self._inner = inner
        self._said = said
        self._sent: Callable[[float], None] = metrics.spans_sent.inc
        self._lost: Callable[[float], None] = metrics.spans_dropped.labels("not_exported").inc
        self._shut = False
        self._unsaid = 0
        self._said_at = float("-inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them, and again for as long as OTEL_EXPORTER_OTLP_TIMEOUT (10 s)."""
        self.taken += len(spans)
        try:
            result = self._inner.export(spans)
        except Exception as error:  # its message may quote a header
            self._said.last = type(error).__name__
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._sent(len(spans))
        else:
            self._lost(len(spans))
            self._say_lost(len(spans))
        return result

    def shutdown(self) -> None:
        """Cut off what is being sent; twice is once."""
        if not self._shut:
            self._shut = True
            self._inner.shutdown()

    def _say_lost(self, spans: int) -> None:
        self._unsaid += spans
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            logger().warning("spans_lost", spans=self._unsaid, reason=self._said.last)
            self._unsaid, self._said_at = 0, now


def _sender(said: _Said) -> OTLPSpanExporter:
    """The SDK's exporter, and from now on ``said`` hears errors alone.

    Raises:
        BadSettings: whatever it makes of a dozen variables, it is said before anything is served. A certificate that is not there it only
            logs.
    """
    try:
        sender = OTLPSpanExporter()
    except Exception as error:
        said.last = repr(error)
    if said.last:
        said.close()
        raise BadSettings(f"the exporter of traces refuses what OTEL_EXPORTER_OTLP_ variables say: {said.last}")
    said.setLevel(logging.ERROR)
    return sender


def _context_of(place: Place, state: object = None, remote: bool = False) -> SpanContext:
    return SpanContext(place.trace_id, place.span_id, remote, SAMPLED, state if isinstance(state, TraceState) else None)


def _sampler() -> Sampler:
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or PARENT_BASED + SAMPLERS[0]
    root = name.removeprefix(PARENT_BASED)
    if root not in SAMPLERS:
        known = ", ".join([*SAMPLERS, *(PARENT_BASED + each for each in SAMPLERS)])
        raise BadSettings(f"OTEL_TRACES_SAMPLER = {name!r}: known are {known}")
    sampler: Sampler = {SAMPLERS[0]: ALWAYS_ON, SAMPLERS[1]: ALWAYS_OFF}.get(root) or TraceIdRatioBased(_ratio())
    return ParentBased(sampler) if name.startswith(PARENT_BASED) else sampler


def _ratio() -> float:
    value = os.environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        ratio = float(value)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise BadSettings(f"OTEL_TRACES_SAMPLER_ARG = {value!r}: wanted is the part of the requests that is traced, 0 to 1")
    return ratio


def _count(variable: str, default: int) -> int:
    value = os.environ.get(variable) or str(default)
    if not value.isdecimal() or not 1 <= int(value) <= 10**6:
        raise BadSettings(f"{variable} = {value!r}: wanted is a number from 1 to 1000000")
    return int(value)


def _resource(process: str) -> Resource:
    """Who sends: what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, and what is left unsaid there."""
    told = {
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
    return Resource({**own, **told})
