"""How bodies are read: early answers that their senders can read, limits of chunks and time, and the budget of bytes."""

import asyncio
import contextlib
import gzip
import http.client
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentiment.doors.http import server as server_module
from sentiment.doors.http.connections import LINGER_S
from sentiment.doors.http.receiving import CHUNK_BYTES_MIN, CHUNKS_FREE, LARGE_BYTES, LARGE_PARSED_MAX
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.core.grpc.gate import PATIENCE_S, Gate, Start, http_socket, in_loop, until
from tests.core.http.http import call, post

CLASSIFY = "/v1/classify"
GOOD = b'{"text": "good"}'
TOKEN = "a-token-of-16-characters"
MIB = 2**20
HEAD = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def guarded(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that answers callers without a token before it reads the body."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    running = RunningServer(settings.model_copy(update={"auth_tokens": str(tokens)}))
    yield running
    running.stop()


def by_urllib(server: RunningServer, body: Path) -> int:
    try:
        urllib.request.urlopen(server.url + CLASSIFY, body.read_bytes(), PATIENCE_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def by_http_client(server: RunningServer, body: Path, chunks: bool = False) -> int:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection), body.open("rb") as opened:
        connection.request("POST", CLASSIFY, iter(lambda: opened.read(2**16), b"") if chunks else opened.read())
        return connection.getresponse().status


def by_chunks(server: RunningServer, body: Path) -> int:
    return by_http_client(server, body, chunks=True)


def by_curl(server: RunningServer, body: Path, *arguments: str) -> int:
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", f"@{body}", *arguments, server.url + CLASSIFY]
    return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def by_curl_that_asks_first(server: RunningServer, body: Path) -> int:
    return by_curl(server, body, "-H", "Expect: 100-continue")


@pytest.mark.parametrize("mib", [0.01, 1, 30], ids=lambda mib: f"{mib} MiB")
@pytest.mark.parametrize(
    "send",
    [
        by_urllib,
        by_http_client,
        by_chunks,
        pytest.param(by_curl, marks=pytest.mark.needs_tool("curl")),
        pytest.param(by_curl_that_asks_first, marks=pytest.mark.needs_tool("curl")),
    ],
)
def test_a_client_that_reads_after_it_has_sent_reads_an_early_answer(
    guarded: RunningServer, send: Callable[[RunningServer, Path], int], mib: float, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"x" * int(mib * MIB))

    assert send(guarded, tmp_path / "body") == 401


def test_a_client_that_never_ends_its_body_is_cut_off_after_an_early_answer(guarded: RunningServer) -> None:
    with http_socket(guarded) as connection:
        connection.sendall(CHUNKED)
        answer = connection.recv(2**16)
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < begun + PATIENCE_S:
                connection.sendall(b"1\r\n \r\n")
                time.sleep(LINGER_S / 50)
        seconds = time.monotonic() - begun

    assert answer.startswith(b"HTTP/1.1 401")
    assert b"Connection: close" in answer
    assert seconds < PATIENCE_S / 2


def test_a_connection_is_kept_after_an_early_answer_to_a_short_body(guarded: RunningServer) -> None:
    connection = http.client.HTTPConnection(guarded.url.removeprefix("http://"), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        statuses = []
        for _ in range(2):
            # Headers and body go out one after the other.
            connection.request("POST", CLASSIFY, GOOD)
            own = connection.sock
            with connection.getresponse() as answer:
                answer.read()
                statuses.append(answer.status)
            assert connection.sock is own

    assert statuses == [401, 401]


def test_requests_that_follow_an_early_answer_in_one_stream_are_answered_with_their_own_bodies(server: RunningServer) -> None:
    early = post(b"x" * 60_000, CLASSIFY, "Grpc-Timeout: soon")
    head = len(early) - 60_000
    following = (
        post(json.dumps({"text": "good " * 20_000}).encode()) + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    received = b""
    with http_socket(server) as connection:
        connection.sendall(early[:head])
        received += connection.recv(2**16)
        connection.sendall(early[head:] + following)
        while part := connection.recv(2**16):
            received += part

    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"400", b"200", b"200"]


def chunks(size: int, number: int) -> bytes:
    return (b"%x\r\n" % size + b"a" * size + b"\r\n") * number


def answer_to(server: RunningServer, sent: bytes) -> tuple[int, Any]:
    """Status and JSON of the answer; the server must close the connection after it."""
    received = b""
    with http_socket(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(2**16):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(body)


def test_a_body_of_very_many_tiny_chunks_is_refused(server: RunningServer) -> None:
    status, answer = answer_to(server, CHUNKED + chunks(1, 2 * CHUNKS_FREE))

    assert (status, answer["error"]["message"]) == (
        400,
        f"the body has more than {CHUNKS_FREE} chunks, of fewer than {CHUNK_BYTES_MIN} bytes on average",
    )


@pytest.mark.parametrize(("size", "number"), [(1, CHUNKS_FREE // 2), (CHUNK_BYTES_MIN + 1, CHUNKS_FREE + 1000)], ids=["tiny", "many"])
def test_a_body_of_few_tiny_or_many_fair_chunks_is_read(server: RunningServer, size: int, number: int) -> None:
    begin = HEAD + b"Transfer-Encoding: chunked\r\nGrpc-Timeout: 60S\r\nConnection: close\r\n\r\n"

    status, _ = answer_to(server, begin + b'a\r\n{"text": "\r\n' + chunks(size, number) + b'2\r\n"}\r\n0\r\n\r\n')

    assert status == 200


def test_a_body_must_arrive_within_the_setting_however_long_the_deadline_is(start: Start) -> None:
    server = start(receive_s_max=0.2)

    status, answer = answer_to(server, post(GOOD, CLASSIFY, "Grpc-Timeout: 60S")[:-1])

    assert (status, answer["error"]["status"]) == (504, "DEADLINE_EXCEEDED")


def taken(server: RunningServer) -> int:
    """Bytes in the budget."""
    return in_loop(server, lambda: server.app._requests.used)


def test_bodies_over_the_budget_are_refused_and_the_budget_is_whole_again(start: Start) -> None:
    server = start(request_bytes_max=MIB)
    large = json.dumps({"text": "a" * 1_500_000}).encode()

    refused = call(server, CLASSIFY, large)

    assert refused.error[:2] == (429, "RESOURCE_EXHAUSTED")
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Connection"] == "close"
    assert call(server, CLASSIFY, {"text": "a" * 400_000}).status == 200
    assert taken(server) == 0


def test_a_compressed_body_counts_with_its_content(start: Start) -> None:
    server = start(request_bytes_max=MIB)
    refused, read = (
        call(server, path, gzip.compress(json.dumps({"text": "a" * size}).encode()), Content_Encoding="gzip")
        for path, size in ((CLASSIFY, 1_500_000), (CLASSIFY, 400_000))
    )

    assert (refused.status, read.status) == (429, 200)
    assert taken(server) == 0


async def test_bytes_are_in_the_budget_while_the_call_is_answered_and_not_after_its_client_has_left(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(runners=1)
    gate = Gate(server, monkeypatch)
    with http_socket(server) as arriving, http_socket(server) as answered:
        arriving.sendall(post(b" " * 100_000, CLASSIFY)[:50_000])
        answered.sendall(post(GOOD))
        await gate.begun()
        await until(lambda: taken(server) > 30_000, "part of a body has arrived")
        while_answered = taken(server)
    await until(lambda: taken(server) == 0, "nothing is held")
    gate.open()

    assert while_answered >= 30_000 + len(GOOD)


async def test_bytes_are_in_the_budget_until_no_thread_parses_them_and_large_bodies_take_turns(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, begun, go_on = start(), Counter[int](), threading.Event()
    parse = server_module.message_of

    def wait(kind: type[Any], body: bytes, limits: Any) -> Any:
        begun.update([len(body)])
        assert go_on.wait(PATIENCE_S)
        return parse(kind, body, limits)

    monkeypatch.setattr(server_module, "message_of", wait)
    large, small = (post(json.dumps({"text": "a" * size}).encode(), CLASSIFY, "Grpc-Timeout: 60S") for size in (LARGE_BYTES, 10_000))
    with contextlib.ExitStack() as crowd:
        for sent in (*[large] * (LARGE_PARSED_MAX + 2), small):
            crowd.enter_context(http_socket(server)).sendall(sent)
        await until(lambda: taken(server) > (LARGE_PARSED_MAX + 2) * LARGE_BYTES + 10_000, "all are there")
        await until(lambda: begun.total() > LARGE_PARSED_MAX, "all that may are parsed")
    await until(lambda: server.calls.open == 0, "all calls have ended")
    while_parsed = taken(server)
    go_on.set()
    await until(lambda: taken(server) == 0, "nothing is held")

    assert sorted(begun.values()) == [1, LARGE_PARSED_MAX]
    assert LARGE_PARSED_MAX * LARGE_BYTES < while_parsed < (LARGE_PARSED_MAX + 1) * LARGE_BYTES


async def test_no_connection_is_closed_for_others_while_it_is_answered(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(runners=1, http_connections_max=10)
    gate = Gate(server, monkeypatch)
    asked = asyncio.create_task(asyncio.to_thread(call, server, CLASSIFY, {"text": "good"}))
    await gate.begun()
    with contextlib.ExitStack() as crowd:
        for _ in range(30):
            crowd.enter_context(http_socket(server))
            prober = await asyncio.to_thread(call, server, "/healthz")
            assert prober.status == 200
        gate.open()
        assert (await asked).status == 200

    assert server.metric("sentiment_http_connections_closed_total", reason="waiting") >= 20
    assert server.metric("sentiment_http_connections_closed_total", reason="new") == 0
