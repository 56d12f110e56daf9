"""Calls that a front end hands on as they are: explanations and what is known of models are the executor's.

Bytes in, bytes out, with the caller's deadline, headers and cancellation, and the executor's status and trailers. The executor counts
these calls; a front end counts those that had no executor.
"""

import contextlib
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Never

import grpc
from google.protobuf.message import DecodeError

from sentiment.front_ends.link import GONE
from sentiment.metrics import CallMetrics
from sentiment.rpc.calls import REQUEST_ID, Context
from sentiment.rpc.server import SERVICE, Handlers
from sentiment.v1 import sentiment_pb2 as pb

UNARY = ("ListModels", "GetModel")
STREAM = "Explain"
CLASSIFY = "Classify"
OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # An executor that takes another's place is found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The path of the socket is no name for a server.
    ("grpc.default_authority", "executor"),
]
Pairs = Sequence[tuple[str, str | bytes]]


class Forward:
    """A channel to the executor."""

    def __init__(self, path: Path, metrics: CallMetrics) -> None:
        """Must be called in the event loop.

        Args:
            path: the Unix socket of the executor's gRPC, which need not be there yet.
            metrics: where calls are counted that no executor had.
        """
        self._metrics = metrics
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", OPTIONS)

    async def close(self) -> None:
        """End the calls that are left."""
        await self._channel.close()

    def adapt(self, handlers: Handlers) -> Handlers:
        """The handlers of a front end: those that need the executor hand on."""
        forwarded: Handlers = {name: grpc.unary_unary_rpc_method_handler(self._unary(name)) for name in UNARY}
        forwarded[STREAM] = grpc.unary_stream_rpc_method_handler(self._stream(STREAM))
        forwarded[CLASSIFY] = grpc.unary_unary_rpc_method_handler(self._classify(handlers[CLASSIFY].unary_unary))
        return handlers | forwarded

    def _classify(self, here: Any) -> Any:  # Any: grpc's type of a handler's function is that of a server with threads
        forwarded = self._unary(CLASSIFY)

        async def handle(data: bytes, context: Context) -> bytes:
            work: Awaitable[bytes] = forwarded(data, context) if _asks_explanation(data) else here(data, context)
            return await work

        return handle

    def _unary(self, method: str) -> Any:  # Any: as above
        call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")  # Any: bytes in and out, which its type does not know

        async def handle(data: bytes, context: Context) -> bytes:
            try:
                answer: bytes = await call(data, timeout=context.time_remaining(), metadata=_headers(context))
                return answer
            except grpc.aio.AioRpcError as error:
                await self._abort(method, context, error)

        return handle

    def _stream(self, method: str) -> Any:  # Any: as above
        call: Any = self._channel.unary_stream(f"/{SERVICE}/{method}")  # Any: as above

        async def handle(data: bytes, context: Context) -> None:
            messages = call(data, timeout=context.time_remaining(), metadata=_headers(context))
            try:
                async for message in messages:
                    await context.write(message)
            except grpc.aio.AioRpcError as error:
                await self._abort(method, context, error)
            finally:
                messages.cancel()

        return handle

    async def _abort(self, method: str, context: Context, error: grpc.aio.AioRpcError) -> Never:
        trailers = tuple(error.trailing_metadata() or ())
        # Whatever the executor refuses bears this trailer.
        refused = any(key == REQUEST_ID for key, _ in trailers)
        if refused or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            await context.abort(error.code(), error.details() or "", trailers)
        # Else the transport has spoken, of sockets and paths, and in one of several codes.
        self._metrics.requests[method, "UNAVAILABLE"]()
        await context.abort(grpc.StatusCode.UNAVAILABLE, GONE)


def _asks_explanation(data: bytes) -> bool:
    with contextlib.suppress(DecodeError, UnicodeDecodeError):
        return pb.ClassifyRequest.FromString(data).HasField("explain")
    return False


def _headers(context: Context) -> Pairs:
    """The caller's, without those that belong to its connection."""
    return [(key, value) for key, value in context.invocation_metadata() or () if not key.startswith(("grpc-", "user-agent", ":"))]
