"""Real server processes: signals, drains, ports, startup and logs."""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest

from sentiment.client import AsyncClient, CallFailed, Client
from tests.conftest import PLAIN
from tests.tiny import SPECIAL, WEIGHTS, make_bundle, make_graph, read_manifest, write_manifest

SECRET = "great XyzzySecret film"
# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 60
# ``sentiment`` with a model whose run never ends if a batch has a certain word in it.
HANGING = """
import sys, threading
from sentiment.cli.main import main
from sentiment.model.session import Session

run = Session.run

def hang(self, feeds, stop=None):
    if (feeds["input_ids"] == {word}).any():
        threading.Event().wait()
    return run(self, feeds, stop)

Session.run = hang
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
    """A program for ``spawn`` that loads no model before the test makes a file; the program and the file."""
    program, go = folder / "loading.py", folder / "go"
    program.write_text(LOADING.format(go=str(go)))
    return program, go


class Process:
    """A ``sentiment serve`` for one test."""

    def __init__(
        self, bundles: Path, *flags: str, environment: dict[str, str] | None = None, program: Path | None = None, **how: Any
    ) -> None:
        """``how``: arguments of subprocess.Popen."""
        begin = ["-m", "sentiment"] if program is None else [str(program)]
        self.command = [sys.executable, *begin, "serve", "--bundles", str(bundles), "--model", "tiny", *flags]
        environment = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=environment, **how)
        self.lines: list[dict[str, object]] = []
        self.pid = self.process.pid

    def wait_ready(self) -> "Process":
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == "ready":
                self.target, self.url = str(self.lines[-1]["grpc"]), str(self.lines[-1]["http"])
                return self
        raise AssertionError(f"it ended with {self.process.wait()}: {self.lines}")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.url}/metrics", timeout=20) as response:
            return str(response.read().decode())

    def wait_not_ready(self) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(f"http://{self.url}/readyz", timeout=20).close()
            except urllib.error.HTTPError as error:
                assert error.code == 503
                return
            assert time.monotonic() < ends_at
            time.sleep(0.01)

    def finish(self, timeout: float = 20) -> int:
        _, rest = self.process.communicate(timeout=timeout)
        self.lines += [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
        self.others = [line for line in rest.splitlines() if not line.startswith("{")]
        return self.process.returncode

    def events(self) -> list[object]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def spawn(bundles: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def begin(*flags: str, **arguments: Any) -> Process:
        ports = [] if "--grpc-listen" in flags else ["--grpc-listen", "127.0.0.1:0"]
        web = [] if "--http-listen" in flags else ["--http-listen", "127.0.0.1:0"]
        processes.append(Process(bundles, *ports, *web, *flags, **arguments))
        return processes[-1]

    yield begin
    for process in processes:
        process.process.kill()
        process.process.communicate()


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A program for ``spawn`` whose runs of the word w7 never end."""
    program = tmp_path / "hanging.py"
    program.write_text(HANGING.format(word=len(SPECIAL) + list(WEIGHTS).index("w7")))
    return program


_PORTS = itertools.cycle(range(1000))


def free_port() -> int:
    """A free port. It is outside the range from which the system picks ports and differs for each process that runs tests, so that no one
    else takes it before a server does.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 20_000 + 1000 * worker + number))
            return int(probe.getsockname()[1])
    raise AssertionError("itertools.cycle never ends")


def test_sigint_drains_and_exits_0(spawn: Callable[..., Process]) -> None:
    server = spawn("--drain-wait-s", "0").wait_ready()

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
def test_a_second_signal_exits_at_once_but_a_closed_terminal_may_send_two(spawn: Callable[..., Process], terminal: dict[str, Any]) -> None:
    """The shell sends SIGHUP to its jobs, and so does the kernel when the shell ends."""
    server = spawn("--drain-wait-s", "60", **terminal).wait_ready()
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


def test_a_drain_under_load_answers_every_accepted_call(spawn: Callable[..., Process]) -> None:
    """SIGTERM under load: a call either has its answer or was never accepted; the process exits 0."""
    server = spawn("--drain-wait-s", "0.3").wait_ready()

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


def test_a_caller_that_waits_for_an_explanation_fails_when_the_server_dies(spawn: Callable[..., Process], hanging: Path) -> None:
    server = spawn(program=hanging).wait_ready()
    outcomes: queue.Queue[object] = queue.Queue()

    def ask() -> None:
        try:
            with Client(server.target) as client:
                outcomes.put(client.explain("a good film w7", timeout_s=PATIENCE_S))
        except CallFailed as error:
            outcomes.put(error)

    # A daemon, so that a call that never ends fails the test and does not block the run.
    threading.Thread(target=ask, daemon=True).start()
    while 'sentiment_explanations{model="tiny/1"} 1.0' not in server.metrics():
        time.sleep(0.02)
    server.process.kill()

    outcome = outcomes.get(timeout=40)
    assert isinstance(outcome, CallFailed)
    assert outcome.code is grpc.StatusCode.UNAVAILABLE


def test_a_port_that_another_server_shares_is_not_taken(spawn: Callable[..., Process]) -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        servers = [(spawn("--grpc-listen", taken), "gRPC"), (spawn("--http-listen", taken), "HTTP")]

        for server, side in servers:
            assert server.finish() == 1
            how = "the port is in use; stop what uses it, or choose another"
            said = f"{side} cannot listen on {taken}: {how} (--{side.lower()}-listen or SENTIMENT_{side.upper()}_LISTEN)"
            assert any(said in str(line.get("reason")) for line in server.lines)


def test_a_bad_bundle_exits_3_and_bad_settings_exit_2(bundles: Path) -> None:
    for flags, code, says in (
        (["--model", "nosuch"], 3, "no bundle 'nosuch'"),
        (["--queue-rows-max", "0"], 2, "greater than or equal to 1"),
        (["--nosuch"], 2, "unrecognized arguments"),
    ):
        server = Process(bundles, "--grpc-listen", "127.0.0.1:0", "--http-listen", "", *flags)
        _, errors = server.process.communicate(timeout=20)

        assert (server.process.returncode, says in errors) == (code, True), errors
        assert "Traceback" not in errors


def test_the_log_is_json_with_time_level_and_event_and_has_no_users_text(spawn: Callable[..., Process]) -> None:
    server = spawn("--log-level", "debug", "--drain-wait-s", "0", environment={"SENTIMENT_SERVICE_HOST": "10.0.0.1"}).wait_ready()
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
    for line in server.lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", str(line["timestamp"]))
        assert line["level"] in ("debug", "info", "warning", "error")


@pytest.mark.parametrize("front_ends", ["0", "1"], ids=["one process", "front end"])
def test_at_debug_level_each_call_is_logged_with_who_sent_it(spawn: Callable[..., Process], front_ends: str) -> None:
    server = spawn("--log-level", "debug", "--drain-wait-s", "0", "--front-ends", front_ends).wait_ready()
    agent = "shop/1.2 (\u00e9\x07) " + "x" * 200
    with Client(server.target, options=[*PLAIN, ("grpc.primary_user_agent", "shop/1.2")]) as client:
        client.classify("good")
    posted = urllib.request.Request(f"http://{server.url}/v1/classify", b'{"text": "good"}', {"User-Agent": agent.replace("\x07", "")})
    urllib.request.urlopen(posted, timeout=20).close()
    server.process.terminate()

    assert server.finish() == 0
    # Two front ends' lines come in any order.
    by_grpc, by_http = sorted((line for line in server.lines if line["event"] == "call"), key=lambda line: "()" in str(line["user_agent"]))
    assert all(re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", str(line["peer"])) for line in (by_grpc, by_http))
    assert str(by_grpc["user_agent"]).startswith("shop/1.2 grpc-python")
    assert by_http["user_agent"] == ("shop/1.2 () " + "x" * 200)[:128]


def test_until_the_model_is_loaded_grpc_is_closed_and_http_says_that_the_server_is_starting(
    spawn: Callable[..., Process], tmp_path: Path
) -> None:
    program, go = loading(tmp_path)
    port, url = free_port(), f"http://127.0.0.1:{free_port()}"
    server = spawn("--grpc-listen", f"127.0.0.1:{port}", "--http-listen", url[7:], "--drain-wait-s", "0", program=program)

    def answer(path: str, body: bytes | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url + path, body, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    ends_at = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(urllib.error.URLError):
            early = [answer("/healthz")[0], answer("/readyz")[0], answer("/v1/classify", b'{"text": "good"}')]
            break
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    with socket.socket() as probe:
        refused = probe.connect_ex(("127.0.0.1", port))
    go.touch()
    server.wait_ready()

    assert refused == errno.ECONNREFUSED
    assert early[:2] == [200, 503]
    assert early[2][0] == 503
    assert "the server is starting" in early[2][1]
    with Client(f"127.0.0.1:{port}", options=PLAIN) as client:
        assert client.classify("good").label == "positive"


def test_a_signal_during_the_start_exits_0(spawn: Callable[..., Process]) -> None:
    server = spawn("--drain-wait-s", "60")
    # Before the handlers are installed, while the model loads or after: the process ends soon.
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(20) in (0, -signal.SIGTERM)


def test_a_run_that_never_ends_ends_the_process_with_1_and_the_others_are_answered(spawn: Callable[..., Process], hanging: Path) -> None:
    server = spawn("--stall-s", "0.2", "--runners", "2", "--drain-wait-s", "0.5", program=hanging).wait_ready()

    with Client(server.target, options=PLAIN) as client, pytest.raises(CallFailed) as caught:
        client.classify("w7 XyzzySecret")
    with Client(server.target, options=PLAIN) as client:
        meanwhile = client.classify("good")

    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert meanwhile.label == "positive"
    assert server.finish() == 1
    events = [event for event in server.events() if event != "call_failed"]
    assert events == ["ready", "stalled", "batch_given_up", "drained", "runner_lost"]
    assert server.others == ["error: a run did not stop when asked, or its device is lost; this process must be replaced"]
    assert "Xyzzy" not in json.dumps(server.lines)


# ``sentiment`` without warm-up, and then with a limit to its further memory.
LITTLE_MEMORY = """
import resource, sys
import sentiment.lifecycle.loading
from sentiment.batching.cost import CostTable
from sentiment.cli.main import main

def warm_up(*arguments):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + {extra}, used + {extra}))
    # Large batches cost little more than small ones, so that many rows are put together.
    return CostTable({{(1, 32): 0.01, (16, 32): 0.011}})

sentiment.lifecycle.loading.warm_up = warm_up
sys.exit(main())
"""
ROW_BYTES = 32 * 2**20


def make_hungry_graph() -> onnx.ModelProto:
    """The tiny graph, with another ROW_BYTES of memory for each row."""
    model = make_graph()
    graph = model.graph
    numbers = {"hungry_wide": [1, 2, ROW_BYTES // 8], "hungry_axes": [1], "hungry_last": [2]}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.array(values, np.int64), name) for name, values in numbers.items())
    graph.node[-1].output[0] = "plain"
    graph.node.extend(
        [
            onnx.helper.make_node("Unsqueeze", ["plain", "hungry_last"], ["column"]),
            onnx.helper.make_node("Expand", ["column", "hungry_wide"], ["large"]),
            onnx.helper.make_node("ReduceMax", ["large", "hungry_last"], ["logits"], keepdims=0),
        ]
    )
    return model


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the used memory from /proc")
def test_a_server_short_of_memory_answers_every_text_in_smaller_batches(spawn: Callable[..., Process], tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundles")
    onnx.save(make_hungry_graph(), bundle / "fp32.onnx")
    write_manifest(bundle, read_manifest(bundle))
    program = tmp_path / "little.py"
    # Memory for some 8 rows, after what threads take. One heap for all threads: each of its own would reserve 64 MiB.
    program.write_text(LITTLE_MEMORY.format(extra=448 * 2**20))
    flags = ("--bundles", str(tmp_path / "bundles"), "--runners", "1", "--drain-wait-s", "0", "--batch-rows-max", "32")
    server = spawn(*flags, program=program, environment={"MALLOC_ARENA_MAX": "1"}).wait_ready()

    with Client(server.target, options=PLAIN) as client:
        results = [client.classify_batch(["good", "bad"] * 16, timeout_s=20) for _ in range(3)]
        metrics = server.metrics()
    server.process.terminate()

    assert server.finish() == 0
    for batch in results:
        assert [result if isinstance(result, CallFailed) else result.label for result in batch] == ["positive", "negative"] * 16
    failed = [line for line in server.lines if line["event"] == "batch_failed"]
    assert failed
    assert all("OutOfMemory" in str(line["error"]) for line in failed)
    # It learns: the second and the third batch are smaller from the start, so no size fails again for rows that it failed for. How small
    # they become depends on the memory that threads take.
    sizes = Counter(line["rows"] for line in failed)
    assert all(rows * count <= 32 for rows, count in sizes.items()), sizes
    assert 'sentiment_items_total{code="OK",method="ClassifyBatch",model="tiny/1"} 96.0' in metrics


def test_a_run_that_fails_writes_only_json_to_the_log(spawn: Callable[..., Process], tmp_path: Path) -> None:
    """ONNX Runtime has a log of its own, on standard error too."""
    bundle = make_bundle(tmp_path / "bundles")
    onnx.save(make_failing_graph(), bundle / "fp32.onnx")
    write_manifest(bundle, read_manifest(bundle))
    server = spawn("--bundles", str(tmp_path / "bundles"), "--drain-wait-s", "0").wait_ready()

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
