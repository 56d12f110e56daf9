"""Logs, traces, metrics and answers that nobody takes"""

import fcntl
import json
import os
import socket
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.observability.log_writer import LogLines
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import NO_RETRIES
from tests.faults.apart import Apart
from tests.faults.evidence import Evidence
from tests.faults.fates import Callers
from tests.front_ends.servers import PATIENCE_S, eventually_answers
from tests.tracing.collector import Collector

Spawn = Callable[..., Apart]
MIB = 2**20


@pytest.fixture
def spawn(bundles: Path) -> Iterator[Spawn]:
    servers: list[Apart] = []

    def begin(*flags: str, **how: Any) -> Apart:
        servers.append(Apart(bundles, *flags, **how))
        return servers[-1].wait_ready()

    yield begin
    for server in servers:
        server.end()


def wait_until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
def test_a_log_that_nobody_reads(spawn: Spawn, evidence: Evidence, front_ends: str) -> None:
    """Standard error is a pipe whose reader stops: under load with a log line for every call (debug) until lines are dropped. Then it
    reads on, stops again, and the server is ended by SIGTERM.
    """
    reader, writer = os.pipe()
    try:
        server = spawn("--log-level", "debug", "--front-ends", front_ends, stderr=writer)
        with Callers(server.target, channels=4) as callers:
            callers.wait(1000)
            wait_until(lambda: server.total("log_lines_dropped_total") > 0, "no line was dropped")
            callers.wait(300)
            hung = time.monotonic()
            found: list[str] = []
            reading = threading.Thread(target=lambda: found.extend(read_until(reader, "log_lines_lost")))
            reading.start()
            reading.join(PATIENCE_S)
            assert not reading.is_alive()
            callers.wait(300)
        evidence.measured["log lines dropped"] = int(server.total("log_lines_dropped_total"))
        server.process.terminate()
        assert server.finish() == 0
    finally:
        os.close(reader)
        os.close(writer)

    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}
    lost = [json.loads(line) for line in found if "log_lines_lost" in line]
    assert lost[0]["lines"] > 0
    whole = [json.loads(line)["event"] for line in found[1:-1]]
    assert "call" in whole
    evidence.measured["99 % of calls while nobody read within, ms"] = round(callers.fates.between(0, hung).seconds(0.99) * 1e3, 1)


def read_until(reader: int, words: str) -> list[str]:
    """Lines of a pipe until one has these words; the last may be cut."""
    content = b""
    while words.encode() not in content:
        content += os.read(reader, MIB)
    return content.decode().splitlines()


def test_lines_are_written_after_telling_of_lost_ones_has_failed() -> None:
    told: list[int] = []

    def fail(lost: int) -> None:
        told.append(lost)
        raise RuntimeError("no memory")

    reader, writer = os.pipe()
    try:
        lines = LogLines(writer, fail, bytes_max=8)
        for line in ("too long for its room\n", "one\n", "two\n", "too long again\n", "three\n"):
            lines.write(line)
            lines.wait_written(PATIENCE_S)
        written = os.read(reader, MIB)
    finally:
        os.close(reader)
        os.close(writer)

    assert written == b"one\ntwo\nthree\n"
    assert told[0] == 1
    assert lines.dropped == 2


def test_a_log_whose_reader_has_gone(spawn: Spawn, evidence: Evidence) -> None:
    """The pipe that standard error is loses its reader (EPIPE) under load with a log line for every call; later SIGTERM."""
    reader, writer = os.pipe()
    server = spawn("--log-level", "debug", stderr=writer)
    os.close(writer)
    with Callers(server.target) as callers:
        callers.wait(200)
        os.close(reader)
        callers.wait(500)
        wait_until(lambda: server.total("log_lines_dropped_total") > 0, "no line was dropped")
    server.process.terminate()

    assert server.finish() == 0
    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}


@pytest.mark.usefixtures("hangs_up")
def test_a_terminal_that_goes_away(spawn: Spawn, evidence: Evidence) -> None:
    """The server runs in a terminal that is closed under load (SIGHUP, and a standard error that is gone): it drains as after SIGTERM,
    and what comes later finds nobody.
    """
    terminal, slave = os.openpty()
    server = spawn(stderr=slave, stdin=slave, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))
    os.close(slave)
    with Callers(server.target, timeout_s=2) as callers:
        callers.wait(200)
        os.close(terminal)
        assert server.finish() == 0

    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) <= {"answered", "wrong", "never told", "UNAVAILABLE", "DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("way", ["hangs", "refuses"])
def test_a_trace_collector_that_takes_nothing(spawn: Spawn, evidence: Evidence, way: str) -> None:
    """Every request is traced, and the collector never answers, or refuses, under load; then SIGTERM."""
    collector = Collector()
    try:
        setattr(collector, way, True)
        small = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_BSP_MAX_QUEUE_SIZE": "256", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64"}
        told = os.environ | small | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        server = spawn("--tracing", env=told, stderr=subprocess.DEVNULL)
        with Callers(server.target) as callers:
            callers.wait(1000)
            collector.wait_for_calls(1)
            wait_until(lambda: server.total("trace_spans_dropped_total") > 0, "no span was dropped")
            callers.wait(300)
        dropped = server.total("trace_spans_dropped_total")
        server.process.terminate()
        assert server.finish() == 0
    finally:
        collector.stop()

    evidence.count(callers.fates)
    evidence.measured |= {"spans dropped": int(dropped), "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1)}
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}


def test_scrapers_that_never_read_their_answer(spawn: Spawn, evidence: Evidence) -> None:
    """20 connections ask for /metrics 50 times each and read nothing, under load; at the end they are closed."""
    server = spawn(stderr=subprocess.DEVNULL)
    ask = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50
    with Callers(server.target) as callers:
        callers.wait(200)
        before = server.rss_bytes()
        sockets = [connected(server) for _ in range(20)]
        for one in sockets:
            one.send(ask)
        callers.wait(1000)
        assert server.total("requests_total") > 0
        grown = server.rss_bytes() - before
        open_then = server.connections()
        for one in sockets:
            one.close()
        wait_until(lambda: server.connections() <= open_then - 20, "connections stay open")
        callers.wait(200)

    evidence.count(callers.fates)
    evidence.measured["memory grown by, MiB"] = round(grown / MIB, 1)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}
    assert grown < 256 * MIB


def connected(server: Apart) -> socket.socket:
    """To its HTTP port, with hardly any room for what comes back."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(PATIENCE_S)
    one.connect((host, int(port)))
    one.settimeout(0.2)
    return one


def test_clients_that_never_read_their_answers(spawn: Spawn, evidence: Evidence) -> None:
    """20 ClassifyStream calls and 20 HTTP connections ask as much as they can, the latter for classifications and explanations, and read
    nothing, under load, until the deadline of the streams, 4 s, has passed.
    """
    server = spawn(stderr=subprocess.DEVNULL)
    text = json.dumps({"text": "a good film " * 8}).encode()
    asks = b"".join(
        b"POST /v1/%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (what, len(text), text) for what in (b"classify", b"explain")
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
        streams = [one.stream_stream("/sentiment.v1.SentimentService/ClassifyStream")(items(), timeout=4) for one in channels]
        sockets = [connected(server) for _ in range(20)]
        for one in sockets:
            one.send(asks * 200)
        wait_until(
            lambda: (
                server.total("requests_total", method="ClassifyStream", code="DEADLINE_EXCEEDED")
                + server.total("requests_total", method="ClassifyStream", code="CANCELLED")
                == 20
            ),
            "streams stay open",
        )
        callers.wait(500)
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

    evidence.count(callers.fates)
    evidence.measured |= {
        "memory grown by, MiB": round(grown / MIB, 1),
        "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1),
    }
    evidence.assert_nothing_lost()
    assert grown < 512 * MIB
