"""Targets of clients: which are invalid, which are of this machine, by which proxy they are called, and why they do not answer."""

import pytest

from sentiment.addresses import (
    HTTP_PORT,
    address_of,
    checked_target,
    default_target,
    is_local,
    is_loopback,
    proxy_variable,
    unmapped,
    why_unanswered,
)
from sentiment.errors import BadSettings

TARGETS = ["127.0.0.1:50051", "host", "[::1]:1", "::1", "[::1]", "dns:///a.b:1", "dns:a.b:1", "dns://8.8.8.8/a:1", "ipv6:[::1]:1"]
TARGETS += ["ipv4:1.2.3.4:1,5.6.7.8:1", "unix:/a/b", "unix:a", "unix:///a", "unix-abstract:a", "xds:///a", "passthrough:///a:1"]
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:1: Failed to connect to remote host: Connection refused"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("http://127.0.0.1:50051", "the target is a URL; give HOST:PORT of the gRPC port without http://, such as '127.0.0.1:50051'"),
        ("http://user:secret@host:1/path", "without http://, such as 'host:1'"),
        ("https://host", "without https://, such as 'host', with --tls or --ca, in Python credentials=Credentials(tls=True)"),
        ("grpc://host:1", "without grpc://"),
        ("127.0.0.1:116587", "the target '127.0.0.1:116587' has no port from 1 to 65535; give HOST:PORT, such as 127.0.0.1:50051"),
        ("dns:///host:116587", "has no port from 1 to 65535"),
        ("host:0", "has no port"),
        ("host:port", "has no port"),
        ("host:", "has no port"),
        ("host:-1", "has no port"),
        ("", "the target '' names no server; give HOST:PORT"),
        (":50051", "names no server"),
        ("a host:1", "names no server"),
        ("127.0.0.1:50051/", "has no port"),
        ("::1:50051", "the target '::1:50051' is not HOST:PORT, such as [::1]:50051"),
        ("host:1:2", "is not HOST:PORT, such as 127.0.0.1:50051"),
    ],
)
def test_a_target_that_grpc_would_take_for_something_else_is_refused(target: str, says: str) -> None:
    with pytest.raises(BadSettings) as refused:
        checked_target(target)

    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    TARGETS,
)
def test_every_form_of_grpcs_targets_is_taken(target: str) -> None:
    assert checked_target(target) == target


def test_addresses_of_grpc_targets() -> None:
    expected: dict[str, tuple[str, int] | str] = {
        "localhost:1": ("localhost", 1),
        "[::1]:1": ("::1", 1),
        "dns:///a.b:1": ("a.b", 1),
        "ipv4:1.2.3.4:1": ("1.2.3.4", 1),
        "ipv6:[::1]:1": ("::1", 1),
        "::1": ("::1", 443),
        "host": ("host", 443),
        "unix:/a/b": "/a/b",
        "unix:///a/b": "/a/b",
        "unix:a": "a",
    }
    assert {target: address_of(target) for target in expected} == expected
    others = ["xds:///a", "xds:///a:50051", "passthrough:///a:50051", "dns://8.8.8.8/host:50051", "host:port", "host:70000", ""]
    assert [address_of(target) for target in others] == [None] * 7


def test_what_is_of_this_machine() -> None:
    here = ["127.0.0.1:1", "127.8.9.1", "localhost:1", "LocalHost:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "dns:///localhost:1", "unix:/a"]
    here += ["0.0.0.0:1", "[::]:1", "localhost.localdomain:1", "a.LocalHost:1", "localhost.:1"]
    elsewhere = ["192.0.2.1:1", "host:1", "localhost.example:1", "mylocalhost:1", "ipv4:127.0.0.1:1,192.0.2.1:1", "xds:///localhost"]

    assert [is_local(target) for target in here] == [True] * len(here)
    assert [is_local(target) for target in elsewhere] == [False] * len(elsewhere)
    assert [is_loopback(host) for host in ("127.0.0.1", "::ffff:127.0.0.1", "::1", "localhost", "host", "::ffff:192.0.2.1")] == [
        *[True] * 4,
        *[False] * 2,
    ]
    assert [unmapped(host) for host in ("::ffff:192.0.2.1", "::1", "192.0.2.1", "host", "::x")] == [
        "192.0.2.1",
        "::1",
        "192.0.2.1",
        "host",
        "::x",
    ]


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({"http_proxy": "http://p:1"}, "http_proxy"),
        ({"http_proxy": "http://p:1", "https_proxy": "http://q:1"}, "https_proxy"),
        ({"https_proxy": "http://q:1", "grpc_proxy": "http://r:1"}, "grpc_proxy"),
        ({"HTTPS_PROXY": "http://p:1"}, ""),
        ({"grpc_proxy": "socks5://p:1", "http_proxy": "http://p:1"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "a.example, .example.org"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "example.com"}, "http_proxy"),
        ({"http_proxy": "http://p:1", "no_grpc_proxy": "example.com", "no_proxy": ".example.org"}, "http_proxy"),
    ],
)
def test_the_variable_whose_proxy_is_taken_to_another_machine(environment: dict[str, str], variable: str) -> None:
    assert proxy_variable("www.example.org:1", environment) == variable
    assert [proxy_variable(target, environment) for target in ("localhost:1", "unix:/a")] == ["", ""]


def test_no_proxy_takes_ranges_of_addresses() -> None:
    environment = {"http_proxy": "http://p:1", "no_proxy": "192.0.2.0/24,nonsense/"}

    assert [proxy_variable(target, environment) for target in ("192.0.2.9:1", "192.0.3.9:1")] == ["", "http_proxy"]


def test_why_no_server_answers() -> None:
    proxy = {"https_proxy": "http://user:secret@192.0.2.2:3128"}

    assert why_unanswered("192.0.2.1:1", REFUSED, {}) == "nothing listens there"
    assert why_unanswered("192.0.2.1", REFUSED, {}) == "nothing listens there (port 443, as the target names none)"
    assert why_unanswered("host:1", "... Trying to connect an http1.x server", {}) == HTTP_PORT
    assert why_unanswered("host:1", "DNS resolution failed for host:1", {}) == "its host name cannot be resolved"
    assert why_unanswered("unix:/a", "error: No such file or directory", {}) == "there is no such socket"
    unhealthy = "connections to all backends failing; last error: ipv4:192.0.2.1:1: backend unhealthy"
    assert why_unanswered("host:1", unhealthy, {}) == "the server there is not ready: it starts, drains or hangs"
    assert "refuses health checks" in why_unanswered("host:1", "... health check call failed; will retry after backoff", {})
    assert why_unanswered("host:1", "Socket closed", {}) == ""
    assert why_unanswered("::1:8080", REFUSED, {}) == "nothing listens there (port 443, as the target names none; is it [::1]:8080?)"
    assert why_unanswered("host:1", REFUSED, proxy) == (
        f"through the proxy that https_proxy names: {REFUSED}; to call it without the proxy, add its host to no_proxy"
    )


def test_the_default_target_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENTIMENT_TARGET", raising=False)
    assert default_target() == "127.0.0.1:50051"
    monkeypatch.setenv("SENTIMENT_TARGET", "")
    assert default_target() == "127.0.0.1:50051"
    monkeypatch.setenv("SENTIMENT_TARGET", "host:1")
    assert default_target() == "host:1"
