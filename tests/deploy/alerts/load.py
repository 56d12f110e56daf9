"""Calls of every kind, good and bad, so that every metric of a server moves."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence

from sentiment.client import AsyncClient, CallFailed

# How often each kind of call is made, out of their sum.
WEIGHTS = {"classify": 80, "impatient": 4, "gone": 4, "wrong": 2, "unknown": 1, "batch": 6, "stream": 3}
BATCH_TEXTS = 16
TIMEOUT_S = 2.0
IMPATIENT_S = 0.02


class Caller:
    """Calls one server until cancelled. Seeded: the same calls in the same order."""

    def __init__(self, client: AsyncClient, texts: Sequence[str], seed: int) -> None:
        self._client, self._texts, self._random = client, texts, random.Random(seed)

    async def call(self, rate: Callable[[], float]) -> None:
        """Make calls at random instants, ``rate`` a second whatever becomes of them, and one explanation after the other."""
        async with asyncio.TaskGroup() as calls:
            calls.create_task(self._explain())
            while True:
                await asyncio.sleep(self._random.expovariate(rate()))
                kind = self._random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
                calls.create_task(self._one(kind))

    def _text(self) -> str:
        return self._random.choice(self._texts)

    async def _one(self, kind: str) -> None:
        client = self._client
        with contextlib.suppress(CallFailed, TimeoutError):
            match kind:
                case "classify":
                    await client.classify(self._text(), timeout_s=TIMEOUT_S)
                case "impatient":
                    await client.classify(self._text(), timeout_s=IMPATIENT_S)
                case "gone":
                    await asyncio.wait_for(client.classify(self._text(), timeout_s=TIMEOUT_S), IMPATIENT_S)
                case "wrong":
                    await client.classify("", timeout_s=TIMEOUT_S)
                case "unknown":
                    await client.classify(self._text(), model="nosuch", timeout_s=TIMEOUT_S)
                case "batch":
                    await client.classify_batch([self._text() for _ in range(BATCH_TEXTS)], timeout_s=TIMEOUT_S)
                case "stream":
                    async for _ in client.classify_stream(self._items()):
                        pass

    async def _items(self) -> AsyncIterator[tuple[str, str]]:
        for number in range(BATCH_TEXTS):
            yield str(number), self._text()

    async def _explain(self) -> None:
        # A long one would take minutes of the time that the other calls leave.
        text = min(self._texts, key=len)
        while True:
            with contextlib.suppress(CallFailed):
                await self._client.explain(text, timeout_s=10 * TIMEOUT_S)
            await asyncio.sleep(0.2)
