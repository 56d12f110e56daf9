"""How /metrics is made: by the event loop, which calls wait for, and so never for more than a part of its time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

# Of the event loop's time, at most, however many scrape: with 20 that did so without pause calls waited for seconds.
SHARE_MAX = 0.2
OPENMETRICS = "application/openmetrics-text"

Body = tuple[bytes, str]


class Scrapes:
    """One is made at a time, for all that wait for it, with a pause that its own length demands: a crowd waits as long as one does."""

    def __init__(self, ask: Callable[[], Awaitable[CollectorRegistry]], share_max: float = SHARE_MAX) -> None:
        """Nothing is made yet.

        Args:
            ask: gives what is to be shown; asks other processes for it, maybe.
            share_max: of the time of the event loop.
        """
        self._ask = ask
        self._pauses = 1 / share_max - 1
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        # Those that have not begun, by form: whoever comes before that gets the same one.
        self._next: dict[str, asyncio.Task[Body]] = {}

    async def make(self, accept: str) -> Body:
        """A body that is not older than this call, and its Content-Type. Who leaves takes it from nobody.

        Args:
            accept: the header. Only two forms are made, each in one version: with more there would be as many turns.
        """
        form = _form(accept)
        body = self._next.get(form)
        if body is None:
            body = self._next[form] = asyncio.create_task(self._make(form))
        return await asyncio.shield(body)

    async def _make(self, form: str) -> Body:
        async with self._turn:
            await asyncio.sleep(self._free_at - time.monotonic())
            # Whoever comes from now on gets the following one.
            del self._next[form]
            registry = await self._ask()
            encode, content_type = choose_encoder(form)
            begun = time.monotonic()
            body = encode(registry)
            ended = time.monotonic()
            self._free_at = ended + self._pauses * (ended - begun)
        return body, content_type


def _form(accept: str) -> str:
    """OPENMETRICS if it is asked for, else nothing: plain text."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is none.
        return ""
    return OPENMETRICS if content_type.startswith(OPENMETRICS) else ""
