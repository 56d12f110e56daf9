"""gRPC handlers of methods: read a call's message, settle the call, and end it with its status."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from sentiment.call.call import Call
from sentiment.call.calls import A, Calls, Method, Q, StreamMethod
from sentiment.doors.grpc.context import Context, end_with, headers_of
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.receiving import Receiving
from sentiment.errors import Expired, RequestError

T = TypeVar("T")
# Answers a message: its bytes, its call and the call's context.
Answering = Callable[[bytes, Call, Context], Awaitable[T]]


class Handlers:
    """Makes the handlers of a port's methods."""

    def __init__(self, calls: Calls, receiving: Receiving) -> None:
        self.calls = calls
        self._receiving = receiving

    def unary(self, method: Method[Q, A]) -> Handler:
        """The handler of a unary method."""
        return self.unary_bytes(method.name, lambda data, call, _: self.calls.answer(method, data, call), method.probe)

    def unary_bytes(self, method: str, answer: Answering[bytes], probe: bool = False) -> Handler:
        """The handler of a unary method, from its message's bytes to its answer's.

        It reads the message itself, so that it limits how long that may take, and that a message that does not come, or cannot be parsed,
        is answered and counted here too.
        """

        async def handle(_: object, context: Context) -> bytes:
            answered = await self._handle(method, context, answer, probe)
            self._receiving.answers(context.peer(), len(answered))
            return answered

        return grpc.stream_unary_rpc_method_handler(handle)

    def server_stream(self, method: StreamMethod[Q, A]) -> Handler:
        """The handler of a server-streaming method. An error ends the stream after the messages written so far."""

        async def answer(data: bytes, call: Call, context: Context) -> None:
            async def write(message: A) -> None:
                await self.write(call, context, message.SerializeToString())

            await method.write_all(await self.calls.parsed(method.request, data), call, write)

        return self.stream_bytes(method.name, answer)

    def stream_bytes(self, method: str, answer: Answering[None]) -> Handler:
        """The handler of a server-streaming method. ``answer`` writes to the context."""

        async def handle(_: object, context: Context) -> None:
            await self._handle(method, context, answer)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def write(self, call: Call, context: Context, message: bytes) -> None:
        """Write a message of a stream.

        Raises:
            Expired: the client did not read it before the deadline.
        """
        try:
            async with asyncio.timeout_at(call.deadline_at):
                await self._receiving.write(context, call.caller, message)
        except TimeoutError as error:
            raise Expired("the client did not read the answer within the deadline") from error

    async def _handle(self, method: str, context: Context, answer: Answering[T], probe: bool = False) -> T:
        call = self.calls.begin(method, context.time_remaining(), headers_of(context), peer=context.peer)
        try:
            return await self.calls.settle(call, self._received(call, context, answer), probe)
        except RequestError as error:
            return await end_with(context, call, error)

    async def _received(self, call: Call, context: Context, answer: Answering[T]) -> T:
        """Read the call's message and answer it. Its bytes count until then."""
        data = await self._receiving.message(context, call.caller, self.calls.limits.message_bytes_max, call.deadline_at)
        with self._receiving.requests.held(call.caller, len(data)):
            answering = answer(data, call, context)
            del data
            answered = await answering
            await self.calls.may_leave(call)
            return answered
