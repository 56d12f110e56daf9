"""Keeps calls out of gRPC while the process forks, and says in a forked process why gRPC cannot work there.

gRPC survives a fork only if no thread is inside it at that instant: else it leaves its locks and connections to the new process as they
are, which then ends in SIGSEGV or hangs, even if it never calls. Of twenty processes forked beside three calling threads, four to seven
ended so (grpcio 1.85), and none with these hooks. What gRPC does by itself before and after a fork follows.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from sentiment.client.results import CallFailed

# How long a fork waits for the calls of other threads: the default timeout of a call. gRPC waits as long for threads of its own.
WAIT_S = 5.0
# Switches gRPC's own work at a fork off, where it has one of these values.
SWITCH = "GRPC_ENABLE_FORK_SUPPORT"
OFF = ("0", "f", "false", "n", "no")
REMEDY = "start processes by multiprocessing's spawn or forkserver, or fork before the first client is made"


class Forks:
    """A fork waits for calls under way, and a call waits for a fork. For any thread. There is one for the process, FORKS."""

    def __init__(self) -> None:
        self._used = False
        self._poller_owners: weakref.WeakSet[object] = weakref.WeakSet()
        self._why = ""
        self._begin()

    def _begin(self) -> None:
        # Its lock is reentrant: a signal's handler may fork.
        self._changed = threading.Condition()
        self._calls = 0
        self._forks = 0

    def check(self) -> None:
        """Refuse where gRPC cannot work. Call it before a channel is made, which a fork has to know.

        Raises:
            RuntimeError: gRPC cannot work in this process since the fork. The message says why.
        """
        if self._why:
            raise RuntimeError(f"{self._why}, and gRPC does not work in the new process: {REMEDY}")
        self._used = True

    def asynchronous(self, owner: object) -> None:
        """Say that ``owner`` has a channel of asyncio. Until it is closed or gone, gRPC has a thread that never rests."""
        self._poller_owners.add(owner)

    def closed(self, owner: object) -> None:
        """Say that the channel of ``owner`` is closed."""
        self._poller_owners.discard(owner)

    @contextmanager
    def call(self, deadline_at: float) -> Iterator[None]:
        """Around a call. Raises as ``enter`` does."""
        self.enter(deadline_at)
        try:
            yield
        finally:
            self.leave()

    def enter(self, deadline_at: float) -> None:
        """Begin a call, which must be left.

        Raises:
            CallFailed: DEADLINE_EXCEEDED: a fork waited for other calls until the deadline.
            RuntimeError: as in ``check``.
        """
        self.check()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._forks, max(0.0, deadline_at - time.monotonic())):
                raise CallFailed(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    "the call did not begin within its timeout: the process forks, and waits for calls of other threads to end",
                )
            self._calls += 1

    def leave(self) -> None:
        """End a call that was entered."""
        with self._changed:
            self._calls -= 1
            if self._forks:
                self._changed.notify_all()

    def before(self) -> None:
        """Let no more calls in, and wait at most WAIT_S for those that are."""
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._calls, WAIT_S)

    def in_parent(self) -> None:
        """Let calls in again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def in_child(self) -> None:
        """Reset in the child process, which has no threads of its parent, and check whether gRPC works."""
        self._why = self._why or self._reason()
        self._begin()

    def _reason(self) -> str:
        if not self._used:
            return ""
        if os.environ.get(SWITCH, "").lower() in OFF:
            return f"this process was forked with {SWITCH}={os.environ[SWITCH]}"
        if len(self._poller_owners):
            return "this process was forked while an AsyncClient was open"
        if self._calls:
            return f"this process was forked while calls of other threads took longer than {WAIT_S:g} s"
        return ""


FORKS = Forks()
# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=FORKS.before, after_in_parent=FORKS.in_parent, after_in_child=FORKS.in_child)
