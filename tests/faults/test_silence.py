"""Servers that freeze, and peers that vanish without a word"""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient
from tests.conftest import PLAIN
from tests.faults.evidence import Evidence
from tests.faults.fates import ANSWERED, HUNG, TEXTS, WRONG, Callers, Fates, fate_of
from tests.faults.namespace import Apart, ip
from tests.faults.test_rollout import WATCHING, across, both, ms, wait_asked, wait_stuck
from tests.front_ends.servers import PATIENCE_S, Server

Serve = Callable[..., Server]
DEADLINE_EXCEEDED, UNAVAILABLE = "DEADLINE_EXCEEDED", "UNAVAILABLE"
# Ours are 10 s and 5 s; a server accepts no pings so frequent unless told.
KEEPALIVE = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 1000), ("grpc.http2.ping_timeout_ms", 1000)]
PINGED = ("--keepalive-min-ping-s", "0.5")
NO_KEEPALIVE = [(name, 2**31 - 1) for name, _ in KEEPALIVE]


@pytest.fixture
def apart() -> Iterator[Apart]:
    with Apart() as namespace:
        yield namespace


def wait_quiet(callers: Callers, quiet_s: float = 1.5) -> float:
    """Until calls have only been answered for so long; returns when the last one began that was not."""
    end = time.monotonic() + PATIENCE_S
    while True:
        callers.wait(10)
        last = max((begun for begun, _, fate in list(callers.fates.calls) if fate != ANSWERED), default=-math.inf)
        if time.monotonic() - last > quiet_s:
            return last
        assert time.monotonic() < end, callers.fates.counts()
        time.sleep(0.05)


def test_one_of_two_servers_freezes(serve: Serve, evidence: Evidence) -> None:
    """SIGSTOP of one of two servers under load, callers with deadlines of 0.5 s and a client as ours but with pings every second that wait
    for a second; when no call has failed for 1.5 s, SIGCONT.
    """
    servers = [serve(*PINGED) for _ in range(2)]
    with Callers(both(servers), timeout_s=0.5, options=KEEPALIVE, pause_s=0.005) as callers:
        callers.wait(500)
        frozen = time.monotonic()
        servers[0].process.send_signal(signal.SIGSTOP)
        callers.wait(1, DEADLINE_EXCEEDED)
        last = wait_quiet(callers)
        thawed = time.monotonic()
        servers[0].process.send_signal(signal.SIGCONT)
        answered = servers[0].total("requests_total", method="Classify", code="OK")
        wait_asked(servers[0], int(answered) + 100)

    evidence.count(callers.fates)
    meanwhile = callers.fates.between(frozen, thawed)
    evidence.measured["last call given to the frozen one after, s"] = round(last - frozen, 2)
    evidence.measured["longest that a caller waited, ms"] = ms(meanwhile.seconds(1, ANSWERED, DEADLINE_EXCEEDED))
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG, DEADLINE_EXCEEDED}
    assert callers.fates.between(thawed, math.inf).of(DEADLINE_EXCEEDED) == 0


def test_a_lone_server_freezes(serve: Serve, evidence: Evidence) -> None:
    """64 calls with deadlines of 1 s to a server that SIGSTOP holds until the last caller has been told; then SIGCONT. What nobody waits
    for any longer is not computed, but for the batch that may begin before the server has read that they left.
    """
    server = serve()
    fates = Fates()

    async def told(client: AsyncClient, timeout_s: float) -> None:
        begun = time.monotonic()
        fate = await fate_of(client, *TEXTS[0], timeout_s)
        fates.calls.append((begun, time.monotonic(), fate))

    async def run() -> float:
        async with AsyncClient(server.target) as client:
            await told(client, 30.0)
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.gather(*(told(client, 1.0) for _ in range(64)))
            # A caller is told before the server is: its word may still be on its way.
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGCONT)
            thawed = time.monotonic()
            await told(client, 30.0)
            return time.monotonic() - thawed

    rows = server.total("batch_rows_sum")
    seconds = asyncio.run(run())

    evidence.count(fates)
    evidence.measured["longest that a caller waited, ms"] = ms(fates.seconds(1, DEADLINE_EXCEEDED))
    evidence.measured["from SIGCONT to the first answer, ms"] = ms(seconds)
    evidence.measured["rows run for callers who had been told"] = int(server.total("batch_rows_sum") - rows) - 2
    evidence.assert_nothing_lost()
    assert [fate for _, _, fate in fates.calls] == [ANSWERED, *[DEADLINE_EXCEEDED] * 64, ANSWERED]
    # All that came is read in turns: calls first, then that their callers left.
    assert evidence.measured["rows run for callers who had been told"] <= 16, "more than one batch"


@pytest.mark.thorough
def test_one_of_two_servers_freezes_behind_our_client_as_it_is(serve: Serve, evidence: Evidence) -> None:
    """SIGSTOP of one of two servers under load, callers with deadlines of 60 s and the pings of our client, every 10 s, which wait for 5 s:
    those who wait for the frozen server are answered by the other one, long before their deadlines.
    """
    servers = [serve() for _ in range(2)]
    with Callers(both(servers), timeout_s=60) as callers:
        callers.wait(500)
        servers[0].process.send_signal(signal.SIGSTOP)
        callers.wait(500)

    evidence.count(callers.fates)
    evidence.measured["longest that a caller waited, s"] = round(callers.fates.seconds(1), 1)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG}
    assert 1 < callers.fates.seconds(1) < 45


@pytest.mark.needs_tool("ip")
def test_one_of_two_servers_is_cut_off_without_a_word(serve: Serve, apart: Apart, evidence: Evidence) -> None:
    """One of two servers stands in a network namespace of its own; under load all packets to and from it vanish. Callers with deadlines
    of 30 s, a client as ours but with pings every second that wait for a second; then the packets arrive again.
    """
    far = serve(*PINGED, "--grpc-listen", f"{apart.its}:0", "--http-listen", f"{apart.watched}:0", before=apart.before)
    servers = [far, serve(*PINGED)]
    with Callers(both(servers), timeout_s=30, options=KEEPALIVE, pause_s=0.005) as callers:
        wait_asked(far, 200)
        apart.vanish()
        wait_stuck(callers)
        callers.wait(500)
        apart.come_back()
        answered = far.total("requests_total", method="Classify", code="OK")
        wait_asked(far, int(answered) + 100)

    evidence.count(callers.fates)
    evidence.measured["longest that a caller waited, ms"] = ms(callers.fates.seconds(1))
    evidence.assert_nothing_lost()
    # Somebody's packets vanished, and a ping told him.
    assert 0.9 < callers.fates.seconds(1) < 25
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG}


@pytest.mark.needs_tool("ip")
def test_a_lone_server_is_cut_off_without_a_word(serve: Serve, apart: Apart, evidence: Evidence) -> None:
    """A server in a network namespace of its own, to and from which all packets vanish. 16 callers of a client as ours, but with pings
    every second that wait for a second, and 16 of one without pings; all with deadlines of 6 s.
    """
    server = serve(*PINGED, "--grpc-listen", f"{apart.its}:0", "--http-listen", f"{apart.watched}:0", before=apart.before)
    with (
        Callers(server.target, timeout_s=6, options=[*WATCHING, *KEEPALIVE]) as pinging,
        Callers(server.target, timeout_s=6, options=[*WATCHING, *NO_KEEPALIVE]) as waiting,
    ):
        pinging.wait(200)
        waiting.wait(200)
        apart.vanish()
        # Only now: what was under way before the packets vanished may still have been answered.
        cut = time.monotonic()
        pinging.wait(16, UNAVAILABLE)
        waiting.wait(16, DEADLINE_EXCEEDED)
        apart.come_back()
        back = time.monotonic()
        pinging.wait(200)
        first = min(ended for begun, ended, fate in pinging.fates.calls if begun > cut and fate == ANSWERED)

    evidence.count(pinging.fates, waiting.fates)
    with_pings, without = across(pinging.fates, cut), across(waiting.fates, cut)
    evidence.measured["longest until a caller was told, with pings, ms"] = ms(with_pings.seconds(1, UNAVAILABLE))
    evidence.measured["longest until a caller was told, without, ms"] = ms(without.seconds(1, DEADLINE_EXCEEDED))
    evidence.measured["from the packets' return to the first answer, ms"] = ms(first - back)
    evidence.assert_nothing_lost()
    assert with_pings.of(UNAVAILABLE) > 0
    assert without.of(DEADLINE_EXCEEDED) > 0
    assert without.of(UNAVAILABLE) == 0


@pytest.mark.thorough
@pytest.mark.needs_tool("ip")
def test_a_client_that_vanishes_is_given_up(serve: Serve, apart: Apart, evidence: Evidence) -> None:
    """A server in a network namespace of its own, with 16 open calls that watch its health, when all packets to and from their client
    vanish: after the server's pings (30 s, and 10 s for the answer) it has neither their calls nor their connection.
    """
    server = serve("--grpc-listen", f"{apart.its}:0", "--http-listen", f"{apart.watched}:0", before=apart.before)
    port = int(server.target.rpartition(":")[2])

    def connections() -> int:
        return len(ip("netns", "exec", apart.name, "ss", "-Htn", "state", "established", "sport", "=", f":{port}").splitlines())

    def open_calls() -> int:
        return int(server.total("grpc_calls_started_total") - server.total("grpc_calls_ended_total"))

    with grpc.insecure_channel(server.target, [*PLAIN, *NO_KEEPALIVE]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watching = [health.Watch(health_pb2.HealthCheckRequest(service="")) for _ in range(16)]
        assert [next(one).status for one in watching] == [health_pb2.HealthCheckResponse.SERVING] * 16
        before = connections(), open_calls()
        vanished = time.monotonic()
        apart.vanish()
        while (left := (connections(), open_calls())) != (0, 0):
            assert time.monotonic() < vanished + 120, left
            time.sleep(0.2)
        seconds = time.monotonic() - vanished
        for one in watching:
            one.cancel()

    assert before == (1, 16)
    evidence.measured["open calls"] = before[1]
    evidence.measured["from the client's end to that of its calls and connection, s"] = round(seconds, 1)
