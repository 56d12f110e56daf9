"""``sentiment health`` beside a real server: exit codes and messages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.cli.main import main
from tests.conftest import RunningServer
from tests.core.security.authorities import Authority, mounted_pair
from tests.programs import free_port

Start = Callable[..., RunningServer]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARGET", "CONFIG", "GRPC_LISTEN", "HEALTH_LISTEN", "TLS_CERT_FILE", "CLIENT_TOKEN"):
        monkeypatch.delenv(f"SENTIMENT_{name}", raising=False)


def test_a_ready_server_is_0_and_one_that_is_not_ready_1(server: RunningServer, capsys: Captured) -> None:
    assert main(["health", "--target", server.target]) == 0
    assert capsys.readouterr() == (f"the server at {server.target} is ready\n", "")
    server.grpc.health.set_ready(False)
    try:
        assert main(["health", "--target", server.target]) == 1
    finally:
        server.grpc.health.set_ready(True)
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: the server at {server.target} is draining")


def test_where_nothing_listens_it_is_1_and_says_so(capsys: Captured) -> None:
    target = f"127.0.0.1:{free_port()}"

    assert main(["health", "--target", target]) == 1
    assert capsys.readouterr().err == f"error: no server answers at {target}: nothing listens there\n"


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "[::]"])
def test_the_server_of_the_same_environment_is_asked(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path, wildcard: str
) -> None:
    port = server.app.grpc_port
    file = tmp_path / "settings.toml"
    file.write_text(f'grpc_listen = "{wildcard}:{port}"\n', encoding="utf-8")

    monkeypatch.setenv("SENTIMENT_GRPC_LISTEN", f"{wildcard}:{port}")
    assert main(["health"]) == 0
    monkeypatch.delenv("SENTIMENT_GRPC_LISTEN")
    monkeypatch.setenv("SENTIMENT_CONFIG", str(file))
    assert main(["health"]) == 0

    assert capsys.readouterr().out == f"the server at localhost:{port} is ready\n" * 2


def test_with_tls_the_port_for_health_is_asked_which_needs_no_certificate_and_no_token(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    authority = Authority()
    tls = mounted_pair(tmp_path / "tls", authority.sign(), authority)
    (tmp_path / "tokens").write_text("a-token-that-nobody-shows\n", encoding="utf-8")
    files = {name: str(tls / file) for name, file in (("tls_cert_file", "tls.crt"), ("tls_key_file", "tls.key"))}
    health = f"127.0.0.1:{free_port()}"
    server = start(**files, tls_client_ca_file=str(tls / "ca.crt"), auth_tokens=str(tmp_path / "tokens"), health_listen=health)
    for name, value in (*files.items(), ("grpc_listen", server.target), ("health_listen", health)):
        monkeypatch.setenv(f"SENTIMENT_{name.upper()}", value)
    capsys.readouterr()  # its log

    assert main(["health"]) == 0
    assert capsys.readouterr().out == f"the server at {health} is ready\n"

    monkeypatch.setenv("SENTIMENT_HEALTH_LISTEN", "")
    assert main(["health"]) == 2
    assert capsys.readouterr().err == "error: health_listen is empty; give the gRPC port, with --target and --ca\n"
