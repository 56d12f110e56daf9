"""Processes whose memory ends"""

import contextlib
import http.client
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

from sentiment.client import CallFailed
from tests.faults.evidence import Evidence
from tests.faults.fates import Callers
from tests.faults.groups import group
from tests.faults.seen import MB, until
from tests.faults.test_rollout import both
from tests.front_ends.servers import Server

Serve = Callable[..., Server]
# So much more than it has; what a few dozen large calls take is many times that.
MORE_MB = 24
LARGE = ["a film " * 500] * 1000
BODY = b" " * (20 * MB)
KILLED = -9


def send_batch(server: Server) -> None:
    with server.client() as client, contextlib.suppress(CallFailed):
        client.classify_batch(LARGE, timeout_s=5)


def send_body(server: Server) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(server.url + "/v1/classify", BODY, timeout=5)


@contextlib.contextmanager
def large_calls(server: Server, send: Callable[[Server], None], callers: int = 8) -> Iterator[None]:
    """Callers who send the largest that there may be, whatever becomes of it."""
    going = True

    def ask() -> None:
        while going:
            send(server)
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


def test_the_kernel_kills_a_server_for_its_memory(serve: Serve, evidence: Evidence) -> None:
    """Two servers behind our client, under load. One is put into a cgroup in which it may take 24 MB more than it has, without swap, and
    is sent batches of 3.5 MB until the kernel kills it: no more is lost than by any ``kill -9``.
    """
    servers = [serve() for _ in range(2)]
    with group("server") as limited, Callers(both(servers)) as callers:
        callers.wait(200)
        limited.enter(servers[0].process.pid, MORE_MB)
        begun = time.monotonic()
        with large_calls(servers[0], send_batch):
            assert servers[0].process.wait(60) == KILLED
        killed = time.monotonic()
        assert limited.kills == 1
        callers.wait(500)

    evidence.count(callers.fates)
    evidence.measured["killed after, s"] = round(killed - begun, 1)
    evidence.measured["longest call about the kill, ms"] = round(callers.fates.between(killed - 1, killed + 1).seconds(1) * 1e3, 1)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) <= {"answered", "wrong", "never told", "UNAVAILABLE"}


def test_the_kernel_kills_an_executor_for_its_memory(serve: Serve, evidence: Evidence) -> None:
    """A server of two front ends, under load. Its executor is put into a cgroup in which it may take 24 MB more than it has, and is sent
    bodies of 20 MB over HTTP until the kernel kills it. The supervisor replaces it; callers are told UNAVAILABLE until it is there.
    """
    server = serve("--front-ends", "2")
    with group("executor") as limited, Callers(server.target, channels=4) as callers:
        callers.wait(200)
        executor = server.pid("executor")
        limited.enter(executor, MORE_MB)
        with large_calls(server, send_body):
            line = server.wait_for("process_ended", ended="executor")
            killed = time.monotonic()
        assert (line["code"], line["replaced"], limited.kills) == (KILLED, True, 1)
        until(lambda: server.pid("executor") != executor, "another one is started")
        callers.wait(200)
        first = min(ended for begun, ended, fate in callers.fates.calls if fate == "answered" and begun > killed)

    evidence.count(callers.fates)
    evidence.measured["answered again after, s"] = round(first - killed, 2)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) <= {"answered", "wrong", "never told", "UNAVAILABLE"}
