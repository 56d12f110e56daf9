"""A long run"""

import asyncio
import itertools
import os
import statistics
import threading
from collections import Counter
from collections.abc import Callable

import grpc
import pytest

from sentiment.client import Client
from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.results import CANCELLED_BY_US, Point
from sentiment_tools.loadtest.worker import UNFINISHED
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.texts import read_pool
from tests.conftest import PLAIN
from tests.core.faults.english import ENGLISH, capacity, texts_with_scores
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.raw import CLASSIFY
from tests.core.faults.seen import Seen, nothing_waits
from tests.core.servers import Server, until

Serve = Callable[..., Server]
SECONDS = float(os.environ.get("SOAK_S") or 60)
# Memory is compared after this: by then allocators, caches of shapes and free lists have their size.
WARM_UP_S = SECONDS / 6
# Growth is only judged in runs of at least this length. In shorter ones, the first long explanations take more than a leak would.
LONG_S = 1800.0
GROWTH_MAX = 0.01
TIMEOUT_S = (0.3, 5.0)
REFUSALS = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
# For the load tester, all with deadlines from 0.3 to 5 s: a share of the capacity in texts, and the mix of calls.
MIXES = (
    (0.25, Mix(TIMEOUT_S, cancel=0.2, explain=0.01)),
    (0.15, Mix(TIMEOUT_S, per_call=16, cancel=0.1)),
    (0.10, Mix(TIMEOUT_S, stream=True, cancel=0.1)),
)


class Visitors:
    """A thread that twenty times a second connects, sends a malformed call and leaves; counts the status codes."""

    def __init__(self, server: Server) -> None:
        self.statuses: Counter[str] = Counter()
        self._server, self._leave = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._leave.set()
        self._thread.join(60)

    def _run(self) -> None:
        wrong = itertools.cycle([b"", b"\xff\xff", b"\x0a\x02  ", b"\x0a\x02\xff\xfe", b"\x0a\x04good\x1a\x06nosuch"])
        while not self._leave.wait(0.05):
            with grpc.insecure_channel(self._server.target, PLAIN) as channel:
                try:
                    channel.unary_unary(CLASSIFY)(next(wrong), timeout=10)
                    self.statuses["OK"] += 1
                except grpc.RpcError as error:
                    self.statuses[error.code().name] += 1


class Series:
    """A thread that records the server's memory, files and threads once a second."""

    def __init__(self, server: Server) -> None:
        self.points: list[tuple[float, int, int]] = []
        self._seen, self._leave = Seen(server.process.pid), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._leave.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._leave.wait(1.0):
            self.points.append((self._seen.rss_mb, self._seen.files, self._seen.threads))


async def load(server: Server, can: float, seconds: float) -> list[Point]:
    texts = read_pool("mixed")

    async def hold(share: float, mix: Mix) -> Point:
        async with Fleet(Target(server.target), mix, texts, TIMEOUT_S[1], processes=1) as fleet:
            return await fleet.measure(Poisson(share * can / mix.per_call), seconds)

    return await asyncio.gather(*(hold(share, mix) for share, mix in MIXES))


@pytest.mark.thorough
def test_a_soak(serve: Serve, evidence: Evidence) -> None:
    """Files and threads do not grow; memory at most 1 %.

    SOAK_S seconds (default 60) of mixed calls to the default bundle, at half of its capacity: single texts, batches, streams and
    explanations, some of which are cancelled; callers that check every answer; and twenty connections a second that send malformed calls.
    The longest text is explained first, and the first sixth is warm-up. Memory is compared by the medians of the first and last tenth of
    the rest: in runs of half an hour or more it may grow by 1 %, in shorter ones it is only recorded. Files and threads may not grow.
    """
    server = serve(*ENGLISH)
    checked = texts_with_scores(server.target, 32)
    can = capacity(server.target, read_pool("mixed"), 4.0)
    with Client(server.target) as client:
        client.explain(max(read_pool("mixed"), key=len), timeout_s=50)
    visitors, series = Visitors(server), Series(server)
    try:
        with Callers(server.target, callers=2, texts=checked, pause_s=0.2) as callers:
            points = asyncio.run(load(server, can, SECONDS))
    finally:
        visitors.end()
        series.end()
    until(lambda: nothing_waits(server), "nothing waits")

    judge(evidence, series.points)
    evidence.judge(callers.fates, may=REFUSALS)
    sent = sum((Counter(point.outcomes) for point in points), Counter[str]())
    evidence.measured["calls of the load tester by outcome"] = ", ".join(f"{name} {number}" for name, number in sorted(sent.items()))
    evidence.measured["malformed calls by outcome"] = ", ".join(f"{name} {number}" for name, number in sorted(visitors.statuses.items()))
    # Explanations may still be running when the load tester ends.
    assert set(sent) <= {"OK", CANCELLED_BY_US, UNFINISHED, *REFUSALS}, [point.messages for point in points]
    assert set(visitors.statuses) <= {"INVALID_ARGUMENT", "NOT_FOUND"}, visitors.statuses


def judge(evidence: Evidence, points: list[tuple[float, int, int]]) -> None:
    """Record memory, files and threads, and check that they did not grow after the warm-up."""
    rest = points[int(WARM_UP_S) :]
    tenth = max(1, len(rest) // 10)

    def median(part: list[tuple[float, int, int]], which: int) -> float:
        return statistics.median(point[which] for point in part)

    first, last = (median(part, 0) for part in (rest[:tenth], rest[-tenth:]))
    growth = last / first - 1
    evidence.measured |= {
        "seconds": round(SECONDS),
        "memory at the start, after the warm-up, at the end, at most, MB": ", ".join(
            f"{value:.1f}" for value in (points[0][0], first, last, max(point[0] for point in points))
        ),
        "growth after the warm-up, %": round(growth * 100, 2),
        "files after the warm-up and at the end": f"{median(rest[:tenth], 1):.0f}, {median(rest[-tenth:], 1):.0f}",
        "threads after the warm-up and at the end": f"{median(rest[:tenth], 2):.0f}, {median(rest[-tenth:], 2):.0f}",
    }
    assert SECONDS < LONG_S or growth < GROWTH_MAX
    # The visitors' connections are open for a moment each.
    assert median(rest[-tenth:], 1) <= median(rest[:tenth], 1) + 5
    assert median(rest[-tenth:], 2) <= median(rest[:tenth], 2) + 2
