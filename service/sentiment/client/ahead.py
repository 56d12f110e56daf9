"""Calls for many texts that run while others are read, first in first out. What follows a call, such as retries, is its ``finish``."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sentiment.client.results import Result


class AsyncAhead:
    """Calls of asyncio, each with what follows it in a task."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Any, asyncio.Task[list[Result]]]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, begun: Any, finish: Callable[[Any], Coroutine[Any, Any, list[Result]]]) -> None:  # a grpc.aio call
        """Add a call that has begun."""
        self._under_way.append((begun, asyncio.create_task(finish(begun))))

    async def first(self) -> list[Result]:
        """Wait for the results of the first."""
        results = await self._under_way[0][1]
        self._under_way.popleft()
        return results

    async def cancel(self) -> None:
        """Cancel those that are left, and wait for their end."""
        for begun, task in self._under_way:
            begun.cancel()
            task.cancel()
        await asyncio.gather(*(task for _, task in self._under_way), return_exceptions=True)


class Ahead:
    """Futures of gRPC, which run by themselves. What follows one runs when it is the first."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Any, Callable[[Any], list[Result]]]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, begun: Any, finish: Callable[[Any], list[Result]]) -> None:  # a grpc.Future, which its stubs do not type
        """Add a call that has begun."""
        self._under_way.append((begun, finish))

    def first(self) -> list[Result]:
        """The results of the first."""
        begun, finish = self._under_way.popleft()
        return finish(begun)

    def cancel(self) -> None:
        """Cancel those that are left."""
        for begun, _ in self._under_way:
            begun.cancel()
