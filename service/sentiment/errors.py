"""Everything that can go wrong, as one tree. A message states fact, value and limit and never quotes a user's text.

``api.grpc.status`` translates to gRPC codes, ``cli`` to exit codes; nothing else does.
"""


class SentimentError(Exception):
    """Base class of every error this package raises on purpose."""


class BadSettings(SentimentError):
    """A setting is unknown or has no acceptable value."""


class BadBundle(SentimentError):
    """A bundle cannot be served: missing, damaged, or wrong on this machine."""


class CannotServe(SentimentError):
    """The server cannot start for a reason outside settings and bundle, such as a port that is taken."""


class OutOfMemory(SentimentError):
    """A batch needed more memory than there is; a smaller one may not."""


class CannotRead(SentimentError):
    """A file cannot be read now, for a reason that may pass, such as too many open files."""


class NoDevice(SentimentError):
    """A device is not there or does not work; the message says why."""


class RunnerLost(SentimentError):
    """A run does not end and its thread cannot be taken back, or its device is lost: the process must be replaced."""


class DeviceLost(RunnerLost):
    """A device that worked runs nothing any more."""


class RequestError(SentimentError):
    """Base class of the ways in which one request ends without an answer."""


class InvalidInput(RequestError):
    """The request is wrong and will be wrong again.

    Args:
        field: path of the field in the request, such as ``items[3].text``.
        message: fact, value and limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.description = message


class Unauthenticated(RequestError):
    """The caller has not shown a token that is valid here."""


class ModelNotFound(RequestError):
    """No loaded model has this name and version."""


class Unsupported(RequestError):
    """The model cannot do what is asked, such as read a pair."""


class NotBuilt(RequestError):
    """The contract has it and this version of the service does not."""


class Expired(RequestError):
    """The deadline came before the answer."""


class Refused(RequestError):
    """There is no room for the request now.

    Args:
        retry_after_s: when a retry may find room.
        reason: queue_full, backlog (its deadline leaves no time behind the work ahead), calls (too many are open) or explanations (too many
            wait, or its reader is too slow).
        needs_s: how long it takes from then on; a retry that has less time left is in vain.
    """

    def __init__(self, message: str, retry_after_s: float, reason: str, needs_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason
        self.needs_s = needs_s


class Unavailable(RequestError):
    """The server is starting or draining."""


class ModelFailed(RequestError):
    """The model could not compute this row; it is our fault."""


class Broken(RequestError):
    """A bug of ours ended this request; the cause is in the log, under the request id that the message gives."""
