"""The gRPC side of a process: calls, services, streams, health and the port. It does not know where the models run."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields, replace

from sentiment.call.calls import CallLimits, CallLog, Calls
from sentiment.call.names import OIP_SERVICE, SERVICE
from sentiment.call.open_inference import InferenceService
from sentiment.call.parsing import FIELDS_MAX
from sentiment.call.request_bytes import RequestBytes
from sentiment.call.servicer import SentimentService, ServiceLimits
from sentiment.doors.grpc.core_calls import CoreCalls
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.handlers import Handlers
from sentiment.doors.grpc.health import Health
from sentiment.doors.grpc.port import GrpcPort
from sentiment.doors.grpc.receiving import Receiving
from sentiment.doors.grpc.server import (
    METADATA_BYTES_MAX,
    channel_options,
    make_health_server,
    make_server,
    named,
    transport_bytes,
)
from sentiment.doors.grpc.stream import METHOD, Streams
from sentiment.doors.open_files import grpc_connections, probe_connections
from sentiment.lifecycle.registry import Models
from sentiment.observability.feedback import Feedback
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.security.secured import Secured
from sentiment.settings import Settings

# A front end writes the name/version of the model into a request that it forwards, which lengthens it by less than this.
MODEL_BYTES_MAX = 128


# How long answers are held before the GOAWAY: longer than a call is on its way within a region. And after it: until it is sent.
QUIET_S, GOAWAY_S = 0.05, 0.01
# Replaces some of the handlers of sentiment.v1, by method name: the handlers, what makes them, and the service.
Adapt = Callable[[dict[str, Handler], Handlers, SentimentService], None]


class GrpcSide:
    """Everything of gRPC except the models. The main port and the health port, if there is one, are opened apart."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        models: Models,
        share_port: bool = False,
        adapt: Adapt = lambda _handlers, _make, _service: None,
        counts: bool = True,
        tracer: Tracer | None = None,
        secured: Secured | None = None,
        feedback: Feedback | None = None,
        busy_share: Callable[[], float] = lambda: 0.0,
        *,
        requests: RequestBytes,
    ) -> None:
        """Create the servers. Call this in the event loop that will serve.

        Args:
            settings: the server's settings.
            metrics: counts the calls.
            models: the models that requests can name.
            share_port: whether other processes listen on the same port.
            adapt: replaces handlers of the methods of sentiment.v1.
            counts: whether calls are counted and authenticated here. False if front ends do both and forward the calls.
            tracer: the tracer of this process, if it traces.
            secured: TLS and tokens of the port; with TLS, probes get a plaintext port too. Ignored if ``counts`` is False.
            feedback: takes right labels; None if there is no journal, or if ``adapt`` replaces the method.
            busy_share: how busy the event loop is, 0 to 1.
            requests: counts the bytes of requests.
        """
        limits = CallLimits(
            settings.message_bytes_max,
            settings.deadline_default_s,
            settings.deadline_max_s,
            settings.calls_max,
            settings.latency_objective_s,
            settings.deadline_margin_s,
            # An item has three fields, the text, the second text and the item itself, and its targets.
            max(FIELDS_MAX, (4 + settings.targets_max) * settings.batch_items_max),
        )
        receiving = Receiving(requests, transport_bytes(settings.message_bytes_max), settings.receive_s_max, counts)
        guard = secured.guard if secured else None

        def log() -> CallLog:
            now = secured.settings() if secured else settings
            return CallLog(debug=now.log_level == "debug", access=now.access_log)

        self.calls = Calls(metrics, limits, tracer, guard=guard, log=log, busy_share=busy_share)
        of_service = ServiceLimits(**{limit.name: getattr(settings, limit.name) for limit in fields(ServiceLimits)})
        self.service = SentimentService(models, self.calls, of_service, feedback)
        self.health = Health((SERVICE, OIP_SERVICE))
        self.inference = InferenceService(models, self.calls, self.health, of_service)
        self.streams = Streams(self.service, self.calls, receiving)
        forwarded = replace(limits, message_bytes_max=limits.message_bytes_max + MODEL_BYTES_MAX, counted=False)
        of_port = Handlers(self.calls if counts else Calls(metrics, forwarded, tracer), receiving)
        handlers = {method.name: of_port.unary(method) for method in self.service.unary_methods}
        handlers |= {METHOD: self.streams.handler(), self.service.explain_method.name: of_port.server_stream(self.service.explain_method)}
        adapt(handlers, of_port, self.service)
        inference = {method.name: of_port.unary(method) for method in self.inference.methods}
        every = named(SERVICE, handlers) | named(OIP_SERVICE, inference)
        # Front ends add headers to those of a call, which they have admitted.
        headers_max = METADATA_BYTES_MAX if counts else 2 * METADATA_BYTES_MAX
        options = channel_options(settings, settings.grpc_connections_max or grpc_connections(), share_port, headers_max)
        server = make_server(options, every, self.health, receiving, guard if counts else None, settings.reflection)
        core = CoreCalls()
        certificates = secured.certificates if secured and counts else None
        # Bind and start it when calls can be answered.
        self.port = GrpcPort(server, "grpc_listen", settings.grpc_listen, certificates)
        # Forwarded calls are not counted again.
        metrics.grpc_calls_started.watch((lambda: core.started) if counts else (lambda: 0.0))
        metrics.grpc_calls_ended.watch((lambda: core.ended) if counts else (lambda: 0.0))
        self._probes: GrpcPort | None = None
        if settings.health_listen and certificates is not None:
            of_probes = channel_options(settings, probe_connections(), share_port)
            self._probes = GrpcPort(make_health_server(of_probes, self.health, receiving), "health_listen", settings.health_listen)
        self.health_port = 0

    def bind_probes(self) -> None:
        """Take the health port, if there is one, and set ``health_port``. Raises CannotServe as ``GrpcPort.bind`` does."""
        if self._probes is not None:
            self.health_port = self._probes.bind()

    async def start_probes(self) -> None:
        """Answer probes of the health port."""
        if self._probes is not None:
            await self._probes.start()

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls by GOAWAY and answer the accepted ones, for at most ``grace_s`` seconds."""
        begun = time.monotonic()
        # Streams get at most half of the grace: one whose client does not read must not take the time of other calls.
        await self.streams.end(grace_s / 2)
        # After GOAWAY a client sends its next call to another server, without an error. But gRPC's core drops what comes before the client
        # has read the GOAWAY, and the client sees CANCELLED: docs/operate/rollouts-and-failures.md.
        with self.calls.holding_answers():
            await asyncio.sleep(QUIET_S)
            stopping = asyncio.create_task(self.port.stop(max(0.0, grace_s - (time.monotonic() - begun))))
            # A little earlier: gRPC's clock is not ours.
            self.calls.cut_at = begun + grace_s - QUIET_S
            await asyncio.sleep(GOAWAY_S)
        self.health.end_watches()
        await stopping
        if self.calls.cut:
            logger().warning("calls_cut", transport="grpc", calls=self.calls.cut, grace_s=grace_s)

    async def stop(self) -> None:
        """Stop at once. Harmless after ``drain``."""
        self.health.end_watches()
        await self.port.stop(0)
        if self._probes is not None:
            # Probes are answered until the end.
            await self._probes.stop(0)
