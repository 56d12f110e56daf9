"""The gRPC side of a process: the door, the service, streams, health and the port. Whose models they are is not its concern."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sentiment.api.grpc.calls import CallLimits, Calls
from sentiment.api.grpc.core_calls import PortCalls
from sentiment.api.grpc.field_count import FIELDS_MAX
from sentiment.api.grpc.health import Health
from sentiment.api.grpc.names import OIP_SERVICE, SERVICE
from sentiment.api.grpc.open_inference import InferenceService
from sentiment.api.grpc.port import GrpcPort
from sentiment.api.grpc.server import Handlers, ServerOptions, handlers_of, make_health_server, make_server, oip_handlers_of
from sentiment.api.grpc.servicer import SentimentService, ServiceLimits
from sentiment.api.grpc.stream import Streams
from sentiment.api.grpc.tls import server_credentials
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.security.secured import Secured
from sentiment.serving.registry import Models
from sentiment.settings import Settings


def _as_they_are(handlers: Handlers, _calls: Calls) -> Handlers:
    return handlers


class GrpcSide:
    """Everything of gRPC but the models. ``bind`` takes the port; nothing is answered before ``start``."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        models: Models,
        share_port: bool = False,
        adapt: Callable[[Handlers, Calls], Handlers] = _as_they_are,
        counts: bool = True,
        tracer: Tracer | None = None,
        secured: Secured | None = None,
    ) -> None:
        """Must be called in the event loop that will serve.

        Args:
            settings: of the server.
            metrics: where calls are counted.
            models: what they name.
            share_port: other processes listen on the port too.
            adapt: exchanges handlers of sentiment.v1's methods.
            counts: the port's calls are counted and admitted here, and not by those who hand them on.
            tracer: of this process, if it traces.
            secured: TLS and tokens of the port, and with TLS a port for probes beside it; unless those who hand calls on see to that.
        """
        limits = CallLimits(
            settings.message_bytes_max,
            settings.deadline_default_s,
            settings.deadline_max_s,
            settings.calls_max,
            # Text, pair and the item itself.
            max(FIELDS_MAX, 4 * settings.batch_items_max),
            log_calls=settings.log_level == "debug",
        )
        self.calls = Calls(metrics, limits, tracer)
        stated = ServiceLimits(settings.text_bytes_max, settings.batch_items_max, settings.message_bytes_max, settings.call_rows_max)
        self.service = SentimentService(models, self.calls, stated)
        self.health = Health((SERVICE, OIP_SERVICE))
        inference = InferenceService(models, self.calls, self.health, settings.batch_items_max)
        self.streams = Streams(self.service, self.calls, settings.call_rows_max, settings.deadline_default_s)
        options = ServerOptions(
            settings.message_bytes_max,
            settings.keepalive_min_ping_s,
            settings.connection_age_max_s,
            settings.connection_age_grace_s,
            settings.calls_pending_max,
            settings.calls_max,
            settings.reflection,
            share_port,
        )
        of_port = self.calls if counts else Calls(metrics, replace(limits, counted=False, log_calls=False), tracer)
        services = {
            SERVICE: adapt(handlers_of(self.service, self.streams, of_port), of_port),
            OIP_SERVICE: oip_handlers_of(inference, of_port),
        }
        core = PortCalls()
        make = core.counted(partial(make_server, options, services, self.health, secured.guard if secured and counts else None))
        certificates = secured.certificates if secured and counts else None
        opened_anew = metrics.grpc_opened_anew.labels
        of_tls = None if certificates is None else server_credentials(certificates)
        self._port = GrpcPort(make, settings.grpc_listen, opened_anew("grpc").inc, of_tls)
        # Those that are handed on are no callers'.
        metrics.grpc_calls_started.watch((lambda: core.started) if counts else (lambda: 0.0))
        metrics.grpc_calls_ended.watch((lambda: core.ended) if counts else (lambda: 0.0))
        probed = settings.health_listen and certificates is not None
        of_health = partial(make_health_server, options, self.health)
        self._probes = GrpcPort(of_health, settings.health_listen, opened_anew("health").inc) if probed else None
        self.health_port = 0

    def bind(self) -> int:
        """Take the port that the settings name, and that of health; returns the former.

        Raises:
            CannotServe: one cannot be bound.
        """
        if self._probes is not None:
            self.health_port = self._probes.bind()
        return self._port.bind()

    async def start(self) -> None:
        """Answer, after ``bind``."""
        await self._port.start()
        if self._probes is not None:
            await self._probes.start()

    async def drain(self, grace_s: float) -> None:
        """Refuse what is new by GOAWAY and answer what was accepted, for at most ``grace_s`` seconds."""
        begun = time.monotonic()
        # At most half of the grace: a stream whose client does not read must not cost other calls theirs.
        await self.streams.end(grace_s / 2)
        # GOAWAY is the refusal: a client takes its next call elsewhere without an error.
        stopping = asyncio.create_task(self._port.stop(max(0.0, grace_s - (time.monotonic() - begun))))
        self.health.end_watches()
        await stopping

    async def stop(self) -> None:
        """Stop at once. Harmless after ``drain``."""
        self.health.end_watches()
        await self._port.stop(0)
        if self._probes is not None:
            # Probes hear the truth until the end.
            await self._probes.stop(0)
