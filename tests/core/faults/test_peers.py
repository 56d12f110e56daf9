"""Peers that are slow, huge or hostile"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentiment.doors.http.listening import IDLE_S, UNREAD_S
from tests.core.faults import raw
from tests.core.faults.evidence import Evidence
from tests.core.faults.raw import Peer, frame
from tests.core.faults.seen import MB, others_are_answered
from tests.core.servers import Server, until

Serve = Callable[..., Server]
RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = b"\x0bgrpc-status\x018", b"\x0bgrpc-status\x014"
# How long gRPC's core waits for a peer to acknowledge the server's settings.
SETTINGS_S = 60.0
# How much later a busy machine may be.
LATE_S = 20.0


@pytest.fixture(scope="module")
def server(bundles: Path) -> Iterator[Server]:
    """All tests of this module share it, but for one: no peer may harm it."""
    found = Server(bundles, "--front-ends", "0").wait_ready()
    yield found
    found.end()


def send_for(peer: Peer, content: bytes, bytes_max: int, seconds: float = 20.0) -> int:
    """Send ``content`` repeatedly, up to ``bytes_max`` or ``seconds``, or until the server ends the connection. Returns the bytes sent."""
    sent, end = 0, time.monotonic() + seconds
    while sent < bytes_max and time.monotonic() < end and peer.send(content):
        sent += len(content)
    return sent


def assert_refused(peer: Peer) -> None:
    """Wait until the peer's first call is refused, or its connection is ended."""

    def answers() -> list[bytes]:
        peer.read(0.1)
        return [payload for kind, _, stream, payload in peer.frames if (kind, stream) == (raw.HEADERS, 1)]

    until(lambda: bool(answers()) or peer.ended, "it is refused")
    assert peer.ended or RESOURCE_EXHAUSTED in answers()[0]


def test_headers_without_an_end(server: Server, evidence: Evidence) -> None:
    """The call is refused, or the connection ended.

    Three connections send headers in endless CONTINUATION frames: 512 MB of large fields, empty frames, and one field of 2 GiB. The
    limit is 16 KiB of headers: the call is refused, or the connection ended.
    """
    fields = b"".join(frame(raw.CONTINUATION, 0, 1, raw.literal("x" * 100, "y" * 100) * 50) for _ in range(10))
    empty = frame(raw.CONTINUATION, 0, 1) * 1000
    endless = frame(raw.CONTINUATION, 0, 1, b"y" * 16_000) * 10
    # A name of one byte, and a value whose length is given as 2**31 - 1.
    large = b"\x00\x01a\x7f\x80\xff\xff\xff\x07"
    with others_are_answered(server, evidence) as seen:
        for block, content in ((b"", fields), (b"", empty), (large, endless)):
            with Peer(server.target) as peer:
                peer.send(frame(raw.HEADERS, 0, 1, raw.request_headers() + block))
                sent = send_for(peer, content, 512 * MB, 2)
                evidence.measured["sent, MB"] = round(evidence.measured.get("sent, MB", 0) + sent / MB)  # type: ignore[operator]
                if content is not empty:
                    assert_refused(peer)
        # The server keeps what it reads at a time, not what was sent.
        assert seen.peak_mb < 1024


def test_calls_that_are_reset_as_soon_as_they_come(server: Server, evidence: Evidence) -> None:
    """Others are answered, some with UNAVAILABLE.

    40,000 calls over one connection are each reset right after their message ("rapid reset"), as fast as the server takes them. The
    event loop cannot handle that many, so that meanwhile some calls of others also end as UNAVAILABLE (calls_pending_max).
    """
    with others_are_answered(server, evidence, may=("UNAVAILABLE",)) as seen:
        rss_mb, cpu_s, begun = seen.rss_mb, seen.cpu_s, time.monotonic()
        with Peer(server.target) as peer:
            for first in range(1, 80_000, 200):
                calls = [raw.call_and_reset(stream) for stream in range(first, first + 200, 2)]
                if not peer.send(*calls):
                    break
                peer.read()
        evidence.measured["reset calls a second"] = round(first / 2 / (time.monotonic() - begun))
        evidence.measured["CPU of the server, s"] = round(seen.cpu_s - cpu_s, 1)
        assert seen.peak_mb < rss_mb + 512


@pytest.mark.parametrize(("kind", "payload"), [(raw.PING, b"12345678"), (raw.SETTINGS, b"")], ids=["pings", "settings"])
def test_a_flood_of_frames_that_need_an_answer(server: Server, evidence: Evidence, kind: int, payload: bytes) -> None:
    """Nothing is kept of them, or the connection ends.

    A peer sends frames that the server must acknowledge, as fast as it takes them and up to 20 MB in 2 s, and reads no acknowledgement.
    The server ends the connection, or takes the frames without keeping anything.
    """
    with others_are_answered(server, evidence) as seen:
        rss_mb = seen.rss_mb
        with Peer(server.target) as peer:
            peer.socket.settimeout(0.5)
            sent = send_for(peer, frame(kind, 0, 0, payload) * 1000, 20 * MB, 2)
            evidence.measured["taken, MB"] = round(sent / MB, 1)
        assert seen.peak_mb < rss_mb + 128


def http_peer(server: Server, begin: bytes = b"") -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    peer = socket.socket()
    # A small buffer, or the system would accept answers for a peer that does not read.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(20)
    peer.connect((host, int(port)))
    peer.sendall(begin)
    return peer


def test_large_bodies_that_never_end(serve: Serve, evidence: Evidence) -> None:
    """They get 429, or 504.

    60 connections send 12 MiB of a batch each, but for its last byte, to a server whose requests may have 64 MiB together
    (request_bytes_max). What does not fit is refused with 429; the others end after 10 s (receive_s_max) with 504.
    """
    server = serve("--request-bytes-max", str(64 * MB))
    head = b"POST /v1/classify:batch HTTP/1.1\r\nHost: localhost\r\nGrpc-Timeout: 60S\r\nContent-Length: %d\r\n\r\n" % (12 * MB)
    statuses: Counter[str] = Counter()
    with others_are_answered(server, evidence) as seen:
        rss_mb = seen.rss_mb
        peers = [http_peer(server, head) for _ in range(60)]
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(b" " * (12 * MB - 1))
        for peer in peers:
            with contextlib.suppress(OSError):
                statuses[peer.recv(2**16)[9:12].decode()] += 1
            peer.close()
        evidence.measured |= {f"answered with {status}": number for status, number in sorted(statuses.items())}
        # And what connections hold uncounted, in aiohttp and in system buffers.
        assert seen.peak_mb < rss_mb + 2 * 64
    assert statuses["429"] > 0
    assert statuses["504"] > 0


@pytest.mark.thorough
def test_peers_that_never_finish_a_request(server: Server, evidence: Evidence) -> None:
    """Each connection is ended after a stated time.

    These peers have a connection each at the same time: gRPC peers that send nothing, the preface byte by byte, nothing after the
    preface, and endless headers, a frame a second; HTTP peers that send nothing, a header a second, and 3,000 requests for /metrics without
    reading the answers. Each connection is ended: gRPC's after at most 60 s, idle HTTP's after 75 s, and that of one that does not read
    after 30 s.
    """
    open_grpc = raw.PREFACE + frame(raw.SETTINGS)
    headers = open_grpc + frame(raw.HEADERS, 0, 1, raw.request_headers())
    field = frame(raw.CONTINUATION, 0, 1, raw.literal("a", "b"))
    # Name: the connection, the pieces to send, one a second, and how long it may last.
    peers: dict[str, tuple[socket.socket, list[bytes], float]] = {}

    def add(name: str, peer: socket.socket, limit_s: float, pieces: list[bytes] | None = None) -> None:
        peers[name] = (peer, pieces or [], limit_s + LATE_S)

    def grpc_peer(begin: bytes) -> socket.socket:
        return Peer(server.target, begin).socket

    with others_are_answered(server, evidence, callers=1):
        add("gRPC, silent", grpc_peer(b""), SETTINGS_S)
        add("gRPC, the preface byte by byte", grpc_peer(b""), SETTINGS_S, [bytes([byte]) for byte in raw.PREFACE])
        add("gRPC, nothing after the preface", grpc_peer(raw.PREFACE), SETTINGS_S)
        add("gRPC, headers without an end", grpc_peer(headers), SETTINGS_S, [field] * 200)
        add("HTTP, silent", http_peer(server), IDLE_S)
        add(
            "HTTP, headers without an end",
            http_peer(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"),
            IDLE_S,
            [b"X-A: b\r\n"] * 200,
        )
        add("HTTP, does not read", http_peer(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000), UNREAD_S)
        watch(server, peers, evidence)


def watch(server: Server, peers: dict[str, Any], evidence: Evidence) -> None:
    """Send the pieces until the server has ended all connections; record when."""
    begun, beats = time.monotonic(), 0
    while peers:
        time.sleep(max(0.0, begun + beats - time.monotonic()))
        for name, (peer, pieces, limit_s) in list(peers.items()):
            seconds = time.monotonic() - begun
            ended = (
                has_ended(peer, pieces[beats : beats + 1]) if "does not read" not in name else peer.getsockname() not in connected(server)
            )
            if ended:
                evidence.measured[f"{name}: ended after, s"] = round(seconds)
                peers.pop(name)[0].close()
            else:
                assert seconds < limit_s, f"{name} is there after {seconds:.0f} s"
        beats += 1


def connected(server: Server) -> set[tuple[str, int]]:
    """The peers of the server's connections. A peer that does not read cannot see that its connection was ended."""
    return {tuple(one.raddr) for one in psutil.Process(server.process.pid).net_connections("tcp") if one.raddr}


def has_ended(peer: socket.socket, pieces: list[bytes]) -> bool:
    """Whether the server has ended the connection."""
    peer.settimeout(0.01)
    try:
        for piece in pieces:
            peer.sendall(piece)
        return not peer.recv(2**16)
    except TimeoutError:
        return False
    except OSError:
        return True
