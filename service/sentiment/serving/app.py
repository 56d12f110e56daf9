"""The composition root of the process with the models: builds every part, warms up, serves, drains, and says what signals do.

It knows all concrete classes, as ``sentiment_front_ends.front_end`` does for a process in front of it.
"""

import asyncio
import atexit
import contextlib
import gc
import importlib.metadata
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from sentiment.call.calls import CODE_NAMES
from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc.endpoint import GrpcSide
from sentiment.doors.http.server import Web
from sentiment.doors.listening import reserved, split
from sentiment.errors import BadBundle, BadSettings, CannotServe, RunnerLost
from sentiment.health_check import DRAINING, STALLED
from sentiment.lifecycle.lifecycle import Lifecycle
from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.served_model import RunningModel
from sentiment.model.gpu.nvml import meters
from sentiment.model.memory import memory_granted, memory_used
from sentiment.model.session import RUNTIME_VERSION
from sentiment.observability.feedback import Feedback
from sentiment.observability.journal_files import held
from sentiment.observability.logs import lines_dropped, logger, wait_written
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.start import make_tracer
from sentiment.security.secured import Secured
from sentiment.serving import event_loop, signals
from sentiment.serving.exchange import Exchange
from sentiment.serving.how_to_call import how_to_call
from sentiment.serving.journaling import journal_of
from sentiment.serving.memory import keep_small
from sentiment.serving.upkeep import Upkeep
from sentiment.settings import Settings
from sentiment.signs import Sign, shown

WATCHDOG_S = 0.5


class App:
    """The server, from binding its ports to its exit code."""

    # Whether a second signal ends the process at once. False where a supervisor does that.
    second_signal_ends = True

    def __init__(self, settings: Settings, counts_grpc: bool = True) -> None:
        """Hold the gRPC ports; call it in an event loop started by ``event_loop.run``.

        ``counts_grpc``: count and admit gRPC calls here; False where the front ends that forward them do so, and reserve the port.

        Raises:
            CannotServe: a port cannot be bound.
            BadSettings: the admin port has no tokens, the tracing variables are invalid, or TLS or token files or the journal's folder
                cannot be used.
        """
        self._settings = settings
        self._counts_grpc = counts_grpc
        self._log = logger()
        self._metrics = Metrics(CODE_NAMES)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._metrics.registry)
        self._metrics.build_info.info({"version": importlib.metadata.version("sentiment-service"), "onnxruntime": RUNTIME_VERSION})
        self._metrics.memory_limit_bytes.set(memory_granted() or math.inf)
        self._metrics.memory_used_bytes.set_function(memory_used)
        self._metrics.latency_objective_seconds.set(settings.latency_objective_s)
        process = "server" if counts_grpc else "executor"
        loop = event_loop.running()
        self._metrics.loop_busy_seconds.watch(lambda: loop.busy_s, process)
        self._metrics.log_lines_dropped.watch(lines_dropped)
        self._tracer = make_tracer(settings.tracing, self._metrics, process)
        self._journal = journal_of(settings, self._metrics, process)
        self._feedback = None if self._journal is None else Feedback(self._journal, Path(settings.journal))
        self._models = Models(settings.model)
        self._ready = False
        self._draining = False
        self._stop = asyncio.Event()
        # Whether a GPU was lost before the server fell back to the CPU.
        self.device_lost = False
        # Set when the model answers.
        self.started = asyncio.Event()
        self.http_port = self.grpc_port = 0
        self._secured = Secured(settings, self._metrics)
        self._requests = requests = RequestBytes(settings.request_bytes_max)
        self._metrics.request_bytes.set_function(lambda: requests.used)
        # The main port is held, and opened when the models answer. Until it is open this process says that it starts.
        self._held, self._starting = contextlib.ExitStack(), contextlib.ExitStack()
        listen = settings.grpc_listen
        if counts_grpc:
            listen = self._held.enter_context(reserved("grpc_listen", listen))
            self._starting.enter_context(shown(Sign.STARTING, split(listen)[1]))
        self._grpc = GrpcSide(
            settings.model_copy(update={"grpc_listen": listen}),
            self._metrics,
            self._models,
            counts=counts_grpc,
            tracer=self._tracer,
            secured=self._secured,
            feedback=self._feedback,
            busy_share=loop.busy_share,
            requests=requests,
        )
        self._grpc.bind_probes()
        self._web = Web(
            settings,
            self._metrics,
            self._grpc.service,
            self._grpc.inference,
            self._scrape,
            lambda: self._ready,
            lambda: self._grpc.health.alive,
            self._secured,
            requests,
        )
        # Set when the process has lost a runner or a task that it needs, and must be replaced.
        self._broken = asyncio.Event()
        self._upkeep = Upkeep(self._broken)
        self._lifecycle = Lifecycle(
            settings, self._metrics, self._models, self._tracer, self._broken, self._journal, loop.busy_share, self._secured.weights
        )
        self._process, self._loop, self._loop_busy_s = process, loop, 0.0
        self._demand_ratio()
        self._metrics.demand_ratio.set_function(self._demand_ratio)
        self._exchange = Exchange(settings, self._lifecycle, self._secured, requests, self._upkeep)
        # Extra fields of the log event "ready".
        self._ready_with: dict[str, str] = {}
        if self._grpc.health_port:
            self._ready_with["health"] = _address(settings.health_listen, self._grpc.health_port)

    async def run(self) -> None:
        """Serve until a signal, then drain.

        Raises:
            BadBundle: the model cannot be served.
            CannotServe: a port cannot be bound.
            BadSettings: the device does not exist, or batches are too large for it.
            RunnerLost: a run did not end, or a device is lost; the other runners have answered their rows.
            TaskEnded: a task that the process needs has ended; all accepted calls were answered.
        """
        begun = time.monotonic()
        if self._settings.http_listen:
            self.http_port = await self._web.start(self._settings.http_listen)
        await self._grpc.start_probes()
        if not self._counts_grpc:
            await self._open_grpc()
        self._upkeep.start("reload files", self._secured.keep_fresh())
        self._upkeep.start("give memory back", keep_small())
        loading = asyncio.create_task(self._load())
        stopping, breaking = asyncio.create_task(self._stop.wait()), asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait({loading, stopping, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                served = loading.result()
                self._set_ready(True)
                if self._counts_grpc:
                    await self._open_grpc()
                await self._exchange.start()
                self._say_ready(served, time.monotonic() - begun)
                self.started.set()
                await self._serve_until({stopping, breaking})
            self._upkeep.check()
            if self._broken.is_set():
                raise RunnerLost("a run did not stop when asked, or its device is lost; this process must be replaced")
        finally:
            self._draining = True
            self._lifecycle.load_no_more()
            for task in (loading, stopping, breaking):
                task.cancel()
            await asyncio.wait({loading, stopping, breaking})
            await self._shut_down()

    def stop(self) -> bool:
        """Start the drain and return at once. False if it had already started."""
        begins = not self._stop.is_set()
        self._stop.set()
        return begins

    async def _open_grpc(self) -> None:
        self._held.close()
        self.grpc_port = self._grpc.port.bind()
        await self._grpc.port.start()
        self._starting.close()

    def reload(self) -> None:
        """Reload certificates and tokens soon, and return at once."""
        self._secured.reload()

    async def _load(self) -> RunningModel:
        """Load the models and serve them; returns the default."""
        served = await self._lifecycle.start()
        loaded = served.loaded
        self.device_lost = any(running.loaded.device_lost for running in self._lifecycle.running)
        self._metrics.watch_devices(await asyncio.to_thread(meters, loaded.devices))
        self._ready_with["device"] = ",".join(device.name for device in loaded.devices)
        if loaded.not_cuda:
            self._ready_with["not_cuda"] = loaded.not_cuda
        # Objects that exist now live as long as the process, so the garbage collector can skip them.
        gc.collect()
        gc.freeze()
        return served

    def _say_ready(self, served: RunningModel, seconds: float) -> None:
        classifier = served.classifier
        for running in self._lifecycle.running:
            for reason in running.classifier.passed_over:
                self._log.warning("graph_passed_over", model=running.id, reason=reason, serving=running.classifier.graph.precision)
        http = _address(self._settings.http_listen, self.http_port) if self.http_port else ""
        self._log.info(
            "ready",
            model=served.id,
            digest=classifier.bundle.digest[:12],
            precision=classifier.graph.precision,
            runners=len(served.loaded.runners),
            grpc=self._grpc_address(),
            http=http or "off",
            seconds=round(seconds, 2),
            **self._ready_with,
            **how_to_call(self._settings, self._grpc_address(), http),
        )

    def _grpc_address(self) -> str:
        """The address that clients call."""
        return _address(self._settings.grpc_listen, self.grpc_port)

    async def _scrape(self) -> CollectorRegistry:
        """The registry that /metrics shows."""
        return self._metrics.registry

    def _demand_ratio(self) -> float:
        """The offered load of all models and of this process's event loop."""
        now, busy_s, offered = time.monotonic(), self._loop.busy_s, self._lifecycle.offered
        offered.loop_busy(self._process, busy_s - self._loop_busy_s, now)
        self._loop_busy_s = busy_s
        return offered.ratio(now)

    def _set_ready(self, ready: bool) -> None:
        self._ready = ready
        self._grpc.health.set_ready(ready, DRAINING if self._draining else STALLED)

    async def _serve_until(self, ends: "set[asyncio.Task[bool]]") -> None:
        """Serve until a stop or until the process is broken, then drain. Runs are also watched during the drain."""
        self._upkeep.start("watch runs", self._watch())
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self._draining = True
        # A process without one of its runners or tasks is not alive: its supervisor may replace it at once.
        self._grpc.health.set_alive(not self._broken.is_set())
        await self._drain()
        for running in self._lifecycle.running:
            await running.keep_costs()

    async def _watch(self) -> None:
        """Report not ready while a run takes too long, ask such a run to stop, and give it up if it does not."""
        stall_s = self._settings.stall_s
        while True:
            running = self._lifecycle.running
            stalled_s = max((one.batcher.stalled_s() for one in running), default=0.0)
            if not self._draining and self._ready is (stalled_s > stall_s):
                event = "stalled" if self._ready else "stall_ended"
                self._log.error(event, seconds=round(stalled_s, 1), queue_rows=sum(one.batcher.scheduler.rows_waiting for one in running))
                self._set_ready(not self._ready)
            try:
                for one in running:
                    one.batcher.end_stalled(stall_s)
                    if one.explaining is not None:
                        one.explaining.watch(stall_s)
            except Exception:  # the next check may find a run that hangs
                self._log.exception("watch_failed")
            await asyncio.sleep(min(WATCHDOG_S, stall_s))

    async def _drain(self) -> None:
        """Report not ready but keep answering; then refuse new requests and answer all accepted ones, of gRPC and HTTP at once."""
        self._set_ready(False)
        self._web.leave()
        await self._exchange.stop()
        await asyncio.gather(self._drain_grpc(), self._drain_web())
        await self._lifecycle.close()
        self._log.info("drained")

    async def _wait_noticed(self) -> None:
        """Keep answering until load balancers notice that this server is not ready."""
        await asyncio.sleep(self._settings.drain_wait_s)

    async def _drain_grpc(self) -> None:
        await self._wait_noticed()
        await self._grpc.drain(self._settings.drain_grace_s)

    async def _drain_web(self) -> None:
        await self._wait_noticed()
        await self._web.drain(self._settings.drain_grace_s)

    async def _shut_down(self) -> None:
        self._set_ready(False)
        self._held.close()
        self._starting.close()
        await self._grpc.stop()
        await self._web.stop()
        await self._exchange.stop()
        for running in self._lifecycle.running:
            running.close_runners()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self._feedback is not None:
            self._feedback.close()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)
        await self._upkeep.stop()


def _address(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"


async def serve(settings: Settings, make: Callable[[], App] | None = None) -> None:
    """Run the server (``make`` builds it, default ``App``) until SIGTERM or SIGINT has drained it.

    Raises:
        BadBundle, BadSettings, CannotServe: the server could not start.
        RunnerLost: a run did not end, or a device is lost.
        TaskEnded: a task that the process needs has ended.
    """
    ending = contextlib.ExitStack()
    try:
        # Of a server of several processes the supervisor holds it.
        let_next_in = ending.enter_context(held(settings.journal if make is None else ""))
        app = App(settings) if make is None else make()

        def on_stop(number: signal.Signals) -> None:
            if not app.stop():
                # A closed terminal may send SIGHUP twice, from the shell and from the kernel.
                if number == signal.SIGHUP or not app.second_signal_ends:
                    return
                logger().warning("second_signal", signal=number.name)
                wait_written()
                os._exit(1)
            let_next_in()
            logger().info("draining", signal=number.name, wait_s=settings.drain_wait_s, grace_s=settings.drain_grace_s)

        signals.handle(on_stop, app.reload)
        await app.run()
        if app.device_lost:
            atexit.register(_leave, 0)
    except (BadBundle, BadSettings, CannotServe) as error:
        logger().error("cannot_serve", reason=str(error))
        raise
    except RunnerLost as error:
        logger().critical("runner_lost", reason=str(error))
        atexit.register(_leave, 1)
        raise
    finally:
        ending.close()


def _leave(code: int) -> NoReturn:
    """Exit without unloading CUDA, which aborts the process if a device was lost."""
    logging.shutdown()
    sys.stdout.flush()
    wait_written()
    os._exit(code)
