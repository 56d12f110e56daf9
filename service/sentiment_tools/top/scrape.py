"""Reads a server's metrics page over HTTP."""

import asyncio
import os
import time
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sentiment.errors import BadSettings, SentimentError
from sentiment.security.client_credentials import Credentials, may_send_token
from sentiment_tools.top.figures import Reading, Series

PATH = "/metrics"
# A page has about 1,500 lines a model.
PAGE_BYTES_MAX = 2**25
READ_S_MAX = 5.0


class NoPage(SentimentError):
    """The server does not answer now; it may later."""


class NotAPage(SentimentError):
    """The address does not serve a metrics page of this service, or refuses us."""


class Scraper:
    """Reads the page of one server, over a new connection each time. No proxy is used, no redirection followed."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        """Create without connecting.

        Args:
            address: ``HOST:PORT`` or a URL.
            credentials: TLS and a token, which is sent over https or within this machine only.

        Raises:
            BadSettings: the address is invalid, or a credentials file cannot be used.
        """
        self._tls, self._authorization = credentials.for_http(), credentials.authorization()
        url = address if "://" in address else f"{'https' if self._tls else 'http'}://{address}"
        if not _has_place(url):
            raise BadSettings(f"{address!r} is not an address; give HOST:PORT or a URL, such as 127.0.0.1:8080")
        parts = urlsplit(url)
        if self._tls and parts.scheme == "http":
            raise BadSettings(f"{url}: TLS needs https")
        if self._authorization is not None and not may_send_token(url):
            raise BadSettings(f"{url} is on another machine: a token is sent there over https only")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path if parts.path.strip('/') else PATH}"

    def read(self) -> Reading:
        """Read the page. Not in an event loop.

        Raises:
            NoPage: nothing answers, or the server starts or ends.
            NotAPage: something else answers, or the credentials are refused.
            BadSettings: the file of the token has none any more.
        """
        return asyncio.run(self._read())

    async def _read(self) -> Reading:
        headers = {"Authorization": self._authorization()} if self._authorization else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READ_S_MAX)) as session,
                session.get(self.url, headers=headers, allow_redirects=False, ssl=True if self._tls is None else self._tls) as response,
            ):
                body = b""
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > PAGE_BYTES_MAX:
                        raise NotAPage(f"{self.url}: has more bytes than the limit of {PAGE_BYTES_MAX}")
                return Reading(time.monotonic(), self._samples(response.status, body))
        except TimeoutError as error:
            raise NoPage(f"no answer from {self.url} within {READ_S_MAX:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise NotAPage(f"{self.url}: the server's certificate is not trusted: {error.certificate_error}; --ca names its CA") from error
        except aiohttp.ClientConnectorSSLError as error:
            raise NotAPage(f"{self.url}: TLS fails; a server without it needs an address without https, --tls and --ca") from error
        except aiohttp.ClientResponseError as error:
            raise NotAPage(f"{self.url} does not speak HTTP; --target is the server's HTTP port, such as 127.0.0.1:8080") from error
        except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
            raise NoPage(f"no answer from {self.url}: the connection was closed; a server with TLS needs --tls or --ca") from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoPage(f"no answer from {self.url}: {_reason(error)}") from error

    def _samples(self, status: int, body: bytes) -> dict[str, Series]:
        if status == 401:
            raise NotAPage(f"{self.url} needs a valid token; give one with --token-file or SENTIMENT_CLIENT_TOKEN")
        if status >= 500:
            raise NoPage(f"no answer from {self.url}: status {status}")
        if status != 200:
            raise NotAPage(f"{self.url} answers with status {status}")
        try:
            samples = _parsed(body.decode())
        except ValueError as error:
            raise NotAPage(f"{self.url} is not a metrics page") from error
        if "sentiment_build_info" not in samples:
            raise NotAPage(f"{self.url} has no metrics of a sentiment server")
        return samples


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        # asyncio's own text names the address once more.
        return os.strerror(error.errno or 0)
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _has_place(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parsed(text: str) -> dict[str, Series]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return dict(found)
