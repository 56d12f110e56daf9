"""Processes of a server that die, hang or get signals: no caller hangs with them, and no process is orphaned."""

import asyncio
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient, CallFailed, Result
from tests.conftest import PLAIN
from tests.core.servers import PATIENCE_S, Server, alive, eventually_answers, wait_gone
from tests.front_ends.held import BATCH_ROWS_HELD, HELD, Held
from tests.programs import listens

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SECRET = "great XyzzySecret film"


def answers_on_new_connections(server: Server) -> None:
    """Enough connections to reach both front ends."""
    for _ in range(8):
        with server.client() as client:
            eventually_answers(client)


def test_a_killed_front_end_is_replaced_and_its_counts_stay(serve: Callable[..., Server]) -> None:
    server = serve()
    before = server.pid("front-0")
    with server.client() as first:
        first.classify("good")
    counted = server.total("requests_total", code="OK", model="tiny/1")

    server.kill("front-0")
    answers_on_new_connections(server)
    server.wait_for("process_started", 2, started="front-0")

    assert server.wait_for("process_ended")["ended"] == "front-0"
    assert server.pid("front-0") != before
    assert alive(server.pid("executor"))
    assert server.total("requests_total", code="OK", model="tiny/1") == counted + 8


def test_when_the_executor_dies_its_callers_fail_at_once_and_a_new_one_serves(serve: Callable[..., Server], hold: Held) -> None:
    server = serve("--runners", "1")
    clients = [server.client() for _ in range(8)]
    with ThreadPoolExecutor(9) as pool, grpc.insecure_channel(server.target, PLAIN) as channel:
        waiting = [pool.submit(client.classify, f"good {HELD}", timeout_s=PATIENCE_S) for client in clients[:7]]
        waiting.append(pool.submit(clients[7].explain, f"good {HELD}", timeout_s=PATIENCE_S))
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=PATIENCE_S)
        statuses = [next(watched).status]
        # All have been accepted: one that came later would be refused and not failed. Batches have two rows at least where they can.
        hold.wait(lambda: server.total("explanations") == 1 and server.total("queue_rows") >= 7 - BATCH_ROWS_HELD)
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
    assert all("the executor process has ended" in str(failure) for failure in failures)
    assert not any("sock" in str(failure) for failure in failures)
    # Far from its deadline: as soon as the connection ended.
    assert seconds < PATIENCE_S / 4
    assert statuses == [1, 2, 1]
    assert server.wait_for("process_ended")["ended"] == "executor"
    assert server.events("front-0").count("executor_lost") == 1
    # The new executor has another HTTP port: the first was any free one.
    server.url = f"http://{server.wait_for('ready', 2)['http']}"
    assert server.total("requests_total", method="Explain", code="UNAVAILABLE", model="tiny/1") == 1


def test_a_drain_answers_every_call_it_accepted(serve: Callable[..., Server], hold: Held) -> None:
    # Half of the grace is for streams, before the port is closed.
    server = serve("--runners", "1", "--drain-wait-s", "1", "--drain-grace-s", "4", "--stall-s", "60")

    async def run() -> tuple[list[str], int, list[str]]:
        async def items() -> AsyncIterator[tuple[str, str]]:
            yield "held", f"good {HELD}"
            await draining.wait()

        async def stream() -> list[str]:
            async with AsyncClient(server.target, options=PLAIN) as client:
                return [result.label async for _, result in client.classify_stream(items(), item_timeout_s=PATIENCE_S)]

        async def call(text: str) -> str:
            async with AsyncClient(server.target, options=PLAIN) as client:
                return (await client.classify(text, timeout_s=PATIENCE_S)).label

        async def listed() -> int:
            async with AsyncClient(server.target, options=PLAIN) as client:
                return len((await client.list_models()).models)

        draining = asyncio.Event()
        streamed = asyncio.create_task(stream())
        calls = [asyncio.create_task(call(f"good {HELD}")) for _ in range(7)]
        await asyncio.to_thread(hold.wait, lambda: server.total("queue_rows") >= 8 - BATCH_ROWS_HELD)
        server.process.terminate()
        await asyncio.to_thread(server.wait_for, "draining", process="executor")
        # As a service manager that signals every process: running requests go on.
        for name in ("executor", "front-0", "front-1", "executor", "front-0"):
            server.kill(name, signal.SIGTERM)
        # In the time that balancers have to notice.
        late = await listed()
        draining.set()
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(listens, int(server.target.rpartition(":")[2])):
                await asyncio.sleep(0.01)
        hold.release()
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*calls), late, await streamed

    begun = time.monotonic()
    answered, late, streamed = asyncio.run(run())

    assert server.finish() == 0
    assert answered == ["positive"] * 7
    assert (late, streamed) == (1, ["positive"])
    assert time.monotonic() - begun >= 1
    assert server.events(None)[-2:] == ["draining", "drained"]
    for name in ("front-0", "front-1", "executor"):
        assert server.events(name)[-1] == "drained"
        assert server.events(name).count("draining") == (name == "executor")
    # The executor is the last. Each process has its own logging thread, so lines may arrive out of order.
    ends = sorted((line for line in server.lines if line["event"] == "drained"), key=lambda line: str(line["timestamp"]))
    assert [line.get("process") for line in ends][2:] == ["executor", None]
    assert server.others == []


@pytest.mark.parametrize("end", ["killed", "drained", "second signal"])
def test_a_server_leaves_no_process_and_no_folder_of_sockets(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    # Short, as a socket's path must be.
    with tempfile.TemporaryDirectory(prefix="front-", dir="/tmp") as place:
        monkeypatch.setenv("TMPDIR", place)
        server = serve("--drain-wait-s", "60" if end == "second signal" else "0")
        (folder,) = Path(place).iterdir()
        mode, sockets = folder.stat().st_mode, sorted(path.name for path in folder.iterdir())

        if end == "killed":
            # Not even a stopped process stays.
            server.kill("front-1", signal.SIGSTOP)
            server.process.kill()
        else:
            server.process.terminate()
        if end == "second signal":
            server.wait_for("draining")
            server.process.terminate()
        server.finish()
        wait_gone(server.pids())

        assert mode & 0o777 == 0o700
        assert sockets == ["calls.sock", "rows.sock"]
        assert list(Path(place).iterdir()) == []


def test_an_executor_that_loses_its_runner_is_replaced_and_the_front_ends_stay(serve: Callable[..., Server], hold: Held) -> None:
    # This drain waits for no balancer.
    server = serve("--stall-s", "0.5", "--runners", "1", "--drain-wait-s", "60")
    fronts = {name: server.pid(name) for name in ("front-0", "front-1")}

    with server.client() as client:
        with pytest.raises(CallFailed) as caught:
            client.classify(f"{HELD} XyzzySecret", timeout_s=PATIENCE_S)
        hold.release()
        eventually_answers(client)
        again = client.classify(HELD)

    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert again.label == "positive"
    assert server.wait_for("process_ended")["ended"] == "executor"
    assert {name: server.pid(name) for name in fronts} == fronts
    assert "Xyzzy" not in str(server.lines)


def test_a_call_waits_for_an_executor_that_accepts_its_connection_late(serve: Callable[..., Server]) -> None:
    server = serve("--front-ends", "1")

    # The front end connects at its first call that the executor answers.
    server.kill("executor", signal.SIGSTOP)
    thaw = threading.Timer(1.0, server.kill, ("executor", signal.SIGCONT))
    thaw.start()
    with server.client() as client:
        model = client.get_model(timeout_s=PATIENCE_S)
    thaw.join()

    assert model.id.name == "tiny"


def test_processes_that_hang_are_replaced_and_deadlines_hold_meanwhile(serve: Callable[..., Server]) -> None:
    server = serve("--stall-s", "1")
    # The event loops run: all have sent a beat.
    server.metrics()

    async def stream_to_the_hanging_executor() -> Result | CallFailed:
        answered = asyncio.Event()

        async def items() -> AsyncIterator[tuple[str, str]]:
            yield "one", "good"
            await answered.wait()

        async with AsyncClient(server.target, options=PLAIN) as client:
            async for _, result in client.classify_stream(items(), item_timeout_s=0.2):
                answered.set()
                return result
        raise AssertionError("the stream ended without an answer")

    server.kill("executor", signal.SIGSTOP)
    result = asyncio.run(stream_to_the_hanging_executor())
    server.kill("front-0", signal.SIGSTOP)
    for name in ("executor", "front-0"):
        server.wait_for("process_unresponsive", unresponsive=name)
        server.wait_for("process_ended", ended=name)
        server.wait_for("process_started", 2, started=name)
    answers_on_new_connections(server)

    assert isinstance(result, CallFailed)
    assert result.code is grpc.StatusCode.DEADLINE_EXCEEDED
