"""Crowds of connections, and no file descriptors for more"""

import asyncio
import resource
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Self

import pytest

from sentiment.client import CallFailed
from tests.conftest import leave_out
from tests.faults import raw
from tests.faults.evidence import Evidence
from tests.faults.fates import Callers
from tests.faults.seen import Seen, nothing_waits, until
from tests.front_ends.servers import Server

Serve = Callable[..., Server]
# Beyond those of the crowd: ours, and what a server needs.
FILES_SPARE = 600


class Idle(asyncio.Protocol):
    """A client of HTTP/2 that has said hello, answers pings and does nothing else."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd, self._rest = crowd, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(raw.PREFACE + raw.frame(raw.SETTINGS))

    def data_received(self, data: bytes) -> None:
        frames, self._rest = raw.parse(self._rest + data)
        for kind, flags, _, payload in frames:
            if kind in (raw.SETTINGS, raw.PING) and not flags & raw.ACK:
                self._transport.write(raw.frame(kind, raw.ACK, payload=payload if kind == raw.PING else b""))
            self._crowd.greeted += kind == raw.SETTINGS and not flags & raw.ACK

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.lost += 1


class Crowd:
    """So many idle connections, in a thread and an event loop of their own, until the end of the context."""

    def __init__(self, target: str, connections: int) -> None:
        self.greeted = self.lost = 0
        self._host, _, port = target.rpartition(":")
        self._port, self._connections = int(port), connections
        self._leave = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.greeted == self._connections or not self._thread.is_alive(), "all are connected", 120)
        assert self.greeted == self._connections
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join(60)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        transports = []
        for _ in range(self._connections):
            transports.append((await loop.create_connection(lambda: Idle(self), self._host, self._port))[0])
        await asyncio.to_thread(self._leave.wait)
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0.1)


def hold(server: Server, evidence: Evidence, connections: int, seconds: float) -> None:
    """A crowd beside callers with 100 connections; measures its memory, and the callers' times with and without it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < connections + FILES_SPARE:
        leave_out("ulimit -n", f"is {hard}; {connections + FILES_SPARE} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Callers(server.target, callers=100, channels=100, timeout_s=20, pause_s=0.2) as callers:
            callers.wait(300)
            seen = Seen(server.process.pid)
            files, rss_mb, begun = seen.files, seen.rss_mb, time.monotonic()
            with Crowd(server.target, connections) as crowd:
                there, grown_mb = time.monotonic(), seen.rss_mb - rss_mb
                assert seen.files >= files + connections
                time.sleep(seconds)
                callers.wait(300)
                ended = time.monotonic()
                assert crowd.lost == 0
            until(lambda: seen.files <= files, "their files are closed")
            callers.wait(100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}, evidence.calls
    evidence.measured["idle connections"] = connections
    evidence.measured["connected a second"] = round(connections / (there - begun))
    evidence.measured["memory of each, KB"] = round(grown_mb * 1024 / connections, 1)
    evidence.measured["memory before, with and after, MB"] = f"{rss_mb:.0f}, {rss_mb + grown_mb:.0f}, {seen.rss_mb:.0f}"
    evidence.measured["p99 of the callers before, ms"] = round(callers.fates.between(0, begun).seconds(0.99) * 1e3, 1)
    evidence.measured["p99 of the callers with them, ms"] = round(callers.fates.between(there, ended).seconds(0.99) * 1e3, 1)
    assert grown_mb / connections < 1
    assert nothing_waits(server)


def test_five_hundred_connections(serve: Serve, evidence: Evidence) -> None:
    """500 clients connect and stay without a call, beside 100 callers with a connection each; then they leave without a word."""
    hold(serve(), evidence, 500, 1)


@pytest.mark.thorough
def test_ten_thousand_connections(serve: Serve, evidence: Evidence) -> None:
    """10,000 clients connect and stay for 45 s without a call, through one keepalive of the server's, beside 100 callers with a connection
    each; then they leave without a word.
    """
    hold(serve(), evidence, 10_000, 45)


def new_caller(server: Server, timeout_s: float) -> str:
    """What becomes of a call over a new connection."""
    with server.client() as client:
        try:
            return client.classify("good", timeout_s=timeout_s).label
        except CallFailed as error:
            return error.code.name


@pytest.mark.parametrize("port", ["gRPC", "HTTP"])
def test_no_file_descriptor_is_left(serve: Serve, evidence: Evidence, port: str) -> None:
    """A server may open 40 files more than it has, and 100 connections come to one of its ports, whose kernel takes them. Callers who have
    connections go on. Newcomers wait, to their deadline if need be, and are served once others have left. HTTP says once a second
    what it lacks; ``process_open_fds`` beside ``process_max_fds`` tells it of both.
    """
    server = serve()
    target = server.target if port == "gRPC" else server.url.removeprefix("http://")
    with Callers(server.target, callers=4, pause_s=0.01) as callers:
        callers.wait(50)
        seen = Seen(server.process.pid)
        files, limits = seen.files, resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (files + 40, limits[1]))
        crowd = [raw.Peer(target, b"") for _ in range(100)]
        until(lambda: seen.files == files + 40, "no file is left")
        said, cpu_s, begun = complaints(server), seen.cpu_s, time.monotonic()
        waited = new_caller(server, 3.0)
        callers.wait(50)
        seconds = time.monotonic() - begun
        said = complaints(server) - said
        evidence.measured["complaints a second"] = round(said / seconds, 1)
        evidence.measured["CPU of the server, of a core, with its callers"] = round((seen.cpu_s - cpu_s) / seconds, 2)
        assert waited == "DEADLINE_EXCEEDED"
        # gRPC's core would write past our log, and is silent: there the counts of open files tell.
        assert said == 0 if port == "gRPC" else 1 <= said < 5 * seconds + 5
        for peer in crowd:
            peer.socket.close()
        evidence.measured["a newcomer is served after, s"] = round(until(lambda: new_caller(server, 10.0) == "positive", "newcomers"), 2)
        with urllib.request.urlopen(server.url + "/readyz", timeout=20) as response:
            assert response.status == 200
        callers.wait(50)
        until(lambda: seen.files <= files, "their files are closed")
    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}, evidence.calls


def complaints(server: Server) -> int:
    """That files lack: of gRPC in its core's words, of HTTP in asyncio's."""
    of_grpc = sum("descriptor limit" in line for line in server.others)
    return of_grpc + sum("out of system resource" in line["event"] for line in server.lines)
