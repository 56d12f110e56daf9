"""What our clients show, from the command line too: TLS, certificates, tokens, and where a token never goes."""

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
from sentiment.client import AsyncClient, Client, Credentials
from sentiment.errors import BadSettings
from sentiment.security.client_credentials import may_send_token
from sentiment.settings import load_settings
from sentiment_tools.loadtest.drivers import LoadFailed, Target
from sentiment_tools.loadtest.protocols import open_driver
from tests.conftest import NO_RETRIES, far_address
from tests.core.grpc.gate import Start
from tests.core.security.test_doors import OTHER, TOKEN, Secure, code_of, secure, tokens

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


async def test_the_asyncio_client_shows_certificate_and_token(mtls: Secure) -> None:
    async with AsyncClient(mtls.server.target, credentials=mtls.credentials(shows=True, token=TOKEN), options=NO_RETRIES) as client:
        assert (await client.classify("good", timeout_s=10)).label


@pytest.mark.parametrize("command", [["classify", "good"], ["explain", "good", "--json"]])
def test_classify_and_explain_take_certificates_and_a_token_from_file_or_environment(
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


def test_the_load_tester_takes_certificates_and_token_and_reports_neither(mtls: Secure, tmp_path: Path) -> None:
    load = ("--rate", "20", "--seconds", "0.5s", "--warm-up", "0.1s", "--slo", "10s", "--processes", "1")
    environment = {**os.environ, "SENTIMENT_CLIENT_TOKEN": TOKEN}

    def begin(protocol: str, target: str) -> subprocess.Popen[str]:
        reports = ("--json", str(tmp_path / f"{protocol}.json"), "--html", str(tmp_path / f"{protocol}.html"))
        command = [
            sys.executable,
            "-m",
            "sentiment",
            "loadtest",
            "--target",
            target,
            "--protocol",
            protocol,
            *load,
            *arguments_of(mtls),
            *reports,
        ]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    runs = {protocol: begin(protocol, target) for protocol, target in (("grpc", mtls.server.target), ("http", mtls.url))}
    for protocol, run in runs.items():
        said, _ = run.communicate(timeout=120)

        assert run.returncode == 0, said
        report = (tmp_path / f"{protocol}.json").read_text()
        groups: dict[str, Any] = json.loads(report)["points"][0]["by_class"]
        assert [set(group["outcomes"]) for group in groups.values()] == [{"OK"}]
        assert TOKEN not in said + report + (tmp_path / f"{protocol}.html").read_text()


def test_a_token_is_sent_in_plaintext_within_this_machine_only() -> None:
    private = {"http://127.0.0.1:1", "http://localhost", "http://[::1]:8080", "https://example.com"}
    others = ("example.com", "10.0.0.1", "127.0.0.1.example.com", "localhost.example.com", "user@10.0.0.1")

    assert {url for url in (*private, *(f"http://{host}" for host in others)) if may_send_token(url)} == private
    with pytest.raises(LoadFailed, match="is on another machine: a token is sent there over https only"):
        open_driver(Target("http://192.0.2.1", "http", credentials=Credentials(token=TOKEN)), False)


def test_grpc_sends_no_token_in_plaintext_to_another_address(start: Start) -> None:
    address = far_address()
    server = start(grpc_listen="0.0.0.0:0")
    target = f"{address}:{server.app.grpc_port}"

    with Client(target, options=NO_RETRIES, timeout_s=10) as client:
        assert client.classify("good").label
    assert code_of(Client(target, credentials=Credentials(token=TOKEN), options=NO_RETRIES, timeout_s=10)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cert_file": "x"}, "a client's certificate needs its key"),
        ({"ca_file": "/nowhere/ca.crt"}, "/nowhere/ca.crt: cannot be "),
        ({"token_file": "/nowhere/token"}, "/nowhere/token: cannot be read"),
        ({"token_file": "/dev/null"}, "/dev/null: has no token"),
    ],
)
async def test_files_of_no_use_are_reported_at_once(wrong: dict[str, str], reason: str) -> None:
    with pytest.raises(BadSettings, match=reason):
        Client("127.0.0.1:1", credentials=Credentials(**wrong))
    with pytest.raises(LoadFailed, match=reason):
        open_driver(Target("127.0.0.1:1", "http", credentials=Credentials(**wrong)), False)


def test_a_clients_token_is_not_a_setting_of_a_server_and_no_other_name_is_taken_for_one() -> None:
    load_settings({}, {"SENTIMENT_CLIENT_TOKEN": TOKEN})

    # Who means to protect the server by it must hear that it does not.
    with pytest.raises(BadSettings, match="SENTIMENT_TOKEN is not a setting") as error:
        load_settings({}, {"SENTIMENT_TOKEN": TOKEN})
    assert TOKEN not in str(error.value)


def test_credentials_do_not_show_their_token() -> None:
    assert TOKEN not in repr(Credentials(token=TOKEN))
