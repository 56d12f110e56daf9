"""How many bytes the kernel has received on a connection of this process. gRPC does not tell. Linux only; elsewhere nothing is known."""

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

# The offset of tcpi_bytes_received in struct tcp_info (linux/tcp.h), a 64-bit number.
RECEIVED_AT, TCP_INFO_BYTES = 128, 136
NO_FILE = -1
# Names that are parsed once: of the connections that are looked at again and again.
CACHED = 4096

T = TypeVar("T")
# Address and port.
Peer = tuple[str, int]


class Connections:
    """The TCP connections of this process by their peer."""

    def __init__(self) -> None:
        self._files: dict[Peer, int] = {}

    def find(self, callers: Iterable[str]) -> None:
        """Look for these callers' connections among the open files. Takes some 10 us for each file: call it in a thread."""
        unknown = dict.fromkeys(filter(None, map(peer_of, callers)), NO_FILE)
        self._files = unknown | dict(_connections() if sys.platform == "linux" else ())

    def looked_for(self, caller: str) -> bool:
        """Whether ``find`` can do nothing more for a caller."""
        peer = peer_of(caller)
        return peer is None or peer in self._files

    def received(self, caller: str) -> int | None:
        """Bytes received on a caller's connection; None if it is not known, or not by TCP."""
        info = self._on_socket(caller, lambda connection: connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
        return int(struct.unpack_from("=Q", info, RECEIVED_AT)[0]) if info is not None and len(info) == TCP_INFO_BYTES else None

    def close(self, caller: str) -> bool:
        """Close a caller's connection, which ends its calls. Returns False if it is not known."""

        def shut(connection: socket.socket) -> bool:
            connection.shutdown(socket.SHUT_RDWR)
            return True

        return self._on_socket(caller, shut) or False

    def _on_socket(self, caller: str, act: Callable[[socket.socket], T]) -> T | None:
        peer = peer_of(caller)
        file = NO_FILE if peer is None else self._files.get(peer, NO_FILE)
        if file == NO_FILE:
            return None
        try:
            with _socket(file) as connection:
                # The number may be another file's by now.
                return act(connection) if _normal(connection.getpeername()) == peer else None
        except OSError:
            return None


@lru_cache(CACHED)
def peer_of(caller: str) -> Peer | None:
    """The peer of a caller such as ``ipv4:10.0.0.7:41234`` or ``ipv6:%5B::1%5D:41234``; None for others, such as ``unix:``."""
    kind, _, rest = unquote(caller).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _normal((host.strip("[]"), int(port)))


@lru_cache(CACHED)
def _normal(name: tuple[str, int] | tuple[str, int, int, int]) -> Peer | None:
    """With an IPv4 address in place of one that is mapped to IPv6."""
    try:
        address = ipaddress.ip_address(name[0].partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), name[1]


@contextmanager
def _socket(file: int) -> Iterator[socket.socket]:
    """A file of gRPC's as a socket."""
    # The family with the larger addresses; the answer tells which one it has.
    found = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, file)
    try:
        yield found
    finally:
        found.detach()


def _connections() -> list[tuple[Peer, int]]:
    found: list[tuple[Peer, int]] = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        # No file is left to open.
        return found
    for name in names:
        try:
            if not Path(f"/proc/self/fd/{name}").readlink().name.startswith("socket:"):
                continue
            with _socket(int(name)) as one:
                address = one.getpeername()
        except OSError:
            # A listener, or closed meanwhile.
            continue
        # A string: of a unix socket.
        if isinstance(address, tuple) and (peer := _normal(address)):
            found.append((peer, int(name)))
    return found
