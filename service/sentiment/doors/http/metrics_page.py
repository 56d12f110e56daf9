"""Renders /metrics. Rendering blocks the event loop, so it may use only a share of the loop's time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

# Maximum share of the event loop's time, for all scrapers together. Without it, 20 scrapers without pause delayed calls by seconds.
SHARE_MAX = 0.2
OPENMETRICS = "application/openmetrics-text"

Body = tuple[bytes, str]


class Scrapes:
    """Renders one page at a time, for all waiting scrapers at once, then pauses in proportion to the time that it took."""

    def __init__(self, ask: Callable[[], Awaitable[CollectorRegistry]]) -> None:
        """``ask`` returns the metrics to render; it may query other processes."""
        self._ask = ask
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        # Pages that have not been started, by format. All scrapers that arrive before the start share one.
        self._next: dict[str, asyncio.Task[Body]] = {}

    async def make(self, accept: str) -> Body:
        """A page that is rendered after this call, and its Content-Type. Cancelling this does not affect other callers.

        Args:
            accept: the Accept header. Only two formats are supported, each in one version, because each format needs a page of its own.
        """
        form = _form(accept)
        body = self._next.get(form)
        if body is None:
            body = self._next[form] = asyncio.create_task(self._make(form))
        return await asyncio.shield(body)

    async def _make(self, form: str) -> Body:
        async with self._turn:
            await asyncio.sleep(self._free_at - time.monotonic())
            # Scrapers that arrive from now on get the next page.
            del self._next[form]
            registry = await self._ask()
            encode, content_type = choose_encoder(form)
            begun = time.monotonic()
            body = encode(registry)
            ended = time.monotonic()
            self._free_at = ended + (1 / SHARE_MAX - 1) * (ended - begun)
        return body, content_type


def _form(accept: str) -> str:
    """OPENMETRICS if the client accepts it, else "" for plain text."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The version is malformed.
        return ""
    return OPENMETRICS if content_type.startswith(OPENMETRICS) else ""
