"""Servers that are stopped, exchanged or killed"""

import signal
import time
from collections.abc import Callable

from tests.conftest import PLAIN
from tests.faults.evidence import Evidence
from tests.faults.fates import ANSWERED, Callers
from tests.front_ends.servers import PATIENCE_S, Server

Serve = Callable[..., Server]


def both(servers: list[Server]) -> str:
    return "ipv4:" + ",".join(server.target for server in servers)


def wait_asked(server: Server, calls: int) -> None:
    """Until the server has answered so many calls."""
    end = time.monotonic() + PATIENCE_S
    while server.total("requests_total", method="Classify", code="OK") < calls:
        assert time.monotonic() < end, "nobody called it"
        time.sleep(0.05)


def test_a_rollout_under_load_loses_nothing(serve: Serve, evidence: Evidence) -> None:
    """Two servers behind our client, which takes them in turn and watches their health: under load each is ended by SIGTERM, with 1 s for
    endpoints to notice, and the other one only when its successor is being called.
    """
    servers = [serve("--drain-wait-s", "1") for _ in range(2)]
    with Callers(both(servers)) as callers:
        callers.wait(200)
        for number in range(2):
            address = servers[number].target
            servers[number].process.terminate()
            assert servers[number].finish() == 0
            callers.wait(200)
            servers[number] = serve("--drain-wait-s", "1", "--grpc-listen", address)
            wait_asked(servers[number], 50)

    evidence.count(callers.fates)
    assert set(evidence.calls) == {"answered", "wrong", "never told"}
    evidence.assert_nothing_lost()


def test_a_rollout_without_a_drain_loses_calls(serve: Serve, evidence: Evidence) -> None:
    """The same load and the same end, but no wait before the port closes, no time for calls under way (drain_wait_s and drain_grace_s 0)
    and a client that neither watches health nor tries again: what the drain is for.
    """
    servers = [serve("--drain-grace-s", "0") for _ in range(2)]
    with Callers(both(servers), options=[*PLAIN, ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}')]) as callers:
        callers.wait(200)
        servers[0].process.terminate()
        assert servers[0].finish() == 0
        callers.wait(200)

    evidence.count(callers.fates)
    assert evidence.calls.get("UNAVAILABLE", 0) + evidence.calls.get("CANCELLED", 0) > 0, evidence.calls
    evidence.assert_nothing_lost()


def test_a_server_is_killed(serve: Serve, evidence: Evidence) -> None:
    """``kill -9`` of one of two servers under load, behind our client as it is."""
    servers = [serve() for _ in range(2)]
    with Callers(both(servers)) as callers:
        callers.wait(200)
        killed = time.monotonic()
        servers[0].process.send_signal(signal.SIGKILL)
        servers[0].process.wait(20)
        callers.wait(500)

    evidence.count(callers.fates)
    after = callers.fates.between(killed - 1, killed + 1)
    evidence.measured["longest call about the kill, ms"] = round(after.seconds(1, ANSWERED) * 1e3, 1)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) <= {"answered", "wrong", "never told", "UNAVAILABLE"}
