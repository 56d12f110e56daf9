"""Tokens at gRPC's door: an interceptor that lets a call through or ends it, before anything of its message is read."""

from collections.abc import Awaitable, Callable
from typing import Any, Never, TypeAlias

import grpc

from sentiment.security.tokens import CHALLENGE, REFUSAL, Guard

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # Any: the messages' types, which a guard of every method does not know


class GrpcGuard(grpc.aio.ServerInterceptor):
    """Every method needs a token, even one that the server does not have, except those that the guard names."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The method's handler, or one that answers UNAUTHENTICATED."""
        method = handler_call_details.method
        authorization = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if self._guard.lets_in(method, authorization):
            return await continuation(handler_call_details)
        # Of streams, whatever the method is of: a unary one would first wait for a message.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _messages: object, context: Any) -> Never:  # Any: likewise
        self._guard.refused("grpc")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL, (CHALLENGE,))
        raise AssertionError("abort raises")
