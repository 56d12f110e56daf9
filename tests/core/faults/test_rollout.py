"""Servers that are stopped, replaced or killed"""

import contextlib
import itertools
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from sentiment.client.policy import SERVICE_CONFIG
from tests.conftest import NO_RETRIES
from tests.core.faults.evidence import FOLDER, Evidence
from tests.core.faults.fates import ANSWERED, HUNG, WRONG, Callers, Fates
from tests.core.faults.http_callers import HttpCallers
from tests.core.servers import PATIENCE_S, Server, eventually_answers, until

Serve = Callable[..., Server]
ServeTwo = Callable[..., list[Server]]
UNAVAILABLE = "UNAVAILABLE"
# A client that calls servers in turn and watches their health, as ours does, but never retries.
WATCHING = [
    *NO_RETRIES,
    ("grpc.service_config", json.dumps({name: SERVICE_CONFIG[name] for name in ("loadBalancingConfig", "healthCheckConfig")})),
]
PLAIN_IN_TURN = [*NO_RETRIES, ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]}))]
# Ten times as many where ``make faults`` runs.
ROLLS = 10 if FOLDER else 1
# A model that takes 20 ms for each run, as a real one does: a server that is stopped has calls in progress.
SLOW = """
import sys, time

if "serve" in sys.orig_argv:
    from sentiment.model.session import Session

    compute = Session._logits
    Session._logits = lambda *given: time.sleep(0.02) or compute(*given)
"""
WITH_A_DRAIN, WITHOUT = ("--drain-wait-s", "1"), ("--drain-wait-s", "0", "--drain-grace-s", "0")


def both(servers: list[Server]) -> str:
    return "ipv4:" + ",".join(server.target for server in servers)


def wait_asked(server: Server, calls: int) -> None:
    """Wait until the server has answered this many calls."""
    until(lambda: answered(server) >= calls, f"{calls} calls are answered")


def answered(server: Server) -> float:
    """How many calls of Classify the server has answered."""
    return server.total("requests_total", method="Classify", code="OK")


def wait_called(server: Server, clients: int) -> None:
    """Wait until this many clients are connected to the server and it has then answered 50 calls."""
    port = int(server.target.rpartition(":")[2])
    until(lambda: connections(server.process.pid, port) >= clients, f"{clients} clients are connected")
    wait_asked(server, int(answered(server)) + 50)


def connections(pid: int, port: int) -> int:
    """The connections of clients that a process has at one of its ports."""
    found = psutil.Process(pid).net_connections("tcp")
    return sum(one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in found)


@pytest.fixture
def slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are started take a real model's time for each run."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def roll(servers: list[Server], serve: Serve, drain: Sequence[str], *callers: Callers) -> None:
    """Replace each of two servers under load. The second one ends only when all clients call the successor of the first."""
    for one in callers:
        one.wait(200)
    for number, server in enumerate(servers):
        server.process.terminate()
        assert server.finish() == 0
        callers[0].wait(100)
        servers[number] = serve(*drain, "--grpc-listen", server.target)
        wait_called(servers[number], len(callers))


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize(("options", "clients"), [(WATCHING, 64), (PLAIN_IN_TURN, 16)], ids=["watches", "plain"])
def test_a_rollout_under_load_loses_nothing(
    serve: Serve, serve_two: ServeTwo, evidence: Evidence, options: list[tuple[str, object]], clients: int
) -> None:
    """No call is lost.

    Two servers are under the load of a client that calls them in turn and never retries. One client watches their health; another, as
    most clients of gRPC, learns of a stop by the GOAWAY, and of a start when the port opens. SIGTERM ends one server after the other.
    Balancers have 1 s to notice, and the second server ends only when the client calls the successor of the first.
    """
    servers = serve_two(*WITH_A_DRAIN)
    with Callers(both(servers), callers=clients, options=options) as callers:
        for _ in range(ROLLS):
            roll(servers, serve, WITH_A_DRAIN, callers)

    evidence.judge(callers.fates)
    evidence.measured["stops and starts"] = 2 * ROLLS


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize(
    "front_ends", [pytest.param("0", id="one process"), pytest.param("2", id="front ends", marks=pytest.mark.thorough)]
)
def test_a_rollout_under_load_loses_no_http_request(serve: Serve, serve_two: ServeTwo, evidence: Evidence, front_ends: str) -> None:
    """No request is lost.

    Two servers are under the load of 16 plain HTTP callers that never repeat a request: half of them keep their connections, the others
    open one for each request. SIGTERM ends each server twice, in turn. Callers go to the other server when their connection has ended, or
    where nothing listens.
    """
    flags = (*WITH_A_DRAIN, "--front-ends", front_ends)
    servers = serve_two(*flags)
    with HttpCallers([server.url for server in servers], callers=16, kept=8) as callers:
        callers.wait(200)
        for number in (0, 1, 0, 1):
            url = servers[number].url
            servers[number].process.terminate()
            assert servers[number].finish() == 0
            callers.starting.add(url)
            callers.wait(100)
            servers[number] = serve(*flags, "--http-listen", url.removeprefix("http://"))
            callers.starting.discard(url)
            callers.wait(100)

    evidence.judge(callers.fates)


@pytest.mark.usefixtures("slowly")
def test_the_same_rollout_without_a_drain_loses_calls(serve: Serve, serve_two: ServeTwo, evidence: Evidence) -> None:
    """Our client, which retries, loses none.

    The same load and order, but with drain_wait_s and drain_grace_s 0: balancers have no time to notice, and calls in progress are cut
    off. The client that never retries loses calls. Our own client, beside it, retries UNAVAILABLE and loses none.
    """
    servers = serve_two(*WITHOUT)
    with Callers(both(servers), callers=32) as ours, Callers(both(servers), callers=64, options=WATCHING) as watching:
        roll(servers, serve, WITHOUT, watching, ours)

    evidence.judge(watching.fates, may=[UNAVAILABLE, "CANCELLED"])
    lost = watching.fates.of(UNAVAILABLE, "CANCELLED")
    evidence.judge(ours.fates, may=[UNAVAILABLE, "CANCELLED"])
    evidence.measured |= {"calls that the client without retries lost": lost, "calls that our client lost": ours.fates.lost()}
    assert lost > 0, evidence.calls
    assert ours.fates.lost() == 0, ours.fates.counts()


def wait_stuck(callers: Callers, still_s: float = 0.5) -> None:
    """Wait until no call has ended for ``still_s``."""
    end = time.monotonic() + PATIENCE_S
    before = -1
    while before != (before := len(callers.fates.calls)):
        assert time.monotonic() < end, callers.fates.counts()
        time.sleep(still_s)


def across(fates: Fates, instant: float) -> Fates:
    """The calls in progress at this instant, as if they began then."""
    return Fates([(instant, ended, fate) for begun, ended, fate in fates.calls if begun <= instant < ended])


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def test_one_of_two_servers_is_killed_with_64_calls_in_flight(serve_two: ServeTwo, evidence: Evidence) -> None:
    """Our client repeats the calls and loses none.

    Two servers are behind our client. One is frozen until all 64 callers wait for it, and then killed (``kill -9``).
    """
    servers = serve_two()
    with Callers(both(servers), callers=64, timeout_s=30) as callers:
        callers.wait(200)
        servers[0].process.send_signal(signal.SIGSTOP)
        wait_stuck(callers)
        killed = time.monotonic()
        servers[0].process.kill()
        callers.wait(500)

    evidence.judge(callers.fates)
    waited = across(callers.fates, killed)
    evidence.measured["calls that waited for the killed one"] = len(waited.calls)
    evidence.measured["longest from the kill to the other one's answer, ms"] = ms(waited.seconds(1))
    assert len(waited.calls) == 64


def test_a_lone_server_is_killed_with_64_calls_in_flight(serve: Serve, evidence: Evidence) -> None:
    """The calls end with UNAVAILABLE within 15 s.

    The only server is frozen until all 64 callers, with deadlines of 30 s, wait for it, and then killed. Another one is then started at
    its address.
    """
    server = serve()
    with Callers(server.target, callers=64, timeout_s=30) as callers:
        callers.wait(200)
        server.process.send_signal(signal.SIGSTOP)
        wait_stuck(callers)
        killed = time.monotonic()
        server.process.kill()
        callers.wait(64, UNAVAILABLE)
        serve("--grpc-listen", server.target)
        ready = time.monotonic()
        callers.wait(500)

    evidence.judge(callers.fates, may=[UNAVAILABLE])
    waited = across(callers.fates, killed)
    evidence.measured["calls that waited for it"] = len(waited.calls)
    evidence.measured["longest from the kill until a caller had its status, ms"] = ms(waited.seconds(1, UNAVAILABLE))
    first = min(ended for begun, ended, fate in callers.fates.calls if fate == ANSWERED and begun > killed)
    evidence.measured["from the successor's readiness to its first answer, ms"] = ms(max(0.0, first - ready))
    assert waited.counts() == {ANSWERED: 0, WRONG: 0, HUNG: 0, UNAVAILABLE: 64}
    # Long before their deadlines.
    assert waited.seconds(1, UNAVAILABLE) < 15


@pytest.mark.parametrize("name", [pytest.param("front-0", id="front end"), pytest.param("executor", id="executor")])
def test_a_process_of_a_server_with_front_ends_is_killed(serve: Serve, evidence: Evidence, name: str) -> None:
    """It is replaced; calls end with answer or UNAVAILABLE.

    ``kill -9`` of one process of a server with two front ends, under the load of 32 callers on 8 connections of our client.
    """
    server = serve("--front-ends", "2")
    pid = server.pid(name)
    with Callers(server.target, callers=32, channels=8) as callers:
        callers.wait(200)
        killed = time.monotonic()
        server.kill(name)
        server.wait_for("process_started", 2, started=name)
        started = time.monotonic()
        # The new process shares the cores with callers who are refused at once.
        callers.wait(500, patience_s=180.0)
    if name == "front-0":
        wait_takes_connections(server, name)

    evidence.judge(callers.fates, may=[UNAVAILABLE])
    waited = across(callers.fates, killed)
    evidence.measured["calls in progress at the kill"] = len(waited.calls)
    evidence.measured["of them not answered"] = len(waited.calls) - waited.of(ANSWERED)
    evidence.measured["from the kill to the start of another process in its place, ms"] = ms(started - killed)
    evidence.measured["longest time without an answer, ms"] = ms(longest_gap(callers.fates))
    assert server.wait_for("process_ended")["ended"] == name
    assert server.pid(name) != pid


def wait_takes_connections(server: Server, name: str) -> None:
    """Wait until this process, which shares its port with others, has a new client's connection. Each client is answered."""
    end = time.monotonic() + PATIENCE_S
    port = int(server.target.rpartition(":")[2])
    with contextlib.ExitStack() as clients:
        while not connections(server.pid(name), port):
            assert time.monotonic() < end, f"{name} is given no connection"
            eventually_answers(clients.enter_context(server.client()))


def longest_gap(fates: Fates) -> float:
    """Seconds between two answers."""
    answered = sorted(ended for _, ended, fate in fates.calls if fate == ANSWERED)
    return max(after - before for before, after in itertools.pairwise(answered))
