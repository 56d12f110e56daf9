"""What a server does with its port until it is ready: it holds the port and does not listen, so that callers try another server.

The commands learn by a sign that a server on this machine is starting: a Unix socket with an abstract name, which goes with its process.
Linux only; on other systems there is no sign.
"""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator

from sentiment.errors import CannotServe


@contextlib.contextmanager
def reserved(listen: str, shared: bool = False) -> Iterator[str]:
    """Hold a port within the context, without listening; yields its address with its number.

    Args:
        listen: ``host:port``; port 0 takes a free one. Empty: does nothing.
        shared: our processes may listen on it meanwhile, each with SO_REUSEPORT.

    Raises:
        CannotServe: another process uses it.
    """
    if not listen:
        yield ""
        return
    host, _, port = listen.rpartition(":")
    with contextlib.ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            held = stack.enter_context(socket.socket(*found[:3]))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(found[4])
            if shared:
                # After bind: before it, bind would succeed on a port that another server shares.
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except (OSError, OverflowError) as error:
            raise CannotServe(f"gRPC cannot listen on {listen}: {error}") from error
        yield f"{host}:{held.getsockname()[1]}"


@contextlib.contextmanager
def starting(port: int) -> Iterator[None]:
    """Show, within the context, that a server of this port is starting."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":
            sign = stack.enter_context(socket.socket(socket.AF_UNIX))
            # Taken: another server of this port is starting too.
            with contextlib.suppress(OSError):
                sign.bind(_sign(port))
                sign.listen(1)
        yield


def is_starting(port: int) -> bool:
    """Whether a server of this port is starting on this machine, in this network namespace."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        # EAGAIN: others look too, and nobody accepts.
        return probe.connect_ex(_sign(port)) in (0, errno.EAGAIN)


def _sign(port: int) -> str:
    return f"\0sentiment-starting-{port}"
