"""The protocols that a load is sent by. A driver makes one call at a time, many at once, and never raises what the server did."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc

from sentiment.errors import SentimentError
from sentiment.loadtest.mix import Call
from sentiment.security.client_credentials import Credentials

CONNECT_S_MAX = 5.0
# A load tester wants each answer as it is: no retry, no connection shared with another channel, and no pause after a lost one that
# is longer than a second of the run.
CHANNEL_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
]


class LoadFailed(SentimentError):
    """A load cannot be made, or not measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds of a call in the server's stages, as it told."""

    tokenize_s: float
    queue_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: a status code's name, the server's words if it is not OK, and what the answer told."""

    code: str
    message: str = ""
    texts_ok: int = 0
    tokens: int = 0
    stages: Stages | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its address, how to speak to it and how many connections each process opens."""

    address: str
    protocol: str = "grpc"
    model: str = ""
    channels: int = 1
    credentials: Credentials = field(default_factory=Credentials)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Self:  # Any: JSON
        """What ``dataclasses.asdict`` made."""
        return cls(**{**told, "credentials": Credentials(**told["credentials"])})

    def channel(self) -> grpc.aio.Channel:
        """A gRPC connection of its own.

        Raises:
            ValueError: the address is none.
            BadSettings: a file of the credentials cannot be used.
        """
        credentials = self.credentials.for_grpc()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self.address, credentials, CHANNEL_OPTIONS)


class Driver(Protocol):
    """One way to call a server."""

    async def connect(self) -> dict[str, str]:
        """Open the connections; returns what the server says of itself, by name, such as its model and digest.

        Raises:
            LoadFailed: nobody answers there, or not by this protocol.
        """

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """Make a call; cancelling this cancels it. Raises nothing that a server or network can cause."""

    async def close(self) -> None:
        """Close the connections, after the last call."""


def failure(error: grpc.aio.AioRpcError) -> Answer:
    """The answer that gRPC gives as an exception."""
    return Answer(error.code().name, error.details() or "")


async def wait_ready(channel: grpc.aio.Channel, address: str) -> None:
    """Wait until a channel is connected.

    Raises:
        LoadFailed: it cannot be, or is not within CONNECT_S_MAX.
    """
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise LoadFailed(f"no gRPC server answers at {address}")
                await channel.wait_for_state_change(state)
    except TimeoutError as error:
        raise LoadFailed(f"no gRPC server answers at {address} within {CONNECT_S_MAX:g} s") from error
