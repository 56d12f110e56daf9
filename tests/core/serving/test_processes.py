"""Real server processes: signals, drains, ports, startup and logs."""

import asyncio
import errno
import fcntl
import json
import os
import queue
import re
import signal
import socket
import termios
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest

from sentiment.client import AsyncClient, CallFailed, Client
from tests.conftest import PLAIN
from tests.core.servers import PATIENCE_S, Server, until, wait_gone
from tests.programs import free_port
from tests.tiny import SPECIAL, WEIGHTS, make_bundle, make_graph, read_manifest, write_manifest

SECRET = "great XyzzySecret film"
topology = pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
# ``sentiment`` with a model whose run never ends if a batch has a certain word in it. Such a run seems an hour older at each look of
# the watch, and a drain closes the ports when a file exists and the watch has looked again.
HANGING = """
import asyncio, pathlib, sys, threading
from sentiment.batching.batcher import Batcher
from sentiment.cli.main import main
from sentiment.model.session import Session
from sentiment.serving.app import App

run, stalled_s, hung, looks = Session.run, Batcher.stalled_s, set(), []

def hang(self, feeds, stop=None):
    if (feeds["input_ids"] == {word}).any():
        hung.add(threading.current_thread().name)
        threading.Event().wait()
    return run(self, feeds, stop)

def age(self):
    looks.append(self)
    for one in self._runs.values():
        if any(thread.startswith(one.runner.name) for thread in hung):
            one.started_at -= 3600
            if one.stop_requested_at is not None:
                one.stop_requested_at -= 3600
    return stalled_s(self)

async def wait(self):
    before = len(looks)
    while not pathlib.Path({go!r}).exists() or len(looks) < before + 2:
        await asyncio.sleep(0.01)

Session.run, Batcher.stalled_s, App._wait_noticed = hang, age, wait
sys.exit(main())
"""
# ``sentiment`` whose models load when a file exists.
LOADING = """
import pathlib, sys, time
from sentiment.cli.main import main
from sentiment.model import classifier

load = classifier.load_bundle

def wait(*arguments):
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.01)
    return load(*arguments)

classifier.load_bundle = wait
sys.exit(main())
"""


def loading(folder: Path) -> tuple[Path, Path]:
    """A program for ``serve`` that loads no model before the test makes a file; the program and the file."""
    program, go = folder / "loading.py", folder / "go"
    program.write_text(LOADING.format(go=str(go)))
    return program, go


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A program for ``serve`` whose runs of the word w7 never end, and whose drains wait for a file ``go`` beside it."""
    program = tmp_path / "hanging.py"
    program.write_text(HANGING.format(word=len(SPECIAL) + list(WEIGHTS).index("w7"), go=str(tmp_path / "go")))
    return program


def test_sigint_drains_and_exits_0(serve: Callable[..., Server]) -> None:
    server = serve()

    server.process.send_signal(signal.SIGINT)

    assert server.finish() == 0
    assert server.events() == ["ready", "draining", "drained"]


@pytest.fixture
def terminal() -> Iterator[dict[str, Any]]:
    """Arguments of Popen for a process with a controlling terminal of its own."""
    master, slave = os.openpty()
    yield {"stdin": slave, "start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    os.close(slave)
    os.close(master)


@pytest.mark.usefixtures("hangs_up")
def test_a_second_signal_exits_at_once_but_a_closed_terminal_may_send_two(serve: Callable[..., Server], terminal: dict[str, Any]) -> None:
    """The shell sends SIGHUP to its jobs, and so does the kernel when the shell ends."""
    server = serve("--drain-wait-s", "60", **terminal)
    server.process.send_signal(signal.SIGHUP)
    server.wait_not_ready()
    server.process.send_signal(signal.SIGHUP)
    with Client(server.target, options=PLAIN) as client:
        # Not ready, and still answering everything.
        assert client.classify("good").label == "positive"

    server.process.terminate()

    assert server.finish(5) == 1
    assert server.events() == ["ready", "draining", "second_signal"]
    assert [line["signal"] for line in server.lines[1:]] == ["SIGHUP", "SIGTERM"]


def test_a_drain_under_load_answers_every_accepted_call(serve: Callable[..., Server]) -> None:
    """SIGTERM under load: a call either has its answer or was never accepted; the process exits 0."""
    server = serve("--drain-wait-s", "0.3")

    async def run() -> tuple[int, list[CallFailed]]:
        answered, failed, going = 0, [], True

        async def call() -> None:
            nonlocal answered, going
            async with AsyncClient(server.target, options=PLAIN) as client:
                while going:
                    try:
                        answer = await client.classify("a good film " + "and a film " * 10)
                        assert answer.label == "positive"
                        answered += 1
                    except CallFailed as error:
                        failed.append(error)
                        return

        calls = [asyncio.create_task(call()) for _ in range(16)]
        while answered <= 100 and not failed:
            await asyncio.sleep(0.01)
        server.process.terminate()
        await asyncio.wait(calls, timeout=15)
        going = False
        return answered, failed

    answered, failed = asyncio.run(run())

    assert server.finish() == 0
    assert answered > 100
    # Once the port is closed, further calls fail as unavailable; no call failed otherwise.
    assert {error.code for error in failed} <= {grpc.StatusCode.UNAVAILABLE}
    assert server.events() == ["ready", "draining", "drained"]


def test_a_caller_that_waits_for_an_explanation_fails_when_the_server_dies(serve: Callable[..., Server], hanging: Path) -> None:
    server = serve(program=hanging)
    outcomes: queue.Queue[object] = queue.Queue()

    def ask() -> None:
        try:
            with Client(server.target) as client:
                outcomes.put(client.explain("a good film w7", timeout_s=PATIENCE_S))
        except CallFailed as error:
            outcomes.put(error)

    # A daemon, so that a call that never ends fails the test and does not block the run.
    threading.Thread(target=ask, daemon=True).start()
    until(lambda: server.total("explanations") == 1, "it explains")
    server.process.kill()

    outcome = outcomes.get(timeout=40)
    assert isinstance(outcome, CallFailed)
    assert outcome.code is grpc.StatusCode.UNAVAILABLE


@topology
def test_a_port_that_another_server_shares_is_not_taken(serve: Callable[..., Server], front_ends: str) -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        for side in ("gRPC", "HTTP"):
            server = serve("--front-ends", front_ends, f"--{side.lower()}-listen", taken, ready=False)
            assert server.finish() == 1
            how = "the port is in use; stop what uses it, or choose another"
            said = f"{side} cannot listen on {taken}: {how} (--{side.lower()}-listen or SENTIMENT_{side.upper()}_LISTEN)"
            assert any(said in str(line.get("reason")) for line in server.lines)


@topology
def test_a_bad_bundle_exits_3_and_bad_settings_exit_2_with_one_reason(serve: Callable[..., Server], front_ends: str) -> None:
    for flags, code, says in (
        (["--model", "nosuch"], 3, "no bundle 'nosuch'"),
        (["--queue-rows-max", "0"], 2, "greater than or equal to 1"),
        (["--nosuch"], 2, "unrecognized arguments"),
    ):
        server = serve("--front-ends", front_ends, *flags, ready=False)

        assert server.finish() == code
        assert sum(line["event"] == "cannot_serve" for line in server.lines) == (code == 3)
        said = str(server.lines) + "\n".join(server.others)
        assert says in said
        assert "Traceback" not in said
        wait_gone(server.pids())


@topology
def test_the_log_is_json_with_time_level_and_event_and_has_no_users_text(serve: Callable[..., Server], front_ends: str) -> None:
    flags = ("--log-level", "debug", "--front-ends", front_ends)
    server = serve(*flags, environment={"SENTIMENT_SERVICE_HOST": "10.0.0.1"})
    with Client(server.target, options=PLAIN) as client:
        client.classify(SECRET)
        client.classify_batch([SECRET, ""])
        for arguments in ({"model": "nosuch"}, {"text_pair": SECRET}, {"truncation": "refuse"}):
            with pytest.raises(CallFailed) as caught:
                client.classify(SECRET * 20, **arguments)
            assert "Xyzzy" not in caught.value.message

    server.process.terminate()

    assert server.finish() == 0
    assert "Xyzzy" not in json.dumps(server.lines)
    assert server.others == []
    assert server.events()[0] == "variables_ignored"
    assert server.events()[-2:] == ["draining", "drained"]
    # Each line names its process, if there are several.
    processes = {line.get("process") for line in server.lines if line["event"] == "call"}
    assert processes <= ({None} if front_ends == "0" else {"front-0", "front-1"})
    for line in server.lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", str(line["timestamp"]))
        assert line["level"] in ("debug", "info", "warning", "error")


@topology
def test_at_debug_level_each_call_is_logged_with_who_sent_it(serve: Callable[..., Server], front_ends: str) -> None:
    server = serve("--log-level", "debug", "--front-ends", front_ends)
    agent = "shop/1.2 (\u00e9\x07) " + "x" * 200
    with Client(server.target, options=[*PLAIN, ("grpc.primary_user_agent", "shop/1.2")]) as client:
        client.classify("good")
    posted = urllib.request.Request(f"{server.url}/v1/classify", b'{"text": "good"}', {"User-Agent": agent.replace("\x07", "")})
    urllib.request.urlopen(posted, timeout=20).close()
    server.process.terminate()

    assert server.finish() == 0
    # Two front ends' lines come in any order.
    by_grpc, by_http = sorted((line for line in server.lines if line["event"] == "call"), key=lambda line: "()" in str(line["user_agent"]))
    assert all(re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", str(line["peer"])) for line in (by_grpc, by_http))
    assert str(by_grpc["user_agent"]).startswith("shop/1.2 grpc-python")
    assert by_http["user_agent"] == ("shop/1.2 () " + "x" * 200)[:128]


def test_until_the_model_is_loaded_grpc_is_closed_and_http_says_that_the_server_is_starting(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    program, go = loading(tmp_path)
    port, http = free_port(), free_port()
    url = f"http://127.0.0.1:{http}"
    server = serve("--grpc-listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{http}", program=program, ready=False)

    def answer(path: str, body: bytes | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url + path, body, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def connects(port: int) -> int:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port))

    until(lambda: connects(http) == 0, "HTTP listens")
    early = [answer("/healthz")[0], answer("/readyz")[0], answer("/v1/classify", b'{"text": "good"}')]
    refused = connects(port)
    go.touch()
    server.wait_ready()

    assert refused == errno.ECONNREFUSED
    assert early[:2] == [200, 503]
    assert early[2][0] == 503
    assert "the server is starting" in early[2][1]
    with Client(f"127.0.0.1:{port}", options=PLAIN) as client:
        assert client.classify("good").label == "positive"


@topology
def test_a_signal_during_the_start_exits_0(serve: Callable[..., Server], front_ends: str) -> None:
    server = serve("--drain-wait-s", "60", "--front-ends", front_ends, ready=False)
    if front_ends != "0":
        server.wait_for("process_started", started="front-1")

    server.process.terminate()

    # One process may not have installed its handlers.
    assert server.finish() in ((0, -signal.SIGTERM) if front_ends == "0" else (0,))
    wait_gone(server.pids())


def test_a_run_that_never_ends_ends_the_process_with_1_and_the_others_are_answered(serve: Callable[..., Server], hanging: Path) -> None:
    server = serve("--stall-s", "600", "--runners", "2", program=hanging)

    with Client(server.target, options=PLAIN) as client, pytest.raises(CallFailed) as caught:
        client.classify("w7 XyzzySecret", timeout_s=PATIENCE_S)
    with Client(server.target, options=PLAIN) as client:
        meanwhile = client.classify("good", timeout_s=PATIENCE_S)
    hanging.with_name("go").touch()

    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert meanwhile.label == "positive"
    assert server.finish() == 1
    events = [event for event in server.events() if event != "call_failed"]
    assert events == ["ready", "stalled", "batch_given_up", "drained", "runner_lost"]
    assert server.wait_for("batch_given_up")["level"] == "critical"
    assert server.others == ["error: a run did not stop when asked, or its device is lost; this process must be replaced"]
    assert "Xyzzy" not in json.dumps(server.lines)


def test_a_run_that_fails_writes_only_json_to_the_log(serve: Callable[..., Server], tmp_path: Path) -> None:
    """ONNX Runtime has a log of its own, on standard error too."""
    bundle = make_bundle(tmp_path / "bundles")
    onnx.save(make_failing_graph(), bundle / "fp32.onnx")
    write_manifest(bundle, read_manifest(bundle))
    server = serve("--bundles", str(tmp_path / "bundles"))

    with Client(server.target, options=PLAIN) as client, pytest.raises(CallFailed) as caught:
        client.classify("w7 film")
    server.process.terminate()

    assert server.finish() == 0
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert "batch_failed" in server.events()
    assert server.others == []


def make_failing_graph() -> onnx.ModelProto:
    """The tiny graph, which fails in its kernel on the word w7: its id is an index beyond a table of as many rows."""
    model = make_graph()
    graph = model.graph
    rows = len(SPECIAL) + list(WEIGHTS).index("w7")
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((rows, 2), np.float32), "short"))
    graph.node[-1].output[0] = "plain"
    graph.node.extend(
        [
            onnx.helper.make_node("Gather", ["short", "input_ids"], ["nothing"]),
            onnx.helper.make_node("ReduceSum", ["nothing", "axes"], ["zero"], keepdims=0),
            onnx.helper.make_node("Add", ["plain", "zero"], ["logits"]),
        ]
    )
    return model
