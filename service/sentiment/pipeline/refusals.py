"""Slows refusals down, so that callers that ask for far too much, and again at once, do not keep the event loop busy with them.

Where cores are scarce, that takes the time of the runners, and more is refused.
"""

import asyncio
import time
from collections.abc import Callable

from sentiment.pipeline.loop_turns import LoopTurns

# Within TURN_S some PER_TURN refusals leave, fewer of long texts, and PER_ANSWER for each text that is answered meanwhile.
PER_TURN, TURN_S, PER_ANSWER = 16, 0.05, 0.5


class Refusals:
    """Lets refusals leave, in the order in which they came. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: the event loop's, in seconds."""
        self._clock = clock
        self._turns = LoopTurns(PER_TURN, TURN_S)

    def answered(self, texts: int = 1) -> None:
        """Texts were answered."""
        self._turns.allow(PER_ANSWER * texts)

    async def wait(self, until: float, rows: int) -> bool:
        """Wait until the refusal of a text of ``rows`` rows may leave. False if that is not before ``until``."""
        try:
            async with asyncio.timeout(until - self._clock()):
                await self._turns.wait(rows)
        except TimeoutError:
            return False
        return True
