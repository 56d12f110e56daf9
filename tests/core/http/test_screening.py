"""Requests that are refused by their headers: ambiguous lengths, hosts that are not the server's, and pages of other origins."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.doors.http.screening import answers_for, is_foreign
from sentiment.errors import BadSettings
from sentiment.observability.metrics import HTTP_REFUSALS
from sentiment.settings import load_settings
from tests.conftest import RunningServer, far_address
from tests.core.grpc.gate import Start, http_socket
from tests.core.http.http import call, post

GOOD = {"text": "good"}
OWN = {"Host": "localhost:8080"}
LOOPBACK = [
    "localhost",
    "LOCALHOST:8080",
    "app.localhost:1",
    "127.0.0.1",
    "127.8.9.1:8080",
    "[::1]",
    "[::1]:8080",
    "[::ffff:127.0.0.1]:8080",
]
OTHERS = ["evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", "", "localhost:80:80"]
ADDRESSES = ["0.0.0.0:8080", "10.1.2.3", "[::ffff:10.1.2.3]:8080", "[fe80::1]"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_loopback_name_is_answered_everywhere(host: str) -> None:
    assert all(answers_for(host, hosts, on_loopback) for hosts in ((), ("a.example",)) for on_loopback in (True, False))


@pytest.mark.parametrize("host", [*OTHERS, *ADDRESSES])
def test_on_loopback_no_other_host_is_answered_unless_it_is_named(host: str) -> None:
    assert not answers_for(host, (), True)
    assert not answers_for(host, ("a.example",), True)
    assert answers_for(host, ("*",), True)
    assert answers_for("A.Example:8080", ("a.example",), True)
    assert answers_for("10.1.2.3:8080", ("10.1.2.3",), True)


def test_elsewhere_every_host_is_answered_until_some_are_named_and_then_addresses_too() -> None:
    assert all(answers_for(host, (), False) for host in (*OTHERS, *ADDRESSES))
    assert not any(answers_for(host, ("a.example",), False) for host in OTHERS)
    assert all(answers_for(host, ("a.example",), False) for host in ADDRESSES)


def test_a_request_without_a_host_which_no_browser_sends_is_answered() -> None:
    assert answers_for(None, ("a.example",), True)


@pytest.mark.parametrize(
    ("headers", "scheme", "foreign"),
    [
        ({}, "http", False),
        ({"Origin": "http://localhost:8080"}, "http", False),
        ({"Origin": "http://LOCALHOST:8080"}, "http", False),
        ({"Origin": "https://localhost:8080"}, "http", True),
        ({"Origin": "http://localhost:8080"}, "https", True),
        ({"Origin": "http://localhost"}, "http", True),
        ({"Origin": "http://localhost:8081"}, "http", True),
        ({"Origin": "http://evil.example"}, "http", True),
        ({"Origin": "null"}, "http", True),
        ({"Origin": "https://ours.example"}, "http", False),
        ({"Origin": "https://ours.example", "Sec-Fetch-Site": "cross-site"}, "http", False),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}, "http", True),
        ({"Origin": "null", "Sec-Fetch-Site": "same-site"}, "http", True),
        # A proxy has changed Host and scheme.
        ({"Origin": "https://public.example", "Sec-Fetch-Site": "same-origin"}, "http", False),
    ],
)
def test_a_page_is_of_the_own_origin_by_what_its_browser_says_or_else_by_host_and_scheme(
    headers: dict[str, str], scheme: str, foreign: bool
) -> None:
    assert is_foreign(headers | OWN, scheme, ("https://ours.example",)) is foreign
    assert not is_foreign(headers | OWN, scheme, ("*",))


def test_on_loopback_a_page_that_makes_its_name_resolve_to_the_server_reads_nothing(server: RunningServer) -> None:
    for path, body in (
        ("/v1/models", None),
        ("/metrics", None),
        ("/", None),
        ("/healthz", None),
        ("/v1/classify", GOOD),
        ("/nosuch", None),
    ):
        answer = call(server, path, body, Host="evil.example:8080", Origin="http://evil.example:8080")
        assert answer.error[:2] == (421, "PERMISSION_DENIED")
        assert "http_hosts" in answer.error[2]
    assert "http_hosts" in call(server, "/v2/health/live", Host="evil.example").json["error"]


def test_a_host_of_the_setting_is_answered_on_loopback(start: Start) -> None:
    server = start(http_hosts=("proxy.example",))

    assert call(server, "/v1/models", Host="proxy.example").status == 200
    assert call(server, "/v1/models", Host="evil.example").status == 421


def test_on_other_addresses_every_host_is_answered(start: Start) -> None:
    far_address()
    server = start(http_listen="0.0.0.0:0")

    assert call(server, "/metrics", Host="sentiment.svc:8080").status == 200
    assert call(server, "/v1/classify", GOOD, Host="lan.example:8080", Origin="http://lan.example:8080").status == 200
    assert call(server, "/v1/classify", GOOD, Host="lan.example:8080", Origin="http://evil.example:8080").status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_post_with_a_foreign_origin_is_refused_without_help_of_the_browser(server: RunningServer, origin: str) -> None:
    refused = call(server, "/v1/classify", GOOD, Origin=origin, Content_Type="text/plain")

    assert refused.error[:2] == (403, "PERMISSION_DENIED")
    assert "cors_origins" in refused.error[2]
    assert call(server, "/v1/models", Origin=origin).status == 200


CHUNKED = b"10\r\n" + b'{"text": "good"}' + b"\r\n0\r\n\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def statuses(server: RunningServer, sent: bytes) -> list[bytes]:
    """Of all answers until the server closes the connection."""
    received = b""
    with http_socket(server) as connection:
        connection.sendall(sent)
        while part := connection.recv(2**16):
            received += part
    return re.findall(rb"HTTP/1\.[01] (\d+)", received)


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.0", "Transfer-Encoding: chunked\r\nConnection: keep-alive"),
        ("1.1", "Transfer-Encoding: gzip, chunked"),
        ("1.1", f"Transfer-Encoding: chunked\r\nContent-Length: {len(CHUNKED)}"),
        ("1.0", f"Content-Length: {len(CHUNKED)}\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive"),
        ("1.1", "Transfer-Encoding: identity"),
        ("1.1", "Transfer-Encoding:"),
    ],
)
def test_a_body_whose_length_is_not_said_in_exactly_one_way_is_refused_with_all_that_follows(
    server: RunningServer, version: str, headers: str
) -> None:
    sent = f"POST /v1/classify HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n\r\n".encode() + CHUNKED

    assert statuses(server, sent + NEXT) == [b"400"]


def test_chunks_and_lengths_alone_are_fine(server: RunningServer) -> None:
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n"

    assert statuses(server, head + CHUNKED + post(b'{"text": "good"}') + NEXT) == [b"200", b"200", b"200"]


def test_each_request_that_is_refused_before_it_is_a_call_is_counted_by_its_status(start: Start) -> None:
    server = start()
    for path, body, headers in (
        ("/v1/classify", GOOD, {"Origin": "http://evil.example"}),
        ("/v1/nosuch", GOOD, {}),
        ("/nosuch", None, {}),
        ("/v1/classify", None, {}),
        ("/metrics", None, {"Host": "evil.example"}),
        # Counted as calls.
        ("/v1/classify", GOOD | {"model": "nosuch"}, {}),
        ("/v1/classify", {"text": ""}, {}),
    ):
        assert call(server, path, body, **headers).status >= 400
    old = b"POST /v1/classify HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(server, old + CHUNKED) == [b"400"]

    counted = {status: server.metric("sentiment_http_refused_total", status=str(status)) for status in HTTP_REFUSALS}

    assert counted == {400: 1, 403: 1, 404: 2, 405: 1, 421: 1}


@pytest.fixture
def token(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "tokens").write_text("a-token-of-16-characters\n")
    yield str(tmp_path / "tokens")


def test_a_foreign_host_is_refused_before_its_token_is_looked_at(start: Start, token: str) -> None:
    server = start(auth_tokens=token)

    assert call(server, "/v1/models", Host="evil.example").status == 421
    assert call(server, "/v1/models").status == 401


@pytest.mark.parametrize("host", ["*", "sentiment.example.org", "10.0.0.1", "fe80::1"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert load_settings({}, {"SENTIMENT_HTTP_HOSTS": f"{host}, b.org"})[0].http_hosts == (host, "b.org")


@pytest.mark.parametrize("host", ["http://example.org", "example.org:8080", "Example.org", "*.example.org", "[::1]"])
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(BadSettings, match="must be \\* or a name or address"):
        load_settings({}, {"SENTIMENT_HTTP_HOSTS": host})
