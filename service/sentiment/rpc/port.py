"""A gRPC server and its port, opened anew whenever gRPC ends them."""

import asyncio
import os
from collections import deque
from collections.abc import Callable

import grpc

from sentiment.errors import CannotServe
from sentiment.logs import logger, wait_written

# How often it is looked whether gRPC still serves, where its own task is not found.
LOOK_S = 0.05
SERVING_TASK = "AioServer._server_main_loop"
# Of servers that were ended so many are waited for at the end, while calls that they had accepted go on.
ENDED_MAX = 8


class GrpcPort:
    """A server that stays.

    grpc.aio (1.85) ends a server, its port with it, after one call whose path is no UTF-8, before any code of ours sees the call, and tells
    nobody. Calls that it had accepted go on; another one then takes the port.
    """

    def __init__(self, make: Callable[[], grpc.aio.Server], listen: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """Make the first server.

        Args:
            make: makes a server, with neither port nor start; called again for each that is needed.
            listen: the address, as gRPC takes it; port 0 is chosen by ``bind`` and kept.
            credentials: of TLS; None: plaintext.
        """
        self._make, self._listen, self._credentials = make, listen, credentials
        self._server = make()
        self._ended: deque[grpc.aio.Server] = deque(maxlen=ENDED_MAX)
        self._watching: asyncio.Task[None] | None = None

    def bind(self) -> int:
        """Take the port; returns it.

        Raises:
            CannotServe: it cannot be bound.
        """
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise CannotServe(f"gRPC cannot listen on {self._listen}: {error}") from error
        host, _, number = self._listen.rpartition(":")
        if number == "0":
            self._listen = f"{host}:{port}"
        return port

    async def start(self) -> None:
        """Answer, after ``bind``."""
        self._watching = asyncio.create_task(self._watch(await self._begin()))

    async def stop(self, grace_s: float | None) -> None:
        """Close the port and wait so long for calls, those too that servers before had accepted; None: end all at once."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(server.stop(grace_s) for server in (self._server, *self._ended)))

    async def _begin(self) -> asyncio.Task[object] | None:
        """Start the server; returns the task that ends when it does."""
        before = asyncio.all_tasks()
        await self._server.start()
        return next((task for task in asyncio.all_tasks() - before if getattr(task.get_coro(), "__qualname__", "") == SERVING_TASK), None)

    async def _watch(self, serving: asyncio.Task[object] | None) -> None:
        while True:
            if serving is not None:
                await asyncio.wait({serving})
                # Else asyncio would log it, with the caller's bytes.
                serving.exception()
            while serving is None and self._server._server.is_running():  # type: ignore[attr-defined]  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(LOOK_S)
            self._ended.append(self._server)
            try:
                self._server = self._make()
                self.bind()
                serving = await self._begin()
            except CannotServe as error:
                # Somebody else was quicker. A process that nobody can call must be replaced.
                logger().critical("grpc_ended", reason=str(error))
                wait_written()
                os._exit(1)
            logger().error("grpc_opened_anew", listen=self._listen, reason="gRPC ended its server, as it does where a path is no UTF-8")
