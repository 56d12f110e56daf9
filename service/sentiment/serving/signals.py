"""The signals of a process that serves: SIGTERM and SIGINT stop it; SIGHUP stops or reloads it."""

import asyncio
import os
import signal
from collections.abc import Callable


def handle(stop: Callable[[signal.Signals], None], reload: Callable[[], None]) -> None:
    """From now on, call these in the running event loop.

    SIGHUP says that the terminal was closed, and stops a process that has one now; it asks a process without one to reload its files. A
    process in which SIGHUP is ignored (nohup) goes on ignoring it.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, *((stop, signal.SIGHUP) if _has_terminal() else (reload,)))


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal. Once it is closed, the process has none any more."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
