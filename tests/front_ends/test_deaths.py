"""Processes of a server that die, hang or are told to end: nobody hangs with them, and nothing is orphaned."""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sentiment.client import AsyncClient, CallFailed
from tests.conftest import PLAIN
from tests.front_ends.servers import BATCH_ROWS_HELD, HELD, PATIENCE_S, Held, Server, alive, eventually_answers, wait_gone
from tests.tiny import make_bundle

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SECRET = "great XyzzySecret film"


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


def test_when_the_executor_dies_who_waits_is_told_at_once_and_another_takes_its_place(serve: Callable[..., Server], hold: Held) -> None:
    server = serve("--runners", "1").wait_ready()
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


def test_a_call_whose_executor_died_is_counted(serve: Callable[..., Server], hold: Held) -> None:
    server = serve().wait_ready()
    with server.client() as client:
        client.list_models()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.explain, HELD, timeout_s=PATIENCE_S)
            hold.wait(lambda: server.total("explanations") == 1)
            server.kill("executor")
            failure = waiting.exception(PATIENCE_S)
        eventually_answers(client)

    assert isinstance(failure, CallFailed)
    assert failure.code is UNAVAILABLE
    # Another port: the first was any free one.
    server.url = f"http://{server.wait_for('ready', 2)['http']}"
    assert server.total("requests_total", method="Explain", code="UNAVAILABLE", model="tiny/1") == 1


def test_a_signal_during_the_start_exits_0(serve: Callable[..., Server]) -> None:
    server = serve()
    server.wait_for("process_started", started="front-1")

    server.process.terminate()

    assert server.finish() == 0
    wait_gone(server.pids())


async def listens(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        # Refused, or reset where the port closed before it was accepted.
        return False
    writer.close()
    return True


def test_a_drain_answers_every_call_it_accepted(serve: Callable[..., Server], hold: Held) -> None:
    # Half of the grace is for streams, before the port is closed.
    server = serve("--runners", "1", "--drain-wait-s", "1", "--drain-grace-s", "6", "--stall-s", "60").wait_ready()

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
        # As a service manager that tells every process to end: what has begun goes on.
        for name in ("executor", "front-0", "front-1", "executor", "front-0"):
            server.kill(name, signal.SIGTERM)
        # In the time that balancers have to notice.
        late = await listed()
        draining.set()
        async with asyncio.timeout(PATIENCE_S):
            while await listens(server.target):
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
    # The executor is the last. Each process hands its lines to a thread: they may arrive in another order than they were said in.
    told = sorted((line for line in server.lines if line["event"] == "drained"), key=lambda line: str(line["timestamp"]))
    drained = [line.get("process") for line in told]
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


def test_not_even_a_frozen_process_is_orphaned(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    pids = server.pids()
    server.kill("front-1", signal.SIGSTOP)

    server.process.kill()

    server.finish()
    wait_gone(pids)


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
