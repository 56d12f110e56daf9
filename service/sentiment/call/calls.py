"""What all calls share, whatever their door: parsing, the deadline, and the one status that is sent, logged and counted."""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from sentiment.call.call import Call, authorization_in, caller_named
from sentiment.call.names import path_of
from sentiment.call.parsing import FIELDS_MAX, has_more_fields, parsed
from sentiment.call.status import CODES, HTTP_STATUS, code_of
from sentiment.errors import Broken, Expired, InvalidInput, Refused, RequestError, Unauthenticated, shown_s
from sentiment.observability.callers import twice_the_others
from sentiment.observability.logs import logger
from sentiment.observability.metrics import NO_MODEL, CallMetrics, Metrics
from sentiment.observability.tracing.trace import Headers, Trace, Tracer, exemplar_of
from sentiment.pipeline.refusals import Refusals
from sentiment.security.tokens import Guard

OK = "OK"
# UNAUTHENTICATED is left out: a caller without a token is refused before a call exists, and counted by a metric of its own.
CODE_NAMES = tuple(sorted({OK, "CANCELLED", *(code.name for code in CODES.values())} - {CODES[Unauthenticated].name}))
# The outcomes of answers whose call ended otherwise, or too late.
OUTCOMES = {OK: "expired", "DEADLINE_EXCEEDED": "expired", "CANCELLED": "cancelled"}
# An answer is held only if this much time is left.
HOLD_LEFT_S_MIN = 0.5
# Retry delay for a call that is refused because too many calls are open. Some of them will have ended by then.
OPEN_RETRY_S = 1.0
# Messages up to this size are parsed on the event loop: whatever fields they have, counting and parsing them takes at most 2 ms. For a
# larger message the cost of a thread is small in comparison.
INLINE_BYTES_MAX = 2**14
# Of this method the calls are counted in its objective, of others the texts.
EXPLAIN = "Explain"
# A deadline counts as too short from the start only while the event loop is busy for at most this share of the time. A busier one may have
# left the call waiting in gRPC's core.
BUSY_MAX = 0.8
# The status codes of what fails for lack of time or room.
LACKS = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
# For how long after a caller was over its share its other failures count as such too. Its texts that were admitted may wait until their
# deadlines, 5 s by default, and a caller that leaves then does not learn why.
OVER_S = 5.0
# Status codes that mark a span as an error: the server's faults. A caller's mistake or cancellation is not an error of the server's span.
FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
HTTP_FAULT = 500

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of every call."""

    message_bytes_max: int
    deadline_default_s: float
    deadline_max_s: float
    open_max: int
    # A call that takes longer is counted as slow.
    objective_s: float
    # An answer is in time if the transport gets it this long before the deadline.
    margin_s: float
    # Fields and list entries of a message, at all depths.
    fields_max: int = FIELDS_MAX
    # False if a front end forwards the calls, and counts and logs them itself.
    counted: bool = True


@dataclass(frozen=True, slots=True)
class CallLog:
    """Which lines each call has: one at debug level; one at info level, without what identifies its connection beyond its account."""

    debug: bool = False
    access: bool = False


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A unary method: its name, its request message and the function that answers it."""

    name: str
    request: type[Q]
    answer: Callable[[Q, Call], Awaitable[A]] = field(repr=False)
    # True for health probes. They are exempt from the limit of open calls, so that a server under load does not look dead.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class StreamMethod(Generic[Q, A]):
    """A server-streaming method. Closing the generator of ``answer`` at any point withdraws its queued work."""

    name: str
    request: type[Q]
    answer: Callable[[Q, Call], AsyncGenerator[A, None]] = field(repr=False)

    async def write_all(self, request: Q, call: Call, write: Callable[[A], Awaitable[None]]) -> None:
        """Write the answers one by one. The next answer is requested only after the previous one has been written."""
        async with contextlib.aclosing(self.answer(request, call)) as answers:
            async for answer in answers:
                await write(answer)


class Calls:
    """Every call of sentiment.v1 and of the Open Inference Protocol, over gRPC or HTTP, runs in ``settle`` and gets one status there.

    Those of health, reflection and the admin port are not counted, and do without it.
    """

    def __init__(
        self,
        metrics: Metrics,
        limits: CallLimits,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
        guard: Guard | None = None,
        log: Callable[[], CallLog] = CallLog,
        busy_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Have no call.

        Args:
            metrics: counts the calls.
            limits: of each call.
            tracer: of this process, if it traces.
            clock: the event loop's, in seconds.
            guard: knows the names of tokens; it has admitted the calls.
            log: which lines each call has, as of now.
            busy_share: how busy the event loop is, 0 to 1.
        """
        self._busy_share = busy_share
        # When names of tokens were last over their share, of explanations and of all else.
        self._over_at: dict[tuple[str, bool], float] = {}
        self._metrics = metrics
        self._log = log
        self._guard = guard
        self.clock = clock
        self.no_model = CallMetrics(metrics, NO_MODEL)
        self.limits = limits
        self._tracer = tracer
        self._parsing = ThreadPoolExecutor(1, "parse")
        self._refusals = Refusals(clock)
        # How many are open, and of each account.
        self.open = 0
        self.open_of: Counter[str] = Counter()
        # From this instant on the server cancels what is open: the grace of its drain has passed. And how many calls it has cut off.
        self.cut_at, self.cut = float("inf"), 0
        # Set when held answers may leave; None where none are held.
        self._leaving: asyncio.Event | None = None

    @contextlib.contextmanager
    def holding_answers(self) -> Iterator[None]:
        """Answers of calls with one message wait for the end of the context, unless their deadline is near.

        So callers that wait for an answer before they send the next call send none meanwhile.
        """
        self._leaving = asyncio.Event()
        try:
            yield
        finally:
            self._leaving.set()
            self._leaving = None

    async def may_leave(self, call: Call) -> None:
        """Wait while answers are held, unless the call's deadline is near."""
        if self._leaving is not None and call.time_left_s() > HOLD_LEFT_S_MIN:
            await self._leaving.wait()

    def metrics_of(self, call: Call) -> CallMetrics:
        """The metrics that count the call: its model's, or those of no model if it has none or the model has been unloaded."""
        return self.no_model if call.served is None or call.served.metrics.forgotten else call.served.metrics

    def begin(
        self, method: str, time_left_s: float | None, headers: Callable[[], Headers], route: str = "", peer: Callable[[], str] = str
    ) -> Call:
        """A call that arrives now.

        Args:
            method: its name.
            time_left_s: the client's time limit, None for the default; cut to the server's maximum.
            headers: returns its headers.
            route: HTTP only; see ``Call``.
            peer: returns the remote address of its connection.
        """
        now = self.clock()
        allowed_s = self.bounded_s(self.limits.deadline_default_s if time_left_s is None else time_left_s)
        # A front end that forwards a call names its caller.
        named = peer if self.limits.counted else lambda: caller_named(headers())
        asked_s = math.inf if time_left_s is None else time_left_s
        call = Call(method, now, now + allowed_s, headers, named, self._name_in, route, clock=self.clock, asked_s=asked_s)
        if self._tracer is not None:
            # A call that a front end forwards is sampled if the front end sampled it.
            call.trace = self._tracer.request(headers(), follow=not self.limits.counted)
        return call

    def _name_in(self, headers: Headers) -> str | None:
        return None if self._guard is None else self._guard.name_of(authorization_in(headers))

    def bounded_s(self, time_left_s: float) -> float:
        """A client's time limit, cut to the server's maximum."""
        return min(max(0.0, time_left_s), self.limits.deadline_max_s)

    def parse(self, request: type[Q], data: bytes) -> Q:
        """Parse a message.

        Raises:
            InvalidInput: the message has too many fields, is not of this type, or has invalid UTF-8.
        """
        if has_more_fields(request, data, self.limits.fields_max):
            raise InvalidInput("", f"the message has more than {self.limits.fields_max} fields and list entries")
        return parsed(request, data)

    async def settle(self, call: Call, work: Coroutine[Any, Any, T], probe: bool = False) -> T:
        """Run a call's work, then log and count its status. ``probe``: as in Method.

        Raises:
            RequestError: the work failed. An unexpected exception is logged and becomes Broken.
            asyncio.CancelledError: the caller has left.
        """
        code, own_fault, seconds = "CANCELLED", "", None
        # Now: a connection that has ended has no address any more, and a call no headers.
        logged = {**call.logged, **call.sender} if self.limits.counted and self._log().debug else {}
        caller = call.account
        self.open += 1
        self.open_of[caller] += 1
        try:
            if not probe and (refusal := self._one_too_many(caller)):
                work.close()
                raise refusal
            result = await work
            if (late_s := -call.time_left_s()) > 0:
                raise Expired(f"the answer was ready {shown_s(late_s)} after the deadline")
            code = OK
            self._refusals.answered(call.answered)
            return result
        except RequestError as error:
            code = code_of(error).name
            own_fault = self.own_fault(call, code, error, call.asked_s)
            if code == "INTERNAL":
                logger().error("call_failed", **call.logged, reason=str(error))
            # The wait is not counted as slowness.
            seconds = call.elapsed_s()
            if isinstance(error, Refused) and may_wait(error):
                # The request, which its frames hold, counts no more.
                error.alone()
                await self._refusals.wait((self.clock() + call.deadline_at) / 2, error.rows)
            raise
        except asyncio.CancelledError:
            if self.clock() < self.cut_at:
                code = call.left_code()
                own_fault = self.own_fault(call, code, None, call.asked_s)
            else:
                code = "UNAVAILABLE"
                self.cut += 1
            raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # the caller waits for an answer, whatever happened, even a panic of the tokenizer
            code = "INTERNAL"
            logger().exception("call_failed", **call.logged)
            raise Broken(f"internal error; see the server's log for request id {call.request_id}") from error
        finally:
            self.open -= 1
            self.open_of[caller] -= 1
            if not self.open_of[caller]:
                del self.open_of[caller]
            # Now: an answer that is sent late counts as late, whenever it is counted.
            outcome = self._outcome(call, code)
            seconds = call.elapsed_s() if seconds is None else seconds
            self.no_model.observing.later("call", self._observe, call, code, own_fault, outcome, seconds, logged)

    def _one_too_many(self, caller: str) -> Refused | None:
        """The refusal of a call that has just begun, if too many are open."""
        # Without this one.
        calls, mine, most = self.open - 1, self.open_of[caller] - 1, self.limits.open_max
        if mine < most - calls:
            return None
        found = f"{calls} calls are open, {mine} of them this caller's; the limit is {most}"
        refusal = Refused(f"{found}, and a caller gets at most as many as stay free", OPEN_RETRY_S, "calls")
        refusal.over_share = twice_the_others(mine, calls, len(self.open_of))
        return refusal

    def own_fault(self, call: Call, code: str, error: RequestError | None, asked_s: float) -> str:
        """Why a failure with this status code is its caller's own doing, one of OWN_FAULTS; empty if it is not.

        ``error``: None if the deadline ended the call. ``asked_s``: the client's time limit; infinite: it named none.
        """
        callers = self._metrics.callers
        if code in LACKS and callers is not None and callers.named(call.account):
            now, kind = self.clock(), (call.account, call.method == EXPLAIN)
            if error is not None and error.over_share:
                self._over_at[kind] = now
            if now - self._over_at.get(kind, -math.inf) <= OVER_S:
                return "share"
        needs_s = max(self.limits.margin_s, 0.0 if error is None else error.needs_s)
        return "deadline" if code == "DEADLINE_EXCEEDED" and asked_s < needs_s and self._busy_share() <= BUSY_MAX else ""

    def _outcome(self, call: Call, code: str) -> str:
        """The outcome of the call's answers, which are sent now."""
        if code == OK and call.time_left_s() >= self.limits.margin_s:
            return "met"
        return OUTCOMES.get(code, "failed")

    def _observe(self, call: Call, code: str, own_fault: str, outcome: str, seconds: float, logged: dict[str, str]) -> None:
        """Count, trace and log a call that has ended."""
        metrics = self.metrics_of(call)
        if call.answered and call.served is not None:
            call.served.count_told(call.answered, outcome)
        if code == OK:
            for text_code, texts in call.texts.items():
                self.count_texts(call, metrics, text_code, texts)
            for reason, texts in call.own_faults.items():
                metrics.of[call.method].own_fault[reason](texts)
        else:
            self.count_texts(call, metrics, code, call.texts.total(), own_fault)
        if self.limits.counted:
            if own_fault and (call.method == EXPLAIN or metrics is self.no_model):
                metrics.of[call.method].own_fault[own_fault]()
            if self._metrics.callers is not None:
                self._metrics.callers.called(call.account, code)
            of_method = metrics.of[call.method]
            of_method.requests[code]()
            of_method.seconds(seconds, exemplar_of(call.trace))
            if seconds > self.limits.objective_s:
                of_method.slow()
            if self._log().access:
                model = "" if call.served is None else call.served.id
                count = {"texts": call.counted, "tokens": call.tokens}
                logger().info("access", caller=call.account, method=call.method, code=code, model=model, **count, seconds=round(seconds, 6))
        if call.trace is not None:
            _end_span(call, call.trace, code, seconds, self.limits.counted)
        if logged:
            logger().debug("call", **logged, code=code, seconds=round(seconds, 6))

    def count_texts(self, call: Call, metrics: CallMetrics, code: str, texts: int = 1, own_fault: str = "") -> None:
        """Count texts of a call with this status code. ``own_fault``: why they failed by their caller's own doing, if they did."""
        metrics.of[call.method].items[code](texts)
        if own_fault:
            metrics.of[call.method].own_fault[own_fault](texts)
        call.counted += texts
        if self._metrics.callers is not None:
            self._metrics.callers.asked(call.account, code, texts)

    async def answer(self, method: Method[Q, A], data: bytes, call: Call) -> bytes:
        """The answer of a unary method to a message, both as bytes.

        Raises:
            RequestError: the call has no answer.
        """
        request = await self.parsed(method.request, data)
        # It may be large, and the answer may take long.
        del data
        return await self.answer_parsed(method, request, call)

    async def answer_parsed(self, method: Method[Q, A], request: Q, call: Call) -> bytes:
        """As ``answer``, to a message that is parsed."""
        answering = method.answer(request, call)
        del request
        response = await answering
        begun = self.clock()
        sent = response.SerializeToString()
        if call.served is not None:
            call.served.metrics.stage["send"](self.clock() - begun)
        return sent

    async def parsed(self, request: type[Q], data: bytes) -> Q:
        """As ``parse``, in a thread if the message is large: one for all, so that the event loop shares Python with one other at most."""
        if len(data) <= INLINE_BYTES_MAX:
            return self.parse(request, data)
        return await asyncio.get_running_loop().run_in_executor(self._parsing, self.parse, request, data)


def may_wait(error: Refused) -> bool:
    """Whether the caller may have to wait for it, where many are refused (``Refusals``): it waits for explanations, or has had its share.

    A call that is refused for being one too many is open no longer.
    """
    return error.reason == "explanations" or (error.over_share and error.reason != "calls")


def _end_span(call: Call, trace: Trace, code: str, seconds: float, server: bool) -> None:
    """End the span of a call with this status code. ``server``: the call came from a client, not from a front end of this server.

    Its attributes are those of OpenTelemetry's conventions for RPC and HTTP servers. Raw paths are left out: callers choose them.
    """
    if call.served is not None:
        trace.attributes["sentiment.model"] = call.served.id
    if call.route:
        name, error = call.route, _http(call, trace, code)
    else:
        name, error = path_of(call.method), code if code in FAULTS else ""
        trace.attributes |= {"rpc.system.name": "grpc", "rpc.method": name, "rpc.response.status_code": code}
    trace.end(name, call.arrived_at, call.arrived_at + seconds, error, server)


def _http(call: Call, trace: Trace, code: str) -> str:
    method, _, path = call.route.partition(" ")
    status = HTTP_STATUS[grpc.StatusCode[code]]
    # After the head has been sent with status 200, an error is in the last line of the body.
    sent = 200 if call.head_sent else status
    trace.attributes |= {"http.request.method": method, "http.route": path, "url.scheme": "http", "http.response.status_code": sent}
    return "" if status < HTTP_FAULT else code if call.head_sent else str(status)
