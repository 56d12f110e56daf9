"""An event loop that measures how long it was busy, which shows how close it is to saturation.

A saturated loop is busy for 0.9 s of each second or more; 0.8 s where gRPC's own threads lack cores and the loop waits for them. Calls
that are lost then are counted by ``doors.grpc.core_calls``.

Two other measures do not work. CPU time of the thread: where cores or the GIL are scarce, a saturated loop uses a third of a core.
Lateness of timers: calls wait in gRPC's core, and a loop that lost one call of twenty was 1 ms late, like an idle one.
"""

import asyncio
import selectors
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
# How long a thread that waits for the GIL lets another one keep it; Python's default is 5 ms. The event loop, gRPC's threads and the
# runners hand each text over to one another. See docs/internals/performance.md.
SWITCH_INTERVAL_S = 1e-4
# Time over which ``busy_share`` is measured.
SHARE_WINDOW_S = 0.1


class _Waits(selectors.DefaultSelector):
    """Adds up how long it waited for events."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as asyncio asks. A timeout of 0 is not counted as waiting: the loop has work to do."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begun = time.monotonic()
        try:
            return super().select(timeout)
        finally:
            self.waited_s += time.monotonic() - begun


class MeasuredLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop, with its busy time."""

    def __init__(self) -> None:
        self._waits = _Waits()
        self._begun_at = time.monotonic()
        # Instant and busy time at the start of the current window, and the share of the last one.
        self._window = self._begun_at, 0.0
        self._share = 0.0
        super().__init__(self._waits)

    @property
    def busy_s(self) -> float:
        """Seconds since its creation in which it did not wait for events; read it on the loop."""
        return time.monotonic() - self._begun_at - self._waits.waited_s

    def busy_share(self) -> float:
        """The share of a tenth of a second, or of the time since the last call if that is longer, in which it was busy, 0 to 1."""
        now = time.monotonic()
        begun_at, busy_s = self._window
        if now - begun_at >= SHARE_WINDOW_S:
            self._share = (self.busy_s - busy_s) / (now - begun_at)
            self._window = now, self.busy_s
        return self._share


def running() -> MeasuredLoop:
    """The running loop, which must come from ``run``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop), f"not started by event_loop.run: {loop}"
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a MeasuredLoop, in a process whose threads switch quickly."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        return runner.run(main)
