"""The HTTP side of a real server."""

import asyncio
import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from sentiment.api.http import bodies
from sentiment.api.http.json_answers import INLINE_BYTES_MAX
from sentiment.client import Client
from tests.conftest import RunningServer
from tests.rpc.gate import FixedCost, Gate, assert_nothing_left, queued, set_cost, total, until


def call(server: RunningServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(server.url + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_it_answers_what_grpc_answers(server: RunningServer, client: Client) -> None:
    status, body, _ = call(server, "/v1/classify", b'{"text": "a good film"}')

    answer = json.loads(body)
    assert status == 200
    assert answer["prediction"]["label"] == "positive"
    assert answer["prediction"]["score"] == pytest.approx(client.classify("a good film").score)
    assert (answer["tokens"], answer["truncated"], answer["prediction"]["abstain"]) == (5, False, False)
    assert set(answer["timing"]) == {"total", "tokenize", "queue", "run", "batch_rows"}


@pytest.mark.parametrize(
    "options",
    ['{"without": [' + ",".join(["{}"] * 50_000) + "]}", '{"without": [{"words": [' + ",".join(["0"] * 50_000) + "]}]}"],
    ids=["objects", "numbers"],
)
def test_a_body_of_more_values_than_any_request_has_is_refused_before_it_becomes_a_message(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr("sentiment.api.http.bodies.ParseDict", lambda *_: pytest.fail("it was made a message"))

    status, text, _ = call(server, "/v1/explain", b'{"text": "good", "options": ' + options.encode() + b"}")

    assert status == 400
    assert json.loads(text)["error"]["message"] == "the body has more than 40000 values"


def test_a_name_that_stands_twice_is_refused(server: RunningServer) -> None:
    status, text, _ = call(server, "/v1/classify", b'{"text": "good", "text": "bad"}')

    assert status == 400
    assert "an object has the same name twice" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b'{"text": ""}', 400, "INVALID_ARGUMENT", "text: has 0 characters"),
        (b'{"text": "\\ud800"}', 400, "INVALID_ARGUMENT", "surrogate"),
        (b'{"text": "\xff"}', 400, "INVALID_ARGUMENT", "not valid UTF-8"),
        (b'{"text": 3}', 400, "INVALID_ARGUMENT", "not a valid sentiment.v1.ClassifyRequest in JSON"),
        (b'{"txt": "good"}', 400, "INVALID_ARGUMENT", "txt"),
        (b"[" * 100_000, 400, "INVALID_ARGUMENT", "in JSON"),
        (b"", 400, "INVALID_ARGUMENT", "in JSON"),
        (b'{"text": "good", "truncation": 99}', 400, "INVALID_ARGUMENT", "truncation"),
        (b'{"text": "good", "model": "nosuch"}', 404, "NOT_FOUND", "nosuch"),
        (b'{"text": "good", "text_pair": "bad"}', 400, "FAILED_PRECONDITION", "pair"),
    ],
    ids=["empty", "surrogate", "utf8", "type", "unknown-field", "deep", "no-body", "enum", "model", "pair"],
)
def test_each_bad_request_has_its_status(server: RunningServer, body: bytes, status: int, code: str, says: str) -> None:
    found, text, headers = call(server, "/v1/classify", body)

    error = json.loads(text)["error"]
    assert (found, error["status"]) == (status, code)
    assert says in error["message"]
    assert headers["x-request-id"]


def test_a_body_over_the_limit_is_refused(server: RunningServer) -> None:
    for size in (5 * 2**20, 30 * 2**20):
        status, text, _ = call(server, "/v1/classify", b'{"text": "' + b"a" * size + b'"}')

        assert status == 400
        assert "limit" in json.loads(text)["error"]["message"]


def test_the_clients_time_limit_is_kept(server: RunningServer) -> None:
    assert call(server, "/v1/classify", b'{"text": "good"}', **{"Grpc-Timeout": "1n"})[0] == 504
    assert call(server, "/v1/classify", b'{"text": "good"}', **{"Grpc-Timeout": "5S"})[0] == 200
    status, text, _ = call(server, "/v1/classify", b'{"text": "good"}', **{"Grpc-Timeout": "soon"})
    assert status == 400
    assert "Grpc-Timeout: must be 1 to 8 digits" in json.loads(text)["error"]["message"]


def test_health_and_readiness(server: RunningServer) -> None:
    assert call(server, "/healthz")[:2] == (200, "ok\n")
    assert call(server, "/readyz")[:2] == (200, "ready\n")
    assert call(server, "/nosuch")[0] == 404


def test_a_refusal_for_want_of_room_says_when_to_come_back(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    scheduler = server.app._models.find("").batcher.scheduler
    monkeypatch.setattr(scheduler, "queue_rows_max", 0)

    status, text, headers = call(server, "/v1/classify", b'{"text": "good"}')

    assert status == 429
    assert json.loads(text)["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert int(headers["Retry-After"]) >= 1


@pytest.mark.parametrize("number", ["1e400", "Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize("field", ["truncation", "priority"])
def test_a_number_without_an_end_is_the_callers_fault(server: RunningServer, field: str, number: str) -> None:
    status, text, _ = call(server, "/v1/classify", f'{{"text": "good", "{field}": {number}}}'.encode())

    assert (status, json.loads(text)["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("body", [gzip.compress(b'{"text": "good"}'), b"no gzip"], ids=["good", "bad"])
def test_a_compressed_body_is_refused_and_never_inflated(server: RunningServer, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr("aiohttp.http_parser.DeflateBuffer", lambda *_, **__: pytest.fail("it is inflated"))

    status, text, _ = call(server, "/v1/classify", body, **{"Content-Encoding": "gzip"})

    error = json.loads(text)["error"]
    assert (status, error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["message"] == "Content-Encoding: must be identity, got 'gzip'; send the body uncompressed"
    assert call(server, "/v1/classify", b'{"text": "good"}', **{"Content-Encoding": "identity"})[0] == 200


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/explain"])
def test_a_body_that_takes_more_than_a_moment_is_read_beside_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    read_in = []

    def message_of(*args: Any) -> Any:  # of any message
        read_in.append(threading.current_thread())
        return bodies.message_of(*args)

    monkeypatch.setattr("sentiment.api.http.server.message_of", message_of)
    for size in (1, INLINE_BYTES_MAX):
        assert call(server, path, json.dumps({"text": "a" * size}).encode())[0] == 200

    inline, beside = read_in
    assert inline is server._thread
    assert beside is not server._thread


def test_a_body_that_never_comes_ends_at_the_deadline(server: RunningServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nGrpc-Timeout: 200m\r\nContent-Length: 100\r\n\r\n{")

        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 504")


def post(text: str) -> bytes:
    body = json.dumps({"text": text}).encode()
    return b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_who_hangs_up_leaves_the_queue_and_his_place_among_the_open_calls(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(runners=1, calls_max=2)
    set_cost(server, FixedCost(0.001))
    gate = Gate(server, monkeypatch)
    host, _, port = server.url.removeprefix("http://").partition(":")
    first = asyncio.create_task(asyncio.to_thread(call, server, "/v1/classify", b'{"text": "good"}'))
    try:
        await gate.begun()
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(post("bad"))
            await queued(server, 1)
            status, text, headers = await asyncio.to_thread(call, server, "/v1/classify", b'{"text": "great"}')
        await until(lambda: total(server, "requests", code="CANCELLED") == 1, "the server knows that the client has left")
        await queued(server, 0)
    finally:
        gate.open()

    assert (status, json.loads(text)["error"]["message"]) == (429, "2 calls are open; the limit is 2")
    assert int(headers["Retry-After"]) >= 1
    assert (await first)[0] == 200
    assert (await asyncio.to_thread(call, server, "/v1/classify", b'{"text": "great"}'))[0] == 200
    assert total(server, "items", code="CANCELLED") == total(server, "dropped", reason="cancelled") == 1
    assert total(server, "requests", code="RESOURCE_EXHAUSTED", model="") == 1
    assert_nothing_left(server)


def test_a_time_limit_too_short_for_an_idle_server_is_told_at_once(start: Callable[..., RunningServer]) -> None:
    server = start(runners=1)
    set_cost(server, FixedCost(20.0))
    # Once a second an idle server tries whatever its table denies.
    assert call(server, "/v1/classify", b'{"text": "probe"}')[0] == 200

    status, text, headers = call(server, "/v1/classify", b'{"text": "good"}')

    assert (status, json.loads(text)["error"]["status"]) == (504, "DEADLINE_EXCEEDED")
    assert "Retry-After" not in headers
    assert total(server, "refused", reason="deadline") == 1
