"""More load than a server can carry"""

import asyncio
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.call.status import PUSHBACK
from sentiment.doors.grpc.health import LIVENESS
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.results import CANCELLED_BY_US, OK, Point
from sentiment_tools.traffic.arrivals import Poisson
from sentiment_tools.traffic.texts import read_pool
from tests.conftest import NO_RETRIES, PLAIN
from tests.core.faults.english import capacity, texts_with_scores
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import ANSWERED, HUNG, Callers, Fates
from tests.core.faults.seen import Seen, nothing_waits
from tests.core.servers import PATIENCE_S, Server, until

OBJECTIVE_S = 0.5
TIMES = 3.0
ASKED = 8
REFUSALS = {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass
class Watched:
    """Observations under load: durations of probes, memory, and refusals with and without a retry hint."""

    probes_s: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    hinted: int = 0
    unhinted: int = 0


@contextmanager
def watching(server: Server) -> Iterator[Watched]:
    """Beside the load, eight times a second: a health check, /healthz, and a call whose refusal is examined."""
    found, going, seen, failures = Watched(), True, Seen(server.process.pid), []

    def look() -> None:
        try:
            with grpc.insecure_channel(server.target, PLAIN) as channel:
                while going:
                    found.rss_mb.append(seen.rss_mb)
                    begun = time.monotonic()
                    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=LIVENESS), timeout=PATIENCE_S)
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
                    with urllib.request.urlopen(server.url + "/healthz", timeout=PATIENCE_S) as response:
                        assert response.status == 200
                    found.probes_s.append(time.monotonic() - begun)
                    ask(channel, found)
                    time.sleep(0.125)
        except BaseException as error:  # handed to the test
            failures.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield found
    going = False
    thread.join(PATIENCE_S)
    assert not failures, failures


def ask(channel: grpc.Channel, found: Watched) -> None:
    """Several at a time: some of them are refused in a few seconds, however long the queue is at that moment."""
    stub: Any = pb_grpc.SentimentServiceStub(channel)
    request = pb.ClassifyRequest(text="a film that is good " * 40)
    for call in [stub.Classify.future(request, timeout=OBJECTIVE_S) for _ in range(ASKED)]:
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            trailers = dict(call.trailing_metadata())
            hinted = PUSHBACK in trailers and b"RetryInfo" in trailers["grpc-status-details-bin"]
            found.hinted, found.unhinted = found.hinted + hinted, found.unhinted + (not hinted)


async def load(server: Server, rate: float, seconds: float) -> Point:
    async with Fleet(Target(server.target), Mix((OBJECTIVE_S, OBJECTIVE_S)), read_pool("mixed"), OBJECTIVE_S, processes=1) as fleet:
        return await fleet.measure(Poisson(rate), seconds, warm_up_s=0.5)


def fates_of(point: Point) -> Fates:
    """The load tester's calls, whose answers it does not check. Calls that it gave up after their deadline count as hung."""
    names = {OK: ANSWERED, CANCELLED_BY_US: HUNG}
    return Fates([(0.0, 0.0, names.get(code, code)) for code, number in point.outcomes.items() for _ in range(number)])


def overload(server: Server, evidence: Evidence, seconds: float) -> float:
    """Overload the server. Returns what it answers in time, as a share of its capacity."""
    checked = texts_with_scores(server.target, 32)
    can = capacity(server.target, read_pool("mixed"), max(1.0, seconds / 6))
    with watching(server) as watched, Callers(server.target, callers=2, timeout_s=OBJECTIVE_S, texts=checked, pause_s=0.05) as callers:
        before = watched.rss_mb[0] if watched.rss_mb else Seen(server.process.pid).rss_mb
        rate = TIMES * can
        point = asyncio.run(load(server, rate, seconds))
        while "RESOURCE_EXHAUSTED" not in point.outcomes or not watched.hinted:
            # The machine had less to give when the capacity was measured.
            rate *= 2
            assert rate < 100 * can, "no load is refused"
            point = asyncio.run(load(server, rate, seconds))
        ended = time.monotonic()
        until(lambda: nothing_waits(server), "nothing waits")
        callers.wait(20)
        alone = time.monotonic()
        callers.wait(20)
    after = callers.fates.between(alone, time.monotonic())
    evidence.judge(fates_of(point), callers.fates, may=REFUSALS)
    evidence.measured |= {
        "capacity, texts/s": round(can, 1),
        "load, texts/s": round(rate, 1),
        "answered in time over capacity": round(point.goodput_per_s / can, 3),
        "p99 of the answers, ms": round(point.percentile(99) * 1e3),
        "refusals examined, all with a retry hint": watched.hinted,
        "health probes answered": len(watched.probes_s),
        "slowest pair of them, ms": round(max(watched.probes_s) * 1e3),
        "memory before, at most, after, MB": f"{before:.0f}, {max(watched.rss_mb):.0f}, {Seen(server.process.pid).rss_mb:.0f}",
        "two callers get 20 answers after, s": round(alone - ended, 2),
        "p99 of them then, ms": round(after.seconds(0.99) * 1e3),
    }
    if point.client_limited:
        evidence.measured["the load tester was a limit itself"] = point.client_limited
    assert watched.unhinted == 0
    assert max(watched.rss_mb) < before + 512
    return point.goodput_per_s / can


@pytest.mark.parametrize("seconds", [2.5, pytest.param(60.0, marks=pytest.mark.thorough)])
def test_three_times_its_capacity(english: Server, evidence: Evidence, seconds: float) -> None:
    """The surplus is refused or expires.

    The default bundle gets texts as long as sentences and reviews, with deadlines of 0.5 s, at three times the rate that it answers to
    64 callers in a closed loop, and at more if none is refused. The load comes from another process for 2.5 s or a minute, in an open loop.
    """
    share = overload(english, evidence, seconds)

    # ``make faults`` runs the longer one, with no other test beside it.
    assert share > 0.3 or seconds < 60


def test_batches_that_do_not_fit_into_their_deadlines(english: Server, evidence: Evidence) -> None:
    """Each is answered in time, with errors for the rest.

    The default bundle gets batches of 256 texts of 512 tokens, one after the other, with deadlines of 2 s, in which it can answer a part
    of one. Each batch gets its answers within its deadline, and the items without one an error each.
    """
    batch = pb.ClassifyBatchRequest(
        items=[pb.Item(text="the plot was not really good but the actors were fine and I liked it " * 40)] * 256
    )
    items: Counter[str] = Counter()
    with (
        Callers(english.target, callers=1, pause_s=0.02, texts=texts_with_scores(english.target, 8)) as others,
        grpc.insecure_channel(english.target, [*NO_RETRIES, ("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        others.wait(20)
        for _ in range(3):
            response = pb_grpc.SentimentServiceStub(channel).ClassifyBatch(batch, timeout=2)
            codes = [CODE_NAMES[result.error.code] for result in response.results]
            assert len(codes) == 256
            assert "OK" in codes
            items.update(codes)
        others.wait(20)

    evidence.judge(others.fates)
    evidence.measured |= {f"items that ended with {code}": number for code, number in sorted(items.items())}
    assert set(items) <= {"OK", *REFUSALS}
    assert items["OK"] < items.total()
