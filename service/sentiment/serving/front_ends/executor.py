"""The executor: the server as it is in one process, whose texts come from front ends besides HTTP.

Its own gRPC listens on a Unix socket, for the calls that front ends hand on.
"""

import asyncio
import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from sentiment.observability.logs import logger
from sentiment.serving.app import App
from sentiment.serving.front_ends.executor_endpoint import Desk, Serving
from sentiment.serving.front_ends.handshake import Start, beat, front_ends
from sentiment.serving.front_ends.metric_totals import Totals
from sentiment.serving.lifecycle.served_model import Hosted

# Front ends are asked so often what they have counted, that one that dies loses no more.
COUNTS_EVERY_S = 5.0


class Executor(App):
    """The process that has the model."""

    # A service manager may tell every process to end besides the supervisor; the limits of a drain are the supervisor's.
    second_signal_ends = False

    def __init__(self, start: Start) -> None:
        """Not listening yet; must be called in the event loop.

        Raises:
            CannotServe: a socket cannot be bound.
        """
        # Front ends stay connected: nothing is balanced here.
        own = {"grpc_listen": f"unix:{start.calls_socket}", "connection_age_max_s": 0.0}
        super().__init__(start.settings.model_copy(update=own), counts_grpc=False)
        self._start = start
        if start.settings.health_listen:
            self._ready_with["health"] = start.settings.health_listen
        for name in front_ends(start.settings):
            # To what it shows here is added what they tell.
            self._metrics.loop_busy_seconds.watch(lambda: 0.0, name)
        self._totals = Totals(self._metrics.registry, self._pids)
        self._shown = CollectorRegistry()
        self._shown.register(self._totals)
        self._desk = Desk(start.rows_socket, start.settings.front_ends, self._totals.add)

    async def run(self) -> None:
        """As in one process."""
        await self._desk.start()
        beside = {asyncio.create_task(self._collect()), asyncio.create_task(self._beat())}
        try:
            await super().run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            self._desk.close()

    async def _beat(self) -> None:
        """From the moment that the model answers: what is still to come of a start may hold the event loop."""
        await self.started.wait()
        await beat()

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(COUNTS_EVERY_S)
            try:
                await self._desk.collect()
            except Exception:  # whatever it was, the next look may find counts
                logger().exception("collect_failed")

    async def _load(self) -> Hosted:
        """Load the model, and wait until the front ends can read texts."""
        served = await super()._load()
        bundle, graph = served.classifier.bundle, served.classifier.graph
        said = {
            "path": str(bundle.path.absolute()),
            "digest": bundle.digest,
            "graph": graph.model_dump(mode="json"),
            "provider": served.classifier.session.provider,
        }
        await self._desk.introduce(Serving(said, served.queue, lambda: served.batcher.backlog_s, self._tracer))
        return served

    async def _scrape(self) -> CollectorRegistry:
        await self._desk.collect()
        return self._shown

    def _pids(self) -> Mapping[str, int]:
        return {"supervisor": os.getppid(), **self._desk.pids}

    def _grpc_address(self) -> str:
        return self._start.settings.grpc_listen

    def _set_ready(self, ready: bool) -> None:
        super()._set_ready(ready)
        self._desk.set_ready(ready)

    async def _still_answer(self, served: Hosted) -> None:
        """Until the front ends have drained and gone. If a runner is lost they stay, for the next executor, and must hear at once."""
        if served.batcher.broken.is_set():
            served.batcher.close()
        else:
            await self._desk.left(self._settings.drain_wait_s + self._settings.drain_grace_s)
