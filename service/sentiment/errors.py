"""The base of all errors that are raised on purpose, and those that several packages know: the client, commands and files have others too.

A message states fact, value and limit, and never quotes a user's text. ``call.status`` maps errors to gRPC codes, commands map them to
exit codes (``cli.exit_codes``).
"""

from typing import Self


class SentimentError(Exception):
    """Base class of every error this package raises on purpose."""


class BadSettings(SentimentError):
    """A setting is unknown, or its value is not acceptable."""


class BadBundle(SentimentError):
    """A bundle cannot be served: it is missing or damaged, or does not run on this machine."""


class CannotServe(SentimentError):
    """The server cannot start for a reason other than settings or bundle, such as a port that is in use."""


class OutOfMemory(SentimentError):
    """A batch needed more memory than is available. A smaller batch may fit."""


class CannotRead(SentimentError):
    """A file cannot be read now, for a temporary reason such as too many open files."""


class NoDevice(SentimentError):
    """A device is missing or does not work; the message says why."""


class RunnerLost(SentimentError):
    """A model run does not end and its thread cannot be recovered, or its device is lost. The process must be replaced."""


class DeviceLost(RunnerLost):
    """A device that worked before fails every run."""


class TaskEnded(SentimentError):
    """A task that a process needs for as long as it serves has ended. The process must be replaced."""


def shown_s(seconds: float) -> str:
    """A duration for a message, never as 0 s."""
    return "less than 1 ms" if seconds < 0.001 else f"{seconds:.3f} s"


class RequestError(SentimentError):
    """Base class of errors that end one request without an answer."""

    # False if a queue did not admit the request: in another process it may be too late to raise the error.
    admitted = True
    # True if the caller asked for more than its share while another stayed within its own.
    over_share = False
    # Seconds that the request takes, where it has no answer because they were not left; 0: not known.
    needs_s = 0.0

    def alone(self) -> Self:
        """Return it without its traceback and causes, for where it is kept: they hold the memory of the frames that they name."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class InvalidInput(RequestError):
    """The request is wrong; a retry would fail again.

    Args:
        field: path of the field in the request, such as ``items[3].text``.
        message: fact, value and limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.description = message


class Unauthenticated(RequestError):
    """The caller did not send a valid token."""


class ModelNotFound(RequestError):
    """No loaded model has this name and version."""


class AnswerNotFound(RequestError):
    """The journal has no answer to a request with this id."""


class Unsupported(RequestError):
    """The model, or the server, does not support what the request asks for, such as a pair."""


class NotBuilt(RequestError):
    """The API has this feature, but this version of the service does not implement it."""


class Expired(RequestError):
    """The deadline passed before the answer was ready.

    Args:
        message: fact, value and limit.
        needs_s: seconds that it takes at most on a server that is idle and as fast as when it was measured; 0: not known.
    """

    def __init__(self, message: str, needs_s: float = 0.0) -> None:
        super().__init__(message)
        self.needs_s = needs_s


class Refused(RequestError):
    """The server has no room for the request now.

    Args:
        retry_after_s: seconds after which a retry may succeed; infinite: never.
        reason: queue_full, backlog (the queued work would take until after the deadline), calls (too many calls are open), request_bytes
            (the caller's requests have too many bytes), explanations (too many are queued, they leave this one too little time, or the
            client reads too slowly) or feedback (too many searches for answers wait).
        needs_s: seconds that the request takes after that. A retry with less time left cannot succeed.
    """

    # Of a text, how many rows were read for it.
    rows = 1

    def __init__(self, message: str, retry_after_s: float, reason: str, needs_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason
        self.needs_s = needs_s


class Unavailable(RequestError):
    """The server is starting or draining, or cannot reach what it needs."""


class ModelFailed(RequestError):
    """The model could not compute this row: a server fault."""


class Broken(RequestError):
    """A bug in the server ended this request. The message gives the request id under which the log has the cause."""
