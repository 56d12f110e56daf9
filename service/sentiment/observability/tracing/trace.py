"""The trace of a sampled request, as the pipeline's stages record it. Imports neither OpenTelemetry nor a network library: an ``Outlet``
samples requests and takes finished spans.

A span holds times, sizes and the service's own names; never a text, nor a message that might quote one.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Per batch or stream call, only this many texts have spans; per call, only this many rows. A stream may last for days, and a text may have
# thousands of windows.
TEXTS_MAX = ROWS_MAX = 32
# Attribute of a span that was cancelled, which is not an error.
CANCELLED = "sentiment.cancelled"
TRACE_HEADERS = ("traceparent", "tracestate")

Attributes = dict[str, str | int | float]
Headers = Iterable[tuple[str, str | bytes]]


class Place(NamedTuple):
    """The ids of a span: 128-bit trace id, 64-bit span id."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """The W3C header that makes a callee's spans children of this one."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span.

    ``parent_id`` is 0 for the root of a trace. Instants are nanoseconds since 1970. ``error`` is a status code or the name of an error
    class; empty for success. ``server``: a call from another service. ``remote``: the parent belongs to another process. ``state`` is the
    trace's tracestate as the outlet gave it.
    """

    name: str
    place: Place
    parent_id: int
    begun_ns: int
    ended_ns: int
    attributes: Attributes
    links: Sequence[Place] = ()
    error: str = ""
    server: bool = False
    remote: bool = False
    state: object = None


class Begin(NamedTuple):
    """The ids of a sampled request's span, its parent's span id or 0, and the tracestate of the caller."""

    place: Place
    parent_id: int
    state: object


class Outlet(Protocol):
    """Samples requests and takes spans. Never raises and never waits for the network."""

    def sample(self, headers: Headers, follow: bool) -> Begin | None:
        """The ids of a sampled request; None if it is not sampled. ``follow``: do what the caller did, not what the sampler says."""

    def new_place(self) -> Place:
        """New, unique ids of a trace and a span."""

    def put(self, span: Span) -> None:
        """Take a span, or drop it."""

    def close(self) -> None:
        """Send the remaining spans, for a bounded time. Blocks."""


class Trace:
    """The trace of a sampled request. Each stage records its span here when it ends."""

    def __init__(self, outlet: Outlet, begin: Begin, joined: bool = False) -> None:
        """``joined``: the request's own span belongs to another process."""
        self.place = begin.place
        # Extra attributes of the request's own span.
        self.attributes: Attributes = {}
        self._outlet = outlet
        self._parent_id = begin.parent_id
        # The caller's tracestate; None if the trace begins here.
        self.state = begin.state
        self._joined = joined
        self._rows_left = ROWS_MAX
        # Read once, so that a request's spans stay consistent when the clock is set.
        self._shift_ns = clock_shift_ns()
        self.exemplar = {"trace_id": f"{begin.place.trace_id:032x}"}

    def take(self, rows: int) -> bool:
        """Reserve spans for this many rows; False if fewer are left."""
        if rows > self._rows_left:
            return False
        self._rows_left -= rows
        return True

    def stage(
        self, name: str, begun_at: float, ended_at: float, attributes: Attributes, links: Sequence[Place] = (), error: str = ""
    ) -> None:
        """Record a finished stage of the request. Instants are those of ``time.monotonic``."""
        place = Place(self.place.trace_id, self._outlet.new_place().span_id)
        begun_ns, ended_ns = self._ns(begun_at), self._ns(ended_at)
        span = Span(name, place, self.place.span_id, begun_ns, ended_ns, attributes, links, error, remote=self._joined, state=self.state)
        self._outlet.put(span)

    def unanswered(self, queued_at: float, started_at: float, ended_at: float, tokens: int, error: str, batch: Place | None) -> None:
        """Record a row of the request that has no answer.

        Args:
            queued_at: an instant of ``time.monotonic``.
            started_at: an instant of ``time.monotonic``; 0 if it never ran.
            ended_at: an instant of ``time.monotonic``.
            tokens: number of tokens of the row.
            error: name of an error class; empty if it was cancelled.
            batch: the last one in which it ran.
        """
        attributes: Attributes = {"sentiment.tokens": tokens}
        last = attributes if error else {**attributes, CANCELLED: True}
        if started_at:
            self.stage("queue", queued_at, started_at, attributes)
            self.stage("run", started_at, ended_at, last, [batch] if batch is not None else [], error)
        else:
            self.stage("queue", queued_at, ended_at, last, error=error)

    def end(self, name: str, begun_at: float, ended_at: float, error: str, server: bool) -> None:
        """Record the request's own span."""
        span = Span(
            name,
            self.place,
            self._parent_id,
            self._ns(begun_at),
            self._ns(ended_at),
            self.attributes,
            error=error,
            server=server,
            remote=bool(self._parent_id),
            state=self.state,
        )
        self._outlet.put(span)

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self._shift_ns


class Tracer:
    """Creates traces. A process that does not trace has None in its place."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def request(self, headers: Headers, follow: bool = False) -> Trace | None:
        """The trace of a request with these headers; None if it is not sampled. ``follow``: see Outlet."""
        begin = self._outlet.sample(headers, follow)
        return None if begin is None else Trace(self._outlet, begin)

    def join(self, place: Place) -> Trace:
        """The trace of a sampled request whose own span belongs to another process."""
        return Trace(self._outlet, Begin(place, 0, None), joined=True)

    def new_place(self) -> Place:
        """Ids for a span that starts a new trace."""
        return self._outlet.new_place()

    def alone(
        self, name: str, place: Place, begun_at: float, ended_at: float, attributes: Attributes, links: Sequence[Place], error: str = ""
    ) -> None:
        """Record a span of several requests, as a trace of its own with links to them. Instants are those of ``time.monotonic``."""
        shift_ns = clock_shift_ns()
        self._outlet.put(
            Span(name, place, 0, int(begun_at * 1e9) + shift_ns, int(ended_at * 1e9) + shift_ns, attributes, links=links, error=error)
        )

    def close(self) -> None:
        """Send the remaining spans, for a bounded time. Blocks."""
        self._outlet.close()


def clock_shift_ns() -> int:
    """Nanoseconds to add to ``time.monotonic_ns`` to get the time since 1970."""
    return time.time_ns() - time.monotonic_ns()


class StageSpan:
    """A context manager that records a stage, however it ends. It yields the span's attributes, which the body may extend.

    Not a generator: that would cost every request that is not sampled another 0.5 us.
    """

    __slots__ = ("_attributes", "_begun", "_name", "_trace")

    def __init__(self, trace: Trace | None, name: str) -> None:
        self._trace = trace
        self._name = name
        self._attributes: Attributes = {}

    def __enter__(self) -> Attributes:
        self._begun = time.monotonic()
        return self._attributes

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if self._trace is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._attributes[CANCELLED] = True
        failed = type(error).__name__ if isinstance(error, Exception) else ""
        self._trace.stage(self._name, self._begun, time.monotonic(), self._attributes, error=failed)


def exemplar_of(trace: Trace | None) -> dict[str, str] | None:
    """The exemplar that links a histogram's measurement to the trace."""
    return None if trace is None else trace.exemplar
