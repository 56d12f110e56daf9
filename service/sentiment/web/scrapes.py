"""How /metrics is made: by the event loop, which calls wait for, and so never for more than a part of its time."""

import asyncio
import time
from collections.abc import Callable

# Of the event loop's time, at most, however many scrape: with 20 that did so without pause calls waited for seconds.
SHARE_MAX = 0.2


class Scrapes:
    """One is made at a time, in order, with a pause that its own length demands."""

    def __init__(self, share_max: float = SHARE_MAX) -> None:
        self._pauses = 1 / share_max - 1
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def make(self, encode: Callable[[], bytes]) -> bytes:
        """What ``encode`` gives, when it is its turn. Who leaves before gives his turn to the next."""
        async with self._turn:
            await asyncio.sleep(self._free_at - time.monotonic())
            begun = time.monotonic()
            body = encode()
            ended = time.monotonic()
            self._free_at = ended + self._pauses * (ended - begun)
        return body
