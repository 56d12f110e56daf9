"""Common parts of the protocol drivers. A driver makes single calls, many of them at once. It reports server errors as answers."""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from sentiment.addresses import channel_arguments, proxy_variable, why_token_not_sent
from sentiment.errors import SentimentError
from sentiment.security.client_credentials import Credentials
from sentiment_tools.loadtest.mix import Call

CONNECT_S_MAX = 5.0
# Each answer must be measured as it is: no retry, no connection shared between channels, and at most a second until the next attempt
# to connect after a lost connection.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
]


class LoadFailed(SentimentError):
    """A load cannot be sent or measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: the name of its status code, the server's message if it is not OK, and counts from the answer.

    ``stages_s``: of the call in the server's stages tokenize, queue and run, if the server reports them.
    """

    code: str
    message: str = ""
    texts_ok: int = 0
    tokens: int = 0
    stages_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its address, protocol and credentials, how many connections each process opens, and the effort that calls ask for."""

    address: str
    protocol: str = "grpc"
    model: str = ""
    channels: int = 1
    credentials: Credentials = field(default_factory=Credentials)
    effort: str = ""

    @property
    def effort_value(self) -> str:
        """The name of the effort in messages; empty for the server's default."""
        return f"EFFORT_{self.effort.upper()}" if self.effort else ""

    def channel(self) -> grpc.aio.Channel:
        """Open a new gRPC channel.

        Raises:
            ValueError: the address is not valid.
            BadSettings: a credentials file cannot be used.
        """
        credentials = self.credentials.for_grpc()
        options = CHANNEL_OPTIONS + channel_arguments(self.address, self.credentials.token_in_clear)
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options)
        return grpc.aio.secure_channel(self.address, credentials, options)


class Driver(Protocol):
    """Calls a server by one protocol."""

    async def connect(self) -> dict[str, str]:
        """Open the connections. Returns what the server says about itself by name, such as its model and digest.

        Raises:
            LoadFailed: no server answers there, or not by this protocol.
        """

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """Make a call; cancelling this coroutine cancels the call. Errors of server and network are answers, not exceptions."""

    async def close(self) -> None:
        """Close the connections, after the last call."""


def failure(error: grpc.aio.AioRpcError) -> Answer:
    """Convert a gRPC exception to an answer."""
    return Answer(error.code().name, error.details() or "")


async def wait_ready(channel: grpc.aio.Channel, target: Target) -> None:
    """Wait until a channel to the target is connected.

    Raises:
        LoadFailed: it cannot connect within CONNECT_S_MAX.
    """
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise LoadFailed(_why_unanswered(target))
                await channel.wait_for_state_change(state)
    except TimeoutError as error:
        raise LoadFailed(_why_unanswered(target, f" within {CONNECT_S_MAX:g} s")) from error


def _why_unanswered(target: Target, within: str = "") -> str:
    if target.credentials.token_in_clear and (withheld := why_token_not_sent(target.address)):
        return withheld
    variable = proxy_variable(target.address, os.environ)
    proxy = f", through the proxy that {variable} names; to call it without the proxy, add its host to no_proxy" if variable else ""
    return f"no gRPC server answers at {target.address}{within}{proxy}"
