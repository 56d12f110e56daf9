"""The HTTP side of a real server."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from sentiment.client import Client
from sentiment.doors.http import bodies
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX
from tests.conftest import RunningServer
from tests.core.grpc.gate import FixedCost, Gate, Start, assert_nothing_left, http_socket, queued, set_cost, total, until
from tests.core.http.http import call, post

CLASSIFY = "/v1/classify"
FULL = "2 calls are open, 0 of them this caller's; the limit is 2, and a caller gets at most as many as stay free"
BATCH = "/v1/classify:batch"
GOOD = {"text": "good"}
INVALID = (400, "INVALID_ARGUMENT")


@pytest.mark.smoke
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
    monkeypatch.setattr("sentiment.doors.http.bodies.fill", lambda *_: pytest.fail("it was made a message"))

    answer = call(server, "/v1/explain", b'{"text": "good", "options": ' + options.encode() + b"}")

    assert answer.error == (*INVALID, "the body has more than 40000 values")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b'{"text": ""}', INVALID, "text: has 0 characters"),
        (b'{"text": "\\ud800"}', INVALID, "surrogate"),
        (b'{"text": "\xff"}', INVALID, "not valid UTF-8"),
        (b'{"text": 3}', INVALID, "text: must be a string, got a number"),
        (
            b'{"txt": "good"}',
            INVALID,
            "unknown field `txt`; fields are text, text_pair, model, truncation, priority, explain, sentences, targets",
        ),
        (b'{"text": "good", "text": "bad"}', INVALID, "an object with the same name twice"),
        (b"[" * 100_000, INVALID, "is not valid JSON: it nests too deeply"),
        (b"[" * 1000, INVALID, "is not valid JSON"),
        (b"", INVALID, "the body is empty"),
        (b'{"text": "good", "truncation": 99}', INVALID, "truncation"),
        *(
            (b'{"text": "good", "truncation": %b}' % number, INVALID, "truncation: must be a whole number")
            for number in (b"1e400", b"Infinity", b"-Infinity", b"NaN")
        ),
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


def test_health_and_readiness(server: RunningServer) -> None:
    answers = [call(server, path) for path in ("/healthz", "/readyz", "/nosuch")]

    assert [(answer.status, answer.body) for answer in answers[:2]] == [(200, b"ok\n"), (200, b"ready\n")]
    assert answers[2].status == 404


def test_every_answer_names_the_server_without_a_version(server: RunningServer) -> None:
    answers = [
        call(server, CLASSIFY, GOOD),
        call(server, "/v1/explain", GOOD),
        call(server, CLASSIFY, b""),
        call(server, "/"),
        call(server, "/nosuch"),
        call(server, "/metrics", Host="evil.example"),
    ]
    with http_socket(server) as connection:
        connection.sendall(b"no request\r\n\r\n")
        refused = connection.recv(65536)

    assert [answer.status for answer in answers] == [200, 200, 400, 200, 404, 421]
    assert [answer.headers["Server"] for answer in answers] == ["sentiment"] * 6
    assert refused.startswith(b"HTTP/1.0 400")
    assert b"\r\nServer: sentiment\r\n" in refused


def test_a_browser_that_looks_for_an_icon_finds_none_and_no_error(start: Start) -> None:
    answer = call(start(web="metrics"), "/favicon.ico")

    assert (answer.status, answer.body) == (204, b"")


def test_items_may_be_texts_and_options_short(server: RunningServer) -> None:
    answer = call(server, BATCH, {"items": ["good", {"text": "awful"}, ""], "truncation": "windows", "priority": "interactive"})

    *answered, empty = answer.json["results"]
    assert [result["response"]["prediction"]["label"] for result in answered] == ["positive", "negative"]
    assert empty["error"]["message"].startswith("items[2].text: has 0 characters")


def test_a_compressed_body_is_read_in_a_thread(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    inflated_in = []

    def inflated(*args: Any) -> bytes:
        inflated_in.append(server.runs_here())
        return bodies.inflated(*args)

    monkeypatch.setattr("sentiment.doors.http.receiving.inflated", inflated)
    monkeypatch.setattr("aiohttp.http_parser.DeflateBuffer", lambda *_, **__: pytest.fail("the event loop inflates it"))

    for encoding in ("gzip", "x-gzip", "GZIP"):
        answer = call(server, CLASSIFY, gzip.compress(b'{"text": "a good film"}'), Content_Encoding=encoding)
        assert (answer.status, answer.json["tokens"]) == (200, 5)
    assert inflated_in == [False, False, False]


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (gzip.compress(bytes(64 * 2**20)), "gzip", "once decompressed, than the limit of 6553600"),
        (b"anything", "br", "Content-Encoding: must be gzip or identity, got 'br'"),
        (gzip.compress(b"{}"), "gzip, gzip", "Content-Encoding: must be gzip or identity"),
    ],
    ids=["a bomb", "brotli", "twice"],
)
def test_a_compressed_body_that_cannot_be_read_is_refused(server: RunningServer, body: bytes, encoding: str, says: str) -> None:
    answer = call(server, CLASSIFY, body, Content_Encoding=encoding)

    assert answer.error[:2] == INVALID
    assert says in answer.error[2]
    assert call(server, CLASSIFY, GOOD, Content_Encoding="identity").status == 200


def test_a_large_answer_is_compressed_for_a_client_that_accepts_it(server: RunningServer) -> None:
    batch = {"items": [{"text": "a good film"}] * 100}
    plain, compressed = (call(server, BATCH, batch, Accept_Encoding=accepts) for accepts in ("gzip;q=0", "br, gzip;q=0.5"))

    assert "Content-Encoding" not in plain.headers
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert plain.headers["Vary"] == compressed.headers["Vary"] == "Accept-Encoding"
    assert [one["response"]["tokens"] for one in json.loads(gzip.decompress(compressed.body))["results"]] == [5] * 100
    assert len(compressed.body) * 10 < len(plain.body)


def test_a_small_answer_is_never_compressed(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.doors.http.json_answers.accepts_gzip", lambda _: pytest.fail("the header is not even read"))

    answer = call(server, CLASSIFY, GOOD, Accept_Encoding="gzip")

    assert (answer.status, answer.json["prediction"]["label"]) == (200, "positive")
    assert not {"Content-Encoding", "Vary"} & set(answer.headers)


def test_an_unknown_route_or_method_is_answered_in_json(server: RunningServer) -> None:
    unknown, wrong = call(server, "/v1/clasify", GOOD), call(server, CLASSIFY)

    assert unknown.error == (404, "NOT_FOUND", "there is no route /v1/clasify; /openapi.json lists the routes")
    assert wrong.error == (405, "UNIMPLEMENTED", "/v1/classify does not take GET; it takes POST")
    assert wrong.headers["Allow"] == "POST"
    assert call(server, "/v1/models/tiny", method="DELETE").headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", [CLASSIFY, "/v1/explain"])
def test_a_large_body_is_parsed_in_a_thread(server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    parsed_in = []

    def message_of(*args: Any) -> Any:  # of any message
        parsed_in.append(server.runs_here())
        return bodies.message_of(*args)

    monkeypatch.setattr("sentiment.doors.http.server.message_of", message_of)
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

    assert refused.error == (429, "RESOURCE_EXHAUSTED", FULL)
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await first).status == 200
    assert (await asyncio.to_thread(call, server, CLASSIFY, GOOD)).status == 200
    assert total(server, "items", code="CANCELLED") == total(server, "dropped", reason="cancelled") == 1
    assert total(server, "requests", code="RESOURCE_EXHAUSTED", model="") == 1
    assert_nothing_left(server)
