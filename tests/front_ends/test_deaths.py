"""Processes of a server that die, hang or are told to end: nobody hangs with them, and nothing is orphaned."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient, CallFailed, Client
from tests.conftest import PLAIN
from tests.front_ends.servers import PATIENCE_S, Server, alive, wait_gone
from tests.tiny import SPECIAL, WEIGHTS, make_bundle

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SECRET = "great XyzzySecret film"


@pytest.fixture
def serve(bundles: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begin(*flags: str, root: Path = bundles) -> Server:
        servers.append(Server(root, *flags))
        return servers[-1]

    yield begin
    for server in servers:
        server.end()


def eventually_answers(client: Client) -> None:
    """Calls until one is answered; any other failure than UNAVAILABLE is one of the test."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert client.classify("good").label == "positive"
            return
        except CallFailed as error:
            assert error.code is UNAVAILABLE, error
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_killed_front_end_is_replaced_and_the_other_one_goes_on(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    before = server.pid("front-0")
    with server.client() as first:
        first.classify("good")
    counted = server.total("requests_total", code="OK", model="tiny/1")

    server.kill("front-0")
    clients = [server.client() for _ in range(8)]
    for client in clients:
        eventually_answers(client)
    server.wait_for("process_started", 2, started="front-0")

    assert server.wait_for("process_ended")["ended"] == "front-0"
    assert server.pid("front-0") != before
    assert alive(server.pid("executor"))
    # What it had told stays counted.
    assert server.total("requests_total", code="OK", model="tiny/1") == counted + 8
    for client in clients:
        client.close()


def test_when_the_executor_dies_who_waits_is_told_at_once_and_another_takes_its_place(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    # It takes what it is sent and does nothing: calls wait.
    server.kill("executor", signal.SIGSTOP)
    clients = [server.client() for _ in range(8)]
    with ThreadPoolExecutor(9) as pool, grpc.insecure_channel(server.target, PLAIN) as channel:
        waiting = [pool.submit(client.classify, "good", timeout_s=PATIENCE_S) for client in clients[:7]]
        waiting.append(pool.submit(clients[7].explain, "good", timeout_s=PATIENCE_S))
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=PATIENCE_S)
        statuses = [next(watched).status]
        # All have been accepted: a call that came later than the kill would be refused and not failed.
        assert not any(call.done() for call in waiting)

        killed_at = time.monotonic()
        server.kill("executor")
        failures = [call.exception(PATIENCE_S) for call in waiting]
        seconds = time.monotonic() - killed_at
        statuses += [next(watched).status, next(watched).status]
        for client in clients:
            eventually_answers(client)
            client.close()

    assert {failure.code if isinstance(failure, CallFailed) else failure for failure in failures} == {UNAVAILABLE}
    assert all("another takes its place" in str(failure) for failure in failures)
    assert not any("sock" in str(failure) for failure in failures)
    # Far from its deadline: as soon as the connection ended.
    assert seconds < PATIENCE_S / 4
    assert statuses == [1, 2, 1]
    assert server.wait_for("process_ended")["ended"] == "executor"
    assert server.events("front-0").count("executor_lost") == 1


# Read by every Python at its start: an executor that never comes back from a batch that has a certain word in it, unless one has before.
HANGING = """
import pathlib, sys, threading

if "sentiment.front_ends" in sys.orig_argv:
    from sentiment.model.session import Session

    run, hung = Session.run, pathlib.Path({hung!r})

    def hang(self, feeds, stop=None):
        if (feeds["input_ids"] == {word}).any() and not hung.exists():
            hung.touch()
            threading.Event().wait()
        return run(self, feeds, stop)

    Session.run = hang
"""


def test_an_executor_that_loses_its_runner_is_replaced_and_the_front_ends_stay(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = len(SPECIAL) + list(WEIGHTS).index("w7")
    (tmp_path / "sitecustomize.py").write_text(HANGING.format(hung=str(tmp_path / "hung"), word=word))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Nobody is waited for in this drain.
    server = serve("--stall-s", "0.2", "--runners", "1", "--drain-wait-s", "60").wait_ready()
    fronts = {name: server.pid(name) for name in ("front-0", "front-1")}

    with server.client() as client:
        with pytest.raises(CallFailed) as caught:
            client.classify("w7 XyzzySecret", timeout_s=PATIENCE_S)
        eventually_answers(client)
        again = client.classify("w7")

    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert again.label == "positive"
    assert server.wait_for("process_ended")["ended"] == "executor"
    assert {name: server.pid(name) for name in fronts} == fronts
    assert "Xyzzy" not in str(server.lines)


def test_a_call_that_no_executor_had_is_counted(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    with server.client() as client:
        client.list_models()
        server.kill("executor", signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get_model, timeout_s=PATIENCE_S)
            server.kill("executor")
            failure = waiting.exception(PATIENCE_S)
        eventually_answers(client)

    assert isinstance(failure, CallFailed)
    assert failure.code is UNAVAILABLE
    # Another port: the first was any free one.
    server.url = f"http://{server.wait_for('ready', 2)['http']}"
    assert server.total("requests_total", method="GetModel", code="UNAVAILABLE", model="") == 1


def test_a_signal_during_the_start_exits_0(serve: Callable[..., Server]) -> None:
    server = serve()
    server.wait_for("process_started", started="front-1")

    server.process.terminate()

    assert server.finish() == 0
    wait_gone(server.pids())


def test_a_drain_answers_every_call_it_accepted(serve: Callable[..., Server]) -> None:
    server = serve("--drain-wait-s", "0.3").wait_ready()

    async def run() -> tuple[int, list[CallFailed]]:
        answered, failed = 0, []

        async def call() -> None:
            nonlocal answered
            async with AsyncClient(server.target, options=PLAIN) as client:
                while True:
                    try:
                        assert (await client.classify("a good film " + "and a film " * 10)).label == "positive"
                        answered += 1
                    except CallFailed as error:
                        failed.append(error)
                        return

        calls = [asyncio.create_task(call()) for _ in range(16)]
        await asyncio.sleep(0.5)
        server.process.terminate()
        done, late = await asyncio.wait(calls, timeout=PATIENCE_S)
        assert not late
        for task in done:
            task.result()
        return answered, failed

    answered, failed = asyncio.run(run())

    assert server.finish() == 0
    assert answered > 16
    # Once the port is closed a client that goes on calling is told so; nothing else happened to anybody.
    assert {error.code for error in failed} <= {UNAVAILABLE}
    assert server.events(None)[-2:] == ["draining", "drained"]
    for name in ("front-0", "front-1", "executor"):
        assert server.events(name)[-1] == "drained"
    # The executor is the last.
    drained = [line.get("process") for line in server.lines if line["event"] == "drained"]
    assert drained[2:] == ["executor", None]
    assert server.others == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_orphaned(serve: Callable[..., Server], number: signal.Signals) -> None:
    server = serve("--drain-wait-s", "60" if number is signal.SIGTERM else "0").wait_ready()

    server.process.send_signal(number)
    if number is signal.SIGTERM:
        # A second signal ends it at once, whatever it was waiting for.
        server.wait_for("draining")
        server.process.send_signal(number)

    server.finish()
    wait_gone(server.pids())


def test_a_process_that_ends_again_and_again_ends_the_server(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()

    for death in range(1, 6):
        server.wait_for("process_started", death, started="front-1")
        server.kill("front-1")
        server.wait_for("process_ended", death, ended="front-1")

    assert server.finish() == 1
    assert server.wait_for("process_ended", 5)["replaced"] is False
    wait_gone(server.pids())


def test_what_cannot_be_served_ends_with_its_exit_code(serve: Callable[..., Server], tmp_path: Path) -> None:
    first = serve().wait_ready()
    broken = make_bundle(tmp_path)
    (broken / "tokenizer.json").write_text("{}")

    for server, code, says in [
        (serve("--grpc-listen", first.target), 1, "gRPC cannot listen on"),
        (serve("--http-listen", first.url.removeprefix("http://")), 1, "HTTP cannot listen on"),
        (serve("--bundles", str(tmp_path)), 3, "tokenizer.json"),
        (serve("--model", "nosuch"), 3, "no bundle 'nosuch'"),
    ]:
        assert server.finish() == code
        reasons = [str(line["reason"]) for line in server.lines if line["event"] == "cannot_serve"]
        assert len(reasons) == 1
        assert says in reasons[0]
        wait_gone(server.pids())


def test_every_line_of_the_log_bears_its_process_and_none_a_users_text(serve: Callable[..., Server]) -> None:
    server = serve("--log-level", "debug").wait_ready()
    with server.client() as client:
        client.classify(SECRET)
        client.classify_batch([SECRET, ""])
        with pytest.raises(CallFailed):
            client.classify(SECRET * 20, truncation="refuse")
    server.process.terminate()

    assert server.finish() == 0
    assert "Xyzzy" not in str(server.lines)
    of_supervisor = {line["event"] for line in server.lines if "process" not in line}
    assert of_supervisor == {"process_started", "draining", "drained"}
    assert {line["process"] for line in server.lines if line["event"] == "call"} <= {"front-0", "front-1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_folder_of_the_sockets_is_private_and_goes_with_the_server(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # Short, as a socket's path must be.
    with tempfile.TemporaryDirectory(prefix="front-", dir="/tmp") as place:
        monkeypatch.setenv("TMPDIR", place)
        server = serve().wait_ready()
        (folder,) = Path(place).iterdir()
        mode = folder.stat().st_mode
        sockets = sorted(path.name for path in folder.iterdir())

        server.process.send_signal(number)
        server.finish()
        wait_gone(server.pids())

        assert mode & 0o777 == 0o700
        assert sockets == ["calls.sock", "rows.sock"]
        assert list(Path(place).iterdir()) == []
