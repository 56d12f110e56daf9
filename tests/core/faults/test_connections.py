"""Many connections, and a server without free file descriptors"""

import asyncio
import http.client
import resource
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Self

import pytest

from sentiment.client import CallFailed
from tests.conftest import leave_out
from tests.core.faults import raw
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.seen import Seen, nothing_waits
from tests.core.servers import Server, until

Serve = Callable[..., Server]
# Files besides those of the crowd: the tests' own, and the server's.
FILES_SPARE = 600


class Idle(asyncio.Protocol):
    """An HTTP/2 client that sends the preface, answers pings and does nothing else."""

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
    """This many idle connections, in a thread and event loop of their own, until the context ends."""

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


@pytest.mark.thorough
def test_ten_thousand_connections(serve: Serve, evidence: Evidence) -> None:
    """All callers are answered.

    10,000 clients connect and make no call for 45 s, longer than the server's keepalive interval, beside 100 callers with a connection
    each; then they abort their connections.
    """
    server, connections = serve(), 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < connections + FILES_SPARE:
        leave_out("ulimit -n", f"is {hard}; {connections + FILES_SPARE} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Callers(server.target, callers=100, channels=100, timeout_s=20, pause_s=0.2) as callers:
            callers.wait(200)
            seen = Seen(server.process.pid)
            files, rss_mb, begun = seen.files, seen.rss_mb, time.monotonic()
            with Crowd(server.target, connections) as crowd:
                there, grown_mb = time.monotonic(), seen.rss_mb - rss_mb
                assert seen.files >= files + connections
                time.sleep(45)
                callers.wait(200)
                ended = time.monotonic()
                assert crowd.lost == 0
            until(lambda: seen.files <= files, "their files are closed")
            callers.wait(100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    evidence.judge(callers.fates)
    evidence.measured["idle connections"] = connections
    evidence.measured["connected a second"] = round(connections / (there - begun))
    evidence.measured["memory of each, KB"] = round(grown_mb * 1024 / connections, 1)
    evidence.measured["memory before, with and after, MB"] = f"{rss_mb:.0f}, {rss_mb + grown_mb:.0f}, {seen.rss_mb:.0f}"
    evidence.measured["p99 of the callers before, ms"] = round(callers.fates.between(0, begun).seconds(0.99) * 1e3, 1)
    evidence.measured["p99 of the callers with them, ms"] = round(callers.fates.between(there, ended).seconds(0.99) * 1e3, 1)
    assert grown_mb / connections < 1
    assert nothing_waits(server)


def new_caller(server: Server, timeout_s: float) -> str:
    """How a call over a new connection ends."""
    with server.client() as client:
        try:
            return client.classify("good", timeout_s=timeout_s).label
        except CallFailed as error:
            return error.code.name


@pytest.mark.parametrize("port", ["gRPC", "HTTP"])
def test_no_file_descriptor_is_left(serve: Serve, evidence: Evidence, port: str) -> None:
    """Open connections are served; new callers wait for room.

    A server may open 40 more files, and 100 connections come to one of its ports; the kernel accepts them. Callers with connections are
    served. New callers wait, until their deadline if necessary, and are served once others have left. The HTTP side logs the shortage
    once a second; for both sides, ``process_open_fds`` beside ``process_max_fds`` shows it.
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
        waited = new_caller(server, 1.5)
        callers.wait(50)
        seconds = time.monotonic() - begun
        said = complaints(server) - said
        evidence.measured["complaints a second"] = round(said / seconds, 1)
        evidence.measured["CPU of the server, of a core, with its callers"] = round((seen.cpu_s - cpu_s) / seconds, 2)
        assert waited == "DEADLINE_EXCEEDED"
        # gRPC's core, which would bypass our log, is silent.
        assert said == 0 if port == "gRPC" else 1 <= said < 5 * seconds + 5
        for peer in crowd:
            peer.socket.close()
        evidence.measured["a new caller is served after, s"] = round(
            until(lambda: new_caller(server, 10.0) == "positive", "a new caller is served"), 2
        )
        with urllib.request.urlopen(server.url + "/readyz", timeout=20) as response:
            assert response.status == 200
        callers.wait(50)
        until(lambda: seen.files <= files, "their files are closed")
    evidence.judge(callers.fates)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["idle", "half a head"])
def test_http_connections_without_a_request(serve: Serve, evidence: Evidence, sent: bytes) -> None:
    """Probes and new calls are answered.

    A server may open 1,024 files, and 2,000 connections that send no whole request come to its HTTP port from one address. It keeps a
    quarter as many as files, and closes the one of that address that has waited longest for each new one. Probes that open a connection
    each, and calls over new gRPC connections, are answered all the time. A connection of another address, on which nothing comes, is kept.
    """
    server = serve(before=("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh"))
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    kept = http.client.HTTPConnection(host, int(port), timeout=20)
    kept.connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    seen, probes_s, crowd, most = Seen(server.process.pid), [], [], 0
    try:
        with Callers(server.target, callers=4, pause_s=0.01) as callers:
            callers.wait(50)
            assert status_of(kept) == 200
            files = seen.files
            for number in range(2000):
                crowd.append(socket.create_connection((host, int(port)), 20, ("127.0.0.2", 0)))
                crowd[-1].sendall(sent)
                if number % 50 == 0:
                    begun = time.monotonic()
                    with urllib.request.urlopen(server.url + "/healthz", timeout=20) as response:
                        assert response.status == 200
                    probes_s.append(time.monotonic() - begun)
                    assert new_caller(server, 10.0) == "positive"
                    most = max(most, seen.files)
            assert status_of(kept) == 200
            evidence.measured["files open at most"] = most
            evidence.measured["slowest probe over a new connection, ms"] = round(max(probes_s) * 1e3, 1)
            evidence.measured["connections closed for others"] = server.total("http_connections_closed_total", reason="waiting")
            assert most <= files + 1024 / 4 + 10
            assert server.total("http_connections_closed_total", reason="new") == 0
    finally:
        for peer in crowd:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        kept.close()
    evidence.judge(callers.fates)


def status_of(connection: http.client.HTTPConnection) -> int:
    """Of an answer over a connection that is never reopened."""
    connection.auto_open = 0
    connection.request("GET", "/healthz")
    with connection.getresponse() as answer:
        answer.read()
        return answer.status


def complaints(server: Server) -> int:
    """How often the log reports a lack of files: by gRPC's core, or by asyncio for HTTP."""
    of_grpc = sum("descriptor limit" in line for line in server.others)
    return of_grpc + sum("out of system resource" in line["event"] for line in server.lines)
