"""Servers that freeze, and peers that vanish silently"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient
from tests.conftest import PLAIN
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import ANSWERED, TEXTS, Callers, Fates, fate_of
from tests.core.faults.namespace import Namespace, ip
from tests.core.faults.seen import open_calls
from tests.core.faults.test_rollout import WATCHING, across, answered, both, ms, wait_asked, wait_stuck
from tests.core.servers import Server, until

Serve = Callable[..., Server]
ServeTwo = Callable[..., list[Server]]
DEADLINE_EXCEEDED, UNAVAILABLE = "DEADLINE_EXCEEDED", "UNAVAILABLE"
# Our client's are 10 s and 5 s. By default, a server does not accept such frequent pings.
KEEPALIVE = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 1000), ("grpc.http2.ping_timeout_ms", 1000)]
PINGED = ("--keepalive-min-ping-s", "0.5")
NO_KEEPALIVE = [(name, 2**31 - 1) for name, _ in KEEPALIVE]


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace() as found:
        yield found


def wait_answered(callers: Callers, calls: int) -> None:
    """Wait until this many calls in a row have been answered."""
    until(lambda: len(callers.fates.calls) > calls and all(fate == ANSWERED for *_, fate in callers.fates.calls[-calls:]), "only answers")


def test_one_of_two_servers_freezes(serve_two: ServeTwo, evidence: Evidence) -> None:
    """The client leaves it, and comes back.

    SIGSTOP freezes one of two servers under load. Callers have deadlines of 0.5 s and a client that pings every second and waits a
    second for the answer. The client stops calling the frozen server, so that calls are answered again. After SIGCONT it calls both.
    """
    servers = serve_two(*PINGED)
    with Callers(both(servers), timeout_s=0.5, options=KEEPALIVE, pause_s=0.005) as callers:
        callers.wait(200)
        frozen = time.monotonic()
        servers[0].process.send_signal(signal.SIGSTOP)
        callers.wait(1, DEADLINE_EXCEEDED)
        # While the frozen server has its turn, every second call fails.
        wait_answered(callers, 200)
        thawed = time.monotonic()
        servers[0].process.send_signal(signal.SIGCONT)
        wait_asked(servers[0], int(answered(servers[0])) + 100)

    # Of a busy machine, calls to the other server miss such deadlines too.
    evidence.judge(callers.fates, may=[DEADLINE_EXCEEDED, UNAVAILABLE])
    meanwhile = callers.fates.between(frozen, thawed)
    failed = [begun for begun, _, fate in meanwhile.calls if fate != ANSWERED]
    evidence.measured["last call that the frozen server got after, s"] = round(max(failed) - frozen, 2)
    evidence.measured["longest that a caller waited, ms"] = ms(meanwhile.seconds(1, ANSWERED, DEADLINE_EXCEEDED))


def test_a_lone_server_freezes(serve: Serve, evidence: Evidence) -> None:
    """Calls expire; at most one batch of them runs.

    SIGSTOP freezes a server while 64 calls with deadlines of 1 s come. SIGCONT follows when the last of them has expired. The server
    computes none of their rows, except for one batch that may start before it has read that the callers left.
    """
    server = serve()
    fates = Fates()

    async def call(client: AsyncClient, timeout_s: float) -> None:
        begun = time.monotonic()
        fate = await fate_of(client, *TEXTS[0], timeout_s)
        fates.calls.append((begun, time.monotonic(), fate))

    async def run() -> float:
        async with AsyncClient(server.target) as client:
            await call(client, 30.0)
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.gather(*(call(client, 1.0) for _ in range(64)))
            # A call expires at its caller first; that it was cancelled may still be on its way to the server.
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGCONT)
            thawed = time.monotonic()
            await call(client, 30.0)
            return time.monotonic() - thawed

    rows = server.total("batch_rows_sum")
    seconds = asyncio.run(run())

    evidence.judge(fates, may=[DEADLINE_EXCEEDED])
    evidence.measured["longest that a caller waited, ms"] = ms(fates.seconds(1, DEADLINE_EXCEEDED))
    evidence.measured["from SIGCONT to the first answer, ms"] = ms(seconds)
    evidence.measured["rows run for callers who had left"] = int(server.total("batch_rows_sum") - rows) - 2
    assert [fate for _, _, fate in fates.calls] == [ANSWERED, *[DEADLINE_EXCEEDED] * 64, ANSWERED]
    # The server reads the calls first, and then that their callers left.
    assert evidence.measured["rows run for callers who had left"] <= 16, "more than one batch"


@pytest.mark.thorough
def test_one_of_two_servers_freezes_behind_our_client_as_it_is(serve_two: ServeTwo, evidence: Evidence) -> None:
    """All calls are answered by the other one.

    SIGSTOP freezes one of two servers under load. Callers have deadlines of 60 s, and our client pings every 10 s and waits 5 s for the
    answer. Those who wait for the frozen server are answered by the other one, long before their deadlines.
    """
    servers = serve_two()
    with Callers(both(servers), timeout_s=60) as callers:
        callers.wait(500)
        servers[0].process.send_signal(signal.SIGSTOP)
        callers.wait(500)

    evidence.judge(callers.fates)
    evidence.measured["longest that a caller waited, s"] = round(callers.fates.seconds(1), 1)
    assert 1 < callers.fates.seconds(1) < 45


@pytest.mark.needs_tool("ip")
def test_one_of_two_servers_loses_its_network(serve: Serve, namespace: Namespace, evidence: Evidence) -> None:
    """All calls are answered by the other one.

    One of two servers is in a network namespace. Under load, all packets to and from it vanish, and later arrive again. Callers have
    deadlines of 30 s and a client that pings every second and waits a second for the answer.
    """
    far = serve(*PINGED, "--grpc-listen", f"{namespace.its}:0", "--http-listen", f"{namespace.watched}:0", before=namespace.before)
    servers = [far, serve(*PINGED)]
    with Callers(both(servers), timeout_s=30, options=KEEPALIVE, pause_s=0.005) as callers:
        wait_asked(far, 200)
        namespace.vanish()
        wait_stuck(callers)
        callers.wait(200)
        namespace.come_back()
        wait_asked(far, int(answered(far)) + 100)

    evidence.judge(callers.fates)
    evidence.measured["longest that a caller waited, ms"] = ms(callers.fates.seconds(1))
    # A call waited for the lost packets until a ping failed.
    assert 0.9 < callers.fates.seconds(1) < 25


@pytest.mark.needs_tool("ip")
def test_a_lone_server_loses_its_network(serve: Serve, namespace: Namespace, evidence: Evidence) -> None:
    """Calls end with UNAVAILABLE or at their deadline.

    All packets to and from a server in a network namespace vanish. 16 callers have a client that pings every second and waits a second
    for the answer, and 16 one without pings; all have deadlines of 4 s.
    """
    server = serve(*PINGED, "--grpc-listen", f"{namespace.its}:0", "--http-listen", f"{namespace.watched}:0", before=namespace.before)
    with (
        Callers(server.target, timeout_s=4, options=[*WATCHING, *KEEPALIVE]) as pinging,
        Callers(server.target, timeout_s=4, options=[*WATCHING, *NO_KEEPALIVE]) as waiting,
    ):
        pinging.wait(200)
        waiting.wait(200)
        namespace.vanish()
        # Only now: calls that began before may still have been answered.
        cut = time.monotonic()
        pinging.wait(16, UNAVAILABLE)
        waiting.wait(16, DEADLINE_EXCEEDED)
        namespace.come_back()
        back = time.monotonic()
        pinging.wait(200)
        first = min(ended for begun, ended, fate in pinging.fates.calls if begun > cut and fate == ANSWERED)

    evidence.judge(pinging.fates, waiting.fates, may=[UNAVAILABLE, DEADLINE_EXCEEDED])
    with_pings, without = across(pinging.fates, cut), across(waiting.fates, cut)
    evidence.measured["longest until a caller had its status, with pings, ms"] = ms(with_pings.seconds(1, UNAVAILABLE))
    evidence.measured["longest until a caller had its status, without, ms"] = ms(without.seconds(1, DEADLINE_EXCEEDED))
    evidence.measured["from the packets' return to the first answer, ms"] = ms(first - back)
    assert with_pings.of(UNAVAILABLE) > 0
    assert without.of(DEADLINE_EXCEEDED) > 0
    assert without.of(UNAVAILABLE) == 0


@pytest.mark.thorough
@pytest.mark.needs_tool("ip")
def test_a_client_that_vanishes_is_given_up(serve: Serve, namespace: Namespace, evidence: Evidence) -> None:
    """Its calls and its connection are closed.

    A server in a network namespace has 16 open health watches when all packets to and from their client vanish. After its pings (every
    30 s, with 10 s for the answer) it has closed their calls and their connection.
    """
    server = serve("--grpc-listen", f"{namespace.its}:0", "--http-listen", f"{namespace.watched}:0", before=namespace.before)
    port = int(server.target.rpartition(":")[2])

    def connections() -> int:
        return len(ip("netns", "exec", namespace.name, "ss", "-Htn", "state", "established", "sport", "=", f":{port}").splitlines())

    with grpc.insecure_channel(server.target, [*PLAIN, *NO_KEEPALIVE]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watching = [health.Watch(health_pb2.HealthCheckRequest(service="")) for _ in range(16)]
        assert [next(one).status for one in watching] == [health_pb2.HealthCheckResponse.SERVING] * 16
        before = connections(), open_calls(server)
        namespace.vanish()
        seconds = until(lambda: (connections(), open_calls(server)) == (0, 0), "calls and connection are closed", 120)
        for one in watching:
            one.cancel()

    assert before == (1, 16)
    evidence.measured["open calls"] = int(before[1])
    evidence.measured["from the loss of the client to the end of its calls and connection, s"] = round(seconds, 1)
