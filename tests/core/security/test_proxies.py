"""Proxies that the environment names: calls to this machine take none, and what is said of one that fails."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from sentiment.admin_client import AdminClient
from sentiment.cli.main import main
from sentiment.client import AsyncClient, CallFailed, Client, Credentials
from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.protocols import open_driver
from tests.conftest import NO_RETRIES, PLAIN, RunningServer, far_address

Start = Callable[..., RunningServer]
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
TOKEN = "a-token-of-thirty-characters-00"  # of the test


class Proxy:
    """A CONNECT proxy that keeps what passes."""

    def __init__(self, refusal: bytes = b"") -> None:
        self._listening, self._refusal = socket.create_server(("127.0.0.1", 0)), refusal
        self.url = f"http://user:secret@127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked: list[str] = []
        self.passed = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            head = client.recv(2**16)
            place = head.split()[1].decode()
            self.asked.append(place)
            if self._refusal:
                client.sendall(self._refusal)
                return
            host, _, port = place.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                threading.Thread(target=self._pass, args=(server, client), daemon=True).start()
                self._pass(client, server)

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(2**16):
                self.passed += data
                other.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        # A thread in accept keeps a closed socket.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*VARIABLES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@contextmanager
def proxy(environment: pytest.MonkeyPatch, variable: str = "http_proxy", refusal: bytes = b"") -> Iterator[Proxy]:
    made = Proxy(refusal)
    environment.setenv(variable, made.url)
    yield made
    made.close()


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_call_to_this_machine_takes_no_proxy(server: RunningServer, environment: pytest.MonkeyPatch, variable: str) -> None:
    port = server.target.rpartition(":")[2]

    async def classify() -> str:
        async with AsyncClient(f"localhost:{port}", options=PLAIN) as client:
            return (await client.classify("good")).label

    async def load() -> None:
        for protocol in ("grpc", "oip"):
            driver = open_driver(Target(server.target, protocol, "tiny"), stream=False)
            await driver.connect()
            await driver.close()

    with proxy(environment, variable) as between:
        with Client(server.target, options=PLAIN) as client:
            assert client.classify("good").label == "positive"
        assert asyncio.run(classify()) == "positive"
        asyncio.run(load())
        assert main(["classify", "--target", server.target, "good"]) == 0

    assert between.asked == []


def test_a_call_to_a_unix_socket_takes_no_proxy(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with proxy(environment) as between, Client(f"unix:{tmp_path}/none", options=NO_RETRIES) as client, pytest.raises(CallFailed) as failed:
        client.classify("good")

    assert failed.value.message == f"no server answers at unix:{tmp_path}/none: there is no such socket"
    assert between.asked == []


def test_a_call_to_another_machine_takes_the_proxy_unless_no_proxy_names_it(start: Start, environment: pytest.MonkeyPatch) -> None:
    server = start(grpc_listen="0.0.0.0:0")
    target = f"{far_address()}:{server.app.grpc_port}"

    with proxy(environment) as between:
        with Client(target, options=PLAIN) as client:
            assert client.classify("good").label == "positive"
        by_proxy = list(between.asked)
        environment.setenv("no_proxy", far_address())
        with Client(target, options=PLAIN) as client:
            assert client.classify("good").label == "positive"

    assert (by_proxy, between.asked) == ([target], [target])


def test_a_token_without_tls_never_passes_a_proxy_of_this_machine(
    start: Start, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(grpc_listen="0.0.0.0:0")
    target = f"{far_address()}:{server.app.grpc_port}"

    async def load() -> None:
        await open_driver(Target(target, credentials=Credentials(token=TOKEN)), stream=False).connect()

    with proxy(environment) as between:
        with Client(target, credentials=Credentials(token=TOKEN), options=NO_RETRIES) as client, pytest.raises(CallFailed) as failed:
            client.classify("good")
        with AdminClient(target, token=TOKEN) as admin, pytest.raises(CallFailed):
            admin.index()
        environment.setenv("SENTIMENT_CLIENT_TOKEN", TOKEN)
        assert main(["classify", "--target", target, "good"]) == 2
        with pytest.raises(LoadFailed, match=r"^the token is not sent to "):
            asyncio.run(load())

    withheld = f"the token is not sent to {target}: to another machine a token is sent over TLS only"
    assert failed.value.message.startswith(withheld)
    assert withheld in capsys.readouterr().err
    assert between.asked == []
    assert TOKEN.encode() not in between.passed


def test_an_error_through_a_proxy_names_its_variable_and_never_its_password(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, how = "192.0.2.1:1", "to call it without the proxy, add its host to no_proxy"

    async def load() -> None:
        await open_driver(Target(target), stream=False).connect()

    with proxy(environment, "https_proxy", b"HTTP/1.1 403 Forbidden\r\n\r\n"):
        with Client(target, options=NO_RETRIES) as client, pytest.raises(CallFailed) as failed:
            client.classify("good")
        assert main(["classify", "--target", target, "good"]) == 1
        said = capsys.readouterr().err
        with pytest.raises(LoadFailed) as lost:
            asyncio.run(load())

    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    for message in (failed.value.message, said):
        assert message.removeprefix("error: ").startswith(f"no server answers at {target}: through the proxy that https_proxy names: ")
        assert "response code 403" in message
        assert how in message
    assert f"through the proxy that https_proxy names; {how}" in str(lost.value)
    assert "secret" not in f"{failed.value}{said}{lost.value}"
