"""The composition root: builds every part, warms up, serves, drains. Alone knows all concrete classes and owns the signals."""

import asyncio
import gc
import importlib.metadata
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

from sentiment.batching.batcher import Batcher, Waiting
from sentiment.batching.cost import CostTable
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import Scheduler
from sentiment.errors import BadBundle, CannotServe, RunnerLost
from sentiment.explainer import Explainer
from sentiment.explaining import Explaining, ExplainLimits
from sentiment.logs import logger
from sentiment.metrics import Metrics
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment.model.runner import Runner
from sentiment.model.session import RUNTIME_VERSION
from sentiment.pipeline import Served
from sentiment.registry import Models
from sentiment.rpc.calls import CODE_NAMES, METHODS, CallLimits, Calls
from sentiment.rpc.health import Health
from sentiment.rpc.server import SERVICE, ServerOptions, make_server
from sentiment.rpc.servicer import SentimentService, ServiceLimits
from sentiment.rpc.stream import Streams
from sentiment.settings import Settings
from sentiment.warm_up import MEASURE_S, keep_costs, warm_up
from sentiment.watcher import Watcher
from sentiment.web.server import Web

WATCHDOG_S = 0.5
# Texts are being classified if one was so shortly ago.
CLASSIFIES_S = 1.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A classifier that is warm, and what its warm-up taught."""

    classifier: Classifier
    limits: BatchLimits
    cost: CostTable


def load(settings: Settings, measure_s: float = MEASURE_S) -> Loaded:
    """Find, check and warm up the default bundle; measure its costs for ``measure_s``. Blocks for a second or two.

    Raises:
        BadBundle: it cannot be served.
    """
    path = find_bundle(settings.model, bundle_roots(settings.bundles))
    classifier = load_classifier(path, None if settings.precision == "auto" else settings.precision)
    if classifier.bundle.id != f"{path.parent.name}/{path.name}":
        raise BadBundle(f"{path}: holds {classifier.bundle.id}; a bundle's folder is called as its manifest says")
    limits = BatchLimits(
        settings.batch_rows_max, settings.batch_tokens_max, settings.batch_scores_bytes_max, classifier.bundle.attention_heads
    )
    cache = Path(settings.cache_dir) if settings.cache_dir else None
    return Loaded(classifier, limits, warm_up(classifier, limits, cache, measure_s))


def make_served(loaded: Loaded, settings: Settings, metrics: Metrics, runners: Sequence[Runner]) -> Served:
    """Put a loaded model behind its queue; must be called in the event loop that serves it."""
    classifier = loaded.classifier
    counted = metrics.model(classifier.bundle.id, [runner.name for runner in runners])
    scheduler: Scheduler[Waiting] = Scheduler(
        loaded.cost, loaded.limits, len(runners), settings.queue_rows_max, classifier.manifest.max_tokens, settings.bulk_share
    )
    batcher = Batcher(classifier, scheduler, runners, Watcher(counted))
    counted.watch_queue(lambda: scheduler.rows_waiting, lambda: batcher.backlog_s, lambda: loaded.cost.speed)
    bundle = classifier.bundle
    counted.describe(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        precision=classifier.graph.precision,
        provider=classifier.session.provider,
    )
    explaining = None
    if settings.explain:
        limits = ExplainLimits(settings.explain_calls_max, settings.explain_bytes_max)
        share = settings.explain_share
        explaining = Explaining(Explainer(classifier), counted, limits, lambda: share if batcher.idle_s < CLASSIFIES_S else 1.0)
    return Served(classifier, batcher, counted, settings.text_bytes_max, settings.call_rows_max, explaining)


def make_runners(settings: Settings) -> list[Runner]:
    """Start as many runners as the settings say or the machine grants."""
    return [Runner(f"cpu-{number}") for number in range(settings.runners or cores_granted())]


class App:
    """The server's life from its ports to its exit code."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = logger()
        self._metrics = Metrics(METHODS, CODE_NAMES)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._metrics.registry)
        self._metrics.build_info.info({"version": importlib.metadata.version("sentiment-service"), "onnxruntime": RUNTIME_VERSION})
        self._models = Models(settings.model)
        limits = CallLimits(
            settings.message_bytes_max,
            settings.deadline_default_s,
            settings.deadline_max_s,
            settings.calls_max,
            log_calls=settings.log_level == "debug",
        )
        self._calls = Calls(self._metrics, limits)
        stated = ServiceLimits(settings.text_bytes_max, settings.batch_items_max, settings.message_bytes_max, settings.call_rows_max)
        service = SentimentService(self._models, self._calls, stated)
        self._streams = Streams(service, self._calls, settings.call_rows_max, settings.deadline_default_s)
        self._health = Health((SERVICE,))
        self._ready = False
        self._draining = False
        self._stop = asyncio.Event()
        # Set when the model answers.
        self.started = asyncio.Event()
        self.http_port = 0
        options = ServerOptions(
            settings.grpc_listen,
            settings.message_bytes_max,
            settings.keepalive_min_ping_s,
            settings.connection_age_max_s,
            settings.connection_age_grace_s,
            settings.reflection,
        )
        self._grpc, self.grpc_port = make_server(options, service, self._streams, self._calls, self._health)
        self._web = Web(
            service,
            self._calls,
            self._metrics,
            lambda: self._ready,
            lambda: self._health.alive,
            settings.message_bytes_max,
            settings.viewer,
        )
        self._runners: list[Runner] = []

    async def run(self) -> None:
        """Serve until a signal, then drain.

        Raises:
            BadBundle: the model cannot be served.
            CannotServe: a port cannot be bound.
            RunnerLost: a run did not end; what other runners could answer has been answered.
        """
        begun = time.monotonic()
        if self._settings.http_listen:
            self.http_port = await self._web.start(self._settings.http_listen)
        await self._grpc.start()
        loading = asyncio.create_task(asyncio.to_thread(load, self._settings))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                served = self._serve(loading.result())
                self._set_ready(True)
                self._say_ready(served, time.monotonic() - begun)
                self.started.set()
                await self._serve_until(served, stopping)
        finally:
            await self._shut_down()

    def stop(self) -> bool:
        """Begin to drain; returns at once. False if it has begun before."""
        begins = not self._stop.is_set()
        self._stop.set()
        return begins

    def _serve(self, loaded: Loaded) -> Served:
        self._runners = make_runners(self._settings)
        served = make_served(loaded, self._settings, self._metrics, self._runners)
        self._models.add(served)
        # What is alive now lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        return served

    def _say_ready(self, served: Served, seconds: float) -> None:
        classifier = served.classifier
        for reason in classifier.passed_over:
            self._log.warning("graph_passed_over", reason=reason, serving=classifier.graph.precision)
        self._log.info(
            "ready",
            model=served.id,
            digest=classifier.bundle.digest[:12],
            precision=classifier.graph.precision,
            runners=len(self._runners),
            grpc=_address(self._settings.grpc_listen, self.grpc_port),
            http=_address(self._settings.http_listen, self.http_port) if self.http_port else "off",
            seconds=round(seconds, 2),
        )

    def _set_ready(self, ready: bool) -> None:
        self._ready = ready
        self._health.set_ready(ready)

    async def _serve_until(self, served: Served, stopping: "asyncio.Task[bool]") -> None:
        """Serve until the stop or until a run does not come back, then drain. Runs are watched through the drain too."""
        watching = asyncio.create_task(self._watch(served))
        broken = asyncio.create_task(served.batcher.broken.wait())
        try:
            await asyncio.wait({stopping, broken}, return_when=asyncio.FIRST_COMPLETED)
            self._draining = True
            # A process that has lost a runner makes no progress there: its supervisor may replace it at once.
            self._health.set_alive(not broken.done())
            await self._drain(served)
        finally:
            watching.cancel()
            broken.cancel()
            await asyncio.wait({watching, broken})
        if self._settings.cache_dir:
            await asyncio.to_thread(keep_costs, Path(self._settings.cache_dir), served.classifier, served.batcher.scheduler.cost)
        if served.batcher.broken.is_set():
            raise RunnerLost("a run did not end although it was asked to; the process must be replaced")

    async def _watch(self, served: Served) -> None:
        """Not ready while a run lasts too long; such a run is asked to end and in the end given up."""
        batcher, stall_s = served.batcher, self._settings.stall_s
        while True:
            stalled_s = batcher.stalled_s()
            if not self._draining and self._ready is (stalled_s > stall_s):
                event = "stalled" if self._ready else "moving_again"
                self._log.error(event, seconds=round(stalled_s, 1), queue_rows=batcher.scheduler.rows_waiting)
                self._set_ready(not self._ready)
            try:
                batcher.end_stalled(stall_s)
                if served.explaining is not None:
                    served.explaining.watch(stall_s)
            except Exception:  # whatever it was, the next look may find a run that hangs
                self._log.exception("watch_failed")
            await asyncio.sleep(min(WATCHDOG_S, stall_s))

    async def _drain(self, served: Served) -> None:
        """Not ready but answering, then GOAWAY, then until everything accepted is answered."""
        self._set_ready(False)
        await asyncio.sleep(self._settings.drain_wait_s)
        begun = time.monotonic()
        # At most half of the grace: a stream whose client does not read must not cost other calls theirs.
        await self._streams.end(self._settings.drain_grace_s / 2)
        # GOAWAY is the refusal: a client takes its next call elsewhere without an error.
        grace_s = max(0.0, self._settings.drain_grace_s - (time.monotonic() - begun))
        stopping = asyncio.create_task(self._grpc.stop(grace_s))
        self._health.end_watches()
        await stopping
        await self._web.stop()
        await served.batcher.drained()
        served.batcher.close()
        served.close()
        self._log.info("drained")

    async def _shut_down(self) -> None:
        self._set_ready(False)
        self._health.end_watches()
        await self._grpc.stop(0)
        await self._web.stop()
        for runner in self._runners:
            runner.close(wait_s=1.0)


def _address(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"


async def serve(settings: Settings) -> None:
    """Run the server until SIGTERM or SIGINT has drained it.

    Raises:
        BadBundle, CannotServe: it could not start.
        RunnerLost: a run did not end.
    """
    try:
        app = App(settings)

        def on_signal(number: int) -> None:
            name = signal.Signals(number).name
            if not app.stop():
                logger().warning("second_signal", signal=name)
                os._exit(1)
            logger().info("draining", signal=name, wait_s=settings.drain_wait_s, grace_s=settings.drain_grace_s)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        await app.run()
    except (BadBundle, CannotServe) as error:
        logger().error("cannot_serve", reason=str(error))
        raise
    except RunnerLost as error:
        logger().critical("runner_lost", reason=str(error))
        raise
