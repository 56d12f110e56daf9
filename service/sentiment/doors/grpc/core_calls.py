"""Call counts from gRPC's core. They include calls that the core ends before the event loop sees them; those count as started only."""

import contextlib
import json

from sentiment.doors.grpc.grpcio import server_of, servers_from
from sentiment.errors import CannotServe


class CoreCalls:
    """The counts of one server of this process."""

    def __init__(self) -> None:
        """Count the calls of the server that was created last. Create this object right after its server.

        Raises:
            CannotServe: the core lists no server.
        """
        last = 0
        while page := json.loads(servers_from(last + 1)).get("server"):
            last = int(page[-1]["ref"]["serverId"])
        if not last:
            raise CannotServe("gRPC's core lists no server in channelz, so calls cannot be counted; install a supported version of grpcio")
        self._server_id = last
        self._last: dict[str, str] = {}

    @property
    def started(self) -> float:
        """Calls that arrived."""
        return self._read("callsStarted")

    @property
    def ended(self) -> float:
        """Calls that ended, with any status, after the event loop had accepted them."""
        return self._read("callsSucceeded") + self._read("callsFailed")

    def _read(self, name: str) -> float:
        # channelz raises ValueError once the server is gone. Its last counts stay valid.
        answer = None
        with contextlib.suppress(ValueError):
            answer = server_of(self._server_id)
        if answer is not None:
            self._last = json.loads(answer)["server"]["data"]
        return float(self._last.get(name, 0))
