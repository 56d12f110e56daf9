"""What classify and explain say of a target without a ready server, each shown with a real process there."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.cli import connecting
from sentiment.cli.listener import Listener, look
from sentiment.cli.main import main
from sentiment.client import CallFailed, Client
from sentiment.health_check import NOT_READY
from sentiment.security.client_credentials import Credentials
from sentiment.signs import is_starting
from tests.conftest import PLAIN
from tests.core.security.authorities import Authority, mounted_pair
from tests.core.servers import PATIENCE_S, Server, until
from tests.core.serving.test_processes import hanging, loading
from tests.programs import free_port

__all__ = ["hanging"]

Serve = Callable[..., Server]
Captured = pytest.CaptureFixture[str]
LOCAL = "; start one with 'sentiment serve', or use --local"


def refused(capsys: Captured, target: str, *flags: str) -> str:
    """Why ``classify`` fails. It says nothing else."""
    assert main(["classify", "--target", target, *flags, "a good film"]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", errors), errors
    return errors.removeprefix("error: ").removesuffix("\n")


class Loading:
    """A server whose model is loaded when the test wants."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        program, self._go = loading(folder)
        self.target = f"127.0.0.1:{free_port()}"
        self.server = serve("--grpc-listen", self.target, program=program, ready=False)

    def wait_starting(self) -> "Loading":
        until(lambda: is_starting(self.target), "it starts")
        return self

    def load(self) -> None:
        self._go.touch()


def not_ready(target: str) -> str | None:
    """The trailer of a health check; None without a server or a trailer."""
    with grpc.insecure_channel(target, PLAIN) as channel, contextlib.suppress(grpc.RpcError):
        _, call = health_pb2_grpc.HealthStub(channel).Check.with_call(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        return dict(call.trailing_metadata()).get(NOT_READY)
    return None


def test_a_server_that_is_starting_is_waited_for_and_then_answers(capsys: Captured, serve: Serve, tmp_path: Path) -> None:
    loading = Loading(tmp_path, serve).wait_starting()
    # Longer than a busy machine takes to load the model.
    command = [sys.executable, "-m", "sentiment", "classify", "--target", loading.target, "--wait", "600", "a good film"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        said = waiting.stderr.readline()
        loading.load()
        out, rest = waiting.communicate(timeout=PATIENCE_S)

    assert said == f"the server at {loading.target} is starting; waiting up to 600 s\n"
    assert (waiting.returncode, out, rest) == (0, "positive   0.8808  a good film\n", "")


def test_a_server_that_starts_for_too_long_is_given_up(capsys: Captured, serve: Serve, tmp_path: Path) -> None:
    loading = Loading(tmp_path, serve).wait_starting()
    starting = f"the server at {loading.target} is starting"

    assert refused(capsys, loading.target, "--wait", "0") == f"{starting}; see its log, or wait for a ready one with --wait SECONDS"
    assert main(["classify", "--target", loading.target, "--wait", "0.5", "good"]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"{starting}; waiting up to 1 s"
    assert last == f"error: {starting}, after 0.5 s of waiting; wait longer with --wait SECONDS"
    loading.load()


def test_ctrl_c_ends_the_waiting_quietly_with_130(serve: Serve, tmp_path: Path) -> None:
    loading = Loading(tmp_path, serve).wait_starting()
    command = [sys.executable, "-m", "sentiment", "explain", "--target", loading.target, "a good film"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "is starting; waiting up to 30 s" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        out, rest = waiting.communicate(timeout=PATIENCE_S)

    assert (waiting.returncode, out, rest) == (130, "", "")
    loading.load()


def test_a_server_that_is_not_there_yet_is_waited_for_if_asked(capsys: Captured, bundles: Path, serve: Serve) -> None:
    target = f"127.0.0.1:{free_port()}"
    late = threading.Timer(0.5, lambda: serve("--grpc-listen", target, ready=False))
    late.start()
    try:
        assert main(["classify", "--target", target, "--wait", "600", "a good film"]) == 0
    finally:
        late.join()

    out, errors = capsys.readouterr()
    assert out == "positive   0.8808  a good film\n"
    assert errors.startswith(f"no server answers at {target}: nothing listens there; waiting up to 600 s\n")


def test_a_closed_port_is_reported_at_once(capsys: Captured) -> None:
    target = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()

    assert refused(capsys, target) == f"no server answers at {target}: nothing listens there{LOCAL}"
    assert time.monotonic() - begun < connecting.CONNECT_S_MAX
    assert "no connection: No such file or directory" in refused(capsys, "unix:/nosuch/socket")


@pytest.mark.parametrize(
    ("target", "error", "fact"),
    [
        ("127.0.0.1", ConnectionRefusedError(), "nothing listens there (port 443, as the target names none)"),
        ("nosuch.invalid:1", socket.gaierror(socket.EAI_NONAME, "unknown"), "its host name cannot be resolved"),
    ],
)
def test_the_reason_of_a_failed_connection_is_reported(monkeypatch: pytest.MonkeyPatch, target: str, error: OSError, fact: str) -> None:
    def refuse(*_: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", refuse)

    assert look(target, Credentials()) == Listener(fact)


def test_a_draining_server_is_distinguished_from_a_starting_one(capsys: Captured, serve: Serve) -> None:
    server = serve("--drain-wait-s", "60")
    server.process.terminate()
    server.wait_not_ready()

    says = f"the server at {server.target} is draining: it ends, and takes no new callers"
    assert refused(capsys, server.target).startswith(says)
    # It still answers connected callers: only new ones get the error.
    with Client(server.target, options=PLAIN) as client:
        assert client.classify("good").label == "positive"


def test_a_stalled_server_is_distinguished_from_a_draining_one(capsys: Captured, serve: Serve, hanging: Path) -> None:
    server = serve("--stall-s", "5", "--runners", "1", program=hanging)
    with Client(server.target, options=PLAIN, timeout_s=0.5) as client, contextlib.suppress(CallFailed):
        client.classify("w7")
    server.wait_not_ready()

    assert refused(capsys, server.target).startswith(f"the server at {server.target} is not ready: a batch runs longer than stall_s")


def test_a_front_end_without_its_models_process_is_starting(capsys: Captured, serve: Serve) -> None:
    server = serve("--front-ends", "1")
    # Its replacement takes seconds to load.
    server.kill("executor")
    until(lambda: not_ready(server.target) is not None, "the front end is not ready")

    assert main(["classify", "--target", server.target, "--wait", "600", "a good film"]) == 0
    out, errors = capsys.readouterr()
    assert out == "positive   0.8808  a good film\n"
    assert f"the server at {server.target} waits for its process that has the model; waiting up to 600 s\n" in errors


def test_another_program_is_named_by_its_protocol(capsys: Captured, serve: Serve) -> None:
    http = serve().url.removeprefix("http://")

    assert refused(capsys, http) == (f"no server answers at {http}: an HTTP/1 server listens there, no gRPC; is it the server's HTTP port?")
    with talker(b"SSH-2.0-OpenSSH_9.9\r\n") as target:
        assert refused(capsys, target) == f"no server answers at {target}: another program listens there, no gRPC"
    with talker(b"") as target:
        closes = "what listens there closes connections: a forwarded port without a server yet, another program, or a server that ends"
        assert refused(capsys, target) == f"no server answers at {target}: {closes}{LOCAL}"
    others = grpc.server(futures.ThreadPoolExecutor(1))
    target = f"127.0.0.1:{others.add_insecure_port('127.0.0.1:0')}"
    others.start()
    try:
        says = f"no server answers at {target}: another gRPC server listens there, without sentiment.v1.SentimentService"
        assert refused(capsys, target, "--wait", "30") == says
    finally:
        others.stop(0)


@contextlib.contextmanager
def talker(greeting: bytes) -> Iterator[str]:
    """A process that sends a greeting to each client that connects; without one it closes the connection."""
    program = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); kept = []\n"
        f"while True:\n c = s.accept()[0]; c.sendall({greeting!r}); kept.append(c) if {greeting!r} else c.close()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.mark.parametrize("flags", [[], ["--tls"]], ids=["plaintext", "TLS"])
def test_a_server_that_never_answers_is_reported(capsys: Captured, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setattr(connecting, "CONNECT_S_MAX", 0.2)
    monkeypatch.setattr(connecting, "HEALTH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        silence = "what listens there does not answer within 1 s: a server that hangs, or another program"

        assert refused(capsys, target, "--timeout", "600", *flags) == f"no server answers at {target}: {silence}{LOCAL}"


def test_tls_on_one_side_and_mismatched_certificates_are_reported(capsys: Captured, serve: Serve, tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority("stranger")
    secret = mounted_pair(tmp_path / "tls", authority.sign(), authority)
    (tmp_path / "stranger.crt").write_bytes(stranger.certificate)
    files = ("--tls-cert-file", str(secret / "tls.crt"), "--tls-key-file", str(secret / "tls.key"), "--health-listen", "")
    secure, plain, mutual = serve(*files), serve(), serve(*files, "--tls-client-ca-file", str(secret / "ca.crt"))
    ca = ("--ca", str(secret / "ca.crt"))

    def why(server: Server, *flags: str) -> str:
        return refused(capsys, server.target, *flags).removeprefix(f"no server answers at {server.target}: ")

    assert why(secure) == "what listens there expects TLS; use --tls, or --ca FILE with its certificate authority"
    assert why(plain, "--tls") == "the server there has no TLS; leave out --tls, --ca, --cert and --key"
    not_trusted = r"the server's certificate is not trusted: .*; choose its authority with --ca FILE"
    assert re.fullmatch(not_trusted, why(secure, "--tls"))
    assert re.fullmatch(not_trusted, why(secure, "--ca", str(tmp_path / "stranger.crt")))
    assert re.fullmatch(
        r"the server refuses the TLS handshake: .*; if it wants a client's certificate, give --cert and --key", why(mutual, *ca)
    )
    assert main(["classify", "--target", secure.target, *ca, "good"]) == 0


def test_a_certificate_is_not_compared_with_the_path_of_a_unix_socket(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.sign()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    target = f"unix:{tmp_path / 'socket'}"
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_secure_port(target, grpc.ssl_server_credentials([(pair.key, pair.certificate)]))
    server.start()
    try:
        assert look(target, Credentials(ca_file=str(tmp_path / "ca.crt"))) == Listener()
    finally:
        server.stop(0)
