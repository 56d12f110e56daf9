"""grpc.health.v1. ``liveness`` is SERVING while the process makes progress; "" and the services are while it is ready."""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from sentiment.call.parsing import parsed
from sentiment.call.request_bytes import Held, RequestBytes
from sentiment.doors.grpc.context import Context, in_status
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.receiving import Receiving
from sentiment.errors import Refused
from sentiment.health_check import DRAINING, NOT_READY, STARTING

LIVENESS = "liveness"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Bytes of a message, which holds only the name of a service.
HEALTH_BYTES_MAX = 4 * 2**10
# After this long another watch may have ended.
RETRY_S = 5.0
# Open watches on all ports of a process: far more than load balancers keep, and some tens of megabytes.
WATCHERS_MAX = 2**13
# Calls whose message has not come, of all callers. A message usually comes with its call. Those that end together, as their connection
# closes, take 0.7 ms of the event loop each.
UNREAD_MAX = 2**9


class Health:
    """Check and Watch. Unlike grpcio's own servicer it holds no lock while it writes. So a watcher that does not read delays no other
    caller, and a drain can end all watches.
    """

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = ("", *services)
        self._statuses = dict.fromkeys(self._services, NOT_SERVING) | {LIVENESS: SERVING}
        self._not_ready = STARTING
        self._watchers: set[asyncio.Event] = set()
        self._places, self._unread = RequestBytes(WATCHERS_MAX), RequestBytes(UNREAD_MAX)
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether ``liveness`` is SERVING."""
        return bool(self._statuses[LIVENESS] == SERVING)

    @property
    def ready(self) -> bool:
        """Whether "" and the services are SERVING."""
        return bool(self._statuses[""] == SERVING)

    def set_ready(self, ready: bool, why_not: str = DRAINING) -> None:
        """Set the status of "" and the services. ``why_not``: the value of NOT_READY if they are not ready."""
        self._not_ready = why_not
        self._set(dict.fromkeys(self._services, SERVING if ready else NOT_SERVING))

    def set_alive(self, alive: bool) -> None:
        """Set the status of ``liveness``."""
        self._set({LIVENESS: SERVING if alive else NOT_SERVING})

    def end_watches(self) -> None:
        """End every Watch with OK. A new Watch ends after its first status."""
        self._ended = True
        self._set({})

    def _set(self, statuses: Mapping[str, Any]) -> None:  # Any: the enum's type has no name in the stub
        self._statuses.update(statuses)
        for watcher in self._watchers:
            watcher.set()

    def handlers(self, receiving: Receiving) -> dict[str, Handler]:
        """The handlers by method name. ``receiving`` reads their messages."""

        async def service_in(context: Context) -> str:
            with _place(self._unread, context.peer(), f"{UNREAD_MAX} calls of health may wait for their message"):
                data = await receiving.message(context, context.peer(), HEALTH_BYTES_MAX)
            return str(parsed(health_pb2.HealthCheckRequest, data).service)

        async def check(_: object, context: Context) -> bytes:
            answer = await self._check(await in_status(context, service_in(context)), context)
            receiving.answers(context.peer(), len(answer))
            return answer

        async def watch(_: object, context: Context) -> None:
            service = await in_status(context, service_in(context))
            await in_status(context, self._watch(service, context, receiving))

        return {"Check": grpc.stream_unary_rpc_method_handler(check), "Watch": grpc.stream_stream_rpc_method_handler(watch)}

    async def _check(self, service: str, context: Context) -> bytes:
        """The status of a service; NOT_FOUND if no service has this name."""
        if service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service has this name")
        if not self.ready:
            context.set_trailing_metadata(((NOT_READY, self._not_ready),))
        return health_pb2.HealthCheckResponse(status=self._statuses[service]).SerializeToString()

    async def _watch(self, service: str, context: Context, receiving: Receiving) -> None:
        """Stream a service's status and each change of it until the client leaves or the server drains.

        Raises:
            Refused: too many watches are open: WATCHERS_MAX, of which a caller gets at most as many as stay free.
        """
        changed, sent, caller = asyncio.Event(), None, context.peer()
        with _place(self._places, caller, f"{len(self._watchers)} watches are open; the limit is {WATCHERS_MAX}"):
            self._watchers.add(changed)
            try:
                while True:
                    changed.clear()
                    status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                    if status != sent:
                        await receiving.write(context, caller, health_pb2.HealthCheckResponse(status=status).SerializeToString())
                        sent = status
                    if self._ended:
                        return
                    await changed.wait()
            finally:
                self._watchers.discard(changed)


def _place(places: RequestBytes, caller: str, limit: str) -> Held:
    """A place among those of all callers, within a context. Raises Refused if there is none: ``limit`` says of what."""
    if not places.room(caller):
        raise Refused(f"{limit}, and a caller gets at most as many as stay free", RETRY_S, "calls")
    return places.held(caller, 1)
