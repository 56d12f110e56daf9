"""A stop of a real server over HTTP: no request that has arrived is lost, and what is cut off says so."""

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import structlog

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import PATIENCE_S, Gate, Start, http_socket, total, until
from tests.core.http.http import Answer, post

GOOD = b'{"text": "good"}'
EXPLAIN = b'{"text": "a good film and the awful w3"}'


@contextlib.contextmanager
def connected(server: RunningServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        yield connection


def ask(connection: http.client.HTTPConnection, path: str = "/v1/classify", body: bytes = GOOD) -> Answer:
    connection.request("POST", path, body)
    with connection.getresponse() as answer:
        return Answer(answer.status, dict(answer.headers), answer.read())


def stop(server: RunningServer) -> None:
    server.loop.call_soon_threadsafe(server.app.stop)


async def listens_no_more(server: RunningServer) -> None:
    def refused() -> bool:
        try:
            http_socket(server).close()
        except ConnectionError:
            return True
        return False

    await until(refused, "the port is closed")


async def test_from_the_first_moment_of_a_drain_each_answer_closes_its_connection(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server, noticed = start(), asyncio.Event()
    monkeypatch.setattr(server.app, "_wait_noticed", noticed.wait)
    with connected(server) as kept, connected(server) as new:
        before = ask(kept)
        stop(server)
        await until(lambda: server.web._leaving, "the drain has begun")
        answers = [before, await asyncio.to_thread(ask, kept), await asyncio.to_thread(ask, new)]
    server.loop.call_soon_threadsafe(noticed.set)

    assert [(answer.status, answer.headers.get("Connection")) for answer in answers] == [(200, None), (200, "close"), (200, "close")]


async def test_requests_in_progress_are_answered_and_idle_connections_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(runners=1, drain_grace_s=PATIENCE_S)
    gate = Gate(server, monkeypatch)
    with http_socket(server) as idle, http_socket(server) as half, connected(server) as connection:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not idle.recv(2**16).endswith(b"ok\n"):
            pass
        asked = asyncio.create_task(asyncio.to_thread(ask, connection))
        half.sendall(post(GOOD)[:-1])
        await gate.begun()
        stop(server)
        await listens_no_more(server)
        ended = await asyncio.to_thread(idle.recv, 1)
        half.sendall(GOOD[-1:])
        gate.open()
        answer, other = await asked, await asyncio.to_thread(half.recv, 2**16)

    assert ended == b""
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert other.startswith(b"HTTP/1.1 200")


async def test_what_is_cut_off_at_the_end_of_the_grace_is_unavailable_to_callers_and_in_counts_and_is_logged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(runners=1, drain_grace_s=0.3)
    gate = Gate(server, monkeypatch)
    with structlog.testing.capture_logs() as logged, connected(server) as connection:
        asked = asyncio.create_task(asyncio.to_thread(ask, connection))
        async with grpc.aio.insecure_channel(server.target, NO_RETRIES) as channel:
            stub: Any = pb_grpc.SentimentServiceStub(channel)
            call = stub.Classify(pb.ClassifyRequest(text="good"), timeout=PATIENCE_S)
            await gate.begun()
            await until(lambda: server.calls.open == 2, "both are open")
            stop(server)
            code = await call.code()
        answer = await asked
        gate.open()
        await until(lambda: any(line["event"] == "drained" for line in logged), "the drain has ended")

    assert code is grpc.StatusCode.UNAVAILABLE
    assert answer.error[:2] == (503, "UNAVAILABLE")
    assert answer.headers["Connection"] == "close"
    assert total(server, "requests", code="UNAVAILABLE") == 2
    assert {(line["transport"], line["calls"]) for line in logged if line["event"] == "calls_cut"} == {("grpc", 1), ("http", 1)}


async def test_a_stream_that_is_cut_off_at_the_end_of_the_grace_ends_with_an_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(runners=1, drain_grace_s=0.3)
    begun, go_on = threading.Event(), threading.Event()

    def hold(*_: object, **__: object) -> object:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        raise RuntimeError("nobody waits for this")

    monkeypatch.setattr("sentiment.explain.engine.attributions.Attributions._attribution", hold)
    with connected(server) as connection:
        asked = asyncio.create_task(asyncio.to_thread(ask, connection, "/v1/explain", EXPLAIN))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        stop(server)
        answer = await asked
        go_on.set()

    assert answer.status == 200
    assert [next(iter(line)) for line in answer.lines] == ["header", "error"]
    assert answer.lines[-1]["error"]["status"] == "UNAVAILABLE"
