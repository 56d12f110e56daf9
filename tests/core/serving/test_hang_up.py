"""SIGHUP to real servers: without a terminal it reloads certificates and tokens, with one it ends the server, and nohup ignores it."""

import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from sentiment.admin_client import AdminClient
from sentiment.client import CallFailed, Client, Credentials
from tests.conftest import NO_RETRIES
from tests.core.servers import Server
from tests.programs import free_port

OLD, NEW = "old-token-of-tests", "new-token-of-tests"
# No reload by itself during a test.
RARELY = ("--reload-s", "3600")
# Without a terminal.
ALONE = ("setsid",)

pytestmark = pytest.mark.usefixtures("hangs_up")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(OLD)
    return file


def code_with(server: Server, token: str) -> grpc.StatusCode:
    with Client(server.target, credentials=Credentials(token=token), options=NO_RETRIES) as client:
        try:
            client.classify("good")
        except CallFailed as error:
            return error.code
        return grpc.StatusCode.OK


@pytest.mark.parametrize(("front_ends", "processes"), [("0", 1), ("2", 3)], ids=["one process", "front ends"])
def test_without_a_terminal_it_reloads_at_once_in_every_process(
    serve: Callable[..., Server], tokens: Path, front_ends: str, processes: int
) -> None:
    admin = f"127.0.0.1:{free_port()}"
    protected = ("--auth-tokens", str(tokens), "--admin-listen", admin, "--admin-tokens", str(tokens))
    server = serve(*RARELY, *protected, "--front-ends", front_ends, before=ALONE)
    tokens.write_text(NEW)

    server.process.send_signal(signal.SIGHUP)
    # Of the admin port, and of the calls of each process.
    server.wait_for("reloaded", 1 + processes, files="tokens")

    for _ in range(8):
        assert code_with(server, NEW) is grpc.StatusCode.OK
        assert code_with(server, OLD) is grpc.StatusCode.UNAUTHENTICATED
    with AdminClient(admin, token=NEW) as client:
        assert client.index()


def test_each_time_it_says_why_files_cannot_be_used(serve: Callable[..., Server], tokens: Path) -> None:
    server = serve(*RARELY, "--auth-tokens", str(tokens), before=ALONE)
    tokens.write_text("short")

    for times in (1, 2):
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("not_reloaded", times, files="tokens")

    assert code_with(server, OLD) is grpc.StatusCode.OK


@pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
def test_under_nohup_it_is_ignored(serve: Callable[..., Server], tokens: Path, front_ends: str) -> None:
    server = serve(*RARELY, "--auth-tokens", str(tokens), "--front-ends", front_ends, before=(*ALONE, "nohup"))
    tokens.write_text(NEW)

    server.process.send_signal(signal.SIGHUP)

    assert code_with(server, OLD) is grpc.StatusCode.OK
    server.process.terminate()
    assert server.finish() == 0
    assert [line for line in server.lines if line["event"] == "reloading"] == []
