"""POST /v1/explain of a real server."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sentiment.api.http import json_answers as web_lines
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.rpc.gate import MODEL, PATIENCE_S, Gate, assert_nothing_left, served_by, total, until

TEXT = "a good film and the awful w3"


pytestmark = pytest.mark.usefixtures("awake")


@pytest.fixture(scope="module")
def server(awake: None, settings: Settings) -> Iterator[RunningServer]:
    running = RunningServer(settings)
    yield running
    running.stop()


def post(server: RunningServer, body: Any, path: str = "/v1/explain", **headers: str) -> tuple[int, dict[str, str], list[Any]]:
    """Status, headers and lines of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=PATIENCE_S) as response:
            return response.status, dict(response.headers), [json.loads(line) for line in response]
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), [json.loads(error.read())]


def assert_answers(server: RunningServer) -> None:
    assert [*post(server, {"text": TEXT})[2][-1]] == ["summary"]
    # The last line goes out an instant before the call is over.
    asyncio.run(until(lambda: server.app._grpc.calls._open == 0, "the call is over"))
    assert server.metric("sentiment_explanations", model=MODEL) == 0
    assert_nothing_left(server)


def head(server: RunningServer, body: bytes, method: str = "/v1/explain") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (method.encode(), len(body), body)


def connect(server: RunningServer) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_each_message_is_a_line_of_json(server: RunningServer) -> None:
    status, headers, lines = post(server, {"text": TEXT, "options": {"methods": ["occlusion"], "counterfactuals": True}})

    assert status == 200
    assert headers["Content-Type"] == "application/x-ndjson"
    assert headers["x-request-id"]
    assert [next(iter(line)) for line in lines] == ["header", "attribution", "evidence", "counterfactual", "counterfactual", "summary"]
    header, attribution = lines[0]["header"], lines[1]["attribution"]
    assert [TEXT[word["span"]["code_point_start"] : word["span"]["code_point_end"]] for word in header["words"]] == TEXT.split()
    assert (header["truncated"], header["labels_agree"], header["prediction"]["label"]) == (False, True, "negative")
    # The tiny model adds up its words: what each takes away is its weight.
    assert [word["value"] for word in attribution["words"]] == pytest.approx([0, -1, 0, 0, 0, 2, -3 / 64], abs=1e-5)
    assert "completeness_residual" not in attribution
    assert lines[-1]["summary"]["complete"] is True


def test_classify_explains_in_its_answer(server: RunningServer) -> None:
    status, _, (answer,) = post(server, {"text": TEXT, "explain": {"methods": ["shapley"]}}, "/v1/classify")

    assert status == 200
    assert answer["explanation"]["header"]["prediction"] == answer["prediction"]
    assert [attribution["method"] for attribution in answer["explanation"]["attributions"]] == ["shapley"]
    assert answer["explanation"]["summary"]["complete"] is True


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "says"),
    [
        ("/v1/explain", {"text": ""}, 400, "INVALID_ARGUMENT", "text: has 0 characters"),
        ("/v1/explain", {"text": "good", "label": "meh"}, 400, "INVALID_ARGUMENT", "label: is 'meh'"),
        ("/v1/explain", {"text": "good", "options": {"methods": ["magic"]}}, 400, "INVALID_ARGUMENT", "options.methods[0]: is 'magic'"),
        ("/v1/classify", {"text": "good", "explain": {"methods": ["magic"]}}, 400, "INVALID_ARGUMENT", "explain.methods[0]: is 'magic'"),
        ("/v1/explain", {"text": "good", "options": {"attention": {}}}, 400, "FAILED_PRECONDITION", "attention needs an explain graph"),
        ("/v1/explain", {"text": "good", "text_pair": "bad"}, 400, "FAILED_PRECONDITION", "a pair was given"),
        ("/v1/explain", {"text": "good", "model": "nosuch"}, 404, "NOT_FOUND", "nosuch"),
        ("/v1/explain", {"txt": "good"}, 400, "INVALID_ARGUMENT", "not a valid sentiment.v1.ExplainRequest in JSON"),
        ("/v1/explain", b"\xff", 400, "INVALID_ARGUMENT", "not valid UTF-8"),
    ],
)
def test_what_is_wrong_from_the_start_has_its_status(
    server: RunningServer, path: str, body: Any, status: int, code: str, says: str
) -> None:
    method = path.rpartition("/")[2].capitalize()
    before = total(server, "requests", method=method, code=code)

    found, headers, (answer,) = post(server, body, path)

    assert (found, answer["error"]["status"]) == (status, code)
    assert says in answer["error"]["message"]
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert total(server, "requests", method=method, code=code) == before + 1
    assert_answers(server)


def test_a_time_limit_that_is_none_is_refused(server: RunningServer) -> None:
    status, _, (answer,) = post(server, {"text": TEXT}, **{"Grpc-Timeout": "soon"})

    assert (status, answer["error"]["message"][:12]) == (400, "Grpc-Timeout")
    assert post(server, {"text": TEXT}, **{"Grpc-Timeout": "1n"})[0] == 504
    assert_answers(server)


def test_what_goes_wrong_later_is_the_last_line_and_ends_the_connection(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    session = served_by(server).classifier.session
    run, runs = session.run, 0

    def fail_later(feeds: Any, stop: Any = None) -> Any:
        nonlocal runs
        runs += 1
        if runs > 1:
            raise RuntimeError("kernel failed")
        return run(feeds, stop)

    monkeypatch.setattr(session, "run", fail_later)
    with connect(server) as connection:
        connection.sendall(head(server, json.dumps({"text": TEXT}).encode()))
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


@pytest.mark.parametrize("runs", [0, 1])
async def test_who_hangs_up_withdraws_the_explanation(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """``runs``: of the explanation, before the client leaves in the next one; the header comes after the first."""
    server = start(runners=1)
    gate = Gate(server, monkeypatch)
    try:
        with connect(server) as connection:
            connection.sendall(head(server, json.dumps({"text": TEXT}).encode()))
            for _ in range(runs):
                await gate.begun()
                gate.let()
            await gate.begun()
            if runs:
                assert (await asyncio.to_thread(connection.recv, 65536)).startswith(b"HTTP/1.1 200")
        await until(lambda: total(server, "requests", code="CANCELLED") == 1, "the server knows that the client has left")
    finally:
        gate.open()

    await until(lambda: server.metric("sentiment_explanations", model=MODEL) == 0, "nothing is left")
    assert total(server, "requests") == 1
    await asyncio.to_thread(assert_answers, server)


async def test_who_does_not_read_is_cut_off_at_the_deadline(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are padded until no buffer on the way takes more of them."""
    server = start()
    monkeypatch.setattr(web_lines, "LAST_LINE_S", 0.05)
    to_json = web_lines.json_of

    async def padded(message: Any) -> str:
        return await to_json(message) + " " * 2**25

    monkeypatch.setattr(web_lines, "json_of", padded)
    with connect(server) as connection:
        body = json.dumps({"text": TEXT}).encode()
        connection.sendall(head(server, body).replace(b"Host: x", b"Host: x\r\nGrpc-Timeout: 500m"))
        await until(lambda: total(server, "requests", method="Explain", code="DEADLINE_EXCEEDED") == 1, "the call has ended")
        monkeypatch.undo()
        await until(lambda: not server.app._web._runner.server.connections, "the connection is closed")

        received = b"..."
        while part := await asyncio.to_thread(connection.recv, 2**20):
            received = received[-5:] + part

    assert not received.endswith(b"0\r\n\r\n")
    await asyncio.to_thread(assert_answers, server)
