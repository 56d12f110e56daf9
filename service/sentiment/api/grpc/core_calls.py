"""Call counts from gRPC's core. They include calls that the core ends before the event loop sees them; those count as started only."""

import contextlib
import json
from collections.abc import Callable
from typing import TypeVar

# The source that grpcio-channelz reads too. Its servicer is not used, because it would show all connections to every caller.
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # its stubs leave it out

from sentiment.errors import CannotServe

S = TypeVar("S")
# Servers of a port whose counts are read at each scrape. The counts of older ones are kept as numbers.
SERVERS_MAX = 8


class CoreCalls:
    """The counts of one server of this process."""

    def __init__(self) -> None:
        """Count the calls of the server that was created last. Create this object right after its server.

        Raises:
            CannotServe: the core lists no server.
        """
        last = 0
        while page := json.loads(cygrpc.channelz_get_servers(last + 1)).get("server"):
            last = int(page[-1]["ref"]["serverId"])
        if not last:
            raise CannotServe("gRPC's core lists no server in channelz, so calls cannot be counted; install a supported version of grpcio")
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
        # channelz raises ValueError once the server is gone. Its last counts stay valid.
        answer = None
        with contextlib.suppress(ValueError):
            answer = cygrpc.channelz_get_server(self._server_id)
        if answer is not None:
            self._last = json.loads(answer)["server"]["data"]
        return float(self._last.get(name, 0))


class PortCalls:
    """The counts of a port over all servers that it has had."""

    def __init__(self) -> None:
        self._servers: list[CoreCalls] = []
        self._past = (0.0, 0.0)

    def counted(self, make: Callable[[], S]) -> Callable[[], S]:
        """Wrap ``make``, so that calls to its servers are counted. Servers before the last ``SERVERS_MAX`` keep their counts as of then.

        The returned function raises ``CannotServe`` as ``CoreCalls`` does.
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
