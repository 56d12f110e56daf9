"""The grpc.aio server: its options, its services, its port."""

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
# Bytes of a call's headers; more are refused by the transport with RESOURCE_EXHAUSTED. Room for the longest token and a trace.
METADATA_BYTES_MAX = 16 * 2**10
# Bytes of a message where only health is asked for: the name of a service.
HEALTH_BYTES_MAX = 4 * 2**10


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the transport is told; times in seconds, 0 for never."""

    message_bytes_max: int
    keepalive_min_ping_s: float
    connection_age_max_s: float
    connection_age_grace_s: float
    # Calls of one method that may wait until the event loop looks at them.
    pending_max: int
    # Calls that are let in at once.
    calls_max: int
    reflection: bool
    # Other processes of this server listen on the port too.
    share_port: bool = False


# The handler of each method of a service, by its name.
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]  # Any: each has its own pair of messages


def channel_options(options: ServerOptions) -> list[tuple[str, int]]:
    """The server's channel arguments."""
    arguments = [
        # Else a second server on the port starts without a word and takes half of the traffic.
        ("grpc.so_reuseport", int(options.share_port)),
        ("grpc.max_receive_message_length", max(TRANSPORT_BYTES_MIN, 4 * options.message_bytes_max)),
        ("grpc.max_send_message_length", -1),
        # The second would else be the limit, and between the two chance would decide.
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.keepalive_permit_without_calls", 1),
        # Its counts of calls (core_calls), without a diary of each connection.
        ("grpc.enable_channelz", 1),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(options.keepalive_min_ping_s * 1000)),
        # A peer that went away without a word is noticed within 40 s; the last is for one whose kernel goes on, and else a minute.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        # Between the two some are ended, at random, and from the second on all, without a line of Python: a loop that cannot even
        # refuse as fast as calls come would find every call stale.
        ("grpc.server.max_pending_requests", options.pending_max // 2),
        ("grpc.server.max_pending_requests_hard_limit", options.pending_max),
        # A call whose message does not come is no call to us yet, and with no deadline it waits as long as its connection lasts. A client
        # keeps back what is beyond this limit: it must leave room for those that are to be refused.
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
    """The handlers of the Open Inference Protocol."""
    return {method.name: calls.unary(method) for method in service.methods}


def make_server(options: ServerOptions, services: Mapping[str, Handlers], health: Health, guard: Guard | None = None) -> grpc.aio.Server:
    """Assemble the server of these services by name, without a port and without starting it; ``guard``: who may call it, None: all may."""
    interceptors = () if guard is None else (GrpcGuard(guard),)
    server = grpc.aio.server(options=channel_options(options), interceptors=interceptors)
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        # Each of them waits in a queue of its own, so that none of a probe's calls is ended for want of room.
        server.add_registered_method_handlers(name, handlers)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if options.reflection:
        add_reflection((*services, HEALTH_SERVICE), server)
    return server


def make_health_server(options: ServerOptions, health: Health) -> grpc.aio.Server:
    """A server of health alone, for probes that know neither TLS nor tokens."""
    arguments = dict(channel_options(options)) | {"grpc.max_receive_message_length": HEALTH_BYTES_MAX}
    server = grpc.aio.server(options=list(arguments.items()))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    return server


def add_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Serve reflection as v1alpha and as v1; their messages are the same on the wire and grpcio-reflection knows only the first."""
    servicer = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}),))
