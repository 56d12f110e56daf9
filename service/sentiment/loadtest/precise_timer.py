"""An event loop whose timers are true to some ten microseconds: asyncio's own round up to a millisecond, as epoll does."""

import asyncio
import select
import selectors


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop; where there is no epoll, the usual one, whose kqueue counts nanoseconds."""
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class PreciseSelector(selectors.EpollSelector):
        """Waits with select, which counts microseconds, for the one file that stands for all."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(PreciseSelector())
