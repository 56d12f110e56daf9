"""The executor's side of the front ends: takes their texts, gives answers, tells whether it is ready, asks what they have counted.

Lives on the executor's event loop. What ends in one turn of the loop goes as one message. A front end that goes takes its texts with it
and nobody else's.
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

# A front end that does not say so soon what it has counted is left out of this scrape; the next one has it.
COUNTS_S = 1.0


@dataclass(frozen=True, slots=True)
class Serving:
    """What front ends are told of the model, and where their texts go."""

    said: Mapping[str, Any]  # Any: JSON
    queue: RowQueue
    backlog_s: Callable[[], float]
    tracer: Tracer | None = None


class Desk:
    """Serves the front ends that connect to a Unix socket."""

    def __init__(self, path: Path, front_ends: int, add_counts: Callable[[Any], None]) -> None:  # Any: JSON
        """Not listening yet.

        Args:
            path: of the socket, in a folder that nobody else may enter.
            front_ends: how many there are to be.
            add_counts: gets what one has counted since it was last asked.
        """
        self.serving: Serving | None = None
        self.ready = False
        self.add_counts = add_counts
        self._path = path
        self._front_ends = front_ends
        self._fronts: set[Front] = set()
        self._asked = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def pids(self) -> dict[str, int]:
        """The connected front ends' processes by name."""
        return {front.name: front.pid for front in self._fronts if front.name}

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: Front(self), str(self._path))
        os.chmod(self._path, 0o600)

    async def introduce(self, serving: Serving) -> None:
        """Tell what is served; returns when as many front ends as there are to be can read texts."""
        self.serving = serving
        for front in self._fronts:
            front.introduce(serving)
        while sum(front.serving for front in self._fronts) < self._front_ends:
            await self._change()

    def set_ready(self, ready: bool) -> None:
        """Tell the front ends whether this process is ready."""
        self.ready = ready
        for front in self._fronts:
            front.send(frame_of(Kind.STATE, {"ready": ready}))

    async def collect(self) -> None:
        """Have every front end say what it has counted until now, if it does so in time."""
        self._asked += 1
        number, asked = self._asked, {front for front in self._fronts if front.name}
        for front in asked:
            front.send(frame(Kind.ASK, pack_numbers([number])))
        try:
            async with asyncio.timeout(COUNTS_S):
                while any(front.told < number for front in asked & self._fronts):
                    await self._change()
        except TimeoutError:
            logger().warning("counts_missing", front_ends=sorted(front.name for front in asked & self._fronts if front.told < number))

    async def left(self, timeout_s: float) -> None:
        """Wait until all front ends have gone, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._fronts:
                    await self._change()
        except TimeoutError:
            logger().warning("front_ends_stay", front_ends=sorted(self.pids), seconds=timeout_s)

    def close(self) -> None:
        """Listen no more, and end the connections that are left."""
        if self._server is not None:
            self._server.close()
        for front in list(self._fronts):
            front.close()

    def enter(self, front: "Front") -> None:
        """One has connected."""
        self._fronts.add(front)
        front.send(frame_of(Kind.STATE, {"ready": self.ready}))
        if self.serving is not None:
            front.introduce(self.serving)

    def leave(self, front: "Front") -> None:
        """One has gone."""
        self._fronts.discard(front)
        self.changed()

    def changed(self) -> None:
        """Something that somebody may wait for has come about a front end."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Front(asyncio.Protocol):
    """One connected front end."""

    def __init__(self, desk: Desk) -> None:
        self.name = ""
        self.pid = 0
        # Whether it can read texts, and the number of the last question for its counts that it has answered.
        self.serving = False
        self.told = 0
        self._desk = desk
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._texts: dict[int, Pending] = {}
        self._answered: list[Answered] = []
        self._failed: list[Failed] = []
        self._flushing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._desk.enter(self)

    def data_received(self, data: bytes) -> None:
        """Act on what has come."""
        for kind, body in self._frames.feed(data):
            self._take(kind, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Withdraw its texts: nobody waits for them any more."""
        self._transport = None
        for number in list(self._texts):
            try:
                self._cancel(number)
            except Exception:  # the others are to be withdrawn too
                logger().exception("cancel_failed")
        self._desk.leave(self)

    def send(self, data: bytes) -> None:
        """Write a frame, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def introduce(self, serving: Serving) -> None:
        """Tell what is served."""
        self.send(frame_of(Kind.MODEL, serving.said))

    def close(self) -> None:
        """End the connection."""
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
            self.told = max(self.told, number)
            self._desk.add_counts(counts)
            self._desk.changed()
        elif kind is Kind.SERVING:
            self.serving = True
            self._desk.changed()
        elif kind is Kind.HELLO:
            said = json.loads(body)
            self.name, self.pid = str(said["name"]), int(said["pid"])

    def _submit(self, text: Text) -> None:
        serving, rows = self._desk.serving, text.rows
        if serving is None:
            self._fail(Failed(text.number, Unavailable("the server is starting"), False))
            return
        reading = rows[0] if len(rows) == 1 else Windows(tuple(rows), sum(row.tokens for row in rows), False)
        try:
            tell = partial(self._told, text.number)
            trace = serving.tracer.join(text.place) if serving.tracer is not None and text.place is not None else None
            self._texts[text.number] = serving.queue.submit(reading, text.deadline_at, tell, text.priority, trace)
        except (Refused, Expired, Unavailable) as error:
            self._fail(Failed(text.number, error, False))
        except Exception:  # somebody waits for it
            logger().exception("submit_failed", rows=len(rows))
            self._fail(Failed(text.number, Broken("internal error; the server's log has it"), True))

    def _cancel(self, number: int) -> None:
        pending = self._texts.pop(number, None)
        if pending is not None and self._desk.serving is not None:
            self._desk.serving.queue.cancel(pending)

    def _told(self, number: int, outcome: TextOutcome) -> None:
        del self._texts[number]
        if isinstance(outcome, RowResult):
            self._answered.append(Answered(number, [outcome.logits], outcome.queue_s, outcome.run_s, outcome.batch_rows))
        elif isinstance(outcome, RowsResult):
            self._answered.append(Answered(number, outcome.logits, outcome.queue_s, outcome.run_s, outcome.batch_rows))
        else:
            assert not isinstance(outcome, NotLetIn), "the queue is here"
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
        serving = self._desk.serving
        backlog_s = serving.backlog_s() if serving is not None else 0.0
        if self._answered:
            self.send(frame(Kind.ANSWERS, pack_answers(self._answered, backlog_s)))
            self._answered.clear()
        if self._failed:
            self.send(frame(Kind.FAILURES, pack_failures(self._failed, backlog_s)))
            self._failed.clear()
