"""One call on its way."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sentiment.observability.tracing.trace import TEXTS_MAX, Headers, Trace
from sentiment.serving.pipeline import Served

REQUEST_ID = "x-request-id"
# A cancellation so shortly before the deadline is the deadline's.
DEADLINE_SLACK_S = 0.01


@dataclass(slots=True)
class Call:
    """One call on its way: when it came, when its answer is worth nothing, whom it is for once that is known."""

    method: str
    arrived_at: float
    deadline_at: float
    # Looked at only when somebody asks: few calls need them.
    headers: Callable[[], Headers]
    new_request_id: Callable[[], str]
    # Of HTTP: method and route, such as POST /v1/classify.
    route: str = ""
    # Of HTTP: its status, 200, has gone out with the first line of several.
    head_sent: bool = False
    served: Served | None = None
    # None: it is not sampled.
    trace: Trace | None = None
    _request_id: str = ""

    @property
    def request_id(self) -> str:
        """The client's x-request-id, or one of ours; the same each time."""
        self._request_id = self._request_id or request_id_in(self.headers(), self.new_request_id)
        return self._request_id

    @property
    def logged(self) -> dict[str, str]:
        """What log lines say of it, so that it is found again."""
        found = {"method": self.method, "request_id": self.request_id}
        return found if self.trace is None else {**found, **self.trace.exemplar}

    def trace_of(self, index: int) -> Trace | None:
        """Where its text of this index is told of: the first TEXTS_MAX only."""
        return self.trace if index < TEXTS_MAX else None

    def left_code(self) -> str:
        """How a call ended that was cancelled: by its deadline, or by its client before."""
        return "DEADLINE_EXCEEDED" if self.time_left_s() <= DEADLINE_SLACK_S else "CANCELLED"

    def time_left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline_at - time.monotonic()


def request_id_in(headers: Headers, new: Callable[[], str]) -> str:
    """The client's x-request-id if it is one, printable and at most 128 characters, else a new id."""
    for key, value in headers:
        if key.lower() == REQUEST_ID and isinstance(value, str) and value.isascii() and value.isprintable() and 0 < len(value) <= 128:
            return value
    return new()
