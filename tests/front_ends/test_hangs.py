"""Processes of a server that hang: they are found, and nobody waits for them longer than he said."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from sentiment.client import AsyncClient, CallFailed, Result
from tests.conftest import PLAIN
from tests.front_ends.servers import PATIENCE_S, Server, eventually_answers
from tests.tiny import SPECIAL, WEIGHTS

# Read by every Python at its start: an executor that never comes back from a batch that has a certain word in it, unless one has before.
HANGING = """
import pathlib, sys, threading

if "sentiment.serving.front_ends" in sys.orig_argv:
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
    server = serve("--stall-s", "1", "--runners", "1", "--drain-wait-s", "60").wait_ready()
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


@pytest.mark.parametrize("name", ["executor", "front-0"])
def test_a_process_that_hangs_is_found_and_replaced(serve: Callable[..., Server], name: str) -> None:
    server = serve("--stall-s", "1").wait_ready()

    # Its event loop goes on: it has said so to the supervisor too.
    server.metrics()
    server.kill(name, signal.SIGSTOP)
    assert server.wait_for("process_unresponsive")["unresponsive"] == name
    server.wait_for("process_started", 2, started=name)
    clients = [server.client() for _ in range(8)]
    for client in clients:
        eventually_answers(client)
        client.close()

    assert server.wait_for("process_ended")["ended"] == name


def test_a_text_of_a_stream_is_told_its_deadline_by_an_executor_that_hangs(serve: Callable[..., Server]) -> None:
    server = serve().wait_ready()
    server.kill("executor", signal.SIGSTOP)

    async def run() -> Result | CallFailed:
        told: asyncio.Event = asyncio.Event()

        async def items() -> AsyncIterator[tuple[str, str]]:
            yield "one", "good"
            await told.wait()

        async with AsyncClient(server.target, options=PLAIN) as client:
            async for _, result in client.classify_stream(items(), item_timeout_s=0.2):
                told.set()
                return result
        raise AssertionError("nothing was told")

    result = asyncio.run(run())
    # One that is stopped does not see that the supervisor goes.
    server.kill("executor")

    assert isinstance(result, CallFailed)
    assert result.code is grpc.StatusCode.DEADLINE_EXCEEDED


# Read by every Python at its start.
OFTEN = """
import sys

if "sentiment.serving.front_ends" in sys.orig_argv:
    from sentiment.serving.front_ends import executor

    executor.COUNTS_EVERY_S = 0.05
"""


def test_a_front_end_that_dies_had_told_what_it_counted_although_nobody_asked(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OFTEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = serve().wait_ready()
    with server.client() as client:
        for _ in range(3):
            client.classify("good")

    # Nothing outside shows that it has told but what would make it tell.
    time.sleep(1.0)
    for name in ("front-0", "front-1"):
        server.kill(name)
        server.wait_for("process_ended", ended=name)

    assert server.total("requests_total", method="Classify", code="OK", model="tiny/1") == 3
