"""A gRPC server and its port."""

import asyncio
import contextlib
import os

import grpc

from sentiment.doors.listening import cannot_listen
from sentiment.observability.logs import logger, wait_written
from sentiment.signs import Sign, shown


class GrpcPort:
    """A server at an address."""

    def __init__(self, server: grpc.aio.Server, setting: str, listen: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """Not listening yet.

        Args:
            server: neither bound nor started.
            setting: the name of the setting that has the address.
            listen: the address in gRPC's syntax.
            credentials: TLS credentials; None: plaintext.
        """
        self._server, self._setting, self._listen, self._credentials = server, setting, listen, credentials
        self._signs = contextlib.ExitStack()
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def bind(self) -> int:
        """Take the port and listen; returns its number. Connections are accepted from now on, and calls answered after ``start``.

        Raises:
            CannotServe: the port cannot be bound.
        """
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise cannot_listen(self._setting, self._listen, error) from error
        if not self._listen.startswith("unix:"):
            self._signs.enter_context(shown(Sign.SERVING, port))
        return port

    async def start(self) -> None:
        """Start to answer calls. Call ``bind`` first."""
        await self._server.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self, grace_s: float) -> None:
        """Close the port and wait up to ``grace_s`` seconds for the calls in progress, then end them. Harmless before ``start``."""
        self._stopping = True
        await self._server.stop(grace_s)
        self._signs.close()
        if self._watching is not None:
            await self._watching

    async def _watch(self) -> None:
        """End the process if gRPC ends the server: a process without its port must be replaced. Never cancel it: gRPC would hang."""
        (error,) = await asyncio.gather(self._server.wait_for_termination(), return_exceptions=True)
        if not self._stopping:
            logger().critical("grpc_ended", listen=self._listen, reason=type(error).__name__)
            wait_written()
            os._exit(1)
