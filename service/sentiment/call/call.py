"""The state of one call, from its arrival to its status."""

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sentiment.errors import RequestError
from sentiment.observability.callers import number_of
from sentiment.observability.tracing.trace import TEXTS_MAX, Headers, Trace
from sentiment.pipeline.served import DEADLINE_SLACK_S, Served

REQUEST_ID = "x-request-id"
REQUEST_ID_MAX = 128
USER_AGENT = "user-agent"
# Characters of a user agent that are logged; ours have 50.
USER_AGENT_MAX = 128
# The caller of a call that a front end forwards.
CALLER = "x-sentiment-caller"
AUTHORIZATION = "authorization"


@dataclass(slots=True)
class Call:
    """One call: its arrival, its deadline and, once it is known, the model that answers. ``_at``: instants of the monotonic clock."""

    method: str
    arrived_at: float
    deadline_at: float
    # Read on demand, because few calls need them.
    # Only until the call's handler has ended: then gRPC frees them.
    headers: Callable[[], Headers]
    # Read on demand; see ``caller``.
    peer: Callable[[], str] = str
    # Finds the name of a token in the headers; see ``account``.
    name_in: Callable[[Headers], str | None] = lambda _: None
    # HTTP only: method and route, such as POST /v1/classify.
    route: str = ""
    # HTTP only: status 200 has been sent with the first line of a streamed answer.
    head_sent: bool = False
    served: Served | None = None
    # Texts that the model has answered and whose answer the caller has not got yet.
    answered: int = 0
    # Of the texts that were answered, and how many texts have been counted, those of streams too.
    tokens: int = 0
    counted: int = 0
    # The call's texts by their status codes. If the call fails, all of them have its code. A stream counts its own.
    texts: Counter[str] = field(default_factory=Counter)
    # Those of a batch that failed by the caller's own doing, by why: see ``Calls.own_fault``.
    own_faults: Counter[str] = field(default_factory=Counter)
    # None if the call is not sampled.
    trace: Trace | None = None
    # Of the event loop.
    clock: Callable[[], float] = time.monotonic
    # The client's time limit in seconds; infinite: it named none.
    asked_s: float = math.inf
    # Of a batch, the error of the first text that has one.
    first_error: RequestError | None = None
    _request_id: str = ""
    _caller: str = ""
    _account: str = ""
    _scope: int = 0

    @property
    def caller(self) -> str:
        """The connection's remote address and port, such as ``ipv4:10.0.0.7:41234``; empty if unknown."""
        self._caller = self._caller or self.peer()
        return self._caller

    @property
    def account(self) -> str:
        """Who calls, for fair shares and counts: the name of the token, or without one the connection. The same at each read."""
        self._account = self._account or self.name_in(self.headers()) or self.caller
        return self._account

    @property
    def payer(self) -> int:
        """As ``account``, for the queue: the number of the name, or without one that of the address without its port."""
        return number_of(self.account)

    @property
    def request_id(self) -> str:
        """The client's x-request-id, or one that the server generates; the same at each read."""
        self._request_id = self._request_id or request_id_in(self.headers())
        return self._request_id

    @property
    def scope(self) -> int:
        """Who calls, for known answers: a hash of the authorization header, which is 1 for all calls without one."""
        if not self._scope:
            sent = authorization_in(self.headers())
            self._scope = hash_of(sent[0]) if sent else 1
        return self._scope

    @property
    def logged(self) -> dict[str, str]:
        """The fields that identify this call in log lines."""
        fields = {"method": self.method, "request_id": self.request_id}
        return fields if self.trace is None else {**fields, **self.trace.exemplar}

    @property
    def sender(self) -> dict[str, str]:
        """The fields that say in log lines at debug level who sent this call: the connection's address, and the user agent."""
        agent = next((value for key, value in self.headers() if key.lower() == USER_AGENT and isinstance(value, str)), "")
        shown = "".join(sign for sign in agent if sign.isascii() and sign.isprintable())
        return {"peer": self.caller, "user_agent": shown[:USER_AGENT_MAX]}

    def trace_of(self, index: int) -> Trace | None:
        """The trace for the call's text with this index; None beyond the first TEXTS_MAX texts."""
        return self.trace if index < TEXTS_MAX else None

    def left_code(self) -> str:
        """The status of a cancelled call: DEADLINE_EXCEEDED if its deadline ended it, CANCELLED if its client did."""
        return "DEADLINE_EXCEEDED" if self.time_left_s() <= DEADLINE_SLACK_S else "CANCELLED"

    def time_left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline_at - self.clock()

    def elapsed_s(self) -> float:
        """Seconds since it arrived."""
        return self.clock() - self.arrived_at


def hash_of(header: str | bytes) -> int:
    """64 bits of a header's hash, not 0."""
    value = header if isinstance(header, bytes) else header.encode(errors="surrogateescape")
    return int.from_bytes(hashlib.sha256(value).digest()[:8]) or 1


def authorization_in(headers: Headers) -> list[str | bytes]:
    """The authorization headers."""
    return [value for key, value in headers if key.lower() == AUTHORIZATION]


def caller_named(headers: Headers) -> str:
    """The caller that a front end names; empty if it names none."""
    return next((value for key, value in headers if key == CALLER and isinstance(value, str)), "")


def request_id_in(headers: Headers) -> str:
    """The client's x-request-id if it has 1 to 128 printable ASCII characters, else a new id of 128 random bits."""
    for key, value in headers:
        if key.lower() == REQUEST_ID and isinstance(value, str) and is_request_id(value):
            return value
    # A caller who knows it may read the answer's label and replace it (Feedback), so ids are not related. Takes 0.4 us.
    return os.urandom(16).hex()


def is_request_id(value: str) -> bool:
    """Whether a client's request id is kept: 1 to REQUEST_ID_MAX printable ASCII characters."""
    return value.isascii() and value.isprintable() and 0 < len(value) <= REQUEST_ID_MAX
