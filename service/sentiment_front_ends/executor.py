"""The executor: the single-process server, with texts from front ends in addition to HTTP.

Its gRPC server listens on a Unix socket, for the calls that front ends forward.
"""

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from functools import partial

from prometheus_client import CollectorRegistry

from sentiment.doors.listening import split
from sentiment.lifecycle.lifecycle import FrontEndProcesses
from sentiment.lifecycle.served_model import RunningModel
from sentiment.observability.logs import logger
from sentiment.observability.metrics import Grown
from sentiment.pipeline.queries import Query
from sentiment.serving.app import App
from sentiment.signs import Sign, shown
from sentiment_front_ends.executor_endpoint import FrontEndServer, Serving
from sentiment_front_ends.frames import Sampled
from sentiment_front_ends.handshake import Start, beat, front_ends
from sentiment_front_ends.metric_totals import Growth, Totals
from sentiment_front_ends.model_copy import copy_of

# How often to collect the front ends' counts: a front end that dies loses at most this much.
COUNTS_EVERY_S = 5.0
LOOP_BUSY = "sentiment_loop_busy_seconds_total"


class Executor(App, FrontEndProcesses):
    """The process that has the models."""

    # A service manager may signal every process, not only the supervisor. Only the supervisor limits a drain.
    second_signal_ends = False

    def __init__(self, start: Start) -> None:
        """Not listening yet; must be called in the event loop.

        Raises:
            CannotServe: a socket cannot be bound.
        """
        # Front ends stay connected: there is nothing to balance.
        own = {"grpc_listen": f"unix:{start.calls_socket}", "connection_age_max_s": 0.0}
        super().__init__(start.settings.model_copy(update=own), counts_grpc=False)
        self._start = start
        if start.settings.health_listen:
            self._ready_with["health"] = start.settings.health_listen
        for name in front_ends(start.settings):
            # Creates the series; ``Totals`` adds the front ends' counts to it.
            self._metrics.loop_busy_seconds.watch(lambda: 0.0, name)
        self._totals = Totals(self._metrics.registry, self._pids, self._metrics.begin)
        self._shown = CollectorRegistry()
        self._shown.register(self._totals)
        self._metrics.on_forget.append(self._totals.forget)
        # What they raise would close the connection, with all texts that wait behind it.
        observe = self._metrics.observing.run
        counts, sample = partial(observe, "counts", self._add_counts), partial(observe, "sample", self._take_sample)
        self._front_ends = FrontEndServer(start.rows_socket, start.settings.front_ends, counts, sample)
        self._lifecycle.front_ends = self

    async def run(self) -> None:
        """Serve as in one process, for the front ends too."""
        await self._front_ends.start()
        self._upkeep.start("collect counts", self._collect())
        self._upkeep.start("beat", self._beat())
        try:
            await super().run()
        finally:
            await self._upkeep.stop()
            self._front_ends.close()

    async def _beat(self) -> None:
        """Send beats once the model answers. Before, startup may block the event loop; it is shown to the commands of this machine."""
        with shown(Sign.STARTING, split(self._start.settings.grpc_listen)[1]):
            await self.started.wait()
        await beat()

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)
            try:
                await self._front_ends.collect()
            except Exception:  # the next collection may succeed
                logger().exception("collect_failed")

    def _add_counts(self, counts: tuple[list[Growth], dict[str, Grown]]) -> None:
        """Add what a front end's series and windows have counted."""
        series, windows = counts
        now = time.monotonic()
        self._totals.add(series)
        self._metrics.add_grown(now, windows)
        for name, labels, busy_s, _ in series:
            if name == LOOP_BUSY:
                self._lifecycle.offered.loop_busy(labels["process"], busy_s, now)

    def _take_sample(self, digest: bytes, sampled: Sampled) -> None:
        """Read a text once more that a front end has answered."""
        lifecycle = self._lifecycle
        used = next((running for running in lifecycle.running if _digest(running) == digest), None)
        if used is None:
            return
        query = Query(sampled.text, sampled.text_pair, sampled.truncation)
        if sampled.shadow and lifecycle.shadow is not None:
            lifecycle.shadow.offer(used, query, sampled.label, sampled.score, sampled.missed)
        if sampled.drift and lifecycle.hidden_drift is not None:
            lifecycle.hidden_drift.offer(used, query)

    async def begin(self, models: Collection[RunningModel], used: Collection[RunningModel]) -> None:
        """See FrontEndProcesses. Returns once all front ends accept calls."""
        await self._front_ends.begin([await self._serving(running) for running in models], [_digest(running) for running in used])

    async def add_model(self, running: RunningModel) -> None:
        """See FrontEndProcesses."""
        await self._front_ends.add(await self._serving(running))

    async def use_model(self, running: RunningModel) -> None:
        """See FrontEndProcesses."""
        await self._front_ends.use(_digest(running))

    async def remove_model(self, running: RunningModel, within_s: float) -> None:
        """See FrontEndProcesses."""
        await self._front_ends.remove(_digest(running), within_s)

    async def _serving(self, running: RunningModel) -> Serving:
        copy = await asyncio.to_thread(copy_of, running.classifier)
        return Serving(_digest(running), running.id, copy, running.queue, lambda: running.batcher.backlog_s, self._tracer)

    async def _scrape(self) -> CollectorRegistry:
        await self._front_ends.collect()
        return self._shown

    def _pids(self) -> Mapping[str, int]:
        return {"supervisor": os.getppid(), **self._front_ends.pids}

    def _grpc_address(self) -> str:
        return self._start.settings.grpc_listen

    def _set_ready(self, ready: bool) -> None:
        super()._set_ready(ready)
        self._front_ends.set_ready(ready)

    async def _wait_noticed(self) -> None:
        """If this process is broken do not wait: front ends wait for the next executor."""
        if not self._broken.is_set():
            await super()._wait_noticed()

    async def _drain_grpc(self) -> None:
        """Wait until the front ends have drained and exited. If this process is broken, they stay for the next one and get failures now."""
        if self._broken.is_set():
            for running in self._lifecycle.running:
                running.batcher.close()
        else:
            await self._front_ends.wait_gone(self._settings.drain_wait_s + self._settings.drain_grace_s)
        await self._grpc.drain(self._settings.drain_grace_s)


def _digest(running: RunningModel) -> bytes:
    return bytes.fromhex(running.classifier.bundle.digest)
