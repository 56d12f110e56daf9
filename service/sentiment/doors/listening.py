"""The addresses that a server listens on: what they mean, how a port is held, and why one cannot be bound."""

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator

from sentiment.errors import BadSettings, CannotServe
from sentiment.settings import PREFIX, flag_of
from sentiment.signs import Sign, is_shown


def split(listen: str) -> tuple[str, int]:
    """Host, without brackets, and port of ``host:port``."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def is_every(host: str) -> bool:
    """Whether a host is a wildcard. Either one, 0.0.0.0 and ::, means every address of the machine, of IPv4 and IPv6.

    So gRPC has it, which cannot be asked for one family alone, and so have all ports of a server.
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """A TCP socket that holds the port and does not listen. Port 0 takes a free one. On a machine without IPv6 a wildcard is IPv4's.

    Raises:
        OSError, OverflowError: the port cannot be bound.
    """
    every = is_every(host)
    if every:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104  # what the user asked for
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(family, kind, protocol))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if every and family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        stack.pop_all()
        return made


@contextlib.contextmanager
def reserved(setting: str, listen: str, shared: bool = False) -> Iterator[str]:
    """Hold a port within the context, without listening; yields its address with its number.

    A server holds its port so until it is ready: callers are refused, and try another server.

    Args:
        setting: the name of the setting that has the address.
        listen: ``host:port``; port 0 takes a free one. Empty: does nothing.
        shared: our processes may listen on it meanwhile, each with SO_REUSEPORT.

    Raises:
        CannotServe: another process uses it.
        BadSettings: this machine does not have the address.
    """
    if not listen:
        yield ""
        return
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(bound(*split(listen)))
            if shared:
                # After bind: before it, bind would succeed on a port that another server shares.
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except (OSError, OverflowError) as error:
            raise cannot_listen(setting, listen, error) from error
        yield f"{listen.rpartition(':')[0]}:{held.getsockname()[1]}"


def cannot_listen(setting: str, listen: str, error: Exception) -> CannotServe | BadSettings:
    """The error of a server that cannot listen on the address of a setting: why, and how to choose another.

    BadSettings: this machine does not have the address.
    """
    if isinstance(error, RuntimeError) and not listen.startswith("unix:"):
        # gRPC does not say why. Holding the port does.
        try:
            bound(*split(listen)).close()
        except (OSError, OverflowError) as reason:
            error = reason
    why = str(error)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        ours = any(is_shown(sign, split(listen)[1]) for sign in Sign)
        why = f"the port is in use{' by another sentiment server' * ours}; stop what uses it, or choose another"
    transport = "HTTP" if setting == "http_listen" else "gRPC"
    elsewhere = isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL)
    kind = BadSettings if elsewhere else CannotServe
    return kind(f"{transport} cannot listen on {listen}: {why} ({flag_of(setting)} or {PREFIX}{setting.upper()})")
