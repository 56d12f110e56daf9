"""A front end's way to the executor: its queue is there, and what is known of it comes from there.

Lives on the front end's event loop. Rows of one turn of the loop go as one message. Nobody waits for an executor that has gone: every
text is told so in the moment its connection ends.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sentiment.batching.batcher import RowResult
from sentiment.batching.row_queue import NotLetIn, Pending, Reading, TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.batching.windows import RowsResult
from sentiment.errors import Broken, Expired, Refused, Unavailable
from sentiment.model.tokenizer import Windows
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import ROWS_MAX, Trace
from sentiment.serving.front_ends.frames import (
    Frames,
    Kind,
    Text,
    frame,
    frame_of,
    pack_numbers,
    pack_texts,
    parts_of,
    unpack_answers,
    unpack_failures,
    unpack_numbers,
)

GONE = "the process that has the model has gone; another takes its place"
# The executor tells a text that its deadline has come. One that it has not told so long after is given up here.
LATE_S = 0.25
# Bytes that an executor may leave unread before new texts are refused: more than a whole queue of texts takes.
UNREAD_BYTES_MAX = 2**24
# An executor that does not read is left after so long.
CLOSE_S = 1.0
# A missing executor is looked for so often.
LOOK_S = 0.05


@dataclass(slots=True, eq=False)
class FarText:
    """A text that the executor has, or gets at the end of this turn of the loop."""

    number: int
    deadline_at: float
    rows: int
    windows: bool
    tell: Callable[[TextOutcome], None]
    sent: bool = False


class FarQueue:
    """The executor's queue, from a front end. Bounded: ``rows_max`` rows are unanswered at a time."""

    def __init__(self, rows_max: int) -> None:
        self.backlog_s = 0.0
        self._rows_max = rows_max
        self._rows = 0
        self._numbers = itertools.count(1)
        self._texts: dict[int, FarText] = {}
        self._new: list[Text] = []
        self._cancelled: list[int] = []
        self._write: Callable[[bytes], None] | None = None
        self._flushing = False
        # The executor does not read: what is sent would pile up here.
        self.paused = False

    @property
    def texts(self) -> int:
        """Texts that have not been told."""
        return len(self._texts)

    @property
    def attached(self) -> bool:
        """Whether there is an executor that takes texts."""
        return self._write is not None

    def submit(
        self,
        reading: Reading,
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
    ) -> FarText:
        """Send a text; see RowQueue. Whether the queue lets it in is told later, as NotLetIn.

        Raises:
            Unavailable: there is no executor now.
            Refused: too many rows of this process are unanswered.
        """
        if self._write is None:
            raise Unavailable(GONE)
        rows = reading.rows if isinstance(reading, Windows) else (reading,)
        if self.paused:
            raise Refused("the process that has the model does not read what it is sent", self.backlog_s or LATE_S, "queue_full")
        if self._rows + len(rows) > self._rows_max:
            message = f"{self._rows} rows of this front end are unanswered; the limit is {self._rows_max}"
            raise Refused(message, self.backlog_s, "queue_full")
        text = FarText(next(self._numbers), deadline_at, len(rows), isinstance(reading, Windows), tell)
        self._texts[text.number] = text
        self._rows += text.rows
        # Of its rows all or none are told of: the executor does not know what else the call has.
        place = trace.place if trace is not None and trace.take(min(len(rows), ROWS_MAX)) else None
        self._new.append(Text(text.number, deadline_at, priority, rows, place))
        self._flush_soon()
        return text

    def cancel(self, pending: Pending) -> bool:
        """Forget a text; see RowQueue."""
        assert isinstance(pending, FarText)
        if self._take(pending.number) is None:
            return False
        if pending.sent:
            self._cancelled.append(pending.number)
            self._flush_soon()
        return True

    def attach(self, write: Callable[[bytes], None]) -> None:
        """Send texts there from now on."""
        self._write = write

    def detach(self) -> None:
        """The executor has gone, and every text that it had."""
        self._write = None
        self.paused = False
        self._new.clear()
        self._cancelled.clear()
        for number in list(self._texts):
            self._tell(number, Unavailable(GONE))

    def answered(self, body: bytes) -> None:
        """Tell the texts of an ANSWERS frame."""
        answers, self.backlog_s = unpack_answers(body)
        for number, logits, queue_s, run_s, batch_rows in answers:
            if (text := self._take(number)) is not None:
                run = queue_s, run_s, batch_rows
                _tell(text, RowsResult(logits, *run) if text.windows else RowResult(logits[0], *run))

    def failed(self, body: bytes) -> None:
        """Tell the texts of a FAILURES frame."""
        failures, self.backlog_s = unpack_failures(body)
        for number, error, let_in in failures:
            if not let_in and isinstance(error, Refused | Expired | Unavailable):
                self._tell(number, NotLetIn(error))
            else:
                self._tell(number, error)

    def end_late(self, now: float) -> None:
        """Give up the texts whose deadline has passed unnoticed by the executor."""
        for text in [text for text in self._texts.values() if text.deadline_at + LATE_S < now]:
            self.cancel(text)
            _tell(text, Expired("no answer within the deadline: the process that has the model did not notice that it passed"))

    def _tell(self, number: int, outcome: TextOutcome) -> None:
        if (text := self._take(number)) is not None:
            _tell(text, outcome)

    def _take(self, number: int) -> FarText | None:
        text = self._texts.pop(number, None)
        if text is not None:
            self._rows -= text.rows
        return text

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._write is None:
            return
        new = [text for text in self._new if text.number in self._texts]
        self._new.clear()
        for part in parts_of(new):
            try:
                packed = frame(Kind.ROWS, pack_texts(part))
            except Exception:  # somebody waits for each of them
                logger().exception("send_failed", texts=len(part))
                for text in part:
                    self._tell(text.number, Broken("internal error; the server's log has it"))
                continue
            for text in part:
                self._texts[text.number].sent = True
            self._write(packed)
        if self._cancelled:
            self._write(frame(Kind.CANCEL, pack_numbers(self._cancelled)))
            self._cancelled.clear()


def _tell(text: FarText, outcome: TextOutcome) -> None:
    try:
        text.tell(outcome)
    except Exception:  # the others of its message wait to be told too
        logger().exception("tell_failed", rows=text.rows)


class Hears(Protocol):
    """What a front end does with what the executor says."""

    def model(self, link: "Link", said: Any) -> None:  # Any: JSON
        """What is served by the executor of this link."""

    def state(self, ready: bool) -> None:
        """Whether the executor is ready; not from the moment that it has gone."""

    def counts(self) -> Any:  # Any: JSON
        """What has been counted since the last time."""


class Link(asyncio.Protocol):
    """One connection to an executor."""

    def __init__(self, name: str, pid: int, queue: FarQueue, hears: Hears) -> None:
        self.lost = asyncio.Event()
        # A connection that is taken while its process dies says nothing.
        self.met = False
        self._hello = {"name": name, "pid": pid}
        self._queue = queue
        self._hears = hears
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        # Whether texts can be read here, and whether the executor has ever been ready. Both, and it gets them.
        self._serving = False
        self._ready = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who this is."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        transport.write(frame_of(Kind.HELLO, self._hello))

    def data_received(self, data: bytes) -> None:
        """Act on what has come."""
        self.met = True
        for kind, body in self._frames.feed(data):
            self._take(kind, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell everybody who waits."""
        self._transport = None
        self._hears.state(False)
        self._queue.detach()
        self.lost.set()

    def pause_writing(self) -> None:
        """The executor does not read."""
        self._queue.paused = True

    def resume_writing(self) -> None:
        """It has read."""
        self._queue.paused = False

    def serving(self) -> None:
        """Say that texts can be read here; they are sent as soon as the executor is ready."""
        if self._transport is not None:
            self._transport.write(frame(Kind.SERVING))
            self._serving = True
            self._attach()

    async def close(self) -> None:
        """Say what has been counted, and good bye."""
        if self._transport is not None:
            transport = self._transport
            self._count(0)
            transport.close()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self.lost.wait()
            except TimeoutError:
                transport.abort()
                await self.lost.wait()

    def _attach(self) -> None:
        if self._serving and self._ready and self._transport is not None:
            self._queue.attach(self._transport.write)

    def _count(self, number: int) -> None:
        if self._transport is not None:
            self._transport.write(frame_of(Kind.COUNTS, (number, self._hears.counts())))

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.ANSWERS:
            self._queue.answered(body)
        elif kind is Kind.FAILURES:
            self._queue.failed(body)
        elif kind is Kind.ASK:
            self._count(*unpack_numbers(body))
        elif kind is Kind.STATE:
            ready = json.loads(body)["ready"]
            self._ready = self._ready or ready
            self._attach()
            self._hears.state(ready)
        elif kind is Kind.MODEL:
            self._hears.model(self, json.loads(body))


async def connect(path: Path, make: Callable[[], Link]) -> Link:
    """Connect to the executor, as soon as there is one."""
    while True:
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            _, link = await asyncio.get_running_loop().create_unix_connection(make, str(path))
            return link
        await asyncio.sleep(LOOK_S)


async def watch_deadlines(queue: FarQueue) -> None:
    """End late texts until cancelled: a text is told at its deadline even by an executor that hangs."""
    while True:
        await asyncio.sleep(LATE_S)
        queue.end_late(time.monotonic())
