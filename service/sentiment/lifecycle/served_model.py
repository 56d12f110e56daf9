"""A model that runs in this process: its queue, runners and explanations, and how they are released."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sentiment.batching.batcher import Batcher
from sentiment.batching.known import Known
from sentiment.batching.offered import OfferedLoad
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.telemetry import BatchTelemetry
from sentiment.batching.text import Waiting
from sentiment.explain.engine import Explainer
from sentiment.explain.queue import Explaining, ExplainLimits
from sentiment.lifecycle.loading import Loaded
from sentiment.lifecycle.warm_up import keep_costs
from sentiment.model.bundle import FileSpec
from sentiment.model.gpu.device_session import providers_of
from sentiment.model.gpu.devices import CPU
from sentiment.model.lease import InUse
from sentiment.observability.journal import Journal
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.pipeline.queries import TextLimits
from sentiment.pipeline.served import Served
from sentiment.settings import Settings

# A model counts as busy this long after its last text.
CLASSIFIES_S = 1.0


class RunningModel(Served):
    """A model that runs in this process. It answers the requests that began with it, even if another version is put to use."""

    def __init__(
        self,
        loaded: Loaded,
        settings: Settings,
        metrics: Metrics,
        tracer: Tracer | None,
        broken: asyncio.Event,
        busy: Callable[[], bool],
        busy_share: Callable[[], float],
        offered: OfferedLoad,
        journal: Journal | None,
        weights: Mapping[int, float],
    ) -> None:
        """Create a model's queue, metrics and explanations. Call it in the event loop that serves it.

        Args:
            loaded: the model. Its runners are owned from here on.
            settings: of the server.
            metrics: counts the model's requests.
            tracer: traces sampled requests; None without tracing.
            broken: set when a runner is lost.
            busy: whether this process is classifying texts.
            busy_share: how busy the event loop is, 0 to 1.
            offered: the load of this process.
            journal: keeps answers; None for none.
            weights: of callers, by number, as of now.
        """
        classifier, runners, bundle = loaded.classifier, loaded.runners, loaded.classifier.bundle
        manifest = classifier.manifest
        hidden = manifest.hidden_signals if settings.hidden_drift_share else ()
        if settings.hidden_drift_share and not hidden:
            logger().warning("no_hidden_drift", model=bundle.id, reason="the bundle's references have no hidden states")
        counted = metrics.model(bundle.id, [runner.name for runner in runners], manifest.labels, manifest.signals, hidden)
        scheduler: Scheduler[Waiting] = Scheduler(
            loaded.cost,
            loaded.limits,
            len(runners),
            settings.queue_rows_max,
            manifest.max_tokens,
            settings.bulk_share,
            loaded.layout,
            settings.latency_objective_s,
            classifier.session.width,
            weights,
        )
        on_device = loaded.devices != (CPU,)
        known = Known(settings.answer_cache_bytes) if settings.answer_cache_bytes else None
        telemetry = BatchTelemetry(counted, tracer)
        self.batcher = batcher = Batcher(classifier, scheduler, runners, telemetry, busy_share, on_device, known=known, offered=offered)
        batcher.broken = broken
        counted.watch_known(lambda: 0 if known is None else known.bytes)
        counted.watch_queue(lambda: scheduler.rows_waiting, lambda: batcher.backlog_s, lambda: loaded.cost.speed)
        counted.describe(
            size_of(manifest.files),
            manifest.expected_accuracy_error,
            name=manifest.name,
            version=str(manifest.version),
            digest=bundle.digest,
            precision=classifier.graph.precision,
            provider=classifier.session.provider,
        )
        explaining = None
        if settings.explain:
            of_explaining = ExplainLimits(settings.explain_calls_max, settings.explain_bytes_max)
            providers = providers_of(loaded.devices[0]) if settings.explain_on == "device" and on_device else ()
            share = settings.explain_share
            explainer = Explainer(loaded.explained, providers=providers)
            explaining = Explaining(explainer, counted, of_explaining, lambda: share if busy() else 1.0)
        limits = TextLimits(settings.text_bytes_max, settings.sentences_max, settings.targets_max)
        super().__init__(classifier, batcher, counted, limits, settings.call_rows_max, explaining, journal)
        self.loaded = loaded
        # Ends the audits of adaptive effort, if there are any.
        self.end_audit: Callable[[], None] = lambda: None
        self._cache = Path(settings.cache_dir) if settings.cache_dir else None

    @property
    def size(self) -> int:
        """Bytes of its bundle's files."""
        return size_of(self.classifier.manifest.files)

    async def unused(self) -> None:
        """Wait until all its requests have ended. Bounded if no new ones begin, because all have deadlines."""
        readers = self.explaining.readers if self.explaining is not None else InUse()
        scheduler = self.batcher.scheduler
        while self.users or readers or scheduler.rows_waiting or scheduler.rows_running:
            await self.users.over()
            await readers.over()
            await self.batcher.drained()

    async def keep_costs(self) -> None:
        """Write the costs learned from its batches to the cache, if there is one."""
        if self._cache is not None:
            await asyncio.to_thread(keep_costs, self._cache, self.classifier, self.batcher.scheduler.cost)

    def end(self) -> None:
        """Take no more rows, and end the threads that tokenize and explain."""
        self.batcher.close()
        self.close()

    async def forget_graph(self) -> None:
        """Unload the explain graph, most of the memory of a model that is only kept. Never raises."""
        try:
            if self.explaining is not None:
                await asyncio.to_thread(self.explaining.explainer.unload)
        except Exception:  # must not affect the models that serve
            logger().exception("explain_graph_not_unloaded", model=self.id)

    async def leave(self, within_s: float) -> None:
        """Wait for its requests, at most ``within_s`` seconds, then release its memory, whatever went wrong."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.unused()
            await self.keep_costs()
        finally:
            await self.release()

    def close_runners(self) -> None:
        """Stop the runners after their current batch. Blocks meanwhile, for a short time at most."""
        for runner in self.loaded.runners:
            runner.close()

    async def release(self) -> None:
        """Release its memory, even if references remain. No request may be using it."""
        self.batcher.close()
        if self.explaining is not None:
            self.explaining.withdraw_all()
        await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        # In a thread: an explanation's run whose caller has gone may still take a while.
        self.close()
        self.close_runners()
        own = [runner.classifier for runner in self.loaded.runners if runner.classifier is not None]
        for session in {classifier.session for classifier in (self.classifier, self.loaded.explained, *own)}:
            session.close()
        if self.explaining is not None:
            self.explaining.explainer.unload(for_good=True)


def size_of(files: Mapping[str, FileSpec]) -> int:
    """Total bytes of a manifest's files."""
    return sum(spec.bytes for spec in files.values())


def fits(settings: Settings, others: Collection[RunningModel], size: int) -> bool:
    """Whether a model of this size fits beside the others."""
    limit = settings.models_bytes_max
    return len(others) < settings.models_max and (not limit or sum(running.size for running in others) + size <= limit)


def no_room(settings: Settings, loaded: Collection[RunningModel], size: int) -> str:
    """The message for a model that does not fit even after kept models are unloaded."""
    held = f"{len(loaded)} models with {sum(running.size for running in loaded)} bytes are loaded; this one has {size} bytes"
    limits = f"models_max = {settings.models_max} and models_bytes_max = {settings.models_bytes_max}"
    return f"{held}; the limits are {limits}: unload a model that is not the default, or raise them"


def classifies(batcher: Batcher) -> bool:
    """Whether this batcher is classifying texts. Thread-safe."""
    return batcher.idle_s < CLASSIFIES_S
