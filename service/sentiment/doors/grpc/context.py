"""The context of a gRPC call: its headers, and its end with an error's status."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
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
    # The exception that ends the call has this one as its context.
    error.alone()
    if isinstance(error, HandedOn):
        await end(context, error.code, str(error), error.trailers)
    status = status_of(error)
    pushback = pushback_ms(error, math.inf if time_left_s is None else time_left_s)
    retry = () if pushback is None else ((PUSHBACK, str(pushback)),)
    await end(context, code_of(error), status.message, (("grpc-status-details-bin", status.SerializeToString()), *trailers, *retry))


async def end(context: Context, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str | bytes], ...]) -> NoReturn:
    """End a call with a status. The call's memory is free as soon as it has ended.

    The exception that gRPC raises, whose frames refer to the call, is kept by the call's state: only the garbage collector would free them.
    """
    task = asyncio.current_task()
    assert task is not None, "a handler runs in a task"
    try:
        await context.abort(code, details, trailers)
    except BaseException as raised:
        task.add_done_callback(partial(_without_frames, raised))
        raise
    raise AssertionError("abort raises")


def _without_frames(error: BaseException, _: object) -> None:
    error.__traceback__ = None


async def end_with(context: Context, call: Call, error: RequestError) -> NoReturn:
    """End a call with an error's status, and its request id."""
    await abort(context, error, call.time_left_s(), (REQUEST_ID, call.request_id))


async def in_status(context: Context, work: Awaitable[T]) -> T:
    """Await the work of a call that nobody counts. Its error ends the call with the error's status."""
    try:
        return await work
    except RequestError as error:
        await abort(context, error, context.time_remaining())
