"""Logs, traces, metrics and answers that nobody reads"""

import fcntl
import json
import os
import socket
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from sentiment.observability.log_writer import LogLines
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES
from tests.core.faults import raw
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.own_process import OwnProcess
from tests.core.servers import PATIENCE_S, eventually_answers, until

Spawn = Callable[..., OwnProcess]
MIB = 2**20


def fill_log(server: OwnProcess) -> None:
    """Make empty streams, each with a long log line, until lines are dropped."""
    headers = raw.request_headers("/sentiment.v1.SentimentService/ClassifyStream", request_id="a" * 126)
    with raw.Peer(server.target) as peer:
        for stream in range(1, 10_000, 2):
            peer.send(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, stream, headers))
            if stream % 200 == 199:
                peer.wait_for(raw.HEADERS, stream)
    until(lambda: server.total("log_lines_dropped_total") > 0, "a line is dropped")


@pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
def test_a_log_without_a_reader(spawn: Spawn, evidence: Evidence, front_ends: str) -> None:
    """Lines are dropped, and all calls answered.

    Standard error is a pipe whose reader stops, under load with a log line for every call (debug), until lines are dropped. Then it
    reads on and stops again, and SIGTERM ends the server.
    """
    reader, writer = os.pipe()
    try:
        server = spawn("--log-level", "debug", "--front-ends", front_ends, stderr=writer)
        with Callers(server.target, channels=4, timeout_s=30) as callers:
            fill_log(server)
            callers.wait(100)
            hung = time.monotonic()
            found: list[str] = []
            reading = threading.Thread(target=lambda: found.extend(read_until(reader, "log_lines_lost")))
            reading.start()
            reading.join(PATIENCE_S)
            assert not reading.is_alive()
            callers.wait(100)
        evidence.measured["log lines dropped"] = int(server.total("log_lines_dropped_total"))
        server.process.terminate()
        assert server.finish() == 0
    finally:
        os.close(reader)
        os.close(writer)

    evidence.judge(callers.fates)
    lost = [json.loads(line) for line in found if "log_lines_lost" in line]
    assert lost[0]["lines"] > 0
    whole = [json.loads(line)["event"] for line in found[1:-1]]
    assert "call" in whole
    unread_s = callers.fates.between(0, hung).seconds(0.99)
    evidence.measured["99 % of calls within, while nobody reads the log, ms"] = round(unread_s * 1e3, 1)


def read_until(reader: int, words: str) -> list[str]:
    """Read lines of a pipe until one has these words. The last line may be cut."""
    content = b""
    while words.encode() not in content:
        content += os.read(reader, MIB)
    return content.decode().splitlines()


def test_lines_are_written_after_reporting_lost_ones_has_failed() -> None:
    reported: list[int] = []

    def fail(lost: int) -> None:
        reported.append(lost)
        raise RuntimeError("no memory")

    reader, writer = os.pipe()
    try:
        lines = LogLines(writer, fail, bytes_max=8)
        for line in ("too long for its room\n", "one\n", "two\n", "too long again\n", "three\n"):
            lines.write(line)
            lines.thread.wait_written(PATIENCE_S)
        written = os.read(reader, MIB)
    finally:
        os.close(reader)
        os.close(writer)

    assert written == b"one\ntwo\nthree\n"
    assert reported[0] == 1
    assert lines.thread.dropped == 2


def test_a_log_whose_reader_has_gone(spawn: Spawn, evidence: Evidence) -> None:
    """All calls are answered, and SIGTERM ends the server.

    Standard error is a pipe that loses its reader (EPIPE), under load with a log line for every call. Later SIGTERM ends the server.
    """
    reader, writer = os.pipe()
    server = spawn("--log-level", "debug", stderr=writer)
    os.close(writer)
    with Callers(server.target) as callers:
        callers.wait(200)
        os.close(reader)
        callers.wait(200)
        until(lambda: server.total("log_lines_dropped_total") > 0, "a line is dropped")
    server.process.terminate()

    assert server.finish() == 0
    evidence.judge(callers.fates)


@pytest.mark.usefixtures("hangs_up")
def test_a_terminal_that_is_closed(spawn: Spawn, evidence: Evidence) -> None:
    """The server drains as after SIGTERM.

    The server runs in a terminal that is closed under load (SIGHUP, and a lost standard error). It drains as after SIGTERM, and later
    calls are refused.
    """
    terminal, slave = os.openpty()
    server = spawn(stderr=slave, stdin=slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))
    os.close(slave)
    with Callers(server.target, timeout_s=2) as callers:
        callers.wait(200)
        os.close(terminal)
        assert server.finish() == 0

    evidence.judge(callers.fates, may=["UNAVAILABLE", "DEADLINE_EXCEEDED"])


def connected(server: OwnProcess) -> socket.socket:
    """A connection to the HTTP port, with a small receive buffer."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(PATIENCE_S)
    one.connect((host, int(port)))
    one.settimeout(0.2)
    return one


def test_clients_that_never_read_their_answers(spawn: Spawn, evidence: Evidence) -> None:
    """All other calls are answered.

    20 ClassifyStream calls, and 20 HTTP connections that request classifications and explanations, send as much as they can and read
    nothing, under load, until the deadline of the streams, 2 s, has passed.
    """
    server = spawn(stderr=subprocess.DEVNULL)
    text = json.dumps({"text": "a good film " * 8}).encode()
    asks = b"".join(
        b"POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (what, len(text), text)
        for what in (b"classify", b"explain")
    )
    going = threading.Event()

    def items() -> Iterator[bytes]:
        number = 0
        while not going.is_set():
            number += 1
            yield pb.ClassifyStreamRequest(id=str(number), item=pb.Item(text="a good film")).SerializeToString()

    channels = [grpc.insecure_channel(server.target, NO_RETRIES) for _ in range(20)]
    with Callers(server.target) as callers:
        callers.wait(200)
        before = server.rss_bytes()
        streams = [one.stream_stream("/sentiment.v1.SentimentService/ClassifyStream")(items(), timeout=2) for one in channels]
        sockets = [connected(server) for _ in range(20)]
        for one in sockets:
            one.send(asks * 200)
        until(
            lambda: (
                server.total("requests_total", method="ClassifyStream", code="DEADLINE_EXCEEDED")
                + server.total("requests_total", method="ClassifyStream", code="CANCELLED")
                == 20
            ),
            "the streams are ended",
        )
        callers.wait(100)
        grown = server.rss_bytes() - before
        going.set()
        for one in sockets:
            one.close()
        for stream in streams:
            stream.cancel()
        for channel in channels:
            channel.close()
    with server.client() as client:
        eventually_answers(client)

    evidence.judge(callers.fates, may=["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"])
    evidence.measured |= {
        "memory grown by, MiB": round(grown / MIB, 1),
        "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1),
    }
    assert grown < 512 * MIB
