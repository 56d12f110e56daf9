"""Real server processes: signals, drains, ports, start-up, what is logged."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient, CallFailed, Client
from sentiment.model.bundle import CHECKOUT_BUNDLES
from tests.conftest import PLAIN
from tests.tiny import SPECIAL, WEIGHTS, make_bundle, make_graph, read_manifest, write_manifest

SECRET = "great XyzzySecret film"


class Process:
    """A ``sentiment serve`` of one's own."""

    def __init__(self, bundles: Path, *flags: str, environment: dict[str, str] | None = None, program: Path | None = None) -> None:
        begin = ["-m", "sentiment"] if program is None else [str(program)]
        self.command = [sys.executable, *begin, "serve", "--bundles", str(bundles), "--model", "tiny", *flags]
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
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


_PORTS = itertools.cycle(range(1000))


def free_port() -> int:
    """A port that nobody has. Not one of those that the system gives away, nor of another process that runs tests: it could be taken again
    before a server has it.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 20_000 + 1000 * worker + number))
            return int(probe.getsockname()[1])
    raise AssertionError("itertools.cycle ends never")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(spawn: Callable[..., Process], number: signal.Signals) -> None:
    server = spawn("--drain-wait-s", "0").wait_ready()

    server.process.send_signal(number)

    assert server.finish() == 0
    assert server.events() == ["ready", "draining", "drained"]


def test_a_second_signal_exits_at_once(spawn: Callable[..., Process]) -> None:
    server = spawn("--drain-wait-s", "60").wait_ready()
    server.process.terminate()
    with Client(server.target, options=PLAIN) as client:
        # Not ready, and still answering everything.
        assert client.classify("good").label == "positive"

    server.process.terminate()

    assert server.finish(5) == 1
    assert server.events()[-1] == "second_signal"


@pytest.mark.usefixtures("hangs_up")
def test_a_terminal_that_goes_away_twice_is_one_signal(spawn: Callable[..., Process]) -> None:
    """The shell tells its jobs, and so does the kernel when the shell ends."""
    server = spawn("--drain-wait-s", "1").wait_ready()
    for _ in range(2):
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
    with Client(server.target, options=PLAIN) as client:
        assert client.classify("good").label == "positive"

    assert server.finish() == 0
    assert server.events() == ["ready", "draining", "drained"]


def test_a_lone_server_answers_every_call_it_accepted(spawn: Callable[..., Process]) -> None:
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
        await asyncio.sleep(0.5)
        server.process.terminate()
        await asyncio.wait(calls, timeout=15)
        going = False
        return answered, failed

    answered, failed = asyncio.run(run())

    assert server.finish() == 0
    assert answered > 100
    # Once the port is closed a client that goes on calling is told so; nothing else happened to anybody.
    assert {error.code for error in failed} <= {grpc.StatusCode.UNAVAILABLE}
    assert server.events() == ["ready", "draining", "drained"]


def test_who_waits_for_an_explanation_is_told_when_the_server_dies(spawn: Callable[..., Process]) -> None:
    server = spawn("--bundles", str(CHECKOUT_BUNDLES), "--model", "english").wait_ready()
    outcomes: queue.Queue[object] = queue.Queue()

    def ask() -> None:
        try:
            with Client(server.target) as client:
                outcomes.put(client.explain("a gripping and beautifully shot film that I will not forget " * 60, timeout_s=60))
        except CallFailed as error:
            outcomes.put(error)

    # A daemon, so that one that is never told ends the test and not the run.
    threading.Thread(target=ask, daemon=True).start()
    while 'sentiment_explanations{model="english/1"} 1.0' not in urllib.request.urlopen(f"http://{server.url}/metrics").read().decode():
        time.sleep(0.02)
    server.process.kill()

    outcome = outcomes.get(timeout=40)
    assert isinstance(outcome, CallFailed)
    assert outcome.code is grpc.StatusCode.UNAVAILABLE


def test_a_second_server_on_the_port_fails_loudly(spawn: Callable[..., Process]) -> None:
    first = spawn().wait_ready()

    second = spawn("--grpc-listen", first.target)
    third = spawn("--http-listen", first.url)

    for server, side in ((second, "gRPC"), (third, "HTTP")):
        assert server.process.wait(20) == 1
        assert server.process.stderr is not None
        assert f"{side} cannot listen on" in server.process.stderr.read()


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


def test_no_text_of_a_user_is_ever_logged(spawn: Callable[..., Process]) -> None:
    server = spawn("--log-level", "debug", "--drain-wait-s", "0").wait_ready()
    with Client(server.target, options=PLAIN) as client:
        client.classify(SECRET)
        client.classify_batch([SECRET, ""])
        for arguments in ({"model": "nosuch"}, {"text_pair": SECRET}, {"truncation": "refuse"}):
            try:
                client.classify(SECRET * 20, **arguments)
            except CallFailed as error:
                assert "Xyzzy" not in error.message

    server.process.terminate()
    server.finish()

    assert "Xyzzy" not in json.dumps(server.lines)


def test_it_says_that_it_is_starting_until_the_model_is_there(spawn: Callable[..., Process], tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    manifest = read_manifest(bundle)
    # A file that cannot be read to its end before the test opens the other one: loading takes as long as the test wants.
    os.mkfifo(bundle / "slow")
    manifest["files"]["slow"] = {"sha256": hashlib.sha256(b"").hexdigest(), "bytes": 0}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    server = spawn("--bundles", str(tmp_path), "--grpc-listen", f"127.0.0.1:{free_port()}", "--drain-wait-s", "0")
    target = server.process.args[server.process.args.index("--grpc-listen") + 1]

    with grpc.insecure_channel(target, PLAIN) as channel:
        grpc.channel_ready_future(channel).result(20)
        health = health_pb2_grpc.HealthStub(channel)
        statuses = [health.Check(health_pb2.HealthCheckRequest(service=name)).status for name in ("liveness", "")]
    with Client(target, options=PLAIN) as client:
        with pytest.raises(CallFailed) as caught:
            client.classify("good")
        with pytest.raises(CallFailed, match="the server is starting"):
            client.list_models()
        (bundle / "slow").open("wb").close()
        server.wait_ready()
        assert client.classify("good").label == "positive"

    assert statuses == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    assert (caught.value.code, caught.value.message) == (grpc.StatusCode.UNAVAILABLE, "the server is starting")


def test_a_signal_during_the_start_exits_0(spawn: Callable[..., Process]) -> None:
    server = spawn("--drain-wait-s", "60")
    # Whether it comes before the handlers, while the model loads or after: the process ends, soon.
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(20) in (0, -signal.SIGTERM)


def test_the_log_is_one_json_object_a_line_with_time_level_and_event(spawn: Callable[..., Process]) -> None:
    server = spawn("--drain-wait-s", "0", environment={"SENTIMENT_SERVICE_HOST": "10.0.0.1"}).wait_ready()
    server.process.terminate()
    server.finish()

    assert server.events()[0] == "variables_ignored"
    assert server.others == []
    for line in server.lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", str(line["timestamp"]))
        assert line["level"] in ("info", "warning", "error")


# ``sentiment`` with a model that never comes back from a batch that has a certain word in it.
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


def test_a_run_that_never_comes_back_ends_the_process_with_1_and_the_others_are_answered(
    spawn: Callable[..., Process], tmp_path: Path
) -> None:
    program = tmp_path / "hanging.py"
    program.write_text(HANGING.format(word=len(SPECIAL) + list(WEIGHTS).index("w7")))
    server = spawn("--stall-s", "0.2", "--runners", "2", "--drain-wait-s", "0.5", program=program).wait_ready()

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


# ``sentiment`` that does not run its shapes before it serves, and then may use so much more memory.
LITTLE_MEMORY = """
import resource, sys
import sentiment.serving.lifecycle.loading
from sentiment.batching.cost import CostTable
from sentiment.cli.main import main

def warm_up(*arguments):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + {extra}, used + {extra}))
    # A batch costs the same whatever is in it, so that many rows are put together.
    return CostTable({{(1, 32): 0.01, (16, 32): 0.011}})

sentiment.serving.lifecycle.loading.warm_up = warm_up
sys.exit(main())
"""
ROW_BYTES = 32 * 2**20


def make_hungry_graph() -> onnx.ModelProto:
    """The tiny graph, which needs ROW_BYTES for each row besides."""
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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set from what /proc says is used")
def test_a_server_short_of_memory_answers_every_text_in_smaller_batches(spawn: Callable[..., Process], tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundles")
    onnx.save(make_hungry_graph(), bundle / "fp32.onnx")
    write_manifest(bundle, read_manifest(bundle))
    program = tmp_path / "little.py"
    # Memory for some 8 rows, after what threads and their heaps take.
    program.write_text(LITTLE_MEMORY.format(extra=512 * 2**20))
    server = spawn(
        "--bundles",
        str(tmp_path / "bundles"),
        "--runners",
        "1",
        "--drain-wait-s",
        "0",
        "--batch-rows-max",
        "32",
        "--log-level",
        "info",
        program=program,
    ).wait_ready()

    with Client(server.target, options=PLAIN) as client:
        results = [client.classify_batch(["good", "bad"] * 16, timeout_s=20) for _ in range(3)]
        metrics = urllib.request.urlopen(f"http://{server.url}/metrics", timeout=10).read().decode()
    server.process.terminate()

    assert server.finish() == 0
    for batch in results:
        assert [result if isinstance(result, CallFailed) else result.label for result in batch] == ["positive", "negative"] * 16
    failed = [line for line in server.lines if line["event"] == "batch_failed"]
    assert failed
    assert all("OutOfMemory" in str(line["error"]) for line in failed)
    # It learns: the second and the third batch are cut smaller at once. Halving down to 4 rows takes 7 batches; three times down to 8
    # would take 9.
    assert len(failed) <= 7
    assert 'sentiment_items_total{code="OK",method="ClassifyBatch",model="tiny/1"} 96.0' in metrics


def test_a_run_that_fails_leaves_nothing_in_the_log_but_json(spawn: Callable[..., Process], tmp_path: Path) -> None:
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
