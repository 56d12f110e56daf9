"""Creates grpc.aio servers: their options, services, reflection and the check of tokens."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Never

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from sentiment.call.parsing import parsed
from sentiment.doors.grpc.accepting import accepting_server
from sentiment.doors.grpc.context import Context, in_status
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.health import HEALTH_BYTES_MAX, Health
from sentiment.doors.grpc.receiving import WINDOW_BYTES, Receiving
from sentiment.observability.logs import logger
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.security.tokens import CHALLENGE, REFUSAL, Guard
from sentiment.settings import Settings

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
# Far above our own limit, so that a message over the limit gets our INVALID_ARGUMENT and not the transport's
# RESOURCE_EXHAUSTED, which looks like overload and is retried.
TRANSPORT_BYTES_MIN = 16 * 2**20
# Bit sets of gRPC's algorithms: none, and none, deflate and gzip.
NO_ALGORITHM, ANY_ALGORITHM = 0b001, 0b111
# Bytes of a call's headers: enough for the longest token and a trace. The transport refuses more with RESOURCE_EXHAUSTED.
METADATA_BYTES_MAX = 16 * 2**10
# Bytes of a message to reflection, which names a symbol or a file.
REFLECTION_BYTES_MAX = 4 * 2**10


def transport_bytes(message_bytes_max: int) -> int:
    """The transport's limit of a message where ours is ``message_bytes_max``."""
    return max(TRANSPORT_BYTES_MIN, 4 * message_bytes_max)


def channel_options(
    settings: Settings, connections_max: int, share_port: bool, metadata_bytes_max: int = METADATA_BYTES_MAX
) -> list[tuple[str, int]]:
    """The server's channel arguments.

    ``connections_max``: at once; 0: any number. ``share_port``: other processes of this server listen on the same port.
    ``metadata_bytes_max``: of the headers of a call.
    """
    arguments = [
        # Otherwise a second server on the same port would start without an error and take half of the traffic.
        ("grpc.so_reuseport", int(share_port)),
        ("grpc.max_receive_message_length", transport_bytes(settings.message_bytes_max)),
        # A compressed message of 16 KB may open to one of 16 MB, which the core does before anybody asks for a token. Clients that
        # compress get UNIMPLEMENTED; bit 0 is "not compressed".
        ("grpc.compression_enabled_algorithms_bitset", ANY_ALGORITHM if settings.grpc_compression else NO_ALGORITHM),
        ("grpc.max_send_message_length", -1),
        # Otherwise gRPC lets a client send 4 MiB on each stream before the server reads any of it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        # The first is a soft limit: above it, calls are refused at random. Equal limits make the refusal certain.
        ("grpc.max_metadata_size", metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", metadata_bytes_max),
        ("grpc.keepalive_permit_without_calls", 1),
        # For the call counts (core_calls), without a trace of each connection.
        ("grpc.enable_channelz", 1),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(settings.keepalive_min_ping_s * 1000)),
        # Detects a peer that has disappeared within 40 s. The last option covers a peer whose kernel still answers; its default is 60 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        # gRPC ends some waiting calls at random between the two limits, and all above the second, without running Python. An event
        # loop that cannot even refuse calls as fast as they arrive would otherwise work on expired calls only.
        ("grpc.server.max_pending_requests", settings.calls_pending_max // 2),
        ("grpc.server.max_pending_requests_hard_limit", settings.calls_pending_max),
        # Limits the calls of a connection whose message has not arrived: handlers do not see them, and without a deadline they wait as
        # long as the connection lasts. A client delays calls beyond this limit, so it must leave room for calls that are to be refused.
        ("grpc.max_concurrent_streams", settings.calls_max + settings.calls_pending_max),
    ]
    if connections_max:
        # Each takes an open file, of which HTTP and health probes need some.
        arguments.append(("grpc.max_allowed_incoming_connections", connections_max))
    if settings.connection_age_max_s:
        arguments += [
            ("grpc.max_connection_age_ms", int(settings.connection_age_max_s * 1000)),
            ("grpc.max_connection_age_grace_ms", int(settings.connection_age_grace_s * 1000)),
        ]
    return arguments


def named(service: str, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """The handlers of a service by full name."""
    return {f"/{service}/{method}": handler for method, handler in handlers.items()}


def make_server(
    options: Sequence[tuple[str, int]],
    handlers: Mapping[str, Handler],
    health: Health,
    receiving: Receiving,
    guard: Guard | None,
    reflects: bool,
) -> grpc.aio.Server:
    """Create a server of the methods, health and reflection, neither bound nor started.

    Args:
        options: channel arguments.
        handlers: of its other methods, by full name.
        health: the health service.
        receiving: reads the messages of health and reflection.
        guard: checks tokens; None: no token is required.
        reflects: whether to serve reflection.
    """
    every = {**handlers, **named(HEALTH_SERVICE, health.handlers(receiving))}
    if reflects:
        every |= reflection_of(sorted({name.split("/")[1] for name in every}), receiving)
    return accepting_server(options, every, () if guard is None else (GrpcGuard(guard),))


def make_health_server(options: Sequence[tuple[str, int]], health: Health, receiving: Receiving) -> grpc.aio.Server:
    """A server with health only, for probes without TLS and tokens."""
    arguments = dict(options) | {"grpc.max_receive_message_length": HEALTH_BYTES_MAX}
    return accepting_server(list(arguments.items()), named(HEALTH_SERVICE, health.handlers(receiving)))


class GrpcGuard(grpc.aio.ServerInterceptor):
    """Requires a token for every method, existing or not, except those that the guard exempts."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Return the method's handler, or one that answers UNAUTHENTICATED."""
        method = handler_call_details.method
        authorization = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if self._guard.admits(method, authorization):
            return await continuation(handler_call_details)
        # A streaming handler for every kind of method: a unary one would first wait for the message.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _messages: object, context: Context) -> Never:
        self._guard.refused("grpc")
        logger().debug("unauthenticated", peer=context.peer())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL, (CHALLENGE,))
        raise AssertionError("abort raises")


def reflection_of(services: Sequence[str], receiving: Receiving) -> dict[str, Handler]:
    """Reflection as v1alpha and v1. Their messages are the same on the wire; grpcio-reflection supports only v1alpha."""
    servicer, turns = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME)), LoopTurns(1)

    async def requests(context: Context) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        while (data := await receiving.next_message(context, context.peer(), REFLECTION_BYTES_MAX)) is not None:
            await turns.wait()
            yield parsed(reflection_pb2.ServerReflectionRequest, data)

    async def reflect(context: Context) -> None:
        responses: Any = servicer.ServerReflectionInfo(requests(context), context)  # Any: the stub takes it for a coroutine
        async for response in responses:
            await receiving.write(context, context.peer(), response.SerializeToString())

    async def handle(_: object, context: Context) -> None:
        await in_status(context, reflect(context))

    handler: Handler = grpc.stream_stream_rpc_method_handler(handle)
    return {f"/{name}/ServerReflectionInfo": handler for name in (reflection.SERVICE_NAME, REFLECTION_V1)}
