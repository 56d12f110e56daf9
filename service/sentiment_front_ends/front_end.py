"""A front end: serves gRPC, tokenizes texts and scores logits. Everything else (graphs, queues, HTTP) is the executor's.

The composition root of its process, as ``app`` is for the executor.
"""

import asyncio
import gc
import os
import random
from collections import Counter

from sentiment.call.calls import CODE_NAMES
from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc.endpoint import GrpcSide
from sentiment.health_check import DRAINING, WAITING
from sentiment.lifecycle.registry import Models
from sentiment.model.classifier import Classifier
from sentiment.observability.logs import lines_dropped, logger
from sentiment.observability.metrics import Grown, Metrics
from sentiment.observability.tracing.start import make_tracer
from sentiment.pipeline.after_answer import Told
from sentiment.pipeline.queries import TextLimits
from sentiment.pipeline.served import Served
from sentiment.security.secured import Secured
from sentiment.serving import event_loop, signals
from sentiment.serving.journaling import journal_of
from sentiment.serving.memory import keep_small
from sentiment.serving.upkeep import Upkeep
from sentiment_front_ends.executor_client import Link, RemoteQueue, connect, watch_deadlines
from sentiment_front_ends.forward import Forward
from sentiment_front_ends.frames import Listing, Sampled
from sentiment_front_ends.handshake import Start, beat
from sentiment_front_ends.metric_totals import Counted, Growth
from sentiment_front_ends.model_copy import classifier_of

# Max unanswered rows of a front end and model, as a multiple of the executor's queue. Normally the executor's queue refuses first; this is
# the limit if it does not.
ROWS_PER_QUEUE = 2
# How often to look whether the calls of models that were taken off the list have ended.
DROP_S = 0.25


class FrontEnd:
    """A front end's process. It is ready when it can tokenize and the executor is ready."""

    def __init__(self, start: Start) -> None:
        """Not listening yet; must be called in the event loop.

        Raises:
            BadSettings: the tracing variables are invalid, or TLS or token files or the journal's folder cannot be used.
        """
        self._start = start
        self._settings = start.settings
        self._log = logger()
        self._metrics = Metrics(CODE_NAMES)
        loop = event_loop.running()
        self._metrics.loop_busy_seconds.watch(lambda: loop.busy_s, start.name)
        self._metrics.log_lines_dropped.watch(lines_dropped)
        self._counted = Counted(self._metrics.registry)
        self._tracer = make_tracer(self._settings.tracing, self._metrics, start.name)
        self._journal = journal_of(self._settings, self._metrics, start.name)
        self._models = Models(self._settings.model)
        self._metrics.on_forget.append(self._counted.forget)
        # The models that calls use, and their queues, by digest. New calls may use those that are listed.
        self._held: dict[bytes, Served] = {}
        self._queues: dict[bytes, RemoteQueue] = {}
        self._listed: list[bytes] = []
        self._forward = Forward(start.calls_socket, self._models)
        self._secured = Secured(self._settings, self._metrics)
        self._requests = RequestBytes(self._settings.request_bytes_max)
        self._grpc = GrpcSide(
            self._settings,
            self._metrics,
            self._models,
            share_port=True,
            adapt=self._forward.adapt,
            tracer=self._tracer,
            secured=self._secured,
            busy_share=loop.busy_share,
            requests=self._requests,
        )
        self._opened = False
        self._link: Link | None = None
        # Texts for shadow scoring that could not be sent, by the digest of the model that answered them.
        self._missed: Counter[bytes] = Counter()
        self._draining = False
        self._executor_ready = False
        self._stop = asyncio.Event()
        # Set when a task has ended that this process needs.
        self._broken = asyncio.Event()
        self._upkeep = Upkeep(self._broken)
        self._listings: asyncio.Queue[tuple[Link, Listing, dict[bytes, bytes]]] = asyncio.Queue()

    async def run(self) -> None:
        """Serve until SIGTERM, then drain.

        Raises:
            CannotServe: the port cannot be bound.
            TaskEnded: a task that the process needs has ended; all accepted calls were answered.
        """
        # Repeated signals change nothing: the supervisor limits a drain.
        signals.handle(lambda _: self._stop.set(), self._secured.reload)
        linking = self._upkeep.start("link", self._keep_link())
        self._upkeep.start("follow models", self._follow_models())
        self._upkeep.start("watch deadlines", watch_deadlines(self._queues))
        self._upkeep.start("reload files", self._secured.keep_fresh())
        self._upkeep.start("give memory back", keep_small())
        self._upkeep.start("beat", beat())
        ends = {asyncio.create_task(self._stop.wait()), asyncio.create_task(self._broken.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._grpc.health.set_alive(not self._broken.is_set())
            if self._opened or self._stop.is_set():
                await self._drain(linking)
            self._upkeep.check()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.wait(ends)
            await self._upkeep.stop()
            for served in self._held.values():
                served.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)
            if self._journal is not None:
                await asyncio.to_thread(self._journal.close)

    def models(self, link: Link, listing: Listing, copies: dict[bytes, bytes]) -> None:
        """See LinkListener."""
        self._listings.put_nowait((link, listing, copies))

    def state(self, ready: bool) -> None:
        """See LinkListener."""
        self._executor_ready = ready
        self._show_ready()

    def counts(self) -> tuple[list[Growth], dict[str, Grown]]:
        """See LinkListener."""
        observe = self._metrics.observing.run
        return observe("counts", self._counted.take) or [], observe("counts", self._metrics.grown) or {}

    def _show_ready(self) -> None:
        self._grpc.health.set_ready(self._executor_ready and self._opened and not self._draining, DRAINING if self._draining else WAITING)

    async def _keep_link(self) -> None:
        """Stay connected to the current executor."""
        while True:
            self._link = await connect(self._start.rows_socket, lambda: Link(self._start.name, os.getpid(), self._queues, self))
            await self._link.lost.wait()
            if self._link.met and not self._draining:
                self._log.warning("executor_lost")

    async def _follow_models(self) -> None:
        """Follow the lists of each new executor, and drop models that no call uses any more. The first list opens the port."""
        while True:
            try:
                async with asyncio.timeout(DROP_S):
                    link, listing, copies = await self._listings.get()
            except TimeoutError:
                self._drop_unused()
                continue
            for digest in listing.models:
                if digest not in self._held:
                    self._hold(digest, await asyncio.to_thread(classifier_of, copies[digest]))
            # They have megabytes, and the next list may be far away.
            copies.clear()
            self._list(listing)
            if not self._opened:
                # Objects that exist now live as long as the process, so the garbage collector can skip them.
                gc.collect()
                gc.freeze()
                self._grpc.bind_probes()
                self._grpc.port.bind()
                await self._grpc.start_probes()
                await self._grpc.port.start()
                self._opened = True
            # Only to the link of this list: a newer executor has to send its own first.
            link.follow(listing.revision, self._held)
            self._show_ready()

    def _hold(self, digest: bytes, classifier: Classifier) -> None:
        settings = self._settings
        queue = self._queues[digest] = RemoteQueue(digest, ROWS_PER_QUEUE * settings.queue_rows_max)
        manifest = classifier.manifest
        metrics = self._metrics.model(classifier.bundle.id, [], manifest.labels, manifest.signals)
        limits = TextLimits(settings.text_bytes_max, settings.sentences_max, settings.targets_max)
        served = self._held[digest] = Served(classifier, queue, metrics, limits, settings.call_rows_max, journal=self._journal)
        served.samples = [self._sample] if settings.shadow_share or settings.hidden_drift_share else []

    def _sample(self, served: Served, told: Told) -> None:
        """Send an answered text to the executor, if it is in a sample and there is something to compare it with."""
        settings, query, scored = self._settings, told.query, told.scored
        # The other version reads in full.
        shadow = not told.early and random.random() < settings.shadow_share and self._models.beside(served) is not None  # noqa: S311  # a sample, not a secret
        drift = random.random() < settings.hidden_drift_share and served.classifier.manifest.hidden_layer is not None  # noqa: S311
        if not shadow and not drift:
            return
        digest = bytes.fromhex(served.classifier.bundle.digest)
        missed = self._missed.pop(digest, 0) if shadow else 0
        sampled = Sampled(query.text, query.text_pair, query.truncation, scored.label, scored.score, shadow, drift, missed)
        if (self._link is None or not self._link.sample(digest, sampled)) and shadow:
            self._missed[digest] = missed + 1

    def _list(self, listing: Listing) -> None:
        """Let new calls use these models. Those that have begun keep theirs."""
        self._listed = listing.models
        self._models.follow([self._held[digest] for digest in listing.models], [self._held[digest] for digest in listing.in_use])

    def _drop_unused(self) -> None:
        """Drop the models that are not listed and that no call uses, and tell the executor."""
        unused = [digest for digest in self._held if digest not in self._listed]
        unused = [digest for digest in unused if not self._held[digest].users and not self._queues[digest].texts]
        for digest in unused:
            served = self._held.pop(digest)
            self._queues.pop(digest).detach()
            del self._missed[digest]
            served.close()
            # After a new start the executor may have another model of this id.
            if all(other.id != served.id for other in self._held.values()):
                served.metrics.forget()
        if unused and self._link is not None:
            self._link.hold(self._held)

    async def _drain(self, linking: "asyncio.Task[None]") -> None:
        """Report not ready but keep answering; then send GOAWAY and answer all accepted requests."""
        self._draining = True
        self._show_ready()
        await asyncio.sleep(self._settings.drain_wait_s)
        await self._grpc.drain(self._settings.drain_grace_s)
        await self._grpc.stop()
        await self._forward.close()
        # Logged before the link closes, so that the executor's "drained" comes last.
        self._log.info("drained")
        await self._upkeep.stop(linking)
        if self._link is not None:
            await self._link.close()
