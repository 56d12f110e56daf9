"""The HTTP side of a real server."""

import asyncio
import gzip
import threading
from typing import Any

import pytest

from sentiment.api.http import bodies
from sentiment.api.http.json_answers import INLINE_BYTES_MAX
from sentiment.client import Client
from tests.api_grpc.gate import FixedCost, Gate, Start, assert_nothing_left, http_socket, queued, served_by, set_cost, total, until
from tests.api_http.http import call, post
from tests.conftest import RunningServer

CLASSIFY = "/v1/classify"
GOOD = {"text": "good"}
INVALID = (400, "INVALID_ARGUMENT")


def test_http_answers_as_grpc_does(server: RunningServer, client: Client) -> None:
    answer = call(server, CLASSIFY, {"text": "a good film"})

    found = answer.json
    assert answer.status == 200
    assert found["prediction"]["label"] == "positive"
    assert found["prediction"]["score"] == pytest.approx(client.classify("a good film").score)
    assert (found["tokens"], found["truncated"], found["prediction"]["abstain"]) == (5, False, False)
    assert set(found["timing"]) == {"total", "tokenize", "queue", "run", "batch_rows"}


@pytest.mark.parametrize(
    "options",
    ['{"without": [' + ",".join(["{}"] * 50_000) + "]}", '{"without": [{"words": [' + ",".join(["0"] * 50_000) + "]}]}"],
    ids=["objects", "numbers"],
)
def test_a_body_with_too_many_values_is_refused_before_it_becomes_a_message(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr("sentiment.api.http.bodies.ParseDict", lambda *_: pytest.fail("it was made a message"))

    answer = call(server, "/v1/explain", b'{"text": "good", "options": ' + options.encode() + b"}")

    assert answer.error == (*INVALID, "the body has more than 40000 values")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b'{"text": ""}', INVALID, "text: has 0 characters"),
        (b'{"text": "\\ud800"}', INVALID, "surrogate"),
        (b'{"text": "\xff"}', INVALID, "not valid UTF-8"),
        (b'{"text": 3}', INVALID, "not a valid sentiment.v1.ClassifyRequest in JSON"),
        (b'{"txt": "good"}', INVALID, "txt"),
        (b'{"text": "good", "text": "bad"}', INVALID, "an object has the same name twice"),
        (b"[" * 100_000, INVALID, "in JSON"),
        (b"", INVALID, "in JSON"),
        (b'{"text": "good", "truncation": 99}', INVALID, "truncation"),
        *((b'{"text": "good", "truncation": %b}' % number, INVALID, "in JSON") for number in (b"1e400", b"Infinity", b"-Infinity", b"NaN")),
        (b'{"text": "' + b"a" * 5 * 2**20 + b'"}', INVALID, "limit"),
        (b'{"text": "' + b"a" * 30 * 2**20 + b'"}', INVALID, "limit"),
        (b'{"text": "good", "model": "nosuch"}', (404, "NOT_FOUND"), "nosuch"),
        (b'{"text": "good", "text_pair": "bad"}', (400, "FAILED_PRECONDITION"), "pair"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_each_bad_request_has_its_status(server: RunningServer, body: bytes, code: tuple[int, str], says: str) -> None:
    answer = call(server, CLASSIFY, body)

    assert answer.error[:2] == code
    assert says in answer.error[2]
    assert answer.headers["x-request-id"]


def test_the_clients_time_limit_is_kept(server: RunningServer) -> None:
    assert call(server, CLASSIFY, GOOD, Grpc_Timeout="1n").status == 504
    assert call(server, CLASSIFY, GOOD, Grpc_Timeout="5S").status == 200
    malformed = call(server, CLASSIFY, GOOD, Grpc_Timeout="soon")
    assert malformed.error[:2] == INVALID
    assert "Grpc-Timeout: must be 1 to 8 digits" in malformed.error[2]


def test_health_and_readiness(server: RunningServer) -> None:
    answers = [call(server, path) for path in ("/healthz", "/readyz", "/nosuch")]

    assert [(answer.status, answer.body) for answer in answers[:2]] == [(200, b"ok\n"), (200, b"ready\n")]
    assert answers[2].status == 404


def test_a_refusal_for_lack_of_room_says_when_to_retry(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    monkeypatch.setattr(served_by(server).batcher.scheduler, "queue_rows_max", 0)

    answer = call(server, CLASSIFY, GOOD)

    assert answer.error[:2] == (429, "RESOURCE_EXHAUSTED")
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("body", [gzip.compress(b'{"text": "good"}'), b"no gzip"], ids=["good", "bad"])
def test_a_compressed_body_is_refused_and_never_inflated(server: RunningServer, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr("aiohttp.http_parser.DeflateBuffer", lambda *_, **__: pytest.fail("it is inflated"))

    answer = call(server, CLASSIFY, body, Content_Encoding="gzip")

    assert answer.error == (*INVALID, "Content-Encoding: must be identity, got 'gzip'; send the body uncompressed")
    assert call(server, CLASSIFY, GOOD, Content_Encoding="identity").status == 200


@pytest.mark.parametrize("path", [CLASSIFY, "/v1/explain"])
def test_a_large_body_is_parsed_in_a_thread(server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    parsed_in = []

    def message_of(*args: Any) -> Any:  # of any message
        parsed_in.append(threading.current_thread() is server._thread)
        return bodies.message_of(*args)

    monkeypatch.setattr("sentiment.api.http.server.message_of", message_of)
    for size in (1, INLINE_BYTES_MAX):
        assert call(server, path, {"text": "a" * size}).status == 200

    assert parsed_in == [True, False]


def test_a_body_that_never_arrives_ends_at_the_deadline(server: RunningServer) -> None:
    with http_socket(server) as connection:
        connection.sendall(post(b"{" * 100, CLASSIFY, "Grpc-Timeout: 100m")[:-99])

        assert connection.recv(65536).startswith(b"HTTP/1.1 504")


async def test_a_client_that_disconnects_leaves_the_queue_and_its_place_among_the_open_calls(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(runners=1, calls_max=2)
    set_cost(server, FixedCost(0.001))
    gate = Gate(server, monkeypatch)
    first = asyncio.create_task(asyncio.to_thread(call, server, CLASSIFY, GOOD))
    try:
        await gate.begun()
        with http_socket(server) as connection:
            connection.sendall(post(b'{"text": "bad"}'))
            await queued(server, 1)
            refused = await asyncio.to_thread(call, server, CLASSIFY, GOOD)
        await until(lambda: total(server, "requests", code="CANCELLED") == 1, "the server knows that the client has left")
        await queued(server, 0)
    finally:
        gate.open()

    assert refused.error == (429, "RESOURCE_EXHAUSTED", "2 calls are open; the limit is 2")
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await first).status == 200
    assert (await asyncio.to_thread(call, server, CLASSIFY, GOOD)).status == 200
    assert total(server, "items", code="CANCELLED") == total(server, "dropped", reason="cancelled") == 1
    assert total(server, "requests", code="RESOURCE_EXHAUSTED", model="") == 1
    assert_nothing_left(server)


def test_a_time_limit_too_short_for_an_idle_server_expires_at_once(start: Start) -> None:
    server = start(runners=1)
    set_cost(server, FixedCost(20.0))
    # Once a second an idle server tries a request whatever its table predicts.
    assert call(server, CLASSIFY, {"text": "probe"}).status == 200

    answer = call(server, CLASSIFY, GOOD)

    assert answer.error[:2] == (504, "DEADLINE_EXCEEDED")
    assert "Retry-After" not in answer.headers
    assert total(server, "refused", reason="deadline") == 1
