"""The context of a gRPC call: its headers, and its end with an error's status."""

import math
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc

from sentiment.call.call import REQUEST_ID, Call
from sentiment.call.status import PUSHBACK, HandedOn, code_of, pushback_ms, status_of
from sentiment.errors import RequestError
from sentiment.observability.tracing.trace import Headers

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, Any]"  # Any: bytes too; the class is generic over request and response
T = TypeVar("T")


def headers_of(context: Context) -> Callable[[], Headers]:
    """A function that returns the headers of a call."""
    return lambda: context.invocation_metadata() or ()


async def abort(context: Context, error: RequestError, time_left_s: float | None, *trailers: tuple[str, str]) -> NoReturn:
    """End a call with an error's status, details and trailers, and with these. ``time_left_s``: None if the call has no deadline."""
    # gRPC's error, which refers to this one, and the call's state refer to each other. The frames of the traceback would keep the request's
    # message until the garbage collector looks.
    error.alone()
    if isinstance(error, HandedOn):
        await context.abort(error.code, str(error), error.trailers)
    status = status_of(error)
    pushback = pushback_ms(error, math.inf if time_left_s is None else time_left_s)
    retry = () if pushback is None else ((PUSHBACK, str(pushback)),)
    await context.abort(code_of(error), status.message, (("grpc-status-details-bin", status.SerializeToString()), *trailers, *retry))
    raise AssertionError("abort raises")


async def end_with(context: Context, call: Call, error: RequestError) -> NoReturn:
    """End a call with an error's status, and its request id."""
    await abort(context, error, call.time_left_s(), (REQUEST_ID, call.request_id))


async def in_status(context: Context, work: Awaitable[T]) -> T:
    """Await the work of a call that nobody counts. Its error ends the call with the error's status."""
    try:
        return await work
    except RequestError as error:
        await abort(context, error, context.time_remaining())
