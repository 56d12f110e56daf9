"""Servers that are held at one point."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import RunningServer
from tests.rpc.gate import Gate


@pytest.fixture
def hold(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[RunningServer], Gate]]:
    """Put a gate before a server's model; opened at the end, so that the server can be stopped."""
    gates: list[Gate] = []

    def begin(server: RunningServer) -> Gate:
        gates.append(Gate(server, monkeypatch))
        return gates[-1]

    yield begin
    for gate in gates:
        gate.open()
