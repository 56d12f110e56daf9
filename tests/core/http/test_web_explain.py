"""POST /v1/explain of a real server."""

import asyncio
import json
import zlib
from typing import Any

import pytest
from aiohttp import web

from sentiment.doors.http import json_answers as web_lines
from sentiment.doors.http.receiving import Receiving
from sentiment.errors import Expired
from tests.conftest import RunningServer
from tests.core.grpc.gate import MODEL, Start, assert_nothing_left, fail_after, http_socket, total, until
from tests.core.http.http import call, post

EXPLAIN = "/v1/explain"
TEXT = "a good film and the awful w3"
REQUEST = json.dumps({"text": TEXT}).encode()


def assert_answers(server: RunningServer) -> None:
    assert [*call(server, EXPLAIN, {"text": TEXT}).lines[-1]] == ["summary"]
    # The last line goes out an instant before the call is over.
    asyncio.run(until(lambda: server.calls.open == 0, "the call is over"))
    assert server.metric("sentiment_explanations", model=MODEL) == 0
    assert_nothing_left(server)


async def test_lines_are_compressed_one_by_one_for_a_client_that_accepts_it(server: RunningServer) -> None:
    """Each line can be read when it has arrived."""
    inflate, lines, received = zlib.decompressobj(16 + zlib.MAX_WBITS), b"", b""
    with http_socket(server) as connection:
        connection.sendall(post(REQUEST, EXPLAIN, "Accept-Encoding: gzip", "Connection: close"))
        while part := connection.recv(65536):
            received += part
    head, _, chunks = received.partition(b"\r\n\r\n")
    first_lines = []
    while not chunks.startswith(b"0\r\n"):
        size, _, chunks = chunks.partition(b"\r\n")
        chunk, chunks = chunks[: int(size, 16)], chunks[int(size, 16) + 2 :]
        lines += (found := inflate.decompress(chunk))
        first_lines.append(found)

    assert b"Content-Encoding: gzip" in head
    assert all(found.endswith(b"\n") for found in first_lines if found)
    assert [*map(json.loads, lines.splitlines())][-1]["summary"]["complete"] is True
    assert inflate.eof
    assert len(lines.splitlines()) >= 4


def test_classify_explains_in_its_answer(server: RunningServer) -> None:
    answer = call(server, "/v1/classify", {"text": TEXT, "explain": {"methods": ["shapley"]}}).json

    assert answer["explanation"]["header"]["prediction"] == answer["prediction"]
    assert [attribution["method"] for attribution in answer["explanation"]["attributions"]] == ["shapley"]
    assert answer["explanation"]["summary"]["complete"] is True


INVALID = (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        (EXPLAIN, {"text": ""}, INVALID, "text: has 0 characters"),
        (EXPLAIN, {"text": "good", "options": {"methods": ["magic"]}}, INVALID, "options.methods[0]: is 'magic'"),
        ("/v1/classify", {"text": "good", "explain": {"methods": ["magic"]}}, INVALID, "explain.methods[0]: is 'magic'"),
        (EXPLAIN, {"text": "good", "options": {"attention": {}}}, (400, "FAILED_PRECONDITION"), "attention needs an explain graph"),
        (EXPLAIN, {"text": "good", "model": "nosuch"}, (404, "NOT_FOUND"), "nosuch"),
        (EXPLAIN, {"txt": "good"}, INVALID, "unknown field `txt`; fields are text, text_pair, model, truncation, label, options"),
        (EXPLAIN, b"\xff", INVALID, "not valid UTF-8"),
    ],
)
def test_an_error_before_the_first_line_sets_the_status(
    server: RunningServer, path: str, body: Any, code: tuple[int, str], says: str
) -> None:
    labels = {"method": path.rpartition("/")[2].capitalize(), "code": code[1]}
    before = total(server, "requests", **labels)

    answer = call(server, path, body)

    assert answer.error[:2] == code
    assert says in answer.error[2]
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert total(server, "requests", **labels) == before + 1
    assert_answers(server)


def test_the_clients_time_limit_is_kept_and_must_be_well_formed(server: RunningServer) -> None:
    malformed = call(server, EXPLAIN, {"text": TEXT}, Grpc_Timeout="soon")

    assert malformed.error[:2] == INVALID
    assert malformed.error[2].startswith("Grpc-Timeout: ")
    assert call(server, EXPLAIN, {"text": TEXT}, Grpc_Timeout="1n").status == 504
    assert_answers(server)


def test_a_later_error_is_the_last_line_and_ends_the_connection(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    fail_after(server, monkeypatch, runs=1)
    with http_socket(server) as connection:
        connection.sendall(post(REQUEST, EXPLAIN))
        received = b""
        while part := connection.recv(65536):
            received += part
    monkeypatch.undo()

    lines = [json.loads(line) for line in received.split(b"\r\n") if line.startswith(b"{")]
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"0\r\n\r\n")
    assert [next(iter(line)) for line in lines] == ["header", "error"]
    assert lines[-1]["error"]["status"] == "INTERNAL"
    assert "kernel" not in lines[-1]["error"]["message"]
    assert total(server, "requests", method="Explain", code="INTERNAL") == total(server, "requests", method="Explain") == 1
    assert_answers(server)


def test_an_answer_that_was_sent_whole_an_instant_late_stays_as_it_is(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    settle = Receiving.settle

    async def late(self: Receiving, request: web.Request, call: Any, work: Any) -> Any:
        await settle(self, request, call, work)
        raise Expired("the answer was ready 0.001 s after the deadline")

    monkeypatch.setattr(Receiving, "settle", late)
    answer = call(server, EXPLAIN, {"text": TEXT})
    monkeypatch.undo()

    assert [*answer.lines[-1]] == ["summary"]
    assert not caplog.records
    assert_answers(server)


async def test_a_client_that_does_not_read_is_disconnected_at_the_deadline(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are padded until no buffer on the way takes more of them."""
    server = start()
    monkeypatch.setattr(web_lines, "LAST_LINE_S", 0.05)
    to_json = web_lines.json_of

    async def padded(message: Any) -> str:
        return await to_json(message) + " " * 2**25

    monkeypatch.setattr(web_lines, "json_of", padded)
    with http_socket(server) as connection:
        connection.sendall(post(REQUEST, EXPLAIN, "Grpc-Timeout: 300m"))
        await until(lambda: total(server, "requests", method="Explain", code="DEADLINE_EXCEEDED") == 1, "the call has ended")
        monkeypatch.undo()
        await until(lambda: not server.web._runner.server.connections, "the connection is closed")

        received = b"..."
        while part := await asyncio.to_thread(connection.recv, 2**20):
            received = received[-5:] + part

    assert not received.endswith(b"0\r\n\r\n")
    await asyncio.to_thread(assert_answers, server)
