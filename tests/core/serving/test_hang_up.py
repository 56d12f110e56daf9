"""SIGHUP to real servers: without a terminal it reloads files and some settings, with one it ends the server, and nohup ignores it."""

import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from sentiment.admin_client import AdminClient
from sentiment.client import CallFailed, Client, Credentials
from tests.conftest import NO_RETRIES
from tests.core.servers import Server
from tests.programs import free_port, until

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


@pytest.mark.parametrize(("front_ends", "processes"), [("0", 1), ("2", 3)], ids=["one process", "front ends"])
def test_the_settings_file_changes_the_log_level_and_the_access_log(
    serve: Callable[..., Server], tmp_path: Path, front_ends: str, processes: int
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("calls_max = 64\n")
    server = serve(*RARELY, "--config", str(file), "--front-ends", front_ends, before=ALONE)
    with server.client() as client:
        client.classify("good")

        file.write_text('calls_max = 64\nlog_level = "debug"\naccess_log = true\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded", processes, files="settings")
        until(lambda: bool(client.classify("good") and [line for line in server.lines if line["event"] == "call"]), "calls are logged")
        server.wait_for("access", method="Classify")

        file.write_text('calls_max = 64\nlog_level = "warning"\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded", 2 * processes, files="settings")
        # Lines of the calls before may still come.
        until(lambda: silent(server, client), "calls are not logged")


def silent(server: Server, client: Client) -> bool:
    before = len(server.lines)
    for _ in range(8):
        client.classify("good")
    return len(server.lines) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('log_level = "debug"\ncalls_max = 65\nqueue_rows_max = 17\n', "calls_max, queue_rows_max: needs a restart; nothing was changed"),
        ("access_log = 17\n", "access_log has a wrong value; nothing was changed"),
        ("acces_log = true\n", "{file}: acces_log is not a setting; did you mean access_log?"),
        ("access_log =\n", "{file}: Invalid value (at line 1, column 13)"),
        (None, "[Errno 2] No such file or directory: '{file}'"),
    ],
)
def test_a_settings_file_that_cannot_be_used_changes_nothing(
    serve: Callable[..., Server], tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("access_log = true\n")
    server = serve(*RARELY, "--config", str(file), before=ALONE)
    file.unlink() if content is None else file.write_text(content)

    server.process.send_signal(signal.SIGHUP)

    said = server.wait_for("not_reloaded", files="settings")["reason"]
    assert said.endswith(reason.format(file=file))
    with server.client() as client:
        client.classify("good")
    server.wait_for("access", method="Classify")
    assert server.total("reload_failures_total", files="settings") == 1
    assert not [line for line in server.lines if line["event"] == "call"]


def test_a_flag_goes_before_the_settings_file_that_is_read_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("")
    server = serve(*RARELY, "--config", str(file), "--no-access-log", before=ALONE)
    file.write_text('access_log = true\nlog_level = "debug"\n')

    server.process.send_signal(signal.SIGHUP)
    server.wait_for("reloaded", files="settings")

    with server.client() as client:
        until(lambda: bool(client.classify("good") and [line for line in server.lines if line["event"] == "call"]), "calls are logged")
    assert not [line for line in server.lines if line["event"] == "access"]


@pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
def test_under_nohup_it_is_ignored(serve: Callable[..., Server], tokens: Path, front_ends: str) -> None:
    server = serve(*RARELY, "--auth-tokens", str(tokens), "--front-ends", front_ends, before=(*ALONE, "nohup"))
    tokens.write_text(NEW)

    server.process.send_signal(signal.SIGHUP)

    assert code_with(server, OLD) is grpc.StatusCode.OK
    server.process.terminate()
    assert server.finish() == 0
    assert [line for line in server.lines if line["event"] == "reloading"] == []
