"""Changes of models while the server runs: the folder watch and the admin port."""

import asyncio

from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc.admin import make_admin_server
from sentiment.doors.grpc.port import GrpcPort
from sentiment.doors.grpc.server import GrpcGuard
from sentiment.errors import BadSettings
from sentiment.lifecycle.folder_watch import FolderWatch
from sentiment.lifecycle.lifecycle import Lifecycle
from sentiment.model.bundle import bundle_roots
from sentiment.security.secured import Secured
from sentiment.serving.upkeep import Upkeep
from sentiment.settings import Settings


class Exchange:
    """The folder watch and the admin port, as configured. Runs on one event loop."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, secured: Secured, requests: RequestBytes, upkeep: Upkeep) -> None:
        """Bind the admin port; must be called in the event loop. ``upkeep`` owns the folder watch.

        Raises:
            CannotServe: the port cannot be bound.
            BadSettings: there are no admin tokens.
        """
        self._lifecycle = lifecycle
        self._upkeep = upkeep
        self._watching: asyncio.Task[None] | None = None
        self._port: GrpcPort | None = None
        self.port = 0
        names = [model for model in dict.fromkeys((settings.model, *settings.models)) if "/" not in model]
        self._watch = FolderWatch(lifecycle, names, bundle_roots(settings.bundles), settings.models_watch_s)
        self._watches = bool(settings.models_watch_s and names)
        if settings.admin_listen:
            guard = secured.guard_of(settings.admin_tokens, "admin_tokens", exempt=())
            if guard is None:
                raise BadSettings(f"admin_listen = {settings.admin_listen!r}: needs admin_tokens, the file of its tokens")
            server = make_admin_server(lifecycle, [GrpcGuard(guard)], requests, settings.receive_s_max)
            self._port = GrpcPort(server, "admin_listen", settings.admin_listen)
            self.port = self._port.bind()

    async def start(self) -> None:
        """Start both; call it once the models answer."""
        if self._watches:
            self._watching = self._upkeep.start("watch folders", self._watch.run())
        if self._port is not None:
            await self._port.start()

    async def stop(self) -> None:
        """Stop all changes and abandon a load in progress. Harmless before ``start``."""
        self._lifecycle.load_no_more()
        if self._watching is not None:
            await self._upkeep.stop(self._watching)
        if self._port is not None:
            await self._port.stop(0)
