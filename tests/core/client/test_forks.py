"""Clients and ``Local`` in forked processes, other event loops, gevent and pickles: they work, or say at once why not."""

import asyncio
import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.experimental import gevent

from sentiment import Local
from sentiment.client import AsyncClient, CallFailed, Client
from sentiment.client.forks import Forks
from tests.conftest import RunningServer

# Forks while threads make calls of every kind. Prints how often each end came that a new process had.
BESIDE_CALLS = """
import os, sys, threading
from collections import Counter
from sentiment.client import Client, ExplainOptions

target, (asynchronous, client) = sys.argv[1], (None, Client(sys.argv[1]))
options = ExplainOptions(methods=["occlusion"])

def use(client):
    return client.classify("good").label, client.explain("a good film", options=options).label, len(client.classify(["bad"] * 300).answered)

CALLS = [
    lambda: client.classify("a good film"),
    lambda: list(client.classify_all(["good"] * 1000)),
    lambda: client.explain("a good film", options=options),
]
stop, busy = threading.Event(), [threading.Event() for _ in CALLS]

def repeat(call, begun):
    while not stop.is_set():
        call()
        begun.set()

threads = [threading.Thread(target=repeat, args=pair) for pair in zip(CALLS, busy)]
for thread in threads:
    thread.start()
for begun in busy:
    begun.wait(60)
ends = Counter()
for number in range(12):
    process = os.fork()
    if not process:
        code = 1
        try:
            code = 0 if number % 3 == 2 else 0 * len(use(client if number % 3 else Client(target)))
        finally:
            os._exit(code)
    ends[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])] += 1
stop.set()
for thread in threads:
    thread.join()
print(dict(ends), *use(client))
"""
# An AsyncClient is open, or gRPC's own work at a fork is off. Prints what a call of a new client in a new process raises.
BROKEN = """
import asyncio, os, sys
from sentiment.client import AsyncClient, Client

def forked():
    process = os.fork()
    if not process:
        try:
            Client(sys.argv[1]).classify("good")
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await client.classify("good")
        forked()
    del client

Client(sys.argv[1]).classify("good") and forked() if "GRPC_ENABLE_FORK_SUPPORT" in os.environ else asyncio.run(main())
"""


# Forks while threads classify. Prints how often each end came that a new process had.
LOCAL = """
import os, sys, threading
from collections import Counter
from sentiment import Local

local = Local("tiny", bundles=sys.argv[1], threads=2)
stop, busy = threading.Event(), threading.Event()

def repeat():
    while not stop.is_set():
        local.classify(["good film"] * 500)
        busy.set()

thread = threading.Thread(target=repeat)
thread.start()
busy.wait(60)
ends = Counter()
for _ in range(6):
    process = os.fork()
    if not process:
        code = 1
        try:
            code = 0 if (local.classify("bad").label, len(local.classify(["bad"] * 500).answered)) == ("negative", 500) else 2
        finally:
            os._exit(code)
    ends[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])] += 1
stop.set()
thread.join()
print(dict(ends))
"""


def in_python(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=120, env={**os.environ, **environment}
    ).stdout.strip()


def test_processes_forked_beside_calls_of_other_threads_end_well_and_can_call(server: RunningServer) -> None:
    """Without the hooks one in three ended in SIGSEGV, SIGABRT or never, those that called nothing too."""
    assert in_python(BESIDE_CALLS, server.target) == "{0: 12} positive positive 300"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({}, "forked while an AsyncClient was open"), ({"GRPC_ENABLE_FORK_SUPPORT": "0"}, "forked with GRPC_ENABLE_FORK_SUPPORT=0")],
    ids=["asyncio", "switched off"],
)
def test_a_forked_process_without_a_working_grpc_says_so(environment: dict[str, str], reason: str, server: RunningServer) -> None:
    said = in_python(BROKEN, server.target, **environment)

    assert said.startswith(
        f"this process was {reason}, and gRPC does not work in the new process: start processes by multiprocessing's spawn"
    )


def test_a_fork_waits_for_calls_and_calls_for_a_fork() -> None:
    forks, order = Forks(), []
    entered, let_go = threading.Event(), threading.Event()

    def call() -> None:
        with forks.call(time.monotonic() + 60):
            entered.set()
            assert let_go.wait(30)
            order.append("the call has ended")

    def call_later() -> None:
        with forks.call(time.monotonic() + 60):
            order.append("a later call has begun")

    def fork() -> None:
        forks.before()
        order.append("the process has forked")
        forks.in_parent()

    first, second, third = (threading.Thread(target=one) for one in (call, fork, call_later))
    first.start()
    assert entered.wait(30)
    second.start()
    while not forks._forks:
        threading.Event().wait(0.001)
    third.start()
    let_go.set()
    for thread in (first, second, third):
        thread.join(30)

    assert order == ["the call has ended", "the process has forked", "a later call has begun"]


def test_a_call_that_outlasts_a_fork_fails_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.client.forks.WAIT_S", 0.0)
    forks = Forks()

    with forks.call(time.monotonic() + 60):
        forks.before()
        forks.in_child()

    with pytest.raises(RuntimeError, match="forked while calls of other threads took longer than 0 s"):
        forks.enter(time.monotonic() + 60)


def test_a_call_during_a_fork_ends_at_its_deadline() -> None:
    forks = Forks()
    forks.before()

    with pytest.raises(CallFailed) as late:
        forks.enter(deadline_at=0.0)
    assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED

    forks.in_parent()
    forks.enter(deadline_at=0.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.classify("good", timeout_s=0.01),
        lambda client: client.explain("good", timeout_s=0.01),
        lambda client: next(failed for failed in client.classify_all(["good"], timeout_s=0.01, attempts_max=1)),
    ],
    ids=["one", "explanation", "many"],
)
def test_calls_of_every_kind_that_a_fork_holds_back_fail_as_late_ones(
    call: Callable[[Client], object], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks()
    forks.before()
    monkeypatch.setattr("sentiment.client.sync.FORKS", forks)

    try:
        failed = call(client)
    except CallFailed as error:
        failed = error

    assert isinstance(failed, CallFailed)
    assert failed.message.startswith("the call did not begin within its timeout: the process forks")


def test_a_process_that_never_had_a_client_may_fork_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "false")
    forks = Forks()

    forks.before()
    forks.in_child()

    forks.check()


def test_local_works_in_processes_forked_beside_its_calls(bundles: Path) -> None:
    assert in_python(LOCAL, str(bundles)) == "{0: 6}"


def test_a_gpu_of_the_parent_is_refused_in_a_forked_process(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local._offline, "_runners", [object()])
        local._offline.forked()

    with pytest.raises(RuntimeError, match="forked after a GPU was opened"):
        local.classify("good")
    local._offline.forked()
    assert local.classify("good").label == "positive"


async def test_a_client_of_one_event_loop_is_refused_at_once_in_another(server: RunningServer) -> None:
    client = AsyncClient(server.target)
    assert (await client.classify("good")).label == "positive"

    def elsewhere() -> None:
        asyncio.run(client.classify("good"))

    with pytest.raises(RuntimeError, match=r"AsyncClient\(.*\) was first used in another event loop; make one in each loop"):
        await asyncio.to_thread(elsewhere)
    assert (await client.classify("bad")).label == "negative"
    await client.close()


def test_an_asyncio_client_may_be_made_before_its_event_loop(server: RunningServer) -> None:
    client = AsyncClient(server.target)

    async def use() -> str:
        async with client:
            return (await client.classify("good")).label

    assert asyncio.run(use()) == "positive"
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())


@contextmanager
def replaced_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    prepared: list[str] = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == "threading"))  # type: ignore[arg-type]  # a fake
        patch.setattr(gevent, "init_gevent", lambda: prepared.append("grpc"))
        yield prepared


async def test_where_gevent_has_replaced_threads_grpc_is_prepared_and_asyncio_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with replaced_threads(monkeypatch) as prepared:
        Client("127.0.0.1:1").close()

        assert prepared == ["grpc"]
        with pytest.raises(RuntimeError, match="would wait forever where gevent has replaced Python's threads; use Client"):
            await AsyncClient("127.0.0.1:1").classify("good")


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_objects_with_connections_or_a_model_say_how_to_share_them(attempt: Any, local: Local, client: Client) -> None:
    target = client._connecting.target
    for one, remedy in ((client, f"Client('{target}')"), (AsyncClient(target), f"AsyncClient('{target}')"), (local, "Local('tiny')")):
        with pytest.raises(TypeError, match="cannot be pickled or copied; make one in each process: ") as caught:
            attempt(one)
        assert str(caught.value).endswith(remedy)
