"""The health check of grpc.health.v1 as a client speaks it, and the trailer by which our server says why it is not ready.

It needs no grpcio-health-checking, whose releases each want a new protobuf. The messages of a check have one field, so they are on the wire
what protobuf's own wrappers are: service = 1 a string, status = 1 a number. Nothing is registered that another package registers too.
"""

from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

# Trailer of a Check: why "" and the services are not SERVING. Absent if they are.
NOT_READY = "sentiment-not-ready"
# Its values. waiting: a front end waits for the process that has the models.
STARTING, DRAINING, STALLED, WAITING = "starting", "draining", "stalled", "waiting"
_SERVING = 1


def check(channel: grpc.Channel, service: str, timeout_s: float) -> tuple[bool, str]:
    """Whether a service is SERVING, and the value of the trailer NOT_READY.

    Raises:
        grpc.RpcError: the server does not answer, or has no such service.
    """
    method: Any = channel.unary_unary(  # grpcio's stub has no type for what it returns
        "/grpc.health.v1.Health/Check", request_serializer=StringValue.SerializeToString, response_deserializer=Int32Value.FromString
    )
    answer, call = method.with_call(StringValue(value=service), timeout=timeout_s)
    return answer.value == _SERVING, str(dict(call.trailing_metadata() or ()).get(NOT_READY, ""))
