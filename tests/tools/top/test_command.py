"""``sentiment top`` against real servers: one reading for scripts, and the live view on a terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment.client import CallFailed
from sentiment.security.client_credentials import Credentials
from sentiment_tools.top.figures import Reading
from sentiment_tools.top.run import Watching, _same_run
from sentiment_tools.top.scrape import Scraper
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.core.security.test_clients import arguments_of
from tests.core.security.test_doors import OTHER, TOKEN, Secure, secure, tokens
from tests.programs import free_port, serving

__all__ = ["secure", "tokens"]

# A ceiling for a busy machine.
WAIT_S_MAX = 120.0
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SENTIMENT_")]:
        monkeypatch.delenv(name)


@contextmanager
def calling(server: RunningServer) -> Iterator[None]:
    """Call the server without a pause: a text, a batch of three, an empty text."""
    ended = threading.Event()

    def call() -> None:
        with server.client() as client:
            while not ended.is_set():
                client.classify("a good film")
                client.classify_batch(["awful", "awful", "good"])
                with suppress(CallFailed):
                    client.classify("")

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(WAIT_S_MAX)


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return float(found[1].replace(",", ""))


@pytest.mark.smoke
def test_one_reading_has_the_rates_latencies_and_answers_of_the_interval(start: Start, capsys: Captured) -> None:
    server = start()
    # What was before the first reading is in no rate.
    with server.client() as client:
        client.classify_batch(["awful"] * 200)
    before = server.metric("sentiment_requests_total", method="ClassifyBatch", code="OK", model="tiny/1")
    capsys.readouterr()

    with calling(server):
        begun = time.monotonic()
        assert main(["top", "--once", "--interval", "1s", "--target", server.url.removeprefix("http://")]) == 0
        took = time.monotonic() - begun
        calls = server.metric("sentiment_requests_total", method="ClassifyBatch", code="OK", model="tiny/1") - before

    text = capsys.readouterr().out
    answered = number(r"ClassifyBatch +([\d,.]+) ", text)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert 0 < answered <= calls
    assert took >= 1.0
    # To a call that has begun and not ended.
    assert number(r"ClassifyBatch +[\d,.]+ +([\d,.]+) ", text) == pytest.approx(3 * answered, abs=4)
    assert number(r"INVALID_ARGUMENT ([\d,.]+)", text) > 0
    assert number(r"interactive ([\d,.]+)", text) == pytest.approx(number(r"bulk ([\d,.]+)", text) / 3, abs=2)
    # Of four texts two are good; the 200 before the first reading do not count.
    assert number(r"positive ([\d.]+) %", text) == pytest.approx(50, abs=10)
    assert re.search(r"Classify +[\d,.]+ +[\d,.]+ +[\d,.]+ +[\d.]+ m?s +[\d.]+ m?s +[\d.]+ %", text)
    assert re.search(r"serves +tiny/1  fp32  CPU  [0-9a-f]{12}", text)
    assert number(r"batches +([\d,.]+)/s of", text) > 0
    assert number(r"cpu +([\d.]+) cores", text) > 0


def error_of(capsys: Captured, *arguments: str, code: int = 1) -> str:
    assert main(["top", "--once", "--interval", "200ms", *arguments]) == code
    return capsys.readouterr().err.removeprefix("error: ").strip()


def test_another_program_at_the_address_is_named(capsys: Captured, server: RunningServer) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"

        assert error_of(capsys, nobody) == f"no answer from http://{nobody}/metrics: Connection refused"
    assert "does not speak HTTP; --target is the server's HTTP port" in error_of(capsys, server.target)
    assert "is not a metrics page" in error_of(capsys, f"{server.url}/healthz")
    assert "answers with status 404" in error_of(capsys, f"{server.url}/nosuch")
    for none in ("foo:bar", "[::1:8080", "http://[::1"):
        assert f"{none!r} is not an address" in error_of(capsys, none, code=2)
    assert "TLS fails" in error_of(capsys, "--tls", server.url.removeprefix("http://"))


def test_tls_and_tokens_are_those_of_the_other_commands(
    secure: Callable[..., Secure], tokens: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = secure(mtls=True, auth_tokens=str(tokens), auth_exempt=())
    address = known.url.removeprefix("https://")
    (tmp_path / "token").write_text(TOKEN)

    assert main(["top", "--once", "--interval", "200ms", *arguments_of(known), "--token-file", str(tmp_path / "token"), address]) == 0
    assert "tiny/1" in capsys.readouterr().out
    assert "needs a valid token" in error_of(capsys, *arguments_of(known), address)
    monkeypatch.setenv("SENTIMENT_CLIENT_TOKEN", OTHER)
    refused = error_of(capsys, *arguments_of(known), address)
    assert "needs a valid token" in refused
    assert OTHER not in refused
    monkeypatch.delenv("SENTIMENT_CLIENT_TOKEN")
    assert "certificate is not trusted" in error_of(capsys, "--tls", address)
    assert "a server with TLS needs --tls or --ca" in error_of(capsys, address)


def test_a_token_goes_to_no_other_machine_in_plaintext(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_CLIENT_TOKEN", TOKEN)

    said = error_of(capsys, "192.0.2.1:8080", code=2)

    assert "a token is sent there over https only" in said
    assert TOKEN not in said


def test_any_error_of_the_reading_thread_ends_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Scraper) -> None:
        raise MemoryError

    monkeypatch.setattr(Scraper, "read", broken)
    watching = Watching(Scraper("127.0.0.1:1", Credentials()), 0.01)
    ends_at = time.monotonic() + WAIT_S_MAX

    with pytest.raises(MemoryError):
        while not watching.news():
            assert time.monotonic() < ends_at
            time.sleep(0.01)
    watching.close()


def test_readings_without_a_start_are_of_one_run() -> None:
    readings = deque([Reading(0), Reading(1), Reading(2)])

    assert _same_run(readings) is readings[0]


def test_without_a_terminal_the_view_says_how_to_get_one_reading(capsys: Captured) -> None:
    assert main(["top"]) == 2
    assert capsys.readouterr().err == "error: standard output is not a terminal; --once prints a plain reading\n"


def test_without_the_extra_the_view_names_it(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "sentiment_tools.top.screen", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    assert main(["top"]) == 2
    assert "pip install 'sentiment-service[top]', or use --once" in capsys.readouterr().err


# Ctrl-C is a key of the terminal that is the session's own. Not by preexec_fn: that forks, and gRPC in this process, which acts at a fork,
# then writes to the terminal.
_ON_ITS_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from sentiment.cli.main import main
sys.exit(main())
"""


class Terminal:
    """``sentiment top`` on a terminal of its own, whose window can be resized."""

    def __init__(self, *arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self._end, terminal = pty.openpty()
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.resize(columns, rows, tell=False)
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_ITS_TERMINAL, "top", "--interval", "300ms", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**inherited, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        self.raw = ""

    def resize(self, columns: int, rows: int, tell: bool = True) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    @property
    def frame(self) -> str:
        """The last whole picture, without escapes."""
        frames = [frame for frame in self.raw.replace("\r", "").split("\x1b[H") if "q: quit" in frame]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frames[-1]) if frames else ""

    def until(self, holds: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + WAIT_S_MAX
        while not holds():
            assert time.monotonic() < ends_at, f"it does not come about: {self.frame or self.raw!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                self.raw += os.read(self._end, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def ended(self) -> int:
        """The exit code; the terminal must be as it was."""
        self.until(lambda: self.process.poll() is not None and "\x1b[?1049l" in self.raw)
        assert termios.tcgetattr(self._terminal) == self.before
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)
        os.close(self._end)


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def begin(*arguments: str, **more: object) -> Terminal:
        opened.append(Terminal(*arguments, **more))  # type: ignore[arg-type]  # of Terminal
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def test_the_view_follows_the_server_the_window_and_the_keys(start: Start, on_terminal: Callable[..., Terminal]) -> None:
    server = start()
    view = on_terminal(server.url)

    with calling(server):
        view.until(lambda: "ClassifyBatch" in view.frame and "positive" in view.frame)
    assert "\x1b[?1049h" in view.raw
    assert re.search("\x1b\\[[0-9;]*3[0-9]", view.raw), "no colours"
    assert max(map(len, view.frame.splitlines())) <= 80
    assert len(view.frame.rstrip("\n").splitlines()) == 24

    view.resize(140, 40)
    view.until(lambda: "onnxruntime" in view.frame)
    assert len(view.frame.rstrip("\n").splitlines()) == 40

    # Keys that mean nothing do not end it.
    view.type(b"x\x1b[A")
    view.until(lambda: bool(re.search(r"calls +calls/s[^\n]*\n +none", view.frame)))
    view.type(b"q")
    assert view.ended() == 0


def test_sigterm_leaves_the_terminal_as_it_was(server: RunningServer, on_terminal: Callable[..., Terminal]) -> None:
    view = on_terminal(server.url)
    view.until(lambda: "q: quit" in view.frame)

    view.process.terminate()

    assert view.ended() == 0


def test_ctrl_c_ends_the_view_and_no_color_is_obeyed(server: RunningServer, on_terminal: Callable[..., Terminal]) -> None:
    view = on_terminal(server.url, NO_COLOR="1")
    view.until(lambda: "tiny/1" in view.frame)

    view.type(b"\x03")

    assert view.ended() == 0
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", view.raw)


def test_a_server_that_is_absent_comes_goes_and_restarts_is_followed(bundles: Path, on_terminal: Callable[..., Terminal]) -> None:
    address = f"127.0.0.1:{free_port()}"
    server = [sys.executable, "-m", "sentiment"], "--bundles", bundles, "--model", "tiny", "--http-listen", address
    view = on_terminal(address)
    view.until(lambda: f"no answer from http://{address}/metrics: Connection refused; trying again" in view.frame)

    with serving(*server):
        view.until(lambda: "tiny/1" in view.frame and "no answer" not in view.frame)
    view.until(lambda: "no answer" in view.frame)
    assert "tiny/1" in view.frame, "the last picture stays"

    with serving(*server):
        view.until(lambda: "restarted" in view.frame)
        view.until(lambda: "restarted" not in view.frame and "tiny/1" in view.frame)
    view.type(b"q")
    assert view.ended() == 0


def test_another_program_at_the_address_ends_the_view_with_the_reason(server: RunningServer, on_terminal: Callable[..., Terminal]) -> None:
    view = on_terminal(server.target)

    assert view.ended() == 1
    assert "error: " in view.raw.partition("\x1b[?1049l")[2]
