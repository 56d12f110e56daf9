"""A front end: serves gRPC, tokenizes texts and scores logits. Everything else (model, queue, HTTP) is the executor's.

The composition root of its process, as ``app`` is for the executor.
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
from sentiment.serving.front_ends.executor_client import Link, RemoteQueue, connect, watch_deadlines
from sentiment.serving.front_ends.forward import Forward
from sentiment.serving.front_ends.handshake import Start, beat
from sentiment.serving.front_ends.metric_totals import Counted, Counts
from sentiment.serving.pipeline import Served
from sentiment.serving.registry import Models

# Max unanswered rows of a front end, as a multiple of the executor's queue. Normally the executor's queue refuses first; this is the limit
# if it does not.
ROWS_PER_QUEUE = 2


class RemoteSession(Session):
    """Stands for the executor's session; cannot run anything."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.inputs = []

    def run(self, *_feeds: object, **_stop: object) -> npt.NDArray[np.float32]:
        """Always raises AssertionError."""
        raise AssertionError("a front end has no graph to run")


def read_bundle(model_info: dict[str, Any]) -> Classifier:  # Any: JSON
    """Load the executor's bundle without its graph. Blocks while the files are checked.

    Raises:
        BadBundle: it cannot be read, or is not the executor's.
    """
    path = Path(model_info["path"])
    bundle = load_bundle(path)
    if bundle.digest != model_info["digest"]:
        raise BadBundle(
            f"{path}: has the digest {bundle.digest[:12]}, but the executor serves {model_info['digest'][:12]}: the files were replaced"
        )
    tokenizer = Tokenizer(path / "tokenizer.json", bundle.manifest.max_tokens)
    # Check the file again after loading it, in case it was replaced in between.
    bundle.check("tokenizer.json")
    return Classifier(bundle, GraphSpec.model_validate(model_info["graph"]), tokenizer, RemoteSession(model_info["provider"]))


class FrontEnd:
    """A front end's process. It is ready when it can tokenize and the executor is ready."""

    def __init__(self, start: Start) -> None:
        """Not listening yet; must be called in the event loop.

        Raises:
            BadSettings: the tracing variables are invalid, or TLS or token files cannot be used.
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
        self._queue = RemoteQueue(ROWS_PER_QUEUE * self._settings.queue_rows_max)
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
        # Repeated signals change nothing: the supervisor limits a drain.
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

    def _works(self) -> tuple[Coroutine[Any, Any, None], ...]:  # Any: the type that a coroutine is sent, which is unused
        """Background work besides the link, until the process ends."""
        return self._read_models(), watch_deadlines(self._queue), self._secured.keep_fresh(), beat()

    def model(self, link: Link, model_info: Any) -> None:  # Any: JSON
        """See LinkListener."""
        self._model.put_nowait((link, model_info))

    def state(self, ready: bool) -> None:
        """See LinkListener."""
        self._executor_ready = ready
        self._show_ready()

    def counts(self) -> Counts:
        """See LinkListener."""
        return self._counted.take()

    def _show_ready(self) -> None:
        self._grpc.health.set_ready(self._executor_ready and self._served is not None and not self._draining)

    async def _keep_link(self) -> None:
        """Stay connected to the current executor."""
        while True:
            self._link = await connect(self._start.rows_socket, lambda: Link(self._start.name, os.getpid(), self._queue, self))
            await self._link.lost.wait()
            if self._link.met and not self._draining:
                self._log.warning("executor_lost")

    async def _read_models(self) -> None:
        """Load the model that each new executor announces. The first one opens the port."""
        while True:
            link, model_info = await self._model.get()
            if self._served is None:
                classifier = await asyncio.to_thread(read_bundle, model_info)
                metrics = self._metrics.model(classifier.bundle.id, [])
                self._served = Served(classifier, self._queue, metrics, self._settings.text_bytes_max, self._settings.call_rows_max)
                self._models.add(self._served)
                # Objects that exist now live as long as the process, so the garbage collector can skip them.
                gc.collect()
                gc.freeze()
                self._grpc.bind()
                await self._grpc.start()
            elif model_info["digest"] != self._served.classifier.bundle.digest:
                raise BadBundle(f"{self._served.id}: a new executor serves the digest {model_info['digest'][:12]}: the files were replaced")
            # Only to the link that announced the model: a newer executor has to announce its own first.
            link.serving()
            self._show_ready()

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
        linking.cancel()
        if self._link is not None:
            await self._link.close()
