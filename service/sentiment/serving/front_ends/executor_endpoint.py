"""The executor's server for front ends: takes texts, sends answers and readiness, and collects their counts.

Runs on the executor's event loop. Outcomes of one turn of the loop are sent as one frame. When a front end disconnects, its texts are
withdrawn and no others.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.batching.batcher import RowResult
from sentiment.batching.row_queue import NotLetIn, Pending, RowQueue, TextOutcome
from sentiment.batching.windows import RowsResult
from sentiment.errors import Broken, Expired, Refused, Unavailable
from sentiment.model.tokenizer import Windows
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import Tracer
from sentiment.serving.front_ends.frames import (
    Answered,
    Failed,
    Frames,
    Kind,
    Text,
    frame,
    frame_of,
    pack_answers,
    pack_failures,
    pack_numbers,
    unpack_numbers,
    unpack_texts,
)

# How long a scrape waits for a front end's counts. Late counts are part of the next scrape.
COUNTS_S = 1.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The model as announced to front ends, and the queue for their texts."""

    model_info: Mapping[str, Any]  # Any: JSON
    queue: RowQueue
    backlog_s: Callable[[], float]
    tracer: Tracer | None = None


class FrontEndServer:
    """Serves front ends on a Unix socket."""

    def __init__(self, path: Path, front_ends: int, add_counts: Callable[[Any], None]) -> None:  # Any: JSON
        """Not listening yet.

        Args:
            path: of the socket, in a folder that only this user may enter.
            front_ends: number of front ends that the server has.
            add_counts: gets the growth of a front end's metrics.
        """
        self.serving: Serving | None = None
        self.ready = False
        self.add_counts = add_counts
        self._path = path
        self._front_ends = front_ends
        self._fronts: set[FrontEndConnection] = set()
        self._asks = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the connected front ends, by name."""
        return {front.name: front.pid for front in self._fronts if front.name}

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: FrontEndConnection(self), str(self._path))
        os.chmod(self._path, 0o600)

    async def announce(self, serving: Serving) -> None:
        """Announce the model; returns once all front ends can tokenize."""
        self.serving = serving
        for front in self._fronts:
            front.announce(serving)
        while sum(front.serving for front in self._fronts) < self._front_ends:
            await self._change()

    def set_ready(self, ready: bool) -> None:
        """Send the front ends whether this process is ready."""
        self.ready = ready
        for front in self._fronts:
            front.send(frame_of(Kind.STATE, {"ready": ready}))

    async def collect(self) -> None:
        """Collect every front end's counts, for at most COUNTS_S."""
        self._asks += 1
        number, fronts = self._asks, {front for front in self._fronts if front.name}
        for front in fronts:
            front.send(frame(Kind.ASK, pack_numbers([number])))
        try:
            async with asyncio.timeout(COUNTS_S):
                while any(front.counts_received < number for front in fronts & self._fronts):
                    await self._change()
        except TimeoutError:
            logger().warning(
                "counts_missing", front_ends=sorted(front.name for front in fronts & self._fronts if front.counts_received < number)
            )

    async def wait_gone(self, timeout_s: float) -> None:
        """Wait until all front ends have disconnected, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._fronts:
                    await self._change()
        except TimeoutError:
            logger().warning("front_ends_not_gone", front_ends=sorted(self.pids), seconds=timeout_s)

    def close(self) -> None:
        """Stop listening and close the remaining connections."""
        if self._server is not None:
            self._server.close()
        for front in list(self._fronts):
            front.close()

    def connected(self, front: "FrontEndConnection") -> None:
        """A front end has connected."""
        self._fronts.add(front)
        front.send(frame_of(Kind.STATE, {"ready": self.ready}))
        if self.serving is not None:
            front.announce(self.serving)

    def disconnected(self, front: "FrontEndConnection") -> None:
        """A front end has disconnected."""
        self._fronts.discard(front)
        self.changed()

    def changed(self) -> None:
        """Wake those who wait for a change of a front end."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class FrontEndConnection(asyncio.Protocol):
    """One connected front end."""

    def __init__(self, server: FrontEndServer) -> None:
        self.name = ""
        self.pid = 0
        # Whether it can tokenize, and the number of the last ASK that it has answered.
        self.serving = False
        self.counts_received = 0
        self._server = server
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._texts: dict[int, Pending] = {}
        self._answered: list[Answered] = []
        self._failed: list[Failed] = []
        self._flushing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the front end."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames."""
        for kind, body in self._frames.feed(data):
            self._take(kind, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Withdraw the front end's texts."""
        self._transport = None
        for number in list(self._texts):
            try:
                self._cancel(number)
            except Exception:  # the other texts must be withdrawn too
                logger().exception("cancel_failed")
        self._server.disconnected(self)

    def send(self, data: bytes) -> None:
        """Write a frame; nothing if the front end is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def announce(self, serving: Serving) -> None:
        """Announce the model."""
        self.send(frame_of(Kind.MODEL, serving.model_info))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.ROWS:
            for text in unpack_texts(body):
                self._submit(text)
        elif kind is Kind.CANCEL:
            for number in unpack_numbers(body):
                self._cancel(number)
        elif kind is Kind.COUNTS:
            number, counts = json.loads(body)
            self.counts_received = max(self.counts_received, number)
            self._server.add_counts(counts)
            self._server.changed()
        elif kind is Kind.SERVING:
            self.serving = True
            self._server.changed()
        elif kind is Kind.HELLO:
            hello = json.loads(body)
            self.name, self.pid = str(hello["name"]), int(hello["pid"])

    def _submit(self, text: Text) -> None:
        serving, rows = self._server.serving, text.rows
        if serving is None:
            self._fail(Failed(text.number, Unavailable("the server is starting"), False))
            return
        reading = rows[0] if len(rows) == 1 else Windows(tuple(rows), sum(row.tokens for row in rows), False)
        try:
            tell = partial(self._on_outcome, text.number)
            trace = serving.tracer.join(text.place) if serving.tracer is not None and text.place is not None else None
            self._texts[text.number] = serving.queue.submit(reading, text.deadline_at, tell, text.priority, trace)
        except (Refused, Expired, Unavailable) as error:
            self._fail(Failed(text.number, error, False))
        except Exception:  # a caller waits for it
            logger().exception("submit_failed", rows=len(rows))
            self._fail(Failed(text.number, Broken("internal error; see the server's log"), True))

    def _cancel(self, number: int) -> None:
        pending = self._texts.pop(number, None)
        if pending is not None and self._server.serving is not None:
            self._server.serving.queue.cancel(pending)

    def _on_outcome(self, number: int, outcome: TextOutcome) -> None:
        del self._texts[number]
        if isinstance(outcome, RowResult):
            self._answered.append(Answered(number, [outcome.logits], outcome.queue_s, outcome.run_s, outcome.batch_rows))
        elif isinstance(outcome, RowsResult):
            self._answered.append(Answered(number, outcome.logits, outcome.queue_s, outcome.run_s, outcome.batch_rows))
        else:
            assert not isinstance(outcome, NotLetIn), "a queue in this process refuses in submit"
            self._failed.append(Failed(number, outcome, True))
        self._flush_soon()

    def _fail(self, failed: Failed) -> None:
        self._failed.append(failed)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        serving = self._server.serving
        backlog_s = serving.backlog_s() if serving is not None else 0.0
        if self._answered:
            self.send(frame(Kind.ANSWERS, pack_answers(self._answered, backlog_s)))
            self._answered.clear()
        if self._failed:
            self.send(frame(Kind.FAILURES, pack_failures(self._failed, backlog_s)))
            self._failed.clear()
