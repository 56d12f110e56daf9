"""Servers that are held at one point, and clients that call them without retries."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import Gate, Hold


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, start: object) -> Iterator[Hold]:  # opens the gates before ``start`` stops the servers
    """Put a gate before a server's model; opened at the end, so that the server can be stopped."""
    gates: list[Gate] = []

    def begin(server: RunningServer) -> Gate:
        gates.append(Gate(server, monkeypatch))
        return gates[-1]

    yield begin
    for gate in gates:
        gate.open()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Any]]:
    """A stub of the service, or of another, typed for another kind of channel, on a connection of its own."""
    channels: list[grpc.aio.Channel] = []

    def begin(server: RunningServer, options: list[tuple[str, Any]] = NO_RETRIES, stub: type[Any] = pb_grpc.SentimentServiceStub) -> Any:
        channels.append(grpc.aio.insecure_channel(server.target, options))
        return stub(channels[-1])

    yield begin
    for channel in channels:
        await channel.close()
