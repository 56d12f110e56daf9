"""A gRPC server and its port, in plaintext or with certificates that can change while it runs."""

import asyncio
import contextlib
import os
from collections.abc import Callable

import grpc

from sentiment.doors.listening import cannot_listen
from sentiment.observability.logs import logger, wait_written
from sentiment.security.certificates import Certificates
from sentiment.signs import Sign, shown


class GrpcPort:
    """A server at an address."""

    def __init__(self, server: grpc.aio.Server, setting: str, listen: str, certificates: Callable[[], Certificates] | None = None) -> None:
        """Not listening yet.

        Args:
            server: neither bound nor started.
            setting: the name of the setting that has the address.
            listen: the address in gRPC's syntax.
            certificates: return the current ones, in threads of gRPC; None: plaintext.
        """
        self._server, self._setting, self._listen, self._certificates = server, setting, listen, certificates
        self._signs = contextlib.ExitStack()
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    def bind(self) -> int:
        """Take the port and listen; returns its number. Connections are accepted from now on, and calls answered after ``start``.

        Raises:
            CannotServe: the port cannot be bound.
        """
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, _credentials(self._certificates))
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


def _credentials(certificates: Callable[[], Certificates]) -> grpc.ServerCredentials:
    """Credentials for one server. Each new connection uses the current certificates; open connections are not affected.

    The certificates at the start decide whether clients must show one.
    """
    served = certificates()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = certificates()
        if now is served:
            return None
        served = now
        return _configuration(now)

    required = served.contents.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(served), changed, required)  # type: ignore[arg-type]  # may be None


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    contents = certificates.contents
    return grpc.ssl_server_certificate_configuration([(contents.key, contents.certificate)], contents.client_ca)
