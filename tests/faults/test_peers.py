"""Peers that are slow, gigantic or hostile"""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.api.http.listening import IDLE_S, UNREAD_S
from tests.conftest import PLAIN
from tests.faults import raw
from tests.faults.evidence import Evidence
from tests.faults.raw import Peer, frame
from tests.faults.seen import MB, others_are_answered, until
from tests.front_ends.servers import Server

Serve = Callable[..., Server]
RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = b"\x0bgrpc-status\x018", b"\x0bgrpc-status\x014"
# gRPC's core waits so long for the peer to acknowledge the server's settings.
SETTINGS_S = 60.0
# What a busy machine may add to a time limit.
LATE_S = 20.0


def call_and_reset(stream: int) -> bytes:
    """A whole call, and that it is not wanted any more."""
    begin = frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request_headers())
    return begin + frame(raw.DATA, raw.END_STREAM, stream, raw.message()) + frame(raw.RST_STREAM, 0, stream, struct.pack(">I", raw.CANCEL))


def send_for(peer: Peer, content: bytes, bytes_max: int, seconds: float = 20.0) -> int:
    """Send it again and again until so much is sent, the time is over or the server ends the connection; returns bytes."""
    sent, end = 0, time.monotonic() + seconds
    while sent < bytes_max and time.monotonic() < end and peer.send(content):
        sent += len(content)
    return sent


def assert_refused(peer: Peer) -> None:
    """Its first call, or with the whole connection."""

    def told() -> list[bytes]:
        peer.read(0.1)
        return [payload for kind, _, stream, payload in peer.frames if (kind, stream) == (raw.HEADERS, 1)]

    until(lambda: bool(told()) or peer.ended, "it is refused")
    assert peer.ended or RESOURCE_EXHAUSTED in told()[0]


def test_headers_without_an_end(serve: Serve, evidence: Evidence) -> None:
    """One connection sends the headers of a call in CONTINUATION frames that never end: 512 MB of large fields; then another one, fields
    of no bytes; then a third, one field of 2 GiB. 16 KiB of headers are the limit: the call is refused, or the connection ended.
    """
    server = serve()
    fields = b"".join(frame(raw.CONTINUATION, 0, 1, raw.literal("x" * 100, "y" * 100) * 50) for _ in range(10))
    empty = frame(raw.CONTINUATION, 0, 1) * 1000
    endless = frame(raw.CONTINUATION, 0, 1, b"y" * 16_000) * 10
    # A name of one byte, and a value that says it has 2**31 - 1.
    large = b"\x00\x01a\x7f\x80\xff\xff\xff\x07"
    with others_are_answered(server, evidence) as seen:
        for block, content in ((b"", fields), (b"", empty), (large, endless)):
            with Peer(server.target) as peer:
                peer.send(frame(raw.HEADERS, 0, 1, raw.request_headers() + block))
                sent = send_for(peer, content, 512 * MB, 5)
                evidence.measured["sent, MB"] = round(evidence.measured.get("sent, MB", 0) + sent / MB)  # type: ignore[operator]
                if content is not empty:
                    assert_refused(peer)
        # Not what was sent is kept, but what is read at a time.
        assert seen.peak_mb < 1024


def test_messages_that_are_too_large(serve: Serve, evidence: Evidence) -> None:
    """A length prefix of 17 MiB, one of 4 GiB, and 64 MiB that are really sent, in calls of connections of their own; 16 MiB is the
    transport's limit. Each call is refused as soon as its length is known, or its connection ended.
    """
    server = serve()
    with others_are_answered(server, evidence) as seen:
        begun = seen.rss_mb
        for length, sent in ((17 * MB, 10_000), (2**32 - 1, 10_000), (64 * MB, 64 * MB)):
            with Peer(server.target) as peer:
                peer.call(1)
                peer.send(frame(raw.DATA, 0, 1, b"\x00" + struct.pack(">I", length)))
                send_for(peer, frame(raw.DATA, 0, 1, b"x" * 10_000), sent, 2)
                assert_refused(peer)
        assert seen.peak_mb < begun + 256


def test_a_message_that_comes_byte_by_byte(serve: Serve, evidence: Evidence) -> None:
    """A message comes at a byte each 0.1 s, in one call with a deadline of 1 s and in one without. The former is ended at its deadline;
    the latter lasts as long as its connection, and costs what an open stream does.
    """
    server = serve()
    with others_are_answered(server, evidence), Peer(server.target) as peer:
        begun = time.monotonic()
        peer.call(1, timeout="1S")
        peer.call(3)
        told_s = None
        for byte in raw.message("a film that is good")[:-1]:
            peer.send(frame(raw.DATA, 0, 3, bytes([byte])))
            if told_s is None:
                peer.send(frame(raw.DATA, 0, 1, bytes([byte])))
            if any(kind == raw.HEADERS and stream == 1 for kind, _, stream, _ in peer.read(0.1)):
                told_s = time.monotonic() - begun
        assert DEADLINE_EXCEEDED in peer.wait_for(raw.HEADERS, 1)
        assert not any(stream == 3 and kind in (raw.HEADERS, raw.RST_STREAM) for kind, _, stream, _ in peer.frames)
        evidence.measured["told after, s"] = round(told_s or time.monotonic() - begun, 2)


def test_a_window_that_is_never_opened(serve: Serve, evidence: Evidence) -> None:
    """100 calls with a deadline of 1 s come with complete messages over a connection whose flow control lets no answer out. Their rows run;
    the calls are ended at their deadline.
    """
    server = serve()
    with others_are_answered(server, evidence), Peer(server.target, raw.PREFACE + raw.settings({raw.INITIAL_WINDOW: 0})) as peer:
        for number in range(100):
            peer.call(1 + 2 * number, timeout="1S", body=raw.message())
        until(lambda: len({one[2] for one in peer.frames + peer.read(0.1) if one[0] == raw.RST_STREAM}) == 100, "all are ended")
        assert not any(kind == raw.DATA for kind, *_ in peer.frames)


def test_calls_that_are_reset_as_soon_as_they_come(serve: Serve, evidence: Evidence) -> None:
    """100,000 calls over one connection, each reset right behind its message ("rapid reset"), as fast as the server takes them. They are
    more than the event loop can look at, so that of the others' calls too some are ended as UNAVAILABLE while it lasts (calls_pending_max).
    """
    server = serve()
    with others_are_answered(server, evidence, may=("UNAVAILABLE",)) as seen:
        rss_mb, cpu_s, begun = seen.rss_mb, seen.cpu_s, time.monotonic()
        with Peer(server.target) as peer:
            for first in range(1, 200_000, 200):
                calls = [call_and_reset(stream) for stream in range(first, first + 200, 2)]
                if not peer.send(*calls):
                    break
                peer.read()
        evidence.measured["reset calls a second"] = round(first / 2 / (time.monotonic() - begun))
        evidence.measured["CPU of the server, s"] = round(seen.cpu_s - cpu_s, 1)
        assert seen.peak_mb < rss_mb + 512


@pytest.mark.parametrize(("kind", "payload"), [(raw.PING, b"12345678"), (raw.SETTINGS, b"")], ids=["pings", "settings"])
def test_a_flood_of_frames_that_want_to_be_answered(serve: Serve, evidence: Evidence, kind: int, payload: bytes) -> None:
    """Frames that the server must acknowledge, as fast as it takes them and up to 20 MB in 5 s, from a peer that reads none of the
    acknowledgements. It ends the connection, or takes them without keeping anything.
    """
    server = serve()
    with others_are_answered(server, evidence) as seen:
        rss_mb = seen.rss_mb
        with Peer(server.target) as peer:
            peer.socket.settimeout(2)
            sent = send_for(peer, frame(kind, 0, 0, payload) * 1000, 20 * MB, 5)
            evidence.measured["taken, MB"] = round(sent / MB, 1)
        assert seen.peak_mb < rss_mb + 128


def test_more_open_calls_than_may_be(serve: Serve, evidence: Evidence) -> None:
    """300 calls without a message and without a deadline over one connection to a server with calls_max and calls_pending_max 100: those
    beyond 200 are refused as a stream too many, which no client library sends.
    """
    server = serve("--calls-max", "100", "--calls-pending-max", "100")
    with others_are_answered(server, evidence), Peer(server.target) as peer:
        for number in range(300):
            peer.call(1 + 2 * number)
            peer.read(0.002)
        until(lambda: ended_calls([peer], 0.1) >= 100, "100 are refused")


def ended_calls(peers: list[Peer], seconds: float = 0.0) -> int:
    """Calls of theirs that the server has ended."""
    for peer in peers:
        peer.read(seconds)
    return len({(number, one[2]) for number, peer in enumerate(peers) for one in peer.frames if one[0] == raw.RST_STREAM})


@pytest.mark.thorough
def test_as_many_open_calls_as_may_be(serve: Serve, evidence: Evidence) -> None:
    """Three connections open 15,000 calls without a message and without a deadline, 1,000 a second each; 8,704 may be of a connection
    (calls_max and calls_pending_max). Others are answered, and probes. Measured is the memory of each.
    """
    server = serve()
    with others_are_answered(server, evidence, may=("UNAVAILABLE",)) as seen:
        rss_mb, peers = seen.rss_mb, [Peer(server.target) for _ in range(3)]
        for number in range(5000):
            for peer in peers:
                peer.call(1 + 2 * number)
            if number % 20 == 0:
                time.sleep(0.02)
        held = 15_000 - ended_calls(peers, 1.0)
        with grpc.insecure_channel(server.target, PLAIN) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert (
                stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
            )
        evidence.measured["calls held open"] = held
        evidence.measured["memory of each, KB"] = round((seen.rss_mb - rss_mb) * 1024 / held, 1)
        for peer in peers:
            peer.socket.close()
        assert held > 7500


def http_peer(server: Server, begin: bytes = b"") -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    peer = socket.socket()
    # Small, or the system would take answers for one that does not read.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(20)
    peer.connect((host, int(port)))
    peer.sendall(begin)
    return peer


def test_a_body_that_comes_byte_by_byte(serve: Serve, evidence: Evidence) -> None:
    """POST /v1/classify with a time limit of 1 s and a body of which a byte comes each 0.1 s: it is told 504 at its deadline, and the
    connection ends.
    """
    server = serve()
    head = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nGrpc-Timeout: 1S\r\nContent-Length: 1000\r\n\r\n"
    with others_are_answered(server, evidence), http_peer(server, head) as peer:
        begun, answer = time.monotonic(), b""
        peer.settimeout(0.1)
        while not answer:
            assert time.monotonic() < begun + LATE_S
            peer.sendall(b" ")
            try:
                answer = peer.recv(2**16)
            except TimeoutError:
                continue
        evidence.measured["told after, s"] = round(time.monotonic() - begun, 2)
        assert answer.startswith(b"HTTP/1.1 504")


@pytest.mark.thorough
def test_peers_that_never_come_to_the_point(serve: Serve, evidence: Evidence) -> None:
    """At the same time, each on a connection of its own: gRPC peers that say nothing, that send the preface byte by byte, that send
    nothing after it, and whose headers never end, a frame a second; HTTP peers that say nothing, that send a header a second, and that ask
    for /metrics 3,000 times and read nothing. Each is ended: gRPC's after 60 s at most, idle HTTP's after 75 s, and one that does not read
    after 30 s.
    """
    server = serve()
    open_grpc = raw.PREFACE + frame(raw.SETTINGS)
    headers = open_grpc + frame(raw.HEADERS, 0, 1, raw.request_headers())
    field = frame(raw.CONTINUATION, 0, 1, raw.literal("a", "b"))
    # Name: the connection, what is sent a piece a second, and how long it may last.
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
        add("HTTP, headers without an end", http_peer(server, b"GET /healthz HTTP/1.1\r\nHost: a\r\n"), IDLE_S, [b"X-A: b\r\n"] * 200)
        add("HTTP, does not read", http_peer(server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 3000), UNREAD_S)
        watch(server, peers, evidence)


def watch(server: Server, peers: dict[str, Any], evidence: Evidence) -> None:
    """Send each its pieces until the server has ended all; measures when."""
    begun, beats = time.monotonic(), 0
    while peers:
        time.sleep(max(0.0, begun + beats - time.monotonic()))
        for name, (peer, pieces, limit_s) in list(peers.items()):
            seconds = time.monotonic() - begun
            ended = has_ended(peer, pieces[beats : beats + 1]) if "does not read" not in name else peer.getsockname() not in taken(server)
            if ended:
                evidence.measured[f"{name}: ended after, s"] = round(seconds)
                peers.pop(name)[0].close()
            else:
                assert seconds < limit_s, f"{name} is there after {seconds:.0f} s"
        beats += 1


def taken(server: Server) -> set[tuple[str, int]]:
    """Whose connections the server has. One that does not read is not told that it was ended."""
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
