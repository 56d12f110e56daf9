"""The executor's server for front ends: announces models, takes texts, sends answers and readiness, and collects their counts.

Runs on the executor's event loop. Outcomes of one turn of the loop are sent as one frame. When a front end disconnects, its texts are
withdrawn and no others.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.batching.row_queue import Pending, RowQueue, TextOutcome
from sentiment.errors import Broken, Expired, Refused, RequestError, Unavailable
from sentiment.lifecycle.states import CALLED, Event, State, Versions
from sentiment.observability.logs import logger
from sentiment.observability.tracing.trace import Tracer
from sentiment_front_ends.frames import (
    Answered,
    Failed,
    Frames,
    Kind,
    Listing,
    Sampled,
    Text,
    frame,
    frame_of,
    model_frame,
    model_of,
    pack_answers,
    pack_failures,
    pack_listing,
    pack_numbers,
    unpack_held,
    unpack_numbers,
    unpack_sampled,
    unpack_texts,
)

# How long a scrape waits for a front end's counts. Late counts are part of the next scrape.
COUNTS_S = 1.0
# How long a change of models waits for front ends to follow. A tokenizer takes 0.3 s on an idle core; a front end that hangs is killed
# after ``stall_s``.
FOLLOW_S = 30.0
UNLOADED = "the version is being unloaded, or the server is starting; try again"


@dataclass(frozen=True, slots=True)
class Serving:
    """A model as announced to front ends, and the queue for their texts. ``copy``: see ``model_copy``."""

    digest: bytes
    # ``name/version``.
    model: str
    copy: bytes
    queue: RowQueue
    backlog_s: Callable[[], float]
    tracer: Tracer | None = None


class FrontEndServer:
    """Serves front ends on a Unix socket."""

    def __init__(
        self,
        path: Path,
        front_ends: int,
        add_counts: Callable[[Any], None],  # Any: JSON
        take_sample: Callable[[bytes, Sampled], None] = lambda _digest, _sampled: None,
    ) -> None:
        """Not listening yet.

        Args:
            path: of the socket, in a folder that only this user may enter.
            front_ends: number of front ends that the server has.
            add_counts: gets what a front end has counted.
            take_sample: gets the texts to read once more, with the digest of the model that answered.
        """
        # The models whose texts are taken, by digest, and their states in the front ends.
        self.models: dict[bytes, Serving] = {}
        self._versions = Versions[Serving]()
        self.ready = False
        self.add_counts = add_counts
        self.take_sample = take_sample
        self._path = path
        self._front_ends = front_ends
        self._revision = 0
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

    async def begin(self, models: Iterable[Serving], in_use: Iterable[bytes]) -> None:
        """Take the texts of these models; returns once all front ends of the server accept calls for them."""
        for serving in models:
            self._announce(serving)
        used = [self.models[digest].model for digest in in_use]
        # First those in use: the first of a name is put to use.
        for model in sorted(self._versions.ids(State.ANNOUNCED), key=lambda model: model not in used):
            self._versions.add(model)
        late = self._publish()
        while late() or len(self._fronts) < self._front_ends:
            await self._change()

    async def add(self, serving: Serving) -> None:
        """Take a model's texts; returns once the front ends accept calls for it. The first version of a name is put to use."""
        self._announce(serving)
        self._versions.add(serving.model)
        await self._follow("added", serving, FOLLOW_S)

    async def use(self, digest: bytes) -> None:
        """Make this the version in use of its name; returns once it is that in the front ends."""
        serving = self.models[digest]
        self._versions.use(serving.model)
        await self._follow("used", serving, FOLLOW_S)

    async def remove(self, digest: bytes, within_s: float) -> None:
        """Take no more texts of a model, once no front end has a call for it or ``within_s`` seconds have passed."""
        serving = self.models[digest]
        self._versions.move(serving.model, Event.WITHDRAWN)
        await self._follow("removed", serving, within_s)
        self._versions.move(serving.model, Event.RELEASED)
        del self.models[digest]

    def _announce(self, serving: Serving) -> None:
        self._versions.announce(serving.model, serving)
        self.models[serving.digest] = serving
        for front in self._fronts:
            front.send(model_frame(Kind.MODEL, serving.digest, serving.copy))

    def _publish(self, removed: bytes = b"") -> Callable[[], list[str]]:
        """Send the list of models; returns a function that names the connected front ends that do not follow it or hold ``removed``."""
        self._revision += 1
        revision, listing = self._revision, self._listing()
        for front in self._fronts:
            front.send(listing)
        return lambda: sorted(front.name for front in self._fronts if front.revision < revision or removed in front.held)

    async def _follow(self, change: str, serving: Serving, within_s: float) -> None:
        """Publish a change of a model, and wait until the front ends have followed."""
        late = self._publish(serving.digest if self._versions.state(serving.model) is State.LEAVING else b"")
        try:
            async with asyncio.timeout(within_s):
                while late():
                    await self._change()
        except TimeoutError:
            logger().error("front_ends_late", change=change, model=serving.model, front_ends=late(), seconds=within_s)

    def _listing(self) -> bytes:
        states = {digest: self._versions.state(serving.model) for digest, serving in self.models.items()}
        listed, in_use = ([digest for digest, state in states.items() if state in those] for those in (CALLED, [State.IN_USE]))
        listing = Listing(self._revision, listed, in_use)
        return frame(Kind.MODELS, pack_listing(listing))

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
        for serving in self._versions.of(*CALLED):
            front.send(model_frame(Kind.MODEL, serving.digest, serving.copy))
        if self._revision:
            front.send(self._listing())

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
        # The last MODELS that it follows, the models that it holds, and the number of the last ASK that it has answered.
        self.revision = 0
        self.held: set[bytes] = set()
        self.counts_received = 0
        self._server = server
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        # Texts by their model's digest and their number; answers and failures by digest.
        self._texts: dict[tuple[bytes, int], Pending] = {}
        self._answered: dict[bytes, list[Answered]] = {}
        self._failed: dict[bytes, list[Failed]] = {}
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
        for text in list(self._texts):
            try:
                self._cancel(*text)
            except Exception:  # the other texts must be withdrawn too
                logger().exception("cancel_failed")
        self._server.disconnected(self)

    def send(self, data: bytes) -> None:
        """Write a frame; nothing if the front end is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.ROWS:
            digest, packed = model_of(body)
            for text in unpack_texts(packed):
                self._submit(digest, text)
        elif kind is Kind.CANCEL:
            digest, packed = model_of(body)
            for number in unpack_numbers(packed):
                self._cancel(digest, number)
        elif kind is Kind.SAMPLE:
            digest, packed = model_of(body)
            self._server.take_sample(digest, unpack_sampled(packed))
        elif kind is Kind.COUNTS:
            number, counts = json.loads(body)
            self.counts_received = max(self.counts_received, number)
            self._server.add_counts(counts)
            self._server.changed()
        elif kind is Kind.HELD:
            self.revision, self.held = unpack_held(body)
            self._server.changed()
        elif kind is Kind.HELLO:
            hello = json.loads(body)
            self.name, self.pid = str(hello["name"]), int(hello["pid"])

    def _submit(self, digest: bytes, text: Text) -> None:
        serving, rows = self._server.models.get(digest), text.rows
        if serving is None:
            self._refuse(digest, text, Unavailable(UNLOADED))
            return
        try:
            tell = partial(self._on_outcome, digest, text.number)
            trace = serving.tracer.join(text.place) if serving.tracer is not None and text.place is not None else None
            self._texts[digest, text.number] = serving.queue.submit(
                rows, text.deadline_at, tell, text.priority, trace, text.adaptive, text.scope, text.payer
            )
        except (Refused, Expired, Unavailable) as error:
            self._refuse(digest, text, error)
        except Exception:  # a caller waits for it
            logger().exception("submit_failed", rows=len(rows))
            self._fail(digest, text.number, Broken("internal error; see the server's log"))

    def _cancel(self, digest: bytes, number: int) -> None:
        if (pending := self._texts.pop((digest, number), None)) is not None:
            pending.cancel()

    def _on_outcome(self, digest: bytes, number: int, outcome: TextOutcome) -> None:
        del self._texts[digest, number]
        if isinstance(outcome, RequestError):
            self._fail(digest, number, outcome)
        else:
            answered = Answered(number, outcome.logits, outcome.queue_s, outcome.run_s, outcome.batch_rows, outcome.early)
            self._answered.setdefault(digest, []).append(answered)
            self._flush_soon()

    def _refuse(self, digest: bytes, text: Text, error: RequestError) -> None:
        error.admitted = False
        self._fail(digest, text.number, error)

    def _fail(self, digest: bytes, number: int, error: RequestError) -> None:
        self._failed.setdefault(digest, []).append(Failed(number, error))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for digest, answered in self._answered.items():
            self.send(model_frame(Kind.ANSWERS, digest, pack_answers(answered, self._backlog_s(digest))))
        for digest, failed in self._failed.items():
            self.send(model_frame(Kind.FAILURES, digest, pack_failures(failed, self._backlog_s(digest))))
        self._answered.clear()
        self._failed.clear()

    def _backlog_s(self, digest: bytes) -> float:
        serving = self._server.models.get(digest)
        return serving.backlog_s() if serving is not None else 0.0
