"""ClassifyStream: reads items and writes each answer when it is ready, in bounded memory.

An item holds one of ``call_rows_max`` places until its answer has been written. So the server stops reading from a client that does not
read. A text in windows holds a place per window; the places beyond the first are taken before the next item is read.

All streams together accept only a few items in a turn of the event loop, so that they delay other calls by little, however many they are.
After a refusal a stream pauses: a client that goes on sending would get nothing but refusals, as fast as the event loop can make them.
"""

import asyncio
import contextlib
import math
from dataclasses import dataclass
from functools import partial

import grpc

from sentiment.batching.row_queue import Pending
from sentiment.batching.ticket import Priority
from sentiment.call import convert
from sentiment.call.call import Call
from sentiment.call.calls import OUTCOMES, Calls
from sentiment.call.servicer import SentimentService, code_name_of, keep_few_interactive
from sentiment.doors.grpc.context import Context, end_with, headers_of
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.receiving import Receiving
from sentiment.errors import Broken, InvalidInput, Refused, RequestError, Unavailable
from sentiment.observability.logs import logger
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.pipeline.served import Served
from sentiment.v1 import sentiment_pb2 as pb

METHOD = "ClassifyStream"
# Time for a client to stop sending after its stream has ended: several round trips. A connection that is closed while its client still
# sends is reset, and answers that the client has not read are lost.
LINGER_S = 0.1
# Items that all streams accept in a turn of the event loop. One takes some 0.2 ms.
ITEMS_PER_TURN = 4
# The longest pause of a stream after a refused item. An item that must be refused again costs little then.
PAUSE_S_MAX = 0.25


class Streams:
    """The open streams, so that a drain can end them."""

    def __init__(self, service: SentimentService, calls: Calls, receiving: Receiving) -> None:
        self._service = service
        self._calls = calls
        self._receiving = receiving
        self._turns = LoopTurns(ITEMS_PER_TURN)
        self.open: set[_Stream] = set()
        self._ending = False

    async def end(self, timeout_s: float) -> None:
        """Stop reading from all streams. Each answers the items that it has accepted and ends with OK.

        Returns when all streams have ended and ``LINGER_S`` has passed, or after ``timeout_s`` seconds.
        """
        self._ending = True
        if not self.open:
            return
        for stream in self.open:
            stream.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(stream.closed.wait() for stream in self.open))
                await asyncio.sleep(LINGER_S)

    def handler(self) -> Handler:
        """The handler of ClassifyStream."""
        return grpc.stream_stream_rpc_method_handler(self._handle)

    async def _handle(self, _: object, context: Context) -> None:
        # The default deadline applies to each item, not to the stream.
        remaining = context.time_remaining()
        call = self._calls.begin(METHOD, remaining, headers_of(context), peer=context.peer)
        call.deadline_at = float("inf") if remaining is None else call.arrived_at + remaining
        stream = _Stream(self._service, self._calls, self._receiving, self._turns, call)
        try:
            await self._calls.settle(call, self._converse(stream, context))
        except RequestError as error:
            await end_with(context, call, error)

    async def _converse(self, stream: "_Stream", context: Context) -> None:
        if self._ending:
            raise Unavailable("the server is draining")
        reader = asyncio.create_task(stream.read(context))
        self.open.add(stream)
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
                self.open.discard(stream)
                stream.closed.set()


@dataclass(frozen=True, slots=True)
class _Accepted:
    """An item in the queue. ``held``: its bytes that are counted."""

    served: Served
    pending: Pending
    priority: Priority
    held: int


@dataclass(frozen=True, slots=True)
class _Finished:
    """An item with an outcome. ``served``: None if its model is unknown. ``places``: see ``_Stream``. ``own_fault``: see ``Calls``.
    ``abstain_below``: the caller's own threshold.
    """

    id: str
    served: Served | None
    outcome: Outcome
    places: int
    deadline_at: float
    own_fault: str
    abstain_below: float


class _Stream:
    def __init__(self, service: SentimentService, calls: Calls, receiving: Receiving, turns: LoopTurns, call: Call) -> None:
        self._service = service
        self._calls = calls
        self._receiving = receiving
        self._turns = turns
        self._call = call
        self._room = asyncio.Semaphore(service.limits.call_rows_max)
        # The items that have no outcome yet, by number.
        self._accepted: dict[int, _Accepted] = {}
        # The finished items; None when reading has ended.
        self._outcomes: asyncio.Queue[_Finished | None] = asyncio.Queue()
        # How long to pause before the next item.
        self._pause_s = 0.0
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

    async def read(self, context: Context) -> None:
        """Accept items until the client or ``end`` ends the stream."""
        try:
            while (data := await self._next(context)) is not None:
                await self._accept(data)
        finally:
            self._outcomes.put_nowait(None)

    async def _next(self, context: Context) -> bytes | None:
        if self._ended:
            return None
        self._waiting = asyncio.current_task()
        try:
            while self._owed:
                await self._room.acquire()
                self._owed -= 1
            await self._room.acquire()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
                self._pause_s = 0.0
            await self._turns.wait()
            return await self._receiving.next_message(context, self._call.caller, self._calls.limits.message_bytes_max)
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
            item = await self._outcomes.get()
            if item is None:
                reading = False
                continue
            begun = self._calls.clock()
            try:
                await self._service.turn_for(item.outcome)
            except asyncio.CancelledError:
                # ``close`` counts it.
                self._outcomes.put_nowait(item)
                raise
            message = self._message(item).SerializeToString()
            in_time = item.deadline_at - self._calls.clock() >= self._calls.limits.margin_s
            self._count(item, code_name_of(item.outcome), "met" if in_time else "expired", item.own_fault)
            await self._receiving.write(context, self._call.caller, message)
            self._unanswered -= 1
            for _ in range(item.places):
                self._room.release()
            if item.served is not None:
                item.served.metrics.stage["send"](self._calls.clock() - begun)

    def _count(self, item: "_Finished", code: str, outcome: str, own_fault: str = "") -> None:
        """Count an item, and its answer, if it has one, with this outcome."""
        self._count_text(item.served, code, own_fault)
        if item.served is not None and isinstance(item.outcome, Answer):
            item.served.count_told(1, outcome)
            self._call.tokens += item.outcome.tokens

    def _count_text(self, served: Served | None, code: str, own_fault: str = "") -> None:
        metrics = served.metrics if served else self._calls.no_model
        metrics.observing.later("outcome", self._calls.count_texts, self._call, metrics, code, 1, own_fault)

    def _fault_of_left(self, code: str) -> str:
        """As ``Calls.own_fault``, of the items that a stream that ends early leaves."""
        return self._calls.own_fault(self._call, code, None, math.inf)

    def close(self) -> None:
        """Withdraw the items that are still queued; the client no longer reads."""
        code = self._call.left_code()
        for accepted in self._accepted.values():
            accepted.served.withdraw(accepted.pending)
            self._receiving.requests.give_back(self._call.caller, accepted.held)
            self._count_text(accepted.served, code, self._fault_of_left(code))
        self._accepted.clear()
        while not self._outcomes.empty():
            if (item := self._outcomes.get_nowait()) is not None:
                self._count(item, code, OUTCOMES[code], self._fault_of_left(code))
        if self._call.trace is not None:
            self._call.trace.attributes["sentiment.texts"] = self._serial

    async def _accept(self, data: bytes) -> None:
        arrived_at = self._calls.clock()
        requests, caller, size = self._receiving.requests, self._call.caller, len(data)
        request = await self._calls.parsed(pb.ClassifyStreamRequest, data)
        del data
        self._serial += 1
        self._unanswered += 1
        serial, item_id, served, allowed_s = self._serial, request.id, None, math.inf
        try:
            if (length := len(item_id.encode())) > convert.STREAM_ID_BYTES_MAX:
                item_id = item_id[:64]
                raise InvalidInput("id", f"has {length} bytes; the limit is {convert.STREAM_ID_BYTES_MAX}")
            found = served = self._call.served = self._service.models.find(request.options.model)
            options = convert.check_options(request.options, Priority.BULK, self._service.limits, "options.")
            query = convert.query_of(request.item, options, self._call, serial - 1, "item.text")
            deadline_at = self._deadline(request, arrived_at)
            if request.HasField("timeout"):
                allowed_s = _seconds(request)
            found.metrics.stage["receive"](self._calls.clock() - arrived_at)
            interactive = sum(item.priority is Priority.INTERACTIVE for item in self._accepted.values())
            keep_few_interactive([query], self._service.limits.interactive_items_max - interactive)
            with requests.held(caller, size) as held:
                settle = partial(self._settle, serial, item_id, found, allowed_s, abstain_below=options.abstain_below)
                pending = await found.begin(query, arrived_at, deadline_at, settle)
                self._accepted[serial] = _Accepted(found, pending, query.priority, held.keep() if found.keeps_texts else 0)
            self._owed += pending.rows - 1
        except asyncio.CancelledError:
            # The client left while its text was being tokenized.
            code = self._call.left_code()
            self._count_text(served, code, self._fault_of_left(code))
            raise
        except RequestError as error:
            if isinstance(error, Refused):
                self._pause_s = min(error.retry_after_s, PAUSE_S_MAX)
            self._settle(serial, item_id, served, allowed_s, error.alone())
        except Exception:  # the stream waits for this item's outcome, whatever happened
            logger().exception("item_failed", **self._call.logged)
            broken = Broken(f"internal error; see the server's log for request id {self._call.request_id}")
            self._settle(serial, item_id, served, allowed_s, broken)

    def _deadline(self, request: pb.ClassifyStreamRequest, arrived_at: float) -> float:
        if not request.HasField("timeout"):
            return min(self._call.deadline_at, arrived_at + self._calls.limits.deadline_default_s)
        timeout_s = _seconds(request)
        if timeout_s <= 0:
            raise InvalidInput("timeout", f"must be positive, got {timeout_s} s")
        return min(self._call.deadline_at, arrived_at + self._calls.bounded_s(timeout_s))

    def _settle(
        self, serial: int, item_id: str, served: Served | None, allowed_s: float, outcome: Outcome, abstain_below: float = 0.0
    ) -> None:
        accepted = self._accepted.pop(serial, None)
        places, deadline_at = 1, 0.0
        if accepted is not None:
            self._receiving.requests.give_back(self._call.caller, accepted.held)
            places, deadline_at = accepted.pending.rows, accepted.pending.deadline_at
        own_fault = ""
        if isinstance(outcome, RequestError):
            own_fault = self._calls.own_fault(self._call, code_name_of(outcome), outcome, allowed_s)
        self._outcomes.put_nowait(_Finished(item_id, served, outcome, places, deadline_at, own_fault, abstain_below))

    def _message(self, item: "_Finished") -> pb.ClassifyStreamResponse:
        message = pb.ClassifyStreamResponse(id=item.id)
        convert.set_result(message, item.outcome, item.served, item.abstain_below)
        return message


def _seconds(request: pb.ClassifyStreamRequest) -> float:
    return request.timeout.seconds + request.timeout.nanos / 1e9
