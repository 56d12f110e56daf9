"""The messages between the fleet and its client processes: an object a line, pickled, as both ends are one version of this program."""

import pickle
from base64 import b64decode, b64encode
from typing import Any


def line_of(message: dict[str, Any]) -> bytes:  # Any: its parts are of many kinds
    """The line that carries a message."""
    return b64encode(pickle.dumps(message)) + b"\n"


def message_of(line: bytes) -> dict[str, Any]:  # Any: as above
    """The message of a line that came from the other end."""
    message: dict[str, Any] = pickle.loads(b64decode(line))  # noqa: S301  # only our own processes hold the pipe
    return message
