"""Calls that a front end forwards to the executor: explanations, model information and feedback.

Bytes in, bytes out, with the caller's deadline, headers and cancellation, and the executor's status and trailers. Only the model is
written as the version that its name means here, so that the executor answers by the version that the front end counts. The calls are
admitted and counted in the front end like any other call, whatever happens to the executor.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import grpc

from sentiment.call.call import CALLER, REQUEST_ID, Call
from sentiment.call.calls import OK, OPEN_RETRY_S, Calls
from sentiment.call.names import SERVICE
from sentiment.call.servicer import SentimentService
from sentiment.call.status import HandedOn
from sentiment.doors.grpc.context import Context
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.handlers import Answering, Handlers
from sentiment.errors import Expired, Refused, Unavailable
from sentiment.lifecycle.registry import Models
from sentiment.observability.tracing.trace import TRACE_HEADERS
from sentiment.v1 import sentiment_pb2 as pb
from sentiment_front_ends.executor_client import GONE

UNARY = ("ListModels", "GetModel", "Feedback")
STREAM = "Explain"
CLASSIFY = "Classify"
# The requests that name a model.
Message: TypeAlias = pb.GetModelRequest | pb.ExplainRequest | pb.ClassifyRequest | pb.FeedbackRequest
REQUESTS: dict[str, type[Message]] = {"GetModel": pb.GetModelRequest, STREAM: pb.ExplainRequest, "Feedback": pb.FeedbackRequest}
OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Small windows: what a client does not read waits in the executor, which bounds it.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2**18),
    # How long the executor may take to accept a connection. A busy machine may take some of it; then calls would fail without a cause.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Find a replaced executor quickly.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The socket's path is not a valid server name.
    ("grpc.default_authority", "executor"),
]
# The token is checked here; the executor does not need it.
NOT_HANDED_ON = ("grpc-", "user-agent", ":", "authorization", CALLER, *TRACE_HEADERS)
T = TypeVar("T")
# Hands a message on, as bytes.
Work: TypeAlias = Callable[[bytes], Awaitable[T]]
Pairs = Sequence[tuple[str, str | bytes]]


class Forward:
    """A channel to the executor."""

    def __init__(self, path: Path, models: Models) -> None:
        """Must be called in the event loop.

        Args:
            path: the Unix socket of the executor's gRPC server, which may not exist yet.
            models: the models whose calls this process counts.
        """
        self._models = models
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", OPTIONS)

    async def close(self) -> None:
        """Cancel the remaining calls."""
        await self._channel.close()

    def adapt(self, handlers: dict[str, Handler], make: Handlers, service: SentimentService) -> None:
        """Replace the handlers that need the executor by forwarding ones. ``service`` answers here what does not."""
        calls = make.calls
        for name in UNARY:
            handlers[name] = make.unary_bytes(name, self._unary(name, calls))
        handlers[STREAM] = make.stream_bytes(STREAM, self._stream(STREAM, make))
        explained = self._far(CLASSIFY)

        async def answer(data: bytes, call: Call, context: Context) -> bytes:
            request = await calls.parsed(pb.ClassifyRequest, data)
            del data
            if request.HasField("explain"):
                return await self._hand_on(request, call, explained(call, context))
            return await calls.answer_parsed(service.classify_method, request, call)

        handlers[CLASSIFY] = make.unary_bytes(CLASSIFY, answer)

    def _far(self, method: str) -> Callable[[Call, Context], Work[bytes]]:
        """What makes unary calls of the executor."""
        far: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")  # Any: bytes in and out, which grpc does not type

        def work_of(call: Call, context: Context) -> Work[bytes]:
            async def work(data: bytes) -> bytes:
                answered: bytes = await far(data, timeout=call.time_left_s(), metadata=_headers(context, call))
                return answered

            return work

        return work_of

    def _unary(self, method: str, calls: Calls) -> Answering[bytes]:
        far = self._far(method)

        async def answer(data: bytes, call: Call, context: Context) -> bytes:
            return await self._hand_on(await _read(calls, method, data), call, far(call, context))

        return answer

    def _stream(self, method: str, make: Handlers) -> Answering[None]:
        far: Any = self._channel.unary_stream(f"/{SERVICE}/{method}")  # Any: as above

        async def answer(data: bytes, call: Call, context: Context) -> None:
            async def work(data: bytes) -> None:
                messages = far(data, timeout=call.time_left_s(), metadata=_headers(context, call))
                try:
                    async for message in messages:
                        await make.write(call, context, message)
                finally:
                    messages.cancel()

            await self._hand_on(await _read(make.calls, method, data), call, work)

        return answer

    async def _hand_on(self, request: Message | bytes, call: Call, work: Work[T]) -> T:
        used: AbstractContextManager[None] = contextlib.nullcontext()
        # Only the executor finds out which model gave an answer.
        if not isinstance(request, bytes) and not (isinstance(request, pb.FeedbackRequest) and request.request_id):
            call.served = self._models.find(request.model)
            request.model, used = call.served.id, call.served.users
        data = request if isinstance(request, bytes) else request.SerializeToString()
        del request
        try:
            with used:
                return await work(data)
        except grpc.aio.AioRpcError as error:
            trailers = tuple(error.trailing_metadata() or ())
            # The executor's errors have this trailer. Others are the transport's: their codes vary and their texts name socket paths.
            if any(key == REQUEST_ID for key, _ in trailers):
                raise HandedOn(error.code(), error.details() or "", trailers) from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Expired("no answer within the deadline") from None
            # The executor counts the texts of the calls that it answers.
            call.texts[OK] = int(call.method == CLASSIFY)
            # The executor's gRPC refuses calls above its limit so.
            if error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED):
                raise Refused("the executor process has too many calls", OPEN_RETRY_S, "calls") from None
            raise Unavailable(GONE) from None


async def _read(calls: Calls, method: str, data: bytes) -> Message | bytes:
    """A request that names a model, parsed; others as they are."""
    return await calls.parsed(REQUESTS[method], data) if method in REQUESTS else data


def _headers(context: Context, call: Call) -> Pairs:
    """The caller's headers without those of its connection, and its account; the trace context is this process's span."""
    given: Pairs = list(context.invocation_metadata() or ())
    kept = [*(pair for pair in given if not pair[0].startswith(NOT_HANDED_ON)), (CALLER, call.account)]
    if call.trace is None:
        return kept
    # If the trace begins here, the caller's tracestate belongs to another trace.
    state = [pair for pair in given if pair[0] == "tracestate"] if call.trace.state is not None else []
    return [*kept, ("traceparent", call.trace.place.traceparent), *state]
