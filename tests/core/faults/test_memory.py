"""Processes that run out of memory"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from sentiment.client import CallFailed
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.groups import group
from tests.core.faults.test_rollout import both
from tests.core.servers import Server

Serve = Callable[..., Server]
# How much more memory a process may take. A few dozen large calls take many times that.
MORE_MB = 24
LARGE = ["a film " * 500] * 1000
KILLED = -9


def send_batch(server: Server) -> None:
    with server.client() as client, contextlib.suppress(CallFailed):
        client.classify_batch(LARGE, timeout_s=5)


@contextlib.contextmanager
def large_calls(server: Server, callers: int = 8) -> Iterator[None]:
    """Callers that send the largest allowed batches, and ignore how they end."""
    going = True

    def ask() -> None:
        while going:
            send_batch(server)
            time.sleep(0.05)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        going = False
        for thread in threads:
            thread.join(30)


def test_the_kernel_kills_a_server_for_its_memory(serve_two: Callable[..., list[Server]], evidence: Evidence) -> None:
    """No more calls are lost than by any kill -9.

    Two servers are behind our client, under load. One is put into a cgroup in which it may take 24 MB more, without swap, and gets
    batches of 3.5 MB until the kernel kills it. No more calls are lost than by any ``kill -9``.
    """
    servers = serve_two()
    with group("server") as limited, Callers(both(servers)) as callers:
        callers.wait(200)
        limited.enter(servers[0].process.pid, MORE_MB)
        begun = time.monotonic()
        with large_calls(servers[0]):
            assert servers[0].process.wait(60) == KILLED
        killed = time.monotonic()
        assert limited.kills == 1
        callers.wait(200)

    evidence.judge(callers.fates, may=["UNAVAILABLE"])
    evidence.measured["killed after, s"] = round(killed - begun, 1)
    evidence.measured["longest call about the kill, ms"] = round(callers.fates.between(killed - 1, killed + 1).seconds(1) * 1e3, 1)
