"""Servers that are stopped, exchanged or killed"""

import contextlib
import itertools
import json
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from sentiment.client.policy import SERVICE_CONFIG
from tests.conftest import NO_RETRIES
from tests.faults.evidence import Evidence
from tests.faults.fates import ANSWERED, HUNG, WRONG, Callers, Fates
from tests.front_ends.servers import PATIENCE_S, Server, eventually_answers

Serve = Callable[..., Server]
UNAVAILABLE = "UNAVAILABLE"
# A client that takes servers in turn and watches their health, as ours, but never tries again.
WATCHING = [
    *NO_RETRIES,
    ("grpc.service_config", json.dumps({name: SERVICE_CONFIG[name] for name in ("loadBalancingConfig", "healthCheckConfig")})),
]
WITH_A_DRAIN, WITHOUT = ("--drain-wait-s", "1"), ("--drain-wait-s", "0", "--drain-grace-s", "0")


def both(servers: list[Server]) -> str:
    return "ipv4:" + ",".join(server.target for server in servers)


def wait_asked(server: Server, calls: int) -> None:
    """Until the server has answered so many calls."""
    end = time.monotonic() + PATIENCE_S
    while server.total("requests_total", method="Classify", code="OK") < calls:
        assert time.monotonic() < end, "nobody called it"
        time.sleep(0.05)


def rolled(serve: Serve, drain: Sequence[str], options: Sequence[tuple[str, Any]] = ()) -> Fates:
    """Each of two servers is ended under load, the second when the successor of the first is being called."""
    servers = [serve(*drain) for _ in range(2)]
    with Callers(both(servers), callers=64, options=options) as callers:
        callers.wait(200)
        for number in range(2):
            address = servers[number].target
            servers[number].process.terminate()
            assert servers[number].finish() == 0
            callers.wait(200)
            servers[number] = serve(*drain, "--grpc-listen", address)
            wait_asked(servers[number], 50)
    return callers.fates


def test_a_rollout_under_load_loses_nothing(serve: Serve, evidence: Evidence) -> None:
    """Two servers under the load of a client that takes them in turn and watches their health, but never tries again: each is ended by
    SIGTERM, with 1 s for balancers to notice, and the other one only when its successor is being called.
    """
    evidence.count(rolled(serve, WITH_A_DRAIN, WATCHING))
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG}


def test_the_same_rollout_without_a_drain_loses_calls(serve: Serve, evidence: Evidence) -> None:
    """The same load, client and order, but no time for balancers to notice and none for calls under way (drain_wait_s and drain_grace_s
    0): what the drain is for.
    """
    evidence.count(rolled(serve, WITHOUT, WATCHING))
    evidence.assert_nothing_lost()
    assert evidence.calls.get(UNAVAILABLE, 0) + evidence.calls.get("CANCELLED", 0) > 0, evidence.calls


@pytest.mark.parametrize("drain", [pytest.param(WITH_A_DRAIN, id="with a drain"), pytest.param(WITHOUT, id="without")])
def test_the_same_rollout_behind_our_own_client(serve: Serve, evidence: Evidence, drain: Sequence[str]) -> None:
    """The same again, with our client as it is: it tries UNAVAILABLE again, so that not even the missing drain costs a call."""
    evidence.count(rolled(serve, drain))
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG}


def wait_stuck(callers: Callers, still_s: float = 0.5) -> None:
    """Until none of the calls has ended for so long."""
    end = time.monotonic() + PATIENCE_S
    before = -1
    while before != (before := len(callers.fates.calls)):
        assert time.monotonic() < end, callers.fates.counts()
        time.sleep(still_s)


def across(fates: Fates, instant: float) -> Fates:
    """The calls under way at this instant, their time reckoned from it."""
    return Fates([(instant, ended, fate) for begun, ended, fate in fates.calls if begun <= instant < ended])


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def test_one_of_two_servers_is_killed_with_64_calls_in_flight(serve: Serve, evidence: Evidence) -> None:
    """Two servers behind our client as it is; one is frozen until every one of 64 callers waits for it, and then killed (``kill -9``)."""
    servers = [serve() for _ in range(2)]
    with Callers(both(servers), callers=64, timeout_s=30) as callers:
        callers.wait(500)
        servers[0].process.send_signal(signal.SIGSTOP)
        wait_stuck(callers)
        killed = time.monotonic()
        servers[0].process.kill()
        callers.wait(500)

    evidence.count(callers.fates)
    waited = across(callers.fates, killed)
    evidence.measured["calls that waited for the killed one"] = len(waited.calls)
    evidence.measured["longest from the kill to the other one's answer, ms"] = ms(waited.seconds(1))
    evidence.assert_nothing_lost()
    assert len(waited.calls) == 64
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG}, evidence.calls


def test_a_lone_server_is_killed_with_64_calls_in_flight(serve: Serve, evidence: Evidence) -> None:
    """A server that has no other beside it is frozen until every one of 64 callers, with deadlines of 30 s, waits for it, and then killed;
    a second later another is started at its address.
    """
    server = serve()
    with Callers(server.target, callers=64, timeout_s=30) as callers:
        callers.wait(500)
        server.process.send_signal(signal.SIGSTOP)
        wait_stuck(callers)
        killed = time.monotonic()
        server.process.kill()
        callers.wait(64, UNAVAILABLE)
        time.sleep(1)
        serve("--grpc-listen", server.target)
        ready = time.monotonic()
        callers.wait(500)

    evidence.count(callers.fates)
    waited = across(callers.fates, killed)
    evidence.measured["calls that waited for it"] = len(waited.calls)
    evidence.measured["longest from the kill until a caller was told, ms"] = ms(waited.seconds(1, UNAVAILABLE))
    first = min(ended for begun, ended, fate in callers.fates.calls if fate == ANSWERED and begun > killed)
    evidence.measured["from the successor's readiness to its first answer, ms"] = ms(max(0.0, first - ready))
    evidence.assert_nothing_lost()
    assert waited.counts() == {ANSWERED: 0, WRONG: 0, HUNG: 0, UNAVAILABLE: 64}
    # Far from their deadlines.
    assert waited.seconds(1, UNAVAILABLE) < 15
    assert set(evidence.calls) == {ANSWERED, WRONG, HUNG, UNAVAILABLE}, evidence.calls


@pytest.mark.parametrize("name", [pytest.param("front-0", id="front end"), pytest.param("executor", id="executor")])
def test_a_process_of_a_server_with_front_ends_is_killed(serve: Serve, evidence: Evidence, name: str) -> None:
    """``kill -9`` of one process of a lone server with two front ends, under the load of 32 callers on 8 connections of our client."""
    server = serve("--front-ends", "2")
    pid = server.pid(name)
    with Callers(server.target, callers=32, channels=8) as callers:
        callers.wait(500)
        killed = time.monotonic()
        server.kill(name)
        server.wait_for("process_started", 2, started=name)
        started = time.monotonic()
        callers.wait(1000)
    if name == "front-0":
        wait_takes_connections(server, name)

    evidence.count(callers.fates)
    waited = across(callers.fates, killed)
    evidence.measured["calls under way at the kill"] = len(waited.calls)
    evidence.measured["of them not answered"] = len(waited.calls) - waited.of(ANSWERED)
    evidence.measured["from the kill to the start of another process in its place, ms"] = ms(started - killed)
    evidence.measured["longest time in which nobody was answered, ms"] = ms(longest_gap(callers.fates))
    evidence.assert_nothing_lost()
    assert server.wait_for("process_ended")["ended"] == name
    assert server.pid(name) != pid
    assert set(evidence.calls) <= {ANSWERED, WRONG, HUNG, UNAVAILABLE}, evidence.calls


def wait_takes_connections(server: Server, name: str) -> None:
    """Until this process, which shares the port with others, has a new client's connection; each client is answered."""
    end = time.monotonic() + PATIENCE_S
    port = int(server.target.rpartition(":")[2])
    process = psutil.Process(server.pid(name))
    with contextlib.ExitStack() as clients:
        while not any(one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp")):
            assert time.monotonic() < end, f"{name} is given no connection"
            eventually_answers(clients.enter_context(server.client()))


def longest_gap(fates: Fates) -> float:
    """Seconds between two answers."""
    answered = sorted(ended for _, ended, fate in fates.calls if fate == ANSWERED)
    return max(after - before for before, after in itertools.pairwise(answered))
