"""TLS, client certificates and tokens, on gRPC and HTTP alike, of real servers to real clients."""

import contextlib
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import CallFailed, Client, Credentials
from tests.conftest import NO_RETRIES, PLAIN, RunningServer
from tests.core.grpc.gate import Start
from tests.core.security.authorities import A_DAY, Authority, Mounted, Pair, mounted_pair
from tests.core.servers import until

AUTHORITY, STRANGER = Authority("ours"), Authority("a stranger")
TOKEN, OTHER = "first-token-0123456789", "other-token-0123456789"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
# Files are looked at often, so that tests need not wait.
RELOAD_S = 0.05
WAIT_S = 20.0
# What a client of HTTP/2 begins with: its magic words and no settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class Secure:
    """What a client needs of a server with TLS."""

    def __init__(self, server: RunningServer, tls: Mounted, folder: Path) -> None:
        self.server, self.tls = server, tls
        self.ca = folder / "trusted.crt"
        self.ca.write_bytes(AUTHORITY.certificate)
        pair = AUTHORITY.sign("client")
        self.cert, self.key = folder / "client.crt", folder / "client.key"
        self.cert.write_bytes(pair.certificate)
        self.key.write_bytes(pair.key)
        self.url = server.url.replace("http:", "https:")

    def credentials(self, shows: bool = False, **more: Any) -> Credentials:
        own = {"cert_file": str(self.cert), "key_file": str(self.key)} if shows else {}
        return Credentials(ca_file=str(self.ca), **own, **more)

    def client(self, credentials: Credentials | None) -> Client:
        return Client(self.server.target, credentials=credentials, options=NO_RETRIES, timeout_s=10)

    def get(self, path: str, credentials: Credentials, **headers: str) -> tuple[int, bytes]:
        return fetch(self.url + path, credentials, **headers)


def fetch(url: str, credentials: Credentials | None = None, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    context = credentials.for_http() if credentials is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture
def secure(start: Start, tmp_path: Path) -> Callable[..., Secure]:
    """Start a server with TLS, with ``mtls`` one that wants certificates of clients."""

    def begin(mtls: bool = False, **changes: Any) -> Secure:
        tls = mounted_pair(tmp_path / "tls", AUTHORITY.sign(), AUTHORITY)
        changes = {"tls_cert_file": str(tls / "tls.crt"), "tls_key_file": str(tls / "tls.key"), **changes}
        changes |= {"tls_client_ca_file": str(tls / "ca.crt")} if mtls else {}
        server = start(**{"health_listen": "127.0.0.1:0", "reload_s": RELOAD_S, **changes})
        return Secure(server, tls, tmp_path)

    return begin


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "shop").write_text(f"{TOKEN}\n")
    return folder


def code_of(client: Client) -> grpc.StatusCode:
    with client:
        try:
            client.classify("good")
        except CallFailed as error:
            return error.code
        return grpc.StatusCode.OK


def code_of_method(address: str, method: str) -> grpc.StatusCode:
    """How a call of any method ends that fails."""
    with grpc.insecure_channel(address, NO_RETRIES) as channel, pytest.raises(grpc.RpcError) as error:
        list(channel.stream_stream(method)(iter([b""]), timeout=10))
    return error.value.code()


def health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address, NO_RETRIES) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def test_with_tls_both_ports_answer_tls_clients_and_no_plaintext(secure: Callable[..., Secure]) -> None:
    tls = secure()

    assert code_of(tls.client(tls.credentials())) is grpc.StatusCode.OK
    assert tls.get("/healthz", tls.credentials()) == (200, b"ok\n")
    assert code_of(tls.client(None)) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        fetch(tls.server.url + "/healthz")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        tls.get("/healthz", Credentials(tls=True))


def test_http_connections_count_from_before_their_handshake_on(secure: Callable[..., Secure]) -> None:
    tls, crowd = secure(http_connections_max=10), contextlib.ExitStack()
    with crowd:
        for number in range(30):
            silent = crowd.enter_context(socket.create_connection(("127.0.0.1", tls.server.app.http_port), WAIT_S))
            if number % 2:
                silent.sendall(b"no TLS")
            assert tls.get("/healthz", tls.credentials()) == (200, b"ok\n")

    assert tls.server.metric("sentiment_http_connections_closed_total", reason="waiting") > 0
    until(lambda: not tls.server.web._connections._open)


def test_mtls_answers_only_those_who_show_a_certificate_of_its_authority(secure: Callable[..., Secure], tmp_path: Path) -> None:
    mtls = secure(mtls=True)
    files = {name: str(tmp_path / name) for name in ("cert_file", "key_file")}
    strange = STRANGER.sign("client")
    Path(files["cert_file"]).write_bytes(strange.certificate)
    Path(files["key_file"]).write_bytes(strange.key)
    stranger = Credentials(ca_file=str(mtls.ca), **files)

    assert code_of(mtls.client(mtls.credentials(shows=True))) is grpc.StatusCode.OK
    assert mtls.get("/metrics", mtls.credentials(shows=True))[0] == 200
    for refused in (mtls.credentials(), stranger):
        assert code_of(mtls.client(refused)) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            mtls.get("/metrics", refused)


def test_a_replaced_authority_accepts_the_new_clients_only(secure: Callable[..., Secure]) -> None:
    mtls = secure(mtls=True)
    known = mtls.credentials(shows=True)
    assert mtls.get("/healthz", known)[0] == 200
    pair = AUTHORITY.sign()

    mtls.tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=STRANGER.certificate)
    until(lambda: serial(mtls.server.app.http_port, STRANGER.sign("client"), mtls) == pair.serial)

    assert code_of(mtls.client(known)) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        mtls.get("/healthz", known)


def test_a_listed_client_certificate_is_accepted_on_both_ports(secure: Callable[..., Secure]) -> None:
    mtls = secure(mtls=True)
    listed, other = STRANGER.sign("client"), STRANGER.sign("client")
    pair = AUTHORITY.sign()

    mtls.tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate + listed.certificate)

    for port in (mtls.server.app.http_port, mtls.server.app.grpc_port):
        until(lambda port=port: serial(port, listed, mtls) == pair.serial)  # type: ignore[misc]
        assert serial(port, other, mtls) == 0


@pytest.mark.parametrize(
    ("port", "version"),
    [("grpc_port", ssl.TLSVersion.TLSv1_2), ("grpc_port", ssl.TLSVersion.TLSv1_3), ("http_port", ssl.TLSVersion.TLSv1_3)],
    ids=str,
)
def test_a_resumed_connection_is_checked_again(secure: Callable[..., Secure], port: str, version: ssl.TLSVersion) -> None:
    mtls = secure(mtls=True)
    client, pair = AUTHORITY.sign("client"), AUTHORITY.sign()
    address = ("127.0.0.1", int(getattr(mtls.server.app, port)))
    context = showing(client, mtls)
    context.minimum_version = context.maximum_version = version
    if port == "grpc_port":
        context.set_alpn_protocols(["h2"])

    def connected(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        """Whether the server sends something, such as HTTP/2's settings."""
        with (
            socket.create_connection(address, WAIT_S) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as connection,
        ):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" if port == "http_port" else PREFACE)
            return bool(connection.recv(2**10)), connection.session

    accepted, session = connected(None)
    mtls.tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=STRANGER.certificate)
    until(lambda: mtls.server.app._secured.certificates().contents.certificate == pair.certificate)

    assert accepted
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert not connected(session)[0]


def test_with_client_certificates_http_speaks_nothing_that_can_be_resumed(secure: Callable[..., Secure]) -> None:
    mtls = secure(mtls=True)
    context = showing(AUTHORITY.sign("client"), mtls)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    with socket.create_connection(("127.0.0.1", mtls.server.app.http_port), WAIT_S) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(raw, server_hostname="localhost")


def showing(pair: Pair, tls: Secure) -> ssl.SSLContext:
    """A client's, that shows a certificate."""
    context = ssl.create_default_context(cafile=str(tls.ca))
    file = tls.tls.folder.parent / "shown.pem"
    file.write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(file)
    return context


def serial(port: int, shown: Pair, tls: Secure) -> int:
    """Of the certificate that a new connection which shows another is shown; 0 if it is refused."""
    context = showing(shown, tls)
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as raw, context.wrap_socket(raw, server_hostname="localhost") as connection:
            # With TLS 1.3 a refusal comes after the handshake; an accepted client gets nothing, or the settings of HTTP/2.
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    return 0
            found = connection.getpeercert()
            assert found is not None
            return int(str(found["serialNumber"]), 16)
    except (ssl.SSLError, ConnectionError):
        return 0


def test_certificates_are_exchanged_under_load_without_a_failed_call(secure: Callable[..., Secure]) -> None:
    tls = secure(connection_age_max_s=0.2, connection_age_grace_s=5)
    client = AUTHORITY.sign("client")
    failures: list[BaseException] = []
    answered = [0, 0]
    over = threading.Event()

    def over_grpc() -> None:
        # With its connection asked to leave five times a second, so that there are many handshakes.
        with Client(tls.server.target, credentials=tls.credentials(), timeout_s=10) as calling:
            while not over.is_set():
                try:
                    calling.classify("good")
                    answered[0] += 1
                except CallFailed as error:
                    failures.append(error)

    def over_http() -> None:
        while not over.is_set():
            try:
                assert tls.get("/readyz", tls.credentials())[0] == 200
                answered[1] += 1
            except Exception as error:  # whatever it is, it is a failure
                failures.append(error)

    callers = [threading.Thread(target=work) for work in (over_grpc, over_grpc, over_http)]
    for caller in callers:
        caller.start()
    try:
        for days in (2, 3):
            pair = AUTHORITY.sign(lasts=days * A_DAY)
            before = list(answered)
            tls.tls.exchange(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=AUTHORITY.certificate)
            for port in (tls.server.app.http_port, tls.server.app.grpc_port):
                until(lambda port=port, pair=pair: serial(port, client, tls) == pair.serial)  # type: ignore[misc]
            until(lambda before=before: all(now > then + 5 for now, then in zip(answered, before, strict=True)))  # type: ignore[misc]
            assert tls.server.metric("sentiment_tls_certificate_expiration_timestamp_seconds") == pair.expires_at
    finally:
        over.set()
        for caller in callers:
            caller.join(30)

    assert failures == []


def test_certificates_of_no_use_are_counted_and_the_last_good_ones_shown(secure: Callable[..., Secure]) -> None:
    tls = secure()
    good = tls.server.metric("sentiment_tls_certificate_expiration_timestamp_seconds")

    tls.tls.exchange(tls_crt=b"half a certifi", tls_key=b"", ca_crt=b"")
    until(lambda: tls.server.metric("sentiment_reload_failures_total", files="tls") > 2)

    assert code_of(tls.client(tls.credentials())) is grpc.StatusCode.OK
    assert tls.get("/healthz", tls.credentials())[0] == 200
    assert tls.server.metric("sentiment_tls_certificate_expiration_timestamp_seconds") == good


def test_only_health_is_served_in_plaintext_beside_tls(secure: Callable[..., Secure]) -> None:
    tls = secure(mtls=True)
    port = tls.server.grpc.health_port

    assert health(f"127.0.0.1:{port}") == health_pb2.HealthCheckResponse.SERVING
    assert health(f"127.0.0.1:{port}", "liveness") == health_pb2.HealthCheckResponse.SERVING
    for method in (
        "/sentiment.v1.SentimentService/Classify",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/RepositoryIndex",
    ):
        assert code_of_method(f"127.0.0.1:{port}", method) is grpc.StatusCode.UNIMPLEMENTED, method


def test_the_port_for_probes_takes_no_message_that_is_longer_than_a_name(secure: Callable[..., Secure]) -> None:
    address = f"127.0.0.1:{secure().server.grpc.health_port}"

    for length, code in ((4000, grpc.StatusCode.NOT_FOUND), (5000, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        with pytest.raises(grpc.RpcError) as error:
            health(address, "a" * length)
        assert error.value.code() is code


def test_without_tls_there_is_no_port_for_health(server: RunningServer) -> None:
    assert server.grpc.health_port == 0


@pytest.fixture
def guarded(start: Start, tokens: Path) -> RunningServer:
    return start(auth_tokens=str(tokens), reload_s=RELOAD_S)


def test_a_call_needs_a_token_on_both_ports(guarded: RunningServer) -> None:
    wrong = {"authorization": f"Bearer {OTHER}"}
    body = json.dumps({"text": "good"}).encode()

    for credentials, expected in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (Credentials(token=OTHER), grpc.StatusCode.UNAUTHENTICATED),
        (Credentials(token=TOKEN), grpc.StatusCode.OK),
    ):
        assert code_of(Client(guarded.target, credentials=credentials, options=NO_RETRIES, timeout_s=10)) is expected
    for headers, status in (({}, 401), (wrong, 401), ({"authorization": f"Bearer {TOKEN}"}, 200)):
        assert fetch(guarded.url + "/v1/classify", None, body, **headers)[0] == status
    assert guarded.metric("sentiment_unauthenticated_total", transport="grpc") == 2
    assert guarded.metric("sentiment_unauthenticated_total", transport="http") == 2


def test_a_refusal_says_how_to_come_in(guarded: RunningServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(guarded.url + "/v1/models", timeout=10)
    with refused.value as error:
        body = json.loads(error.read())

    assert error.headers["WWW-Authenticate"] == "Bearer"
    assert body["error"]["status"] == "UNAUTHENTICATED"
    with grpc.insecure_channel(guarded.target, NO_RETRIES) as channel, pytest.raises(grpc.RpcError) as call:
        channel.unary_unary("/sentiment.v1.SentimentService/Classify")(b"", timeout=10)
    assert ("www-authenticate", "Bearer") in call.value.trailing_metadata()


def test_every_path_needs_a_token_but_the_listed_ones_even_if_it_does_not_exist(guarded: RunningServer) -> None:
    assert health(guarded.target) == health_pb2.HealthCheckResponse.SERVING
    for path in ("/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"):
        assert fetch(guarded.url + path)[0] == 200
    with grpc.insecure_channel(guarded.target, NO_RETRIES) as channel:
        for method in ("ServerLive", "ServerReady"):
            # Field 1 of either answer is true.
            assert channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"", timeout=10) == b"\x08\x01"
    hidden = ("/healthz%2f..%2fv1/models", "/metrics/", "//metrics", "/v1/../metrics/x")
    for path in ("/", "/v1/models", "/viewer/app.js", "/nowhere", *hidden):
        assert fetch(guarded.url + path)[0] == 401, path
    reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    for method in (reflection, "/grpc.health.v1.Health/Checks", "/grpc.health.v1.Health/List", "/nobody.Service/Method"):
        assert code_of_method(guarded.target, method) is grpc.StatusCode.UNAUTHENTICATED, method


def test_streams_are_refused_before_their_first_message(guarded: RunningServer) -> None:
    waiting = threading.Event()

    def never() -> Iterator[bytes]:
        waiting.wait(10)
        yield b""

    with grpc.insecure_channel(guarded.target, NO_RETRIES) as channel, pytest.raises(grpc.RpcError) as error:
        next(channel.stream_stream("/sentiment.v1.SentimentService/ClassifyStream")(never(), timeout=10))
    waiting.set()

    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_list_of_paths_without_a_token_is_a_setting(start: Start, tokens: Path) -> None:
    server = start(auth_tokens=str(tokens), auth_exempt=("/sentiment.v1.SentimentService/Classify", "/v1/models/{name}"))

    assert code_of(server.client(options=PLAIN, timeout_s=10)) is grpc.StatusCode.OK
    assert fetch(server.url + "/v1/models/tiny")[0] == 200
    assert fetch(server.url + "/v1/models/tiny/1")[0] == 401
    assert fetch(server.url + "/healthz")[0] == 401
    assert code_of_method(server.target, HEALTH_CHECK) is grpc.StatusCode.UNAUTHENTICATED


def test_a_clients_token_file_is_read_again(guarded: RunningServer, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.security.client_credentials.TOKEN_FRESH_S", 0.0)
    file = tmp_path / "token"
    file.write_text(f"# ours\n{TOKEN}\n")
    with guarded.client(credentials=Credentials(token_file=str(file)), timeout_s=10) as client:
        assert client.classify("good").label

        (tokens / "shop").write_text(OTHER)
        until(lambda: fetch(guarded.url + "/v1/models", authorization=f"Bearer {OTHER}")[0] == 200)
        file.write_text(OTHER)

        assert client.classify("good").label


def test_web_metrics_serves_only_metrics_and_health(start: Start) -> None:
    server = start(web="metrics")

    found = {path: fetch(server.url + path)[0] for path in ("/metrics", "/healthz", "/readyz", "/", "/v1/models", "/viewer/app.js")}

    assert found == {"/metrics": 200, "/healthz": 200, "/readyz": 200, "/": 404, "/v1/models": 404, "/viewer/app.js": 404}
    assert fetch(server.url + "/v1/classify", None, b"{}")[0] == 404
