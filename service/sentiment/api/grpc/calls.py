"""What every call has in common: parsing, its deadline, its one fate, and how that is told and counted."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sentiment.api.grpc.call import REQUEST_ID, Call
from sentiment.api.grpc.field_count import FIELDS_MAX, has_more_fields
from sentiment.api.grpc.spans import end_span
from sentiment.api.grpc.status import CODES, PUSHBACK, code_of, pushback_ms, status_of
from sentiment.errors import Broken, Expired, InvalidInput, Refused, RequestError, Unauthenticated
from sentiment.observability.logs import logger
from sentiment.observability.metrics import NO_MODEL, CallMetrics, Metrics
from sentiment.observability.tracing.trace import Headers, Tracer, exemplar_of

OK = "OK"
# Whoever has no token is refused before there is a call: such are counted by themselves.
CODE_NAMES = tuple(sorted({OK, "CANCELLED", *(code.name for code in CODES.values())} - {CODES[Unauthenticated].name}))
# When a call that found too many open may come again: some of those will have ended.
OPEN_RETRY_S = 1.0
# Of a message: its 4,000 fields are counted and parsed in 2 ms. A larger one costs so much more than the way to a thread.
INLINE_BYTES_MAX = 2**16

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")
# grpc's context class is generic over both messages; here both are bytes.
Context = grpc.aio.ServicerContext[bytes, Any]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Bounds of every call."""

    message_bytes_max: int
    deadline_default_s: float
    deadline_max_s: float
    open_max: int
    # Fields and list entries of a message, in all depths.
    fields_max: int = FIELDS_MAX
    # Log every call, at debug level.
    log_calls: bool = False
    # False: whoever hands the calls on counts them.
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A unary method: its name, how its request is parsed, what answers it."""

    name: str
    request: type[Q]
    answer: Callable[[Q, Call], Awaitable[A]] = field(repr=False)
    # Asks how the server is: answered however many calls are open, or a crowd of them would make it look dead.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class StreamMethod(Generic[Q, A]):
    """A server-streaming method. Closing what ``answer`` gives, at whatever point, withdraws the work for it."""

    name: str
    request: type[Q]
    answer: Callable[[Q, Call], AsyncGenerator[A, None]] = field(repr=False)

    async def write_all(self, request: Q, call: Call, write: Callable[[A], Awaitable[None]]) -> None:
        """Write the answers as they come; none is sought before the last one is written."""
        async with contextlib.aclosing(self.answer(request, call)) as answers:
            async for answer in answers:
                await write(answer)


class Calls:
    """The door: every call, gRPC or HTTP, goes through ``settle`` and has exactly one fate there."""

    def __init__(self, metrics: Metrics, limits: CallLimits, tracer: Tracer | None = None) -> None:
        self.no_model = CallMetrics(metrics, NO_MODEL)
        self._limits = limits
        self._tracer = tracer
        self._open = 0
        self._serial = itertools.count(1)
        # Unique across restarts without a draw for each request.
        self._run = os.urandom(4).hex()

    def new_request_id(self) -> str:
        """An id for a call that brought none."""
        return f"{self._run}-{next(self._serial):x}"

    def metrics_of(self, call: Call) -> CallMetrics:
        """Where the call is counted; with those of no model if its own was unloaded meanwhile."""
        return self.no_model if call.served is None or call.served.metrics.forgotten else call.served.metrics

    def begin(self, method: str, time_left_s: float | None, headers: Callable[[], Headers], route: str = "") -> Call:
        """A call that arrives now. ``time_left_s``: what its client gives it, None for the default; cut to the maximum."""
        now = time.monotonic()
        allowed_s = self.bounded_s(self._limits.deadline_default_s if time_left_s is None else time_left_s)
        call = Call(method, now, now + allowed_s, headers, self.new_request_id, route)
        if self._tracer is not None:
            # What another process of this server hands on is sampled if that one has done so.
            call.trace = self._tracer.request(headers(), follow=not self._limits.counted)
        return call

    def bounded_s(self, time_left_s: float) -> float:
        """A client's time limit, cut to the maximum."""
        return min(max(0.0, time_left_s), self._limits.deadline_max_s)

    def parse(self, request: type[Q], data: bytes) -> Q:
        """Read a message.

        Raises:
            InvalidInput: too large, too many fields, not this message, or bad UTF-8 in it.
        """
        if len(data) > self._limits.message_bytes_max:
            raise InvalidInput("", f"the message has {len(data)} bytes; the limit is {self._limits.message_bytes_max}")
        if has_more_fields(request, data, self._limits.fields_max):
            raise InvalidInput("", f"the message has more than {self._limits.fields_max} fields and list entries")
        try:
            return request.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                "", f"the message of {len(data)} bytes is no {request.DESCRIPTOR.full_name} in protobuf with valid UTF-8"
            ) from error

    async def settle(self, call: Call, work: Coroutine[Any, Any, T], probe: bool = False) -> T:
        """Run a call's work and give it its one fate. ``probe``: as in Method.

        Raises:
            RequestError: how it failed; anything unforeseen is logged and becomes Broken.
            asyncio.CancelledError: nobody waits for it any more.
        """
        code = "CANCELLED"
        self._open += 1
        try:
            if self._open > self._limits.open_max and not probe:
                work.close()
                raise Refused(f"{self._open - 1} calls are open; the limit is {self._limits.open_max}", OPEN_RETRY_S, "calls")
            result = await work
            code = OK
            return result
        except RequestError as error:
            code = code_of(error).name
            if code == "INTERNAL":
                logger().error("call_failed", **call.logged, reason=str(error))
            raise
        except asyncio.CancelledError:
            code = call.left_code()
            raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # somebody waits: whatever it is, even a panic of the tokenizer, it gets an answer
            code = "INTERNAL"
            logger().exception("call_failed", **call.logged)
            raise Broken(f"internal error; the server's log has it under request id {call.request_id}") from error
        finally:
            self._open -= 1
            seconds = time.monotonic() - call.arrived_at
            if self._limits.counted:
                metrics = self.metrics_of(call)
                metrics.requests[call.method, code]()
                metrics.request_seconds[call.method](seconds, exemplar_of(call.trace))
            if call.trace is not None:
                end_span(call, call.trace, code, seconds, self._limits.counted)
            if self._limits.log_calls:
                logger().debug("call", **call.logged, code=code, seconds=round(seconds, 6))

    async def write(self, call: Call, context: Context, message: bytes) -> None:
        """Write a message of a stream.

        Raises:
            Expired: the client did not read before the deadline.
        """
        try:
            async with asyncio.timeout_at(call.deadline_at):
                await context.write(message)
        except TimeoutError as error:
            raise Expired("the answer was not read within the deadline") from error

    async def _work(self, method: Method[Q, A], data: bytes, call: Call) -> A:
        return await method.answer(await self._parsed(method.request, data), call)

    async def _parsed(self, request: type[Q], data: bytes) -> Q:
        """As ``parse``; a large message is counted and parsed beside the event loop."""
        return self.parse(request, data) if len(data) <= INLINE_BYTES_MAX else await asyncio.to_thread(self.parse, request, data)

    def unary(self, method: Method[Q, A]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The handler of a unary method. It takes bytes: what cannot be parsed is answered and counted like any other fault."""

        async def handle(data: bytes, context: Context) -> bytes:
            call = self.begin(method.name, context.time_remaining(), headers_of(context))
            try:
                response = await self.settle(call, self._work(method, data, call), method.probe)
            except RequestError as error:
                await abort(context, call, error)
            begun = time.monotonic()
            sent = response.SerializeToString()
            if call.served is not None:
                call.served.metrics.stage["send"](time.monotonic() - begun)
            return sent

        return grpc.unary_unary_rpc_method_handler(handle)

    def server_stream(self, method: StreamMethod[Q, A]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The handler of a server-streaming method; an error ends the stream after what has been written."""

        async def handle(data: bytes, context: Context) -> None:
            call = self.begin(method.name, context.time_remaining(), headers_of(context))

            async def write(answer: A) -> None:
                await self.write(call, context, answer.SerializeToString())

            async def work() -> None:
                await method.write_all(await self._parsed(method.request, data), call, write)

            try:
                await self.settle(call, work())
            except RequestError as error:
                await abort(context, call, error)

        return grpc.unary_stream_rpc_method_handler(handle)


async def abort(context: Context, call: Call, error: RequestError) -> None:
    """Tell the client why there is no answer. Never returns."""
    status = status_of(error)
    trailers = [("grpc-status-details-bin", status.SerializeToString()), (REQUEST_ID, call.request_id)]
    pushback = pushback_ms(error, call.time_left_s())
    if pushback is not None:
        trailers.append((PUSHBACK, str(pushback)))
    await context.abort(code_of(error), status.message, tuple(trailers))


def headers_of(context: Context) -> Callable[[], Headers]:
    """How to get the headers of a gRPC call."""
    return lambda: context.invocation_metadata() or ()
