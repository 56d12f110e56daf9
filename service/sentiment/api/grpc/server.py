"""Creates grpc.aio servers: their options, services and reflection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from sentiment.api.grpc.calls import Calls
from sentiment.api.grpc.guard import GrpcGuard
from sentiment.api.grpc.health import Health
from sentiment.api.grpc.open_inference import InferenceService
from sentiment.api.grpc.servicer import SentimentService
from sentiment.api.grpc.stream import METHOD, Streams
from sentiment.security.tokens import Guard

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
# Far above our own limit, so that a message over the limit gets our INVALID_ARGUMENT and not the transport's
# RESOURCE_EXHAUSTED, which looks like overload and is retried.
TRANSPORT_BYTES_MIN = 16 * 2**20
# Bytes of a call's headers: enough for the longest token and a trace. The transport refuses more with RESOURCE_EXHAUSTED.
METADATA_BYTES_MAX = 16 * 2**10
# Bytes of a message on the health port, which holds only the name of a service.
HEALTH_BYTES_MAX = 4 * 2**10


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the transport. Times are in seconds; 0 means never."""

    message_bytes_max: int
    keepalive_min_ping_s: float
    connection_age_max_s: float
    connection_age_grace_s: float
    # Calls of one method that may wait until the event loop handles them.
    pending_max: int
    # Calls that may be open at once.
    calls_max: int
    reflection: bool
    # Other processes of this server listen on the same port.
    share_port: bool = False


# The handlers of a service by method name.
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]  # Any: each has its own pair of messages


def channel_options(options: ServerOptions) -> list[tuple[str, int]]:
    """The server's channel arguments."""
    arguments = [
        # Otherwise a second server on the same port would start without an error and take half of the traffic.
        ("grpc.so_reuseport", int(options.share_port)),
        ("grpc.max_receive_message_length", max(TRANSPORT_BYTES_MIN, 4 * options.message_bytes_max)),
        ("grpc.max_send_message_length", -1),
        # The first is a soft limit: above it, calls are refused at random. Equal limits make the refusal certain.
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.keepalive_permit_without_calls", 1),
        # For the call counts (core_calls), without a trace of each connection.
        ("grpc.enable_channelz", 1),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(options.keepalive_min_ping_s * 1000)),
        # Detects a peer that has disappeared within 40 s. The last option covers a peer whose kernel still answers; its default is 60 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        # gRPC ends some waiting calls at random between the two limits, and all above the second, without running Python. An event
        # loop that cannot even refuse calls as fast as they arrive would otherwise work on expired calls only.
        ("grpc.server.max_pending_requests", options.pending_max // 2),
        ("grpc.server.max_pending_requests_hard_limit", options.pending_max),
        # Limits the calls of a connection whose message has not arrived: handlers do not see them, and without a deadline they wait as
        # long as the connection lasts. A client delays calls beyond this limit, so it must leave room for calls that are to be refused.
        ("grpc.max_concurrent_streams", options.calls_max + options.pending_max),
    ]
    if options.connection_age_max_s:
        arguments += [
            ("grpc.max_connection_age_ms", int(options.connection_age_max_s * 1000)),
            ("grpc.max_connection_age_grace_ms", int(options.connection_age_grace_s * 1000)),
        ]
    return arguments


def handlers_of(service: SentimentService, streams: Streams, calls: Calls) -> Handlers:
    """The handlers of the service's methods."""
    handlers: Handlers = {method.name: calls.unary(method) for method in service.unary_methods}
    handlers[METHOD] = streams.handler()
    handlers[service.explain_method.name] = calls.server_stream(service.explain_method)
    return handlers


def oip_handlers_of(service: InferenceService, calls: Calls) -> Handlers:
    """The handlers of the Open Inference Protocol's methods."""
    return {method.name: calls.unary(method) for method in service.methods}


def make_server(options: ServerOptions, services: Mapping[str, Handlers], health: Health, guard: Guard | None = None) -> grpc.aio.Server:
    """Create a server of the named services, neither bound nor started. ``guard`` checks tokens; None: no token is required."""
    interceptors = () if guard is None else (GrpcGuard(guard),)
    server = grpc.aio.server(options=channel_options(options), interceptors=interceptors)
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        # Registered methods have a queue each, so that a full queue of another method does not end health probes.
        server.add_registered_method_handlers(name, handlers)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if options.reflection:
        add_reflection((*services, HEALTH_SERVICE), server)
    return server


def make_health_server(options: ServerOptions, health: Health) -> grpc.aio.Server:
    """A server with health only, for probes without TLS and tokens."""
    arguments = dict(channel_options(options)) | {"grpc.max_receive_message_length": HEALTH_BYTES_MAX}
    server = grpc.aio.server(options=list(arguments.items()))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    return server


def add_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Serve reflection as v1alpha and v1. Their messages are the same on the wire; grpcio-reflection supports only v1alpha."""
    servicer = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}),))
