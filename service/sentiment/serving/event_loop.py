"""An event loop that knows how long it was busy: what it has left before calls wait for it.

At its limit it is so 0.9 s a second and more; 0.8 where gRPC's own threads, for which it then waits, lack cores. What is lost there
``api.grpc.core_calls`` tells.
Not the CPU time of its thread: where cores or the GIL are scarce, a loop is at its limit with a third of one. Nor how late its timers
are: calls that it cannot look at in time wait in gRPC's core, and a loop that lost one of twenty was 1 ms late like an idle one.
"""

import asyncio
import selectors
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Waits(selectors.DefaultSelector):
    """Reckons how long it waited for something to happen."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As asyncio asks: with a timeout of 0 there is work to be done at once."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begun = time.monotonic()
        try:
            return super().select(timeout)
        finally:
            self.waited_s += time.monotonic() - begun


class MeasuredLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, and how long it was busy."""

    def __init__(self) -> None:
        self._waits = _Waits()
        self._begun_at = time.monotonic()
        super().__init__(self._waits)

    @property
    def busy_s(self) -> float:
        """Seconds since its begin that it did not wait in; read it on the loop."""
        return time.monotonic() - self._begun_at - self._waits.waited_s


def stop_signals() -> list[signal.Signals]:
    """What ends a server: SIGTERM, Ctrl-C, and a terminal that goes away, unless somebody had that ignored (nohup)."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hung_up]


def running() -> MeasuredLoop:
    """The one that runs this; a server's was begun by ``run``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop), f"begun otherwise: {loop}"
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a MeasuredLoop."""
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        return runner.run(main)
