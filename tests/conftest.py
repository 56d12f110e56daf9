"""Servers for the tests, and tests that need tools."""

import asyncio
import logging
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import hypothesis
import psutil
import pytest
import structlog
from prometheus_client.samples import Sample

from sentiment.call.calls import Calls
from sentiment.client import Client
from sentiment.doors.grpc.endpoint import GrpcSide
from sentiment.doors.grpc.stream import Streams
from sentiment.doors.http.server import Web
from sentiment.lifecycle.lifecycle import Lifecycle
from sentiment.lifecycle.registry import Models
from sentiment.observability.journal import Journal
from sentiment.serving import event_loop
from sentiment.serving.app import App
from sentiment.settings import Settings
from tests.tiny import make_bundle
from tests.virtual_time import VirtualClock

# A busy machine takes longer now and then.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

# The client retries refusals; tests of refusals need the first answer.
NO_RETRIES = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
# Also without health checks: this client keeps calling a draining server.
PLAIN = [*NO_RETRIES, ("grpc.service_config", "{}")]
SCHED_IDLE: int | None = getattr(os, "SCHED_IDLE", None)
# Longer than any machine takes to start or stop a server.
PATIENCE_S = 300


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """Reset logging, which a command that runs in this process configures for the standard error of its test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


class RunningServer:
    """A real server in a thread and event loop of its own, on free ports of 127.0.0.1."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        started = threading.Event()

        async def run() -> None:
            self.loop = asyncio.get_running_loop()
            self.app = App(settings)
            running = asyncio.create_task(self.app.run())
            waiting = asyncio.create_task(self.app.started.wait())
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            started.set()
            waiting.cancel()
            await running

        def main() -> None:
            try:
                event_loop.run(run())
            except BaseException as error:  # handed to the test
                self.failure = error
            finally:
                started.set()

        self._thread = threading.Thread(target=main, name="server", daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_S), f"the server did not start within {PATIENCE_S} s"
        if self.failure is not None:
            raise self.failure
        self.target = f"127.0.0.1:{self.app.grpc_port}"
        self.url = f"http://127.0.0.1:{self.app.http_port}"
        self.url_of_grpc = f"http://{self.target}"

    @property
    def lifecycle(self) -> Lifecycle:
        """Its models as they come and go."""
        return self.app._lifecycle

    @property
    def models(self) -> Models:
        """Its models by name."""
        return self.app._models

    @property
    def grpc(self) -> GrpcSide:
        """Its gRPC side."""
        return self.app._grpc

    @property
    def web(self) -> Web:
        """Its HTTP side."""
        return self.app._web

    @property
    def journal(self) -> Journal | None:
        """Its journal, if it keeps one."""
        return self.app._journal

    @property
    def calls(self) -> Calls:
        """What counts its calls."""
        return self.grpc.calls

    @property
    def streams(self) -> Streams:
        """Its open streams."""
        return self.grpc.streams

    def runs_here(self) -> bool:
        """Whether the caller is in the thread of its event loop."""
        return threading.current_thread() is self._thread

    def client(self, **arguments: Any) -> Client:
        return Client(self.target, **{"options": NO_RETRIES, **arguments})

    def metric(self, name: str, **labels: str) -> float:
        """The current value of a sample; 0 if it does not exist."""
        return next((sample.value for sample in self.samples() if (sample.name, sample.labels) == (name, labels)), 0.0)

    def samples(self) -> list[Sample]:
        """The current values of all metrics.

        Read in the thread of the server's loop, as a scrape is: the gauges of the queue read what that thread changes.
        """

        def collect() -> list[Sample]:
            return [sample for family in self.app._metrics.registry.collect() for sample in family.samples]

        if self.runs_here():
            return collect()
        found: Future[list[Sample]] = Future()

        def answer() -> None:
            try:
                found.set_result(collect())
            except BaseException as error:  # handed to the test
                found.set_exception(error)

        end = time.monotonic() + PATIENCE_S
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(answer)
        while self._thread.is_alive() and not wait([found], 0.1).done:
            assert time.monotonic() < end, f"the server's loop did nothing for {PATIENCE_S} s"
        return found.result() if found.done() else collect()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.app.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the server did not stop within {PATIENCE_S} s"
        if self.failure is not None:
            raise self.failure


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """The clock of the test's event loop, which only the test advances. Timers that are due then fire in the next turns of the loop."""
    loop = asyncio.get_running_loop()
    clock = VirtualClock(loop.time())
    monkeypatch.setattr(loop, "time", clock)
    return clock


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """Let started processes receive SIGHUP, even if the tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the bundles tiny/1 and paired/1."""
    root = tmp_path_factory.mktemp("bundles")
    make_bundle(root)
    make_bundle(root, "paired", pairs=True)
    return root


@pytest.fixture(scope="session")
def settings(bundles: Path) -> Settings:
    """A server of tiny/1 on free ports that drains without delay."""
    return Settings(
        bundles=(bundles,),
        model="tiny",
        device="cpu",
        grpc_listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        drain_wait_s=0,
        drain_grace_s=5,
        runners=2,
    )


Kind = TypeVar("Kind", bound=RunningServer)


@contextmanager
def starting(kind: type[Kind], settings: Settings) -> Iterator[Callable[..., Kind]]:
    """Start servers with changed settings; each is stopped at the end."""
    with ExitStack() as started:

        def begin(**changes: Any) -> Kind:
            server = kind(settings.model_copy(update=changes))
            started.callback(server.stop)
            return server

        yield begin


@pytest.fixture
def start(settings: Settings) -> Iterator[Callable[..., RunningServer]]:
    """Start servers with changed settings; each is stopped at the end."""
    with starting(RunningServer, settings) as begin:
        yield begin


@pytest.fixture(autouse=True, scope="session")
def awake() -> Iterator[None]:
    """Explain at normal priority. On a busy machine, the idle priority makes a minute of one second of work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "SCHED_IDLE", raising=False)
        yield


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Explain at the lowest priority, which servers have outside of tests; None where a system has none."""
    if SCHED_IDLE is not None:
        monkeypatch.setattr(os, "SCHED_IDLE", SCHED_IDLE, raising=False)
    return SCHED_IDLE


@pytest.fixture(scope="session")
def server(settings: Settings) -> Iterator[RunningServer]:
    """One server for all tests that leave it as they found it."""
    running = RunningServer(settings)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as shared:
        yield shared


_left_out: set[str] = set()
# Seconds by file of tests. The cache keeps them from run to run.
_took: Counter[str] = Counter()
TOOK = "files/seconds"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs_tool"):
        tool = mark.args[0]
        if shutil.which(tool) is None:
            leave_out(tool, "is not installed")


def far_address() -> str:
    """An address of this machine that is not loopback. Skips the test if there is none."""
    found: list[str] = [one.address for each in psutil.net_if_addrs().values() for one in each if one.family.name == "AF_INET"]
    address = next((one for one in found if not one.startswith("127.")), None)
    if address is None:
        pytest.skip("this machine has no address but loopback")
    return address


def leave_out(tool: str, why: str) -> NoReturn:
    """Skip the test because a tool is missing, or fail it if REQUIRE_ALL is set."""
    _left_out.add(tool)
    if os.environ.get("REQUIRE_ALL"):
        pytest.fail(f"{tool} {why} and REQUIRE_ALL is set", pytrace=False)
    pytest.skip(f"{tool} {why}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin each folder with its slowest files, so that no process ends long after the others. Folders stay whole: they share servers."""
    cache = getattr(config, "cache", None)
    took = cache.get(TOOK, {}) if cache else {}
    folders = {folder: place for place, folder in enumerate(dict.fromkeys(item.path.parent for item in items))}
    items.sort(key=lambda item: (folders[item.path.parent], -took.get(item.nodeid.partition("::")[0], 0)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    # The first of several processes reports what all have skipped.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(_left_out)
    elif cache := getattr(session.config, "cache", None):
        before = cache.get(TOOK, {})
        # A run of a part of a file takes less.
        cache.set(TOOK, before | {name: max(seconds, before.get(name, 0) / 2) for name, seconds in _took.items()})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    tools = ", ".join(sorted(_left_out))
    print(f"\nleft out because tools are missing: {tools or 'nothing'}")
