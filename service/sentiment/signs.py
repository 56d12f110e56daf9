"""Signs by which a server shows other processes of this machine which ports are its own: Unix sockets with abstract names.

A sign goes with its process, however it ends. Linux only, and within one network namespace; elsewhere there are no signs.
"""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator
from enum import StrEnum

from sentiment.addresses import address_of, is_local


class Sign(StrEnum):
    """What a server does with a port."""

    # It holds the port and does not listen, until its model answers.
    STARTING = "starting"
    # The port is its own, from then on until it has ended.
    SERVING = "serving"


@contextlib.contextmanager
def shown(sign: Sign, port: int) -> Iterator[None]:
    """Show, within the context, what this process does with a port."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":
            name = stack.enter_context(socket.socket(socket.AF_UNIX))
            # Taken: another server shows the same.
            with contextlib.suppress(OSError):
                name.bind(_name(sign, port))
                name.listen(1)
        yield


def is_shown(sign: Sign, port: int) -> bool:
    """Whether a server of this machine shows this of a port."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        # EAGAIN: others look too, and nobody accepts.
        return probe.connect_ex(_name(sign, port)) in (0, errno.EAGAIN)


def is_starting(target: str) -> bool:
    """Whether a server of this machine that is starting holds the port of a gRPC client's target."""
    address = address_of(target)
    return isinstance(address, tuple) and is_local(target) and is_shown(Sign.STARTING, address[1])


def _name(sign: Sign, port: int) -> str:
    return f"\0sentiment-{sign}-{port}"
