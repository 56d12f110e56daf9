"""A model that runs in this process: its queue, its runners, its explanations, and their end once nobody needs it any more."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sentiment.batching.batcher import Batcher, Waiting
from sentiment.batching.row_queue import HereQueue, Pending
from sentiment.batching.scheduler import Scheduler
from sentiment.explain.engine import Explainer
from sentiment.explain.queue import Explaining, ExplainLimits
from sentiment.model.bundle import FileSpec
from sentiment.model.lease import InUse
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Metrics, ModelMetrics
from sentiment.observability.tracing.trace import Tracer
from sentiment.serving.batch_telemetry import Watcher
from sentiment.serving.lifecycle.loading import Loaded
from sentiment.serving.lifecycle.warm_up import keep_costs
from sentiment.serving.pipeline import Answer, Outcome, Served, Tell
from sentiment.serving.queries import Query
from sentiment.settings import Settings

# Texts are being classified if one was so shortly ago.
CLASSIFIES_S = 1.0
# For a runner that has nothing to do.
RUNNER_WAIT_S = 1.0


class Hosted(Served):
    """A model that runs in this process. Requests that began with it are answered by it, whatever its name means meanwhile."""

    def __init__(self, loaded: Loaded, batcher: Batcher, metrics: ModelMetrics, settings: Settings, explaining: Explaining | None) -> None:
        super().__init__(loaded.classifier, HereQueue(batcher), metrics, settings.text_bytes_max, settings.call_rows_max, explaining)
        self.batcher = batcher
        self.loaded = loaded
        self._use = InUse()
        self._cache = Path(settings.cache_dir) if settings.cache_dir else None

    @property
    def size(self) -> int:
        """Bytes of its bundle's files."""
        return size_of(self.classifier.manifest.files)

    async def classify(self, query: Query, arrived_at: float, deadline_at: float) -> Answer:
        """As Served does."""
        with self._use:
            return await super().classify(query, arrived_at, deadline_at)

    async def classify_many(self, *asked: Any, **how: Any) -> list[Outcome]:  # Any: what Served takes
        """As Served does."""
        with self._use:
            return await super().classify_many(*asked, **how)

    async def begin(self, query: Query, arrived_at: float, deadline_at: float, tell: Tell) -> Pending:
        """As Served does."""
        with self._use:
            return await super().begin(query, arrived_at, deadline_at, tell)

    async def unused(self) -> None:
        """Wait until nothing that began with it is under way. Bounded if nothing new begins, because all of it has deadlines."""
        readers = self.explaining.readers if self.explaining is not None else InUse()
        scheduler = self.batcher.scheduler
        while self._use or readers or scheduler.rows_waiting or scheduler.rows_running:
            await self._use.over()
            await readers.over()
            await self.batcher.drained()

    async def keep_costs(self) -> None:
        """Keep what its batches have taught, if the settings say so."""
        if self._cache is not None:
            await asyncio.to_thread(keep_costs, self._cache, self.classifier, self.batcher.scheduler.cost)

    def end(self) -> None:
        """Take nothing more and end the threads that read texts and explain."""
        self.batcher.close()
        self.close()

    async def forget_graph(self) -> None:
        """Give the explain graph back: the largest part of its memory, for one that nobody needs soon. Raises nothing."""
        try:
            if self.explaining is not None:
                await asyncio.to_thread(self.explaining.unload)
        except Exception:  # what serves does not bear it
            logger().exception("explain_graph_kept", model=self.id)

    async def leave(self, within_s: float) -> None:
        """Let what began with it be answered, for at most ``within_s`` seconds, then give its memory back, whatever went wrong."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.unused()
            await self.keep_costs()
        finally:
            await self.release()

    def close_runners(self) -> None:
        """End the runners after what they run. Blocks, if that takes long."""
        for runner in self.loaded.runners:
            runner.close(RUNNER_WAIT_S)

    async def release(self) -> None:
        """End it and give its memory back, whoever holds a reference still. Nothing is under way with it."""
        self.batcher.close()
        if self.explaining is not None:
            self.explaining.withdraw_all()
        await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        # A run of an explanation that nobody waits for may last a while yet.
        self.close()
        self.close_runners()
        self.classifier.session.close()
        self.loaded.explained.session.close()
        if self.explaining is not None:
            self.explaining.unload(for_good=True)


def size_of(files: Mapping[str, FileSpec]) -> int:
    """Bytes of the files of a manifest."""
    return sum(spec.bytes for spec in files.values())


def fits(settings: Settings, others: Collection[Hosted], size: int) -> bool:
    """Whether there is room for a model of this size beside these others."""
    limit = settings.models_bytes_max
    return len(others) < settings.models_max and (not limit or sum(hosted.size for hosted in others) + size <= limit)


def no_room(settings: Settings, loaded: Collection[Hosted], size: int) -> str:
    """Why a model of this size cannot be loaded, whatever is unloaded of what may be."""
    held = f"{len(loaded)} models with {sum(hosted.size for hosted in loaded)} bytes are loaded and too few of them are only kept"
    limits = f"models_max = {settings.models_max} and models_bytes_max = {settings.models_bytes_max}"
    return f"{held}; this one has {size} bytes; the limits are {limits}: unload one"


def make_served(
    loaded: Loaded,
    settings: Settings,
    metrics: Metrics,
    tracer: Tracer | None = None,
    broken: asyncio.Event | None = None,
    busy: Callable[[], bool] | None = None,
) -> Hosted:
    """Put a loaded model behind its queue; must be called in the event loop that serves it.

    Args:
        loaded: the model, whose runners it takes over.
        settings: of the server.
        metrics: where it is counted, from now on.
        tracer: tells of sampled requests.
        broken: set when a runner is lost; None: one of its own.
        busy: whether texts are classified now, in this process; None: by this model.
    """
    classifier, runners = loaded.classifier, loaded.runners
    counted = metrics.model(classifier.bundle.id, [runner.name for runner in runners])
    scheduler: Scheduler[Waiting] = Scheduler(
        loaded.cost,
        loaded.limits,
        len(runners),
        settings.queue_rows_max,
        classifier.manifest.max_tokens,
        settings.bulk_share,
        loaded.layout,
    )
    batcher = Batcher(classifier, scheduler, runners, Watcher(counted, tracer))
    batcher.broken = broken or batcher.broken
    counted.watch_queue(lambda: scheduler.rows_waiting, lambda: batcher.backlog_s, lambda: loaded.cost.speed)
    bundle = classifier.bundle
    counted.describe(
        size_of(bundle.manifest.files),
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        precision=classifier.graph.precision,
        provider=classifier.session.provider,
    )
    explaining = None
    if settings.explain:
        limits = ExplainLimits(settings.explain_calls_max, settings.explain_bytes_max)
        share, others = settings.explain_share, busy or (lambda: classifies(batcher))
        explaining = Explaining(Explainer(loaded.explained), counted, limits, lambda: share if others() else 1.0)
    return Hosted(loaded, batcher, counted, settings, explaining)


def classifies(batcher: Batcher) -> bool:
    """Whether texts are being classified there; from any thread."""
    return batcher.idle_s < CLASSIFIES_S
