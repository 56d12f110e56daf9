"""Shares the turns of the event loop between calls that have much to do in it."""

import asyncio
from collections import deque


class LoopTurns:
    """Lets work go on in each turn of the event loop up to a limit, in the order in which it came."""

    def __init__(self, per_turn: int, apart_s: float = 0.0) -> None:
        """``per_turn``: how much work, in any unit, begins in a turn; what begins last may exceed it. ``apart_s``: from one to the next."""
        self._per_turn = self._left = per_turn
        self._apart_s = apart_s
        self._more = 0.0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._soon = False

    async def wait(self, work: int = 1) -> None:
        """Wait for a turn with room. ``work``: how much is to be done in it."""
        loop = asyncio.get_running_loop()
        if not self._soon:
            self._more = 0.0
            self._turn_later(loop)
        if self._left > 0 and not self._waiting:
            self._left -= work
            return
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append((place, work))
        await place

    def allow(self, more: float) -> None:
        """Give the next turn more room."""
        self._more += more

    def _turn_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon = True
        if self._apart_s:
            loop.call_later(self._apart_s, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        self._left = self._per_turn + int(self._more)
        self._more = 0.0
        while self._left > 0 and self._waiting:
            place, work = self._waiting.popleft()
            # Its task may have been cancelled.
            if not place.done():
                place.set_result(None)
                self._left -= work
        self._soon = False
        if self._waiting:
            self._turn_later(asyncio.get_running_loop())
