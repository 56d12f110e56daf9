"""Calls as gRPC's core counts them, those too that it ends before the event loop has looked at them: of these the start alone."""

import contextlib
import json

# What grpcio-channelz reads too, whose servicer would show all connections to whoever asks.
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # its stubs leave it out


class CoreCalls:
    """The counts of one server of this process."""

    def __init__(self) -> None:
        """Of the one that was made last; make this right after it."""
        servers: list[str] = []
        end = False
        while not end:
            page = json.loads(cygrpc.channelz_get_servers(int(servers[-1]) + 1 if servers else 0))
            servers += [server["ref"]["serverId"] for server in page.get("server", ())]
            end = page.get("end", False)
        self._server_id = int(servers[-1])
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
        with contextlib.suppress(ValueError):
            self._last = json.loads(cygrpc.channelz_get_server(self._server_id))["server"]["data"]
        return float(self._last.get(name, 0))
