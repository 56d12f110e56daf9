"""A gRPC server and its port, opened anew whenever gRPC ends them."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import grpc

from sentiment.errors import CannotServe
from sentiment.observability.logs import logger, wait_written

# How often it is looked whether gRPC still serves, where its own task is not found.
LOOK_S = 0.05
SERVING_TASK = "AioServer._server_main_loop"
# gRPC closes a port a moment after it has ended the server.
CLOSES_S = 10.0
AGAIN_S = 0.005
# As long as any call has that a server had accepted which was ended; streams are ended then.
ENDED_GRACE_S = 60.0


class GrpcPort:
    """A server that stays.

    grpc.aio (1.85) ends a server, its port with it, after one call whose path is no UTF-8, before any code of ours sees the call, and tells
    nobody. Another one then takes the port. Calls that were under way go on, those that came in the same moment are CANCELLED or
    UNAVAILABLE.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        listen: str,
        opened_anew: Callable[[], None],
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Make the first server.

        Args:
            make: makes a server, with neither port nor start; called again for each that is needed.
            listen: the address, as gRPC takes it; port 0 is chosen by ``bind`` and kept.
            opened_anew: told of each time, behind the log.
            credentials: of TLS; None: plaintext.
        """
        self._make, self._listen, self._credentials = make, listen, credentials
        self._opened_anew = opened_anew
        self._server = make()
        # Servers that were ended while calls that they had accepted go on.
        self._ended: dict[asyncio.Task[None], grpc.aio.Server] = {}
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
        asyncio.get_running_loop().set_exception_handler(_leave_out_grpcs_tasks)
        self._watching = asyncio.create_task(self._watch(await self._begin()))

    async def stop(self, grace_s: float | None) -> None:
        """Close the port and wait so long for calls, those too that servers before had accepted; None: end all at once."""
        if self._watching is not None:
            self._watching.cancel()
        ended = [server.stop(grace_s) for server in self._ended.values()]
        await asyncio.gather(self._server.stop(grace_s), *ended, return_exceptions=True)

    async def _begin(self) -> asyncio.Task[object] | None:
        """Start the server; returns the task that ends when it does."""
        before = asyncio.all_tasks()
        await self._server.start()
        return next((task for task in asyncio.all_tasks() - before if _name_of(task) == SERVING_TASK), None)

    async def _watch(self, serving: asyncio.Task[object] | None) -> None:
        try:
            while True:
                if serving is not None:
                    await asyncio.wait({serving})
                while serving is None and self._server._server.is_running():  # type: ignore[attr-defined]  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(LOOK_S)
                leaving = asyncio.create_task(self._server.stop(ENDED_GRACE_S))
                self._ended[leaving] = self._server
                leaving.add_done_callback(self._ended.pop)
                serving = await self._open()
                logger().error("grpc_opened_anew", listen=self._listen, reason="gRPC ended its server, as it does where a path is no UTF-8")
                self._opened_anew()
        except Exception as error:  # a process that nobody can call must be replaced
            logger().critical("grpc_ended", reason=str(error) if isinstance(error, CannotServe) else type(error).__name__)
            wait_written()
            os._exit(1)

    async def _open(self) -> asyncio.Task[object] | None:
        self._server = self._make()
        until = time.monotonic() + CLOSES_S
        while True:
            try:
                self.bind()
            except CannotServe:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return await self._begin()


def _name_of(task: asyncio.Task[Any]) -> str | None:
    return getattr(task.get_coro(), "__qualname__", None)


def _leave_out_grpcs_tasks(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: as asyncio has it
    """What grpc.aio's own tasks, which are no coroutines of Python's, leave unsaid of a path holds its bytes; ``_watch`` tells of it."""
    task = context.get("future")
    ours = not isinstance(task, asyncio.Task) or inspect.iscoroutine(task.get_coro())
    if ours or not isinstance(context.get("exception"), UnicodeDecodeError):
        loop.default_exception_handler(context)
