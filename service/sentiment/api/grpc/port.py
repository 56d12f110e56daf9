"""A gRPC server and its port, which is reopened whenever gRPC ends the server."""

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import grpc

from sentiment.errors import CannotServe
from sentiment.observability.logs import logger, wait_written

# How often to check whether gRPC still serves, if its own task is not found.
CHECK_INTERVAL_S = 0.05
SERVING_TASK = "AioServer._server_main_loop"
# gRPC closes a port a moment after it has ended the server. Bind again until it is free, for at most CLOSES_S.
CLOSES_S = 10.0
AGAIN_S = 0.005
# Grace for calls that an ended server had accepted: the longest deadline of a call. Streams end then.
ENDED_GRACE_S = 60.0


class GrpcPort:
    """A port that stays open.

    grpc.aio (1.85) ends a server and closes its port after one call whose path is not UTF-8. It does so before our code sees the call, and
    reports nothing. A new server then takes the port. Calls in progress continue; calls that arrive at that moment are CANCELLED or
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
            make: creates a server, neither bound nor started; called again for each new server.
            listen: the address in gRPC's syntax. For port 0, ``bind`` chooses a port, which later servers keep.
            opened_anew: called after each time that the port has been reopened and logged.
            credentials: TLS credentials; None: plaintext.
        """
        self._make, self._listen, self._credentials = make, listen, credentials
        self._opened_anew = opened_anew
        self._server = make()
        # Ended servers whose accepted calls are still in progress.
        self._ended: dict[asyncio.Task[None], grpc.aio.Server] = {}
        self._watching: asyncio.Task[None] | None = None

    def bind(self) -> int:
        """Take the port; returns its number.

        Raises:
            CannotServe: the port cannot be bound.
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
        """Start to answer calls. Call ``bind`` first."""
        asyncio.get_running_loop().set_exception_handler(_drop_decode_errors)
        self._watching = asyncio.create_task(self._watch(await self._begin()))

    async def stop(self, grace_s: float | None) -> None:
        """Close the port and wait up to ``grace_s`` for calls, including those of ended servers. None: end all calls at once."""
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
                while serving is None and self._server._server.is_running():  # type: ignore[attr-defined]  # noqa: ASYNC110  # gRPC gives no event
                    await asyncio.sleep(CHECK_INTERVAL_S)
                leaving = asyncio.create_task(self._server.stop(ENDED_GRACE_S))
                self._ended[leaving] = self._server
                leaving.add_done_callback(self._ended.pop)
                serving = await self._open()
                logger().error(
                    "grpc_port_reopened", listen=self._listen, reason="gRPC ended the server, as it does after a path that is not UTF-8"
                )
                self._opened_anew()
        except Exception as error:  # a process without its port must be replaced
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


def _drop_decode_errors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: as asyncio has it
    """Drop the UnicodeDecodeErrors of grpc.aio's own tasks: they quote the bytes of a caller's path. ``_watch`` logs the event instead."""
    task = context.get("future")
    # The tasks of grpc.aio are not Python coroutines.
    ours = not isinstance(task, asyncio.Task) or inspect.iscoroutine(task.get_coro())
    if ours or not isinstance(context.get("exception"), UnicodeDecodeError):
        loop.default_exception_handler(context)
