"""A front end's client of the executor, which has the queues.

Runs on the front end's event loop. Rows of one turn of the loop are sent as one frame. When the connection ends, every unanswered text
fails at once.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sentiment.batching.row_queue import RowsResult, TextOutcome
from sentiment.batching.ticket import Priority
from sentiment.errors import Broken, Expired, Refused, Unavailable
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import ROWS_MAX, Trace
from sentiment_front_ends.frames import (
    Frames,
    Kind,
    Listing,
    Sampled,
    Text,
    frame,
    frame_of,
    model_frame,
    model_of,
    pack_held,
    pack_numbers,
    pack_sampled,
    pack_texts,
    parts_of,
    unpack_answers,
    unpack_failures,
    unpack_listing,
    unpack_numbers,
)

GONE = "the executor process has ended and is being replaced; try again"
# The executor expires texts at their deadline. A text that is still unanswered this long after is expired here.
LATE_S = 0.25
# Bytes that the executor may leave unread before new texts are refused: more than a full queue of texts.
UNREAD_BYTES_MAX = 2**24
# Bytes that may wait when a text is sent to be read once more, and bytes of such a text: live texts, which have the same buffer, are then
# never refused because of them.
SAMPLES_UNREAD_BYTES_MAX = 2**18
SAMPLE_BYTES_MAX = 2**16
# How long to wait for an executor that does not read before the connection is aborted.
CLOSE_S = 1.0
# How often to try to connect to an executor that is not there.
CONNECT_INTERVAL_S = 0.05


@dataclass(slots=True, eq=False)
class RemoteText:
    """A text that was sent to the executor, or will be at the end of this turn of the loop."""

    number: int
    deadline_at: float
    rows: int
    tell: Callable[[TextOutcome], None]
    withdraw: Callable[["RemoteText"], bool]
    sent: bool = False

    def cancel(self) -> bool:
        """As in Pending."""
        return self.withdraw(self)


class RemoteQueue:
    """The executor's queue of one model, seen from a front end. At most ``rows_max`` rows are unanswered at a time."""

    # For all queues of a process, so that an answer never finds another text, even after a model was dropped and loaded again.
    _numbers = itertools.count(1)

    def __init__(self, digest: bytes, rows_max: int) -> None:
        self.backlog_s = 0.0
        self._digest = digest
        self._rows_max = rows_max
        self._rows = 0
        self._texts: dict[int, RemoteText] = {}
        self._new: list[Text] = []
        self._cancelled: list[int] = []
        self._write: Callable[[bytes], None] | None = None
        self._flushing = False
        # The executor does not read, and new texts would pile up here.
        self.paused = False

    @property
    def texts(self) -> int:
        """Number of unanswered texts."""
        return len(self._texts)

    def submit(
        self,
        rows: Sequence[Row],
        deadline_at: float,
        tell: Callable[[TextOutcome], None],
        priority: Priority,
        trace: Trace | None = None,
        adaptive: bool = False,
        scope: int = 0,
        payer: int = 0,
    ) -> RemoteText:
        """Send a text; see RowQueue. If the executor's queue refuses it, ``tell`` gets the error later.

        Raises:
            Unavailable: there is no executor at the moment.
            Refused: too many rows of this process are unanswered.
        """
        if self._write is None:
            raise Unavailable(GONE)
        if self.paused:
            raise Refused("the executor process does not read its requests", self.backlog_s or LATE_S, "queue_full")
        # More rows than that no queue has room for: the executor refuses them for good, and says what helps.
        if len(rows) <= self._rows_max < self._rows + len(rows):
            message = f"{self._rows} rows of this front end and model are unanswered; the limit is {self._rows_max}"
            raise Refused(message, self.backlog_s, "queue_full")
        text = RemoteText(next(self._numbers), deadline_at, len(rows), tell, self._withdraw)
        self._texts[text.number] = text
        self._rows += text.rows
        # Trace all rows of the text or none: the executor does not know the call's other rows.
        place = trace.place if trace is not None and trace.take(min(len(rows), ROWS_MAX)) else None
        self._new.append(Text(text.number, deadline_at, priority, rows, place, adaptive, scope, payer))
        self._flush_soon()
        return text

    def _withdraw(self, text: RemoteText) -> bool:
        if self._take(text.number) is None:
            return False
        if text.sent:
            self._cancelled.append(text.number)
            self._flush_soon()
        return True

    def attach(self, write: Callable[[bytes], None], paused: bool = False) -> None:
        """Start to send texts with ``write``."""
        self._write = write
        self.paused = paused

    def detach(self) -> None:
        """The executor has gone: fail all unanswered texts."""
        self._write = None
        self.paused = False
        self._new.clear()
        self._cancelled.clear()
        for number in list(self._texts):
            self._tell(number, Unavailable(GONE))

    def answered(self, body: bytes) -> None:
        """Deliver the outcomes of an ANSWERS frame."""
        answers, self.backlog_s = unpack_answers(body)
        for number, logits, queue_s, run_s, batch_rows, early in answers:
            if (text := self._take(number)) is not None:
                _tell(text, RowsResult(logits, queue_s, run_s, batch_rows, early))

    def failed(self, body: bytes) -> None:
        """Deliver the outcomes of a FAILURES frame."""
        failures, self.backlog_s = unpack_failures(body)
        for number, error in failures:
            self._tell(number, error)

    def end_late(self, now: float) -> None:
        """Expire the texts that the executor did not expire at their deadline."""
        for text in [text for text in self._texts.values() if text.deadline_at + LATE_S < now]:
            text.cancel()
            _tell(text, Expired("no answer within the deadline: the executor process does not respond"))

    def _tell(self, number: int, outcome: TextOutcome) -> None:
        if (text := self._take(number)) is not None:
            _tell(text, outcome)

    def _take(self, number: int) -> RemoteText | None:
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
                packed = model_frame(Kind.ROWS, self._digest, pack_texts(part))
            except Exception:  # each text has a caller that waits
                logger().exception("send_failed", texts=len(part))
                for text in part:
                    self._tell(text.number, Broken("internal error; see the server's log"))
                continue
            for text in part:
                self._texts[text.number].sent = True
            self._write(packed)
        if self._cancelled:
            self._write(model_frame(Kind.CANCEL, self._digest, pack_numbers(self._cancelled)))
            self._cancelled.clear()


def _tell(text: RemoteText, outcome: TextOutcome) -> None:
    try:
        text.tell(outcome)
    except Exception:  # the other texts of the frame have callers too
        logger().exception("tell_failed", rows=text.rows)


class LinkListener(Protocol):
    """What a front end does with the executor's messages."""

    def models(self, link: "Link", listing: Listing, copies: dict[bytes, bytes]) -> None:
        """The executor of this link lists its models. ``copies``: those that it has added since it last did, by digest."""

    def state(self, ready: bool) -> None:
        """Whether the executor is ready; False once the connection is lost."""

    def counts(self) -> Any:  # Any: JSON
        """What was counted since the last call."""


class Link(asyncio.Protocol):
    """One connection to an executor."""

    def __init__(self, name: str, pid: int, queues: Mapping[bytes, RemoteQueue], listener: LinkListener) -> None:
        """``queues``: those of the models that are held here, by digest; they may change."""
        self.lost = asyncio.Event()
        # Whether the executor has sent anything. A process that is dying may accept a connection and send nothing.
        self.met = False
        self._hello = {"name": name, "pid": pid}
        self._queues = queues
        self._listener = listener
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        # The last listing that is followed here, and whether the executor has ever been ready. Texts are sent once there are both.
        self._revision = 0
        self._ready = False
        self._paused = False
        self._copies: dict[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the name and the process id."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        transport.write(frame_of(Kind.HELLO, self._hello))

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames."""
        self.met = True
        for kind, body in self._frames.feed(data):
            self._take(kind, body)

    def connection_lost(self, _error: Exception | None) -> None:
        """Fail all unanswered texts."""
        self._transport = None
        self._listener.state(False)
        for queue in self._queues.values():
            queue.detach()
        self.lost.set()

    def pause_writing(self) -> None:
        """The executor does not read."""
        self._pause(True)

    def resume_writing(self) -> None:
        """The executor reads again."""
        self._pause(False)

    def follow(self, revision: int, held: Iterable[bytes]) -> None:
        """Report that this listing is followed, and the models that are held. Texts are sent as soon as the executor is ready."""
        self._revision = revision
        self.hold(held)
        self._attach()

    def hold(self, held: Iterable[bytes]) -> None:
        """Report the models that are held."""
        if self._transport is not None and self._revision:
            self._transport.write(frame(Kind.HELD, pack_held(self._revision, held)))

    def sample(self, digest: bytes, sampled: Sampled) -> bool:
        """Send a text that this model has answered, to be read once more. Returns whether it was sent.

        It is not if more than SAMPLES_UNREAD_BYTES_MAX wait for the executor, or if it takes more than SAMPLE_BYTES_MAX.
        """
        if self._transport is None or self._transport.get_write_buffer_size() > SAMPLES_UNREAD_BYTES_MAX:
            return False
        if len(packed := pack_sampled(sampled)) > SAMPLE_BYTES_MAX:
            return False
        self._transport.write(model_frame(Kind.SAMPLE, digest, packed))
        return True

    async def close(self) -> None:
        """Send the last counts and close the connection."""
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
        if self._revision and self._ready and self._transport is not None:
            for queue in self._queues.values():
                queue.attach(self._transport.write, self._paused)

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for queue in self._queues.values():
            queue.paused = paused

    def _count(self, number: int) -> None:
        if self._transport is not None:
            self._transport.write(frame_of(Kind.COUNTS, (number, self._listener.counts())))

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind in (Kind.ANSWERS, Kind.FAILURES):
            digest, outcomes = model_of(body)
            # Without a queue, nobody waits any more: the texts were cancelled.
            if (queue := self._queues.get(digest)) is not None:
                queue.answered(outcomes) if kind is Kind.ANSWERS else queue.failed(outcomes)
        elif kind is Kind.ASK:
            self._count(*unpack_numbers(body))
        elif kind is Kind.STATE:
            ready = json.loads(body)["ready"]
            self._ready = self._ready or ready
            self._attach()
            self._listener.state(ready)
        elif kind is Kind.MODEL:
            digest, copy = model_of(body)
            self._copies[digest] = copy
        elif kind is Kind.MODELS:
            copies, self._copies = self._copies, {}
            self._listener.models(self, unpack_listing(body), copies)


async def connect(path: Path, make: Callable[[], Link]) -> Link:
    """Connect to the executor; waits until there is one."""
    while True:
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            _, link = await asyncio.get_running_loop().create_unix_connection(make, str(path))
            return link
        await asyncio.sleep(CONNECT_INTERVAL_S)


async def watch_deadlines(queues: Mapping[bytes, RemoteQueue]) -> None:
    """Expire late texts until cancelled, so that deadlines hold even if the executor hangs."""
    while True:
        await asyncio.sleep(LATE_S)
        for queue in queues.values():
            queue.end_late(time.monotonic())
