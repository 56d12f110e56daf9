"""What the Python client says of a target without a server, in the words of the commands, and how it waits for one."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from sentiment.addresses import HTTP_PORT
from sentiment.cli.main import main
from sentiment.client import AsyncClient, CallFailed, Client
from sentiment.errors import BadSettings
from sentiment.signs import Sign, shown
from tests.conftest import NO_RETRIES, PLAIN, RunningServer
from tests.core.cli.test_connecting import Loading
from tests.core.servers import PATIENCE_S, Server
from tests.programs import free_port

Serve = Callable[..., Server]


def says(target: str) -> str:
    with Client(target, options=NO_RETRIES) as client, pytest.raises(CallFailed) as failed:
        client.classify("good")
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    return failed.value.message


def of_the_command(capsys: pytest.CaptureFixture[str], target: str) -> str:
    assert main(["classify", "--target", target, "good"]) == 1
    return capsys.readouterr().err.removeprefix("error: ").partition("; start one with")[0].strip()


@pytest.mark.parametrize("target", ["http://127.0.0.1:50051", "127.0.0.1:116587", ""])
def test_an_invalid_target_has_the_commands_message(capsys: pytest.CaptureFixture[str], target: str) -> None:
    with pytest.raises(BadSettings) as refused:
        Client(target)
    with pytest.raises(SystemExit) as exited:
        main(["classify", "--target", target, "good"])

    assert exited.value.code == 2
    assert str(refused.value) in capsys.readouterr().err


def test_a_closed_port_and_the_http_port_have_the_commands_message(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    nothing, http = f"127.0.0.1:{free_port()}", server.url.removeprefix("http://")

    assert says(nothing) == of_the_command(capsys, nothing) == f"no server answers at {nothing}: nothing listens there"
    assert says(http) == of_the_command(capsys, http) == f"no server answers at {http}: {HTTP_PORT}"


def test_a_starting_server_is_distinguished_from_an_absent_one() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with shown(Sign.STARTING, port):
            starting = says(f"127.0.0.1:{port}")

    assert starting == f"the server at 127.0.0.1:{port} is starting"


def test_a_call_that_ends_unanswered_says_so(server: RunningServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(target, options=NO_RETRIES, timeout_s=0.1) as client, pytest.raises(CallFailed) as failed:
            client.classify("good")

    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert failed.value.message == f"no answer from {target} within the timeout of the call"


def test_the_default_target_is_that_of_the_variable(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_TARGET", server.target)

    with Client(options=PLAIN) as client:
        assert client.classify("good").label == "positive"
    assert main(["classify", "good"]) == 0


def test_a_client_waits_for_a_server_that_is_starting_and_refuses_connections(serve: Serve, tmp_path: Path) -> None:
    loading = Loading(tmp_path, serve).wait_starting()
    labels: list[str] = []

    async def classify() -> str:
        async with AsyncClient(loading.target, wait_s=PATIENCE_S, options=PLAIN) as client:
            return (await client.classify("good", timeout_s=PATIENCE_S)).label

    with Client(loading.target, wait_s=PATIENCE_S, options=PLAIN) as client:
        ask: list[Callable[[], object]] = [
            lambda: labels.append(client.classify("good", timeout_s=PATIENCE_S).label),
            lambda: labels.extend(result.label for result in client.classify(["good"])),
            lambda: labels.append(asyncio.run(classify())),
        ]
        asking = [threading.Thread(target=each) for each in ask]
        for each in asking:
            each.start()
        loading.load()
        for each in asking:
            each.join()

    assert labels == ["positive"] * 3


def test_a_client_whose_wait_failed_says_why() -> None:
    target = f"127.0.0.1:{free_port()}"

    with Client(target, wait_s=0.2, options=NO_RETRIES) as client, pytest.raises(CallFailed) as failed:
        client.classify("good")

    assert failed.value.message == f"no server answers at {target}: nothing listens there"
