"""An event loop whose timers are exact to some ten microseconds. asyncio's own round up to a millisecond, because epoll does."""

import asyncio
import select
import selectors


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the loop. Without epoll it is the usual one, whose kqueue counts nanoseconds."""
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class PreciseSelector(selectors.EpollSelector):
        """Waits with select, which counts microseconds, for the epoll file descriptor, which stands for all others."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(PreciseSelector())
