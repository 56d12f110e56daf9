"""What our clients show, from the command line too: TLS, certificates, tokens, and where a token never goes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.cli.main import main
from sentiment.client import AsyncClient, CallFailed, Client, Credentials
from sentiment.errors import BadSettings
from sentiment.loadtest.drivers import LoadFailed, Target
from sentiment.loadtest.protocols import open_driver
from sentiment.security.client_credentials import may_send_token
from sentiment.settings import load_settings
from tests.conftest import NO_RETRIES, RunningServer, far_address
from tests.security.test_doors import OTHER, TOKEN, Secure, secure, tokens

__all__ = ["secure", "tokens"]


def arguments_of(known: Secure) -> list[str]:
    return ["--ca", str(known.ca), "--cert", str(known.cert), "--key", str(known.key)]


@pytest.fixture
def mtls(secure: Callable[..., Secure], tokens: Path) -> Secure:
    return secure(mtls=True, auth_tokens=str(tokens))


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


async def test_the_asyncio_client_shows_them_too(mtls: Secure) -> None:
    async with AsyncClient(mtls.server.target, credentials=mtls.credentials(shows=True, token=TOKEN), options=NO_RETRIES) as client:
        assert (await client.classify("good", timeout_s=10)).label


@pytest.mark.parametrize("command", [["classify", "good"], ["explain", "good", "--json"]])
def test_classify_and_explain_take_them_and_the_token_from_file_or_environment(
    mtls: Secure, token_file: str, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*command, "--target", mtls.server.target, *arguments_of(mtls)]

    assert main([*asked, "--token-file", token_file]) == 0
    monkeypatch.setenv("SENTIMENT_CLIENT_TOKEN", TOKEN)
    assert main(asked) == 0
    monkeypatch.setenv("SENTIMENT_CLIENT_TOKEN", OTHER)
    assert main(asked) == 1

    said = capsys.readouterr()
    assert "UNAUTHENTICATED" in said.err or "bearer token" in said.err
    assert OTHER not in said.err + said.out


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_load_tester_takes_them_and_writes_none_into_its_report(mtls: Secure, protocol: str, tmp_path: Path) -> None:
    target = mtls.server.target if protocol == "grpc" else mtls.url
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    asked = ["loadtest", "--target", target, "--protocol", protocol, "--rate", "20", "--seconds", "1s", "--slo", "10s", "--processes", "1"]
    command = [sys.executable, "-m", "sentiment", *asked, *arguments_of(mtls), "--json", str(report), "--html", str(page)]

    run = subprocess.run(
        command, env={**os.environ, "SENTIMENT_CLIENT_TOKEN": TOKEN}, capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stderr
    groups: dict[str, Any] = json.loads(report.read_text())["points"][0]["by_class"]
    assert [set(group["outcomes"]) for group in groups.values()] == [{"OK"}]
    assert TOKEN not in run.stdout + run.stderr + report.read_text() + page.read_text()


def test_a_token_is_sent_in_plaintext_within_this_machine_only() -> None:
    assert [
        url for url in ("http://127.0.0.1:1", "http://localhost", "http://[::1]:8080", "https://example.com") if may_send_token(url)
    ] == [
        "http://127.0.0.1:1",
        "http://localhost",
        "http://[::1]:8080",
        "https://example.com",
    ]
    for url in (
        "http://example.com",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://user@10.0.0.1",
    ):
        assert not may_send_token(url)
    with pytest.raises(LoadFailed, match="another machine, to which a token is sent over https only"):
        open_driver(Target("http://192.0.2.1", "http", credentials=Credentials(token=TOKEN)), False)


def test_grpc_sends_no_token_in_plaintext_to_another_address(start: Callable[..., RunningServer]) -> None:
    address = far_address()
    server = start(grpc_listen="0.0.0.0:0")
    target = f"{address}:{server.app.grpc_port}"

    with Client(target, options=NO_RETRIES, timeout_s=10) as client:
        assert client.classify("good").label
    with (
        Client(target, credentials=Credentials(token=TOKEN), options=NO_RETRIES, timeout_s=10) as client,
        pytest.raises(CallFailed) as error,
    ):
        client.classify("good")
    assert error.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cert_file": "x"}, "a client's certificate needs its key"),
        ({"ca_file": "/nowhere/ca.crt"}, "/nowhere/ca.crt: cannot be "),
        ({"token_file": "/nowhere/token"}, "/nowhere/token: cannot be read"),
        ({"token_file": "/dev/null"}, "/dev/null: has no token"),
    ],
)
def test_files_of_no_use_are_said_at_once(wrong: dict[str, str], reason: str) -> None:
    with pytest.raises(BadSettings, match=reason):
        Client("127.0.0.1:1", credentials=Credentials(**wrong))
    with pytest.raises(LoadFailed, match=reason):
        asyncio.run(_opened(Target("127.0.0.1:1", "http", credentials=Credentials(**wrong))))


async def _opened(target: Target) -> None:
    open_driver(target, False)


def test_a_clients_token_is_no_setting_of_a_server_and_no_other_name_is_taken_for_one() -> None:
    load_settings({}, {"SENTIMENT_CLIENT_TOKEN": TOKEN})

    # Who means to protect the server by it must hear that it does not.
    with pytest.raises(BadSettings, match="SENTIMENT_TOKEN is not a setting") as error:
        load_settings({}, {"SENTIMENT_TOKEN": TOKEN})
    assert TOKEN not in str(error.value)


def test_credentials_do_not_show_their_token() -> None:
    assert TOKEN not in repr(Credentials(token=TOKEN))
