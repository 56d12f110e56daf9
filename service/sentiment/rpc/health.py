"""grpc.health.v1: ``liveness`` while the process runs, "" and the service while it is ready."""

import asyncio
from typing import Any

from grpc_health.v1 import health, health_pb2

LIVENESS = "liveness"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(health.aio.HealthServicer):
    """The reference servicer, not ready until told so, whose Watch streams can be ended: a stop would wait for them else."""

    def __init__(self, services: tuple[str, ...]) -> None:
        super().__init__()
        self._services = ("", *services)
        self._server_status = dict.fromkeys(self._services, NOT_SERVING) | {LIVENESS: SERVING}
        self._watches: set[asyncio.Task[None]] = set()
        self._ended = False

    async def set_ready(self, ready: bool) -> None:
        """Tell Check and every Watch."""
        for service in self._services:
            await self.set(service, SERVING if ready else NOT_SERVING)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802  # context: as the base class
        """Stream a service's status until the client leaves or the server drains."""
        watch = asyncio.create_task(super().Watch(request, context))
        self._watches.add(watch)
        try:
            if not self._ended:
                await asyncio.wait({watch})
        finally:
            self._watches.discard(watch)
            watch.cancel()
            await asyncio.wait({watch})

    def end_watches(self) -> None:
        """End every Watch with OK; new ones end at once."""
        self._ended = True
        for watch in self._watches:
            watch.cancel()
