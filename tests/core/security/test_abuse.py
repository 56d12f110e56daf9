"""Requests that are made to do harm: to logs, to what stands before the server, to its memory; and secrets that must stay unseen."""

import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from sentiment.client import Client, Credentials
from sentiment.security.tokens import CHARACTERS_MAX
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import Start
from tests.core.security.test_doors import OTHER, TOKEN, code_of, fetch, tokens
from tests.core.servers import Server

__all__ = ["tokens"]

# A second request, in case the first is taken for shorter than it is: it would be answered with 200.
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CLASSIFY = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n"
MALFORMED = {
    "length and chunks": CLASSIFY + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": CLASSIFY + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    "a length twice": CLASSIFY + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a signed length": CLASSIFY + b"Content-Length: +5\r\n\r\nhello",
    "a blank before the colon": CLASSIFY + b"Content-Length : 5\r\n\r\nhello",
    "an unknown encoding": CLASSIFY + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "an encoding after chunked": CLASSIFY + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an invalid size of a chunk": CLASSIFY + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a line feed in a chunk's extension": CLASSIFY + b"Transfer-Encoding: chunked\r\n\r\n5;\nxx\r\nhello\r\n0\r\n\r\n",
    "a folded header": CLASSIFY + b"X-A: b\r\n Content-Length: 5\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\nHost: localhost\nX-A: b\n\n",
    "a carriage return in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b\rX-B: c\r\n\r\n",
    "a null in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b\x00c\r\n\r\n",
    "an escape in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\x1b[31m\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "a large header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 2**16 + b"\r\n\r\n",
    "many headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(2000)) + b"\r\n",
    "a long path": b"GET /" + b"x" * 2**16 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no HTTP": b'{"event": "forged"}\r\n\r\n',
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
}


def exchange(url: str, sent: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), 20) as connection:
        try:
            connection.sendall(sent)
            while more := connection.recv(2**16):
                answer += more
        except ConnectionError:
            # It may be closed before all has been sent.
            pass
    return answer


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_a_request_that_two_might_read_differently_is_refused_with_all_that_follows_it(server: RunningServer, sent: bytes) -> None:
    statuses = re.findall(rb"HTTP/1\.[01] (\d+)", exchange(server.url, sent + SMUGGLED))

    # The connection may be reset before the refusal is read.
    assert statuses in ([b"400"], [])
    assert fetch(server.url + "/healthz")[0] == 200


def test_a_pipelined_or_smuggled_request_needs_its_own_token(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens))
    inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    outer = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)

    for sent in (outer + inner + inner, SMUGGLED.replace(b"Connection: close\r\n", b"") + inner):
        assert re.findall(rb"HTTP/1\.[01] (\d+)", exchange(server.url, sent)) == [b"200", b"401"]


def test_one_header_with_a_token_beside_another_is_refused(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens))
    valid, wrong = f"Authorization: Bearer {TOKEN}\r\n".encode(), f"Authorization: Bearer {OTHER}\r\n".encode()
    begin, end = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", b"Connection: close\r\n\r\n"

    answers = [exchange(server.url, begin + headers + end)[9:12] for headers in (valid, valid + wrong, wrong + valid, valid + valid)]

    assert answers == [b"200", b"401", b"401", b"401"]


def test_too_much_metadata_is_refused_and_affects_no_other_call(server: RunningServer) -> None:
    much, large = ((("x-large", "x" * size),) for size in (15_000, 17_000))
    many = tuple((f"x-{number}", "y" * 100) for number in range(1000))
    with server.client(timeout_s=10) as other, grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        call = channel.unary_unary("/sentiment.v1.SentimentService/ListModels")
        for metadata in (large, many):
            with pytest.raises(grpc.RpcError) as error:
                call(b"", metadata=metadata, timeout=10)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert call(b"", metadata=much, timeout=10)
            assert other.classify("good").label


def test_the_longest_token_is_accepted_on_both_ports(start: Start, tmp_path: Path) -> None:
    longest = "x" * CHARACTERS_MAX
    (tmp_path / "token").write_text(longest)
    server = start(auth_tokens=str(tmp_path / "token"))

    assert code_of(Client(server.target, credentials=Credentials(token=longest), options=NO_RETRIES, timeout_s=10)) is grpc.StatusCode.OK
    assert fetch(server.url + "/v1/models", authorization=f"Bearer {longest}")[0] == 200


@pytest.fixture
def watched(serve: Callable[..., Server], tokens: Path) -> Server:
    """A process of its own with tokens, that says all that it can."""
    return serve("--auth-tokens", str(tokens), "--reload-s", "0.05", "--log-level", "debug")


def said(server: Server) -> str:
    """All that a server has logged, after it has ended."""
    server.process.terminate()
    assert server.finish() == 0
    return "".join(map(str, server.lines)) + "".join(server.others)


def test_tokens_are_in_no_log_metric_or_answer(watched: Server, tokens: Path) -> None:
    body = b'{"text": "good"}'
    answers = []
    for token in (TOKEN, OTHER):
        with Client(watched.target, credentials=Credentials(token=token), options=NO_RETRIES, timeout_s=10) as client:
            try:
                client.classify("good")
            except Exception as error:  # its words are looked at
                answers.append(repr(error).encode())
        answers.append(fetch(watched.url + "/v1/classify", None, body, authorization=f"Bearer {token}")[1])
        answers.append(fetch(watched.url + "/v1/classify", None, b"no JSON", authorization=f"Bearer {token}")[1])
        # What is wrong is the header with the token itself.
        exchange(watched.url, b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer " + token.encode() + b"\r\n\r\n")
        exchange(watched.url, b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token.encode() + b"\x00\r\n\r\n")
    (tokens / "shop").write_text(f"{OTHER}\n{TOKEN} and more")
    watched.wait_for("not_reloaded")
    with urllib.request.urlopen(watched.url + "/metrics", timeout=10) as response:
        answers.append(response.read())

    everything = said(watched) + b"".join(answers).decode()

    assert "call" in watched.events(None)
    assert TOKEN not in everything
    assert OTHER not in everything


def test_no_caller_can_write_a_log_line(watched: Server) -> None:
    forged = '{"event": "forged"}'
    for sent in MALFORMED.values():
        exchange(watched.url, sent.replace(b"X-A: b", b"X-A: " + forged.encode()))
    names = {"authorization": f"Bearer {TOKEN}", "x-request-id": f"a {forged}", "traceparent": forged, "user-agent": forged}
    for path in ("/v1/models/%0a" + "forged", "/v1/models", "/%0d%0aforged%1b[31m"):
        fetch(watched.url + path, **names)
    fetch(watched.url + "/v1/classify", None, forged.encode(), **names)
    with grpc.insecure_channel(watched.target, NO_RETRIES) as channel:
        for method in ("/sentiment.v1.SentimentService/Classify", "/forged\x1b[31m/forged"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(method)(forged.encode(), metadata=tuple(names.items()), timeout=10)

    everything = said(watched)

    # Request id and user agent are a caller's own, and stay within their fields.
    own = {field: {str(line[field]) for line in watched.lines if field in line} for field in ("request_id", "user_agent")}
    assert f"a {forged}" in own["request_id"] and any(forged in agent for agent in own["user_agent"])
    assert "forged" not in everything.replace(f"a {forged}", "").replace(forged, "")
    assert {line["event"] for line in watched.lines} <= {"ready", "call", "draining", "drained", "variables_ignored"}
    assert watched.others == []
