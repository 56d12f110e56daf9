"""Virtual time: an asyncio event loop whose timers fire at once, in order, and a clock that they advance."""

import asyncio
import selectors
from dataclasses import dataclass


@dataclass
class VirtualClock:
    """A clock in seconds that replaces ``time.monotonic``. Tests may advance it, which looks like a stalled process."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Where a loop would wait for its next timer, this one advances the clock by that time. It has no sockets to wait for."""

    def __init__(self, clock: VirtualClock) -> None:
        class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]  # differs by platform
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                assert timeout is not None, "the test waits for an event that nothing sets"
                clock.now += max(0.0, timeout)
                return super().select(0)  # type: ignore[no-any-return]  # as above

        self._clock = clock
        super().__init__(Selector())

    def time(self) -> float:
        return self._clock.now
