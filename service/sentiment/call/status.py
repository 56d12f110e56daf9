"""The only table of status codes: the gRPC code and the HTTP status of each error."""

import math

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sentiment.errors import (
    AnswerNotFound,
    Broken,
    Expired,
    InvalidInput,
    ModelFailed,
    ModelNotFound,
    NotBuilt,
    Refused,
    RequestError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

Code = grpc.StatusCode

CODES: dict[type[RequestError], grpc.StatusCode] = {
    InvalidInput: Code.INVALID_ARGUMENT,
    Unauthenticated: Code.UNAUTHENTICATED,
    ModelNotFound: Code.NOT_FOUND,
    AnswerNotFound: Code.NOT_FOUND,
    Unsupported: Code.FAILED_PRECONDITION,
    NotBuilt: Code.UNIMPLEMENTED,
    Expired: Code.DEADLINE_EXCEEDED,
    Refused: Code.RESOURCE_EXHAUSTED,
    Unavailable: Code.UNAVAILABLE,
    ModelFailed: Code.INTERNAL,
    Broken: Code.INTERNAL,
}

# As google/rpc/code.proto maps them.
HTTP_STATUS: dict[grpc.StatusCode, int] = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.UNAUTHENTICATED: 401,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}

PUSHBACK = "grpc-retry-pushback-ms"


class HandedOn(RequestError):
    """An error from another process of this server, or of an item of a batch, passed on unchanged."""

    def __init__(self, code: grpc.StatusCode, message: str, trailers: tuple[tuple[str, str | bytes], ...]) -> None:
        super().__init__(message)
        self.code = code
        self.trailers = trailers


def code_of(error: RequestError) -> grpc.StatusCode:
    """The status code of an error."""
    return error.code if isinstance(error, HandedOn) else CODES[type(error)]


def status_of(error: RequestError) -> Status:
    """The google.rpc.Status of an error, with BadRequest or RetryInfo where it has one."""
    status = Status(code=code_of(error).value[0], message=str(error))
    if isinstance(error, InvalidInput):
        _attach(status, BadRequest(field_violations=[BadRequest.FieldViolation(field=error.field, description=error.description)]))
    elif isinstance(error, Refused) and error.retry_after_s < math.inf:
        retry = RetryInfo()
        set_seconds(retry.retry_delay, error.retry_after_s)
        _attach(status, retry)
    return status


def pushback_ms(error: RequestError, time_left_s: float) -> int | None:
    """When the client should retry a refused call, in milliseconds. -1: a retry within the deadline cannot help. None: its own policy."""
    if not isinstance(error, Refused):
        return None
    return -1 if error.retry_after_s + error.needs_s >= time_left_s else max(1, math.ceil(error.retry_after_s * 1000))


def _attach(status: Status, detail: BadRequest | RetryInfo) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def set_seconds(duration: Duration, seconds: float) -> None:
    """Set a duration message to a number of seconds, at least 0."""
    duration.seconds = whole = int(seconds)
    duration.nanos = int((seconds - whole) * 1e9)
