"""Checks tokens in gRPC: an interceptor that passes a call on or refuses it before its message is read."""

from collections.abc import Awaitable, Callable
from typing import Any, Never, TypeAlias

import grpc

from sentiment.observability.logs import logger
from sentiment.security.tokens import CHALLENGE, REFUSAL, Guard

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # Any: the message types, which a guard of all methods does not know


class GrpcGuard(grpc.aio.ServerInterceptor):
    """Requires a token for every method, existing or not, except those that the guard exempts."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """Return the method's handler, or one that answers UNAUTHENTICATED."""
        method = handler_call_details.method
        authorization = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if self._guard.admits(method, authorization):
            return await continuation(handler_call_details)
        # A streaming handler for every kind of method: a unary one would first wait for the message.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _messages: object, context: Any) -> Never:  # Any: as above
        self._guard.refused("grpc")
        logger().debug("unauthenticated", peer=context.peer())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL, (CHALLENGE,))
        raise AssertionError("abort raises")
