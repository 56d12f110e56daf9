"""What is reloaded while a process runs: TLS and tokens by the settings, for all its ports, and some settings."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sentiment.errors import BadSettings
from sentiment.observability.callers import number_of
from sentiment.observability.logs import logger, set_level
from sentiment.observability.metrics import Metrics
from sentiment.security.certificates import Certificates, TlsFiles, https_context, reloaded_certificates
from sentiment.security.reloaded import Reloaded
from sentiment.security.tokens import Guard, reloaded_tokens
from sentiment.settings import Settings, in_file, reloaded


class Secured:
    """TLS, tokens and settings of a process. Without tokens ``guard`` is None; without TLS ``certificates`` and ``https`` are.

    Other servers of the process use the same certificates, by ``doors.grpc.port.GrpcPort`` or ``secured.https``. They use the same guard,
    or one with tokens of their own from ``guard_of``. ``keep_fresh`` reloads all of them.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Read the files.

        Raises:
            BadSettings: a file cannot be used; the message says which and why.
        """
        self._every_s = settings.reload_s
        self._metrics = metrics
        self._sources: list[Reloaded[Any, Any]] = []  # Any: of any kind
        self._asked = asyncio.Event()
        # As the process has begun.
        self._level = settings.log_level
        self.certificates: Callable[[], Certificates] | None = None
        self.https: ssl.SSLContext | None = None
        if (files := _tls_files(settings)) is not None:
            certificates = reloaded_certificates(files)
            self._sources.append(certificates)
            self.certificates = lambda: certificates.now
            self.https = https_context(certificates)
            metrics.watch_certificate(lambda: certificates.now.expires_at)
        self.guard = self.guard_of(settings.auth_tokens, "auth_tokens", settings.auth_exempt)
        # Of callers, by number, as of now.
        self.weights: dict[int, float] = {}
        # As they are now: the settings file may change some.
        self.settings: Callable[[], Settings] = lambda: settings
        if settings.source.file is not None:
            begun = in_file(settings)
            changing = Reloaded("settings", lambda: in_file(settings), lambda now: reloaded(settings, begun, now))
            self._sources.append(changing)
            self.settings = lambda: changing.now
        self._use()

    def guard_of(self, path: str, setting: str, exempt: Collection[str]) -> Guard | None:
        """A guard with the tokens of a file or folder; None if ``path`` is empty. For the arguments see ``reloaded_tokens`` and ``Guard``.

        Raises:
            BadSettings: the file or folder cannot be used.
        """
        if not path:
            return None
        tokens = reloaded_tokens(Path(path), setting)
        self._sources.append(tokens)
        return Guard(lambda: tokens.now, exempt, lambda transport: self._metrics.unauthenticated.labels(transport).inc())

    async def keep_fresh(self) -> None:
        """Reload all files every ``reload_s`` seconds, and when asked to, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._asked.wait()
                    for source in self._sources:
                        source.say_again()
            self._asked.clear()
            for source in self._sources:
                try:
                    useful = await asyncio.to_thread(source.look)
                except Exception:  # whatever happened, the next reload may succeed
                    logger().exception("reload_failed", files=source.what)
                    useful = False
                if not useful:
                    self._metrics.reload_failures.labels(source.what).inc()
            self._use()

    def _use(self) -> None:
        """Tell those who do not look at each use."""
        if (level := self.settings().log_level) != self._level:
            self._level = level
            set_level(level)
        if self.guard is not None:
            weights = self.guard.weights
            self._metrics.count_callers(weights.keys())
            self.weights.clear()
            self.weights.update({number_of(name): weight for name, weight in weights.items()})

    def reload(self) -> None:
        """Reload all files soon. Call it in the event loop."""
        logger().info("reloading", files=[source.what for source in self._sources])
        self._asked.set()


def _tls_files(settings: Settings) -> TlsFiles | None:
    certificate, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    if bool(certificate) is not bool(key):
        raise BadSettings(f"tls_cert_file = '{certificate}' and tls_key_file = '{key}': one of them is empty; set both or neither")
    if client_ca and not certificate:
        raise BadSettings(f"tls_client_ca_file = '{client_ca}': client certificates need TLS; set tls_cert_file too")
    return TlsFiles(Path(certificate), Path(key), Path(client_ca) if client_ca else None) if certificate else None
