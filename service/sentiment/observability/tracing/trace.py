"""A sampled request, as the stages that it goes through tell of it. Knows neither OpenTelemetry nor a network: an ``Outlet`` samples
and takes each span when it is over.

A span tells times, sizes and names of ours; never a text, nor a message that might quote one.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Of a batch or stream call so many texts, and of a call so many rows in all, have spans of their own: a stream may go on for days, and a
# text has up to thousands of windows.
TEXTS_MAX = ROWS_MAX = 32
# What an outcome that nobody waited for says: no error.
CANCELLED = "sentiment.cancelled"
TRACE_HEADERS = ("traceparent", "tracestate")

Attributes = dict[str, str | int | float]
Headers = Iterable[tuple[str, str | bytes]]


class Place(NamedTuple):
    """A span by its ids, of 128 and 64 bits."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """The W3C header that makes a callee's spans children of this one."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that is over.

    ``parent_id`` is 0 where its trace begins with it. Instants are nanoseconds since 1970. ``error`` is a status code or the name of an
    error's class, empty where nothing went wrong. ``server``: a call that came from another service. ``remote``: its parent is another
    process's. ``state`` is the trace's tracestate as the outlet gave it.
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
    """Where a sampled request's span stands: its own ids, its parent's or 0, and the tracestate that came with them."""

    place: Place
    parent_id: int
    state: object


class Outlet(Protocol):
    """Samples requests and takes spans. Never raises for them, never waits."""

    def sample(self, headers: Headers, follow: bool) -> Begin | None:
        """The ids of a request whose spans are wanted. ``follow``: as its caller has decided, whatever the sampler says."""

    def new_place(self) -> Place:
        """Ids of a trace and of a span that no other has."""

    def put(self, span: Span) -> None:
        """Take a span, or drop it."""

    def close(self) -> None:
        """Send what is left, for a bounded time. Blocks."""


class Trace:
    """A sampled request. Its stages tell of themselves here, each when it is over."""

    def __init__(self, outlet: Outlet, begin: Begin, joined: bool = False) -> None:
        """``joined``: its own span is another process's."""
        self.place = begin.place
        # Of the request's own span, beside what its end tells.
        self.attributes: Attributes = {}
        self._outlet = outlet
        self._parent_id = begin.parent_id
        # The caller's tracestate, None where the trace is not a caller's.
        self.state = begin.state
        self._joined = joined
        self._rows_left = ROWS_MAX
        # Taken once, so that a request's spans fit together whatever is done to the clock.
        self._shift_ns = clock_shift_ns()
        self.exemplar = {"trace_id": f"{begin.place.trace_id:032x}"}

    def take(self, rows: int) -> bool:
        """Whether so many more rows may be told of; then they are."""
        if rows > self._rows_left:
            return False
        self._rows_left -= rows
        return True

    def stage(
        self, name: str, begun_at: float, ended_at: float, attributes: Attributes, links: Sequence[Place] = (), error: str = ""
    ) -> None:
        """A part of the request is over; instants of ``time.monotonic``."""
        place = Place(self.place.trace_id, self._outlet.new_place().span_id)
        begun_ns, ended_ns = self._ns(begun_at), self._ns(ended_at)
        span = Span(name, place, self.place.span_id, begun_ns, ended_ns, attributes, links, error, remote=self._joined, state=self.state)
        self._outlet.put(span)

    def unanswered(self, queued_at: float, started_at: float, tokens: int, error: str, batch: Place | None) -> None:
        """A row of the request has no answer.

        Args:
            queued_at: an instant of ``time.monotonic``.
            started_at: likewise; 0 if it never ran.
            tokens: of the row.
            error: an error's class; empty if it was cancelled.
            batch: the last one in which it ran.
        """
        now = time.monotonic()
        told: Attributes = {"sentiment.tokens": tokens}
        last = told if error else {**told, CANCELLED: True}
        if started_at:
            self.stage("queue", queued_at, started_at, told)
            self.stage("run", started_at, now, last, [batch] if batch is not None else [], error)
        else:
            self.stage("queue", queued_at, now, last, error=error)

    def end(self, name: str, begun_at: float, ended_at: float, error: str, server: bool) -> None:
        """The request is over."""
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
    """What a process that traces has; one that does not has None in its place."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def request(self, headers: Headers, follow: bool = False) -> Trace | None:
        """The trace of a request that comes with these headers; None if it is not sampled. ``follow``: see Outlet."""
        begin = self._outlet.sample(headers, follow)
        return None if begin is None else Trace(self._outlet, begin)

    def join(self, place: Place) -> Trace:
        """The trace of a sampled request whose own span is another process's."""
        return Trace(self._outlet, Begin(place, 0, None), joined=True)

    def new_place(self) -> Place:
        """Where a span that begins a trace of its own will stand."""
        return self._outlet.new_place()

    def alone(
        self, name: str, place: Place, begun_at: float, ended_at: float, attributes: Attributes, links: Sequence[Place], error: str = ""
    ) -> None:
        """Something is over that belongs to several requests: a trace of its own, linked to them. Instants of ``time.monotonic``."""
        shift_ns = clock_shift_ns()
        self._outlet.put(
            Span(name, place, 0, int(begun_at * 1e9) + shift_ns, int(ended_at * 1e9) + shift_ns, attributes, links=links, error=error)
        )

    def close(self) -> None:
        """Send what is left, for a bounded time. Blocks."""
        self._outlet.close()


def clock_shift_ns() -> int:
    """What is added to ``time.monotonic`` to get the time of day."""
    return time.time_ns() - time.monotonic_ns()


class Telling:
    """Tells of a stage, however it ends; gives its attributes, to which can be added meanwhile.

    No generator, which would take half a microsecond more of every request that is not sampled.
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
    """What a histogram keeps beside a measurement, so that one can go from it to the trace."""
    return None if trace is None else trace.exemplar
