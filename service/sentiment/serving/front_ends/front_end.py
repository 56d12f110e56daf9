"""A front end: gRPC, reading texts, scoring logits. The model, its queue and everything else are the executor's.

The composition root of its process, as ``app`` is of the executor's.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sentiment.api.grpc.calls import CODE_NAMES
from sentiment.api.grpc.endpoint import GrpcSide
from sentiment.api.grpc.names import METHODS
from sentiment.errors import BadBundle
from sentiment.model.bundle import GraphSpec, load_bundle
from sentiment.model.classifier import Classifier
from sentiment.model.session import Session
from sentiment.model.tokenizer import Tokenizer
from sentiment.observability.logs import lines_dropped, logger
from sentiment.observability.metrics import Metrics
from sentiment.observability.tracing.start import make_tracer
from sentiment.security.secured import Secured
from sentiment.serving import event_loop
from sentiment.serving.front_ends.executor_client import FarQueue, Link, connect, watch_deadlines
from sentiment.serving.front_ends.forward import Forward
from sentiment.serving.front_ends.handshake import Start, beat
from sentiment.serving.front_ends.metric_totals import Counted, Counts
from sentiment.serving.pipeline import Served
from sentiment.serving.registry import Models

# Rows that a front end has at the executor at most, for each that may wait there: the executor's queue refuses, which knows what waits
# and what runs, and this is for one that does not.
ROWS_PER_QUEUE = 2


class FarSession(Session):
    """A session that is in another process: nothing can be run here."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.inputs = []

    def run(self, *_feeds: object, **_stop: object) -> npt.NDArray[np.float32]:
        """Nothing runs here."""
        raise AssertionError("a front end has no graph")


def read_bundle(said: dict[str, Any]) -> Classifier:  # Any: JSON
    """The bundle that the executor serves, without its graph. Blocks while its files are checked.

    Raises:
        BadBundle: it cannot be read, or is not the one that the executor has.
    """
    path = Path(said["path"])
    bundle = load_bundle(path)
    if bundle.digest != said["digest"]:
        raise BadBundle(f"{path}: has the digest {bundle.digest[:12]} and the executor serves {said['digest'][:12]}: it was exchanged")
    tokenizer = Tokenizer(path / "tokenizer.json", bundle.manifest.max_tokens)
    # What reads texts is what was checked, also if somebody exchanged it between the two.
    bundle.check("tokenizer.json")
    return Classifier(bundle, GraphSpec.model_validate(said["graph"]), tokenizer, FarSession(said["provider"]))


class FrontEnd:
    """A front end's life. Its readiness is the executor's, once it can read texts."""

    def __init__(self, start: Start) -> None:
        """Not listening yet; must be called in the event loop.

        Raises:
            BadSettings: traces cannot be sent as it is said, or files of TLS or tokens cannot be used.
        """
        self._start = start
        self._settings = start.settings
        self._log = logger()
        self._metrics = Metrics(METHODS, CODE_NAMES)
        loop = event_loop.running()
        self._metrics.loop_busy_seconds.watch(lambda: loop.busy_s, start.name)
        self._metrics.log_lines_dropped.watch(lines_dropped)
        self._counted = Counted(self._metrics.registry)
        self._tracer = make_tracer(self._settings.tracing, self._metrics, start.name)
        self._models = Models(self._settings.model)
        self._queue = FarQueue(ROWS_PER_QUEUE * self._settings.queue_rows_max)
        self._forward = Forward(start.calls_socket, self._models)
        self._secured = Secured(self._settings, self._metrics)
        self._grpc = GrpcSide(
            self._settings,
            self._metrics,
            self._models,
            share_port=True,
            adapt=self._forward.adapt,
            tracer=self._tracer,
            secured=self._secured,
        )
        self._served: Served | None = None
        self._link: Link | None = None
        self._draining = False
        self._executor_ready = False
        self._stop = asyncio.Event()
        self._model: asyncio.Queue[tuple[Link, Any]] = asyncio.Queue()  # Any: JSON

    async def run(self) -> None:
        """Serve until SIGTERM, then drain.

        Raises:
            BadBundle: the executor's bundle cannot be read here.
            CannotServe: the port cannot be bound.
        """
        # Repeats change nothing: the limits of a drain are the supervisor's.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        linking = asyncio.create_task(self._keep_link())
        working = {linking, *(asyncio.create_task(work) for work in self._works())}
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, *working}, return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {stopping}:
                ended.result()
            await self._drain(linking)
        finally:
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            if self._served is not None:
                self._served.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    def _works(self) -> tuple[Coroutine[Any, Any, None], ...]:  # Any: what a coroutine is sent, which is nothing
        """What goes on beside the link for as long as the process lives."""
        return self._read_models(), watch_deadlines(self._queue), self._secured.keep_fresh(), beat()

    def model(self, link: Link, said: Any) -> None:  # Any: JSON
        """The executor has a model."""
        self._model.put_nowait((link, said))

    def state(self, ready: bool) -> None:
        """The executor is ready, or not, or has gone."""
        self._executor_ready = ready
        self._show_ready()

    def counts(self) -> Counts:
        """What has been counted since the last time."""
        return self._counted.take()

    def _show_ready(self) -> None:
        self._grpc.health.set_ready(self._executor_ready and self._served is not None and not self._draining)

    async def _keep_link(self) -> None:
        """Be connected to the executor, whichever it is."""
        while True:
            self._link = await connect(self._start.rows_socket, lambda: Link(self._start.name, os.getpid(), self._queue, self))
            await self._link.lost.wait()
            if self._link.met and not self._draining:
                self._log.warning("executor_lost")

    async def _read_models(self) -> None:
        """Read what the executor serves, each time that it says so: once for each executor. The first opens the port."""
        while True:
            link, said = await self._model.get()
            if self._served is None:
                classifier = await asyncio.to_thread(read_bundle, said)
                metrics = self._metrics.model(classifier.bundle.id, [])
                self._served = Served(classifier, self._queue, metrics, self._settings.text_bytes_max, self._settings.call_rows_max)
                self._models.add(self._served)
                # What is alive now lives as long as the process: the collector need not look at it again.
                gc.collect()
                gc.freeze()
                self._grpc.bind()
                await self._grpc.start()
            elif said["digest"] != self._served.classifier.bundle.digest:
                raise BadBundle(f"another executor serves the digest {said['digest'][:12]} of {self._served.id}: it was exchanged")
            # Whichever executor is there now: to another than this one nothing has been promised.
            link.serving()
            self._show_ready()

    async def _drain(self, linking: "asyncio.Task[None]") -> None:
        """As the one process does: not ready but answering, then GOAWAY, then until everything accepted is answered."""
        self._draining = True
        self._show_ready()
        await asyncio.sleep(self._settings.drain_wait_s)
        await self._grpc.drain(self._settings.drain_grace_s)
        await self._grpc.stop()
        await self._forward.close()
        # Before the executor hears that this process has gone, and says so of itself.
        self._log.info("drained")
        linking.cancel()
        if self._link is not None:
            await self._link.close()
