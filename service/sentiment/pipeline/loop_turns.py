"""Shares the turns of the event loop between calls that have much to do in it."""

import asyncio
from collections import deque


class LoopTurns:
    """Lets work go on in each turn of the event loop up to a limit, in the order in which it came."""

    def __init__(self, per_turn: int) -> None:
        """``per_turn``: how much work, in any unit, begins in a turn; what begins last may exceed it."""
        self._per_turn = self._left = per_turn
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._soon = False

    async def wait(self, work: int = 1) -> None:
        """Wait for a turn with room. ``work``: how much is to be done in it."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            self._soon = True
            loop.call_soon(self._next)
        if self._left > 0 and not self._waiting:
            self._left -= work
            return
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append((place, work))
        await place

    def _next(self) -> None:
        self._left = self._per_turn
        while self._left > 0 and self._waiting:
            place, work = self._waiting.popleft()
            # Its task may have been cancelled.
            if not place.done():
                place.set_result(None)
                self._left -= work
        self._soon = bool(self._waiting)
        if self._soon:
            asyncio.get_running_loop().call_soon(self._next)
