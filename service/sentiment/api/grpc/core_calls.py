"""Calls as gRPC's core counts them, those too that it ends before the event loop has looked at them: of these the start alone."""

import contextlib
import json
from collections.abc import Callable
from typing import TypeVar

# What grpcio-channelz reads too, whose servicer would show all connections to whoever asks.
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # its stubs leave it out

from sentiment.errors import CannotServe

S = TypeVar("S")
# Asked at each scrape.
SERVERS_MAX = 8


class CoreCalls:
    """The counts of one server of this process."""

    def __init__(self) -> None:
        """Of the one that was made last; make this right after it.

        Raises:
            CannotServe: the core tells of no server.
        """
        last = 0
        while page := json.loads(cygrpc.channelz_get_servers(last + 1)).get("server"):
            last = int(page[-1]["ref"]["serverId"])
        if not last:
            raise CannotServe("gRPC's core shows no server: this grpcio counts calls otherwise")
        self._server_id = last
        self._last: dict[str, str] = {}

    @property
    def started(self) -> float:
        """Calls that came."""
        return self._read("callsStarted")

    @property
    def ended(self) -> float:
        """Calls of them that came to an end after the event loop had looked at them, well or not."""
        return self._read("callsSucceeded") + self._read("callsFailed")

    def _read(self, name: str) -> float:
        # If the server is gone, what it had counted stays true.
        told = None
        with contextlib.suppress(ValueError):
            told = cygrpc.channelz_get_server(self._server_id)
        if told is not None:
            self._last = json.loads(told)["server"]["data"]
        return float(self._last.get(name, 0))


class PortCalls:
    """The counts of a port, whose server may have been opened anew."""

    def __init__(self) -> None:
        self._servers: list[CoreCalls] = []
        self._past = (0.0, 0.0)

    def counted(self, make: Callable[[], S]) -> Callable[[], S]:
        """``make``, whose servers are counted: of those before the last ``SERVERS_MAX`` what they had counted when they were left.

        What it returns raises ``CannotServe`` as ``CoreCalls`` does.
        """

        def made() -> S:
            server = make()
            self._servers.append(CoreCalls())
            if len(self._servers) > SERVERS_MAX:
                gone = self._servers.pop(0)
                self._past = (self._past[0] + gone.started, self._past[1] + gone.ended)
            return server

        return made

    @property
    def started(self) -> float:
        """Calls that came."""
        return self._past[0] + sum(one.started for one in self._servers)

    @property
    def ended(self) -> float:
        """Calls of them that came to an end after the event loop had looked at them, well or not."""
        return self._past[1] + sum(one.ended for one in self._servers)
