"""ClassifyStream: reads items and writes each answer when it is ready, in bounded memory.

An item holds one of ``call_rows_max`` places until its answer has been written. So the server stops reading from a client that does not
read. A text in windows holds a place per window; the places beyond the first are taken before the next item is read.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc

from sentiment.api.grpc import convert
from sentiment.api.grpc.call import Call
from sentiment.api.grpc.calls import Calls, Context, abort, headers_of
from sentiment.api.grpc.servicer import SentimentService, code_name_of, count_texts
from sentiment.batching.row_queue import Pending
from sentiment.batching.ticket import Priority
from sentiment.errors import Broken, InvalidInput, RequestError, Unavailable
from sentiment.observability.logs import logger
from sentiment.serving.pipeline import Outcome, Served
from sentiment.v1 import sentiment_pb2 as pb

METHOD = "ClassifyStream"
# Time for a client to stop sending after its stream has ended: several round trips. A connection that is closed while its client still
# sends is reset, and answers that the client has not read are lost.
LINGER_S = 0.1


class Streams:
    """The open streams, so that a drain can end them."""

    def __init__(self, service: SentimentService, calls: Calls, rows_max: int, deadline_default_s: float) -> None:
        self._service = service
        self._calls = calls
        self._rows_max = rows_max
        self._deadline_default_s = deadline_default_s
        self._open: set[_Stream] = set()
        self._ending = False

    async def end(self, timeout_s: float) -> None:
        """Stop reading from all streams. Each answers the items that it has accepted and ends with OK.

        Returns when all streams have ended and ``LINGER_S`` has passed, or after ``timeout_s`` seconds.
        """
        self._ending = True
        if not self._open:
            return
        for stream in self._open:
            stream.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(stream.closed.wait() for stream in self._open))
                await asyncio.sleep(LINGER_S)

    def handler(self) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The handler of ClassifyStream."""
        return grpc.stream_stream_rpc_method_handler(self._handle)

    async def _handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        # The default deadline applies to each item, not to the stream.
        remaining = context.time_remaining()
        call = self._calls.begin(METHOD, remaining, headers_of(context), peer=context.peer)
        call.deadline_at = float("inf") if remaining is None else call.arrived_at + remaining
        stream = _Stream(self._service, self._calls, call, self._rows_max, self._deadline_default_s)
        try:
            await self._calls.settle(call, self._converse(stream, requests, context))
        except RequestError as error:
            await abort(context, call, error)

    async def _converse(self, stream: "_Stream", requests: AsyncIterator[bytes], context: Context) -> None:
        if self._ending:
            raise Unavailable("the server is draining")
        reader = asyncio.create_task(stream.read(requests))
        self._open.add(stream)
        try:
            await stream.write(context)
            # Raises the error that ended reading, if any.
            await reader
        finally:
            reader.cancel()
            try:
                await asyncio.wait({reader})
            finally:
                # Also after a second cancellation, because a drain waits for open streams.
                stream.close()
                self._open.discard(stream)
                stream.closed.set()


class _Stream:
    def __init__(self, service: SentimentService, calls: Calls, call: Call, rows_max: int, deadline_default_s: float) -> None:
        self._service = service
        self._calls = calls
        self._call = call
        self._deadline_default_s = deadline_default_s
        self._room = asyncio.Semaphore(rows_max)
        self._tickets: dict[int, tuple[Served, Pending]] = {}
        # Id, model, outcome and number of places of each finished item; None when reading has ended.
        self._outcomes: asyncio.Queue[tuple[str, Served | None, Outcome, int] | None] = asyncio.Queue()
        # Places for windows of accepted items that have not been acquired yet.
        self._owed = 0
        self._unanswered = 0
        self._serial = 0
        self._ended = False
        self.closed = asyncio.Event()
        # The reader task while it waits for room or a message. It may be cancelled only then; otherwise an accepted item would be lost.
        self._waiting: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Accept no more items."""
        self._ended = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Accept items until the client or ``end`` ends the stream."""
        messages = aiter(requests)
        try:
            while (data := await self._next(messages)) is not None:
                await self._accept(data)
        finally:
            self._outcomes.put_nowait(None)

    async def _next(self, messages: AsyncIterator[bytes]) -> bytes | None:
        if self._ended:
            return None
        self._waiting = asyncio.current_task()
        try:
            while self._owed:
                await self._room.acquire()
                self._owed -= 1
            await self._room.acquire()
            return await anext(messages, None)
        except asyncio.CancelledError:
            if self._ended:
                return None
            raise
        finally:
            self._waiting = None

    async def write(self, context: Context) -> None:
        """Write answers as they become ready; returns after the last one."""
        reading = True
        while reading or self._unanswered:
            entry = await self._outcomes.get()
            if entry is None:
                reading = False
                continue
            item_id, served, outcome, places = entry
            begun = time.monotonic()
            await context.write(self._message(item_id, served, outcome).SerializeToString())
            self._unanswered -= 1
            for _ in range(places):
                self._room.release()
            if served is not None:
                served.metrics.stage["send"](time.monotonic() - begun)

    def close(self) -> None:
        """Withdraw the items that are still queued; the client no longer reads."""
        for served, pending in self._tickets.values():
            served.withdraw(pending)
            count_texts(served.metrics, METHOD, self._call.left_code())
        self._tickets.clear()
        if self._call.trace is not None:
            self._call.trace.attributes["sentiment.texts"] = self._serial

    async def _accept(self, data: bytes) -> None:
        arrived_at = time.monotonic()
        request = self._calls.parse(pb.ClassifyStreamRequest, data)
        self._serial += 1
        self._unanswered += 1
        serial, item_id, served = self._serial, request.id, None
        try:
            if len(item_id.encode()) > convert.STREAM_ID_BYTES_MAX:
                item_id, size = item_id[:64], len(item_id.encode())
                raise InvalidInput("id", f"has {size} bytes; the limit is {convert.STREAM_ID_BYTES_MAX}")
            found = served = self._call.served = self._service.models.find(request.options.model)
            options = convert.check_options(request.options, Priority.BULK, "options.")
            query = convert.query_of(request.item, options, self._call, serial - 1, "item.text")
            deadline_at = self._deadline(request, arrived_at)
            found.metrics.stage["receive"](time.monotonic() - arrived_at)
            pending = await found.begin(query, arrived_at, deadline_at, lambda outcome: self._settle(serial, item_id, found, outcome))
            self._tickets[serial] = (found, pending)
            self._owed += pending.rows - 1
        except asyncio.CancelledError:
            # The client left while its text was being tokenized.
            count_texts(served.metrics if served else self._calls.no_model, METHOD, self._call.left_code())
            raise
        except RequestError as error:
            self._settle(serial, item_id, served, error)
        except Exception:  # the stream waits for this item's outcome, whatever happened
            logger().exception("item_failed", **self._call.logged)
            broken = Broken(f"internal error; see the server's log for request id {self._call.request_id}")
            self._settle(serial, item_id, served, broken)

    def _deadline(self, request: pb.ClassifyStreamRequest, arrived_at: float) -> float:
        if not request.HasField("timeout"):
            return min(self._call.deadline_at, arrived_at + self._deadline_default_s)
        timeout_s = request.timeout.seconds + request.timeout.nanos / 1e9
        if timeout_s <= 0:
            raise InvalidInput("timeout", f"must be positive, got {timeout_s} s")
        return min(self._call.deadline_at, arrived_at + self._calls.bounded_s(timeout_s))

    def _settle(self, serial: int, item_id: str, served: Served | None, outcome: Outcome) -> None:
        _, pending = self._tickets.pop(serial, (None, None))
        self._outcomes.put_nowait((item_id, served, outcome, 1 if pending is None else pending.rows))
        count_texts(served.metrics if served else self._calls.no_model, METHOD, code_name_of(outcome))

    def _message(self, item_id: str, served: Served | None, outcome: Outcome) -> pb.ClassifyStreamResponse:
        message = pb.ClassifyStreamResponse(id=item_id)
        convert.set_result(message, outcome, served)
        return message
