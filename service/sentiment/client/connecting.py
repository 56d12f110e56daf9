"""How a client's calls reach their server, and what it means when they do not: the same for both clients."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc

from sentiment.addresses import channel_arguments, checked_target, default_target, proxy_variable, why_token_not_sent, why_unanswered
from sentiment.client.policy import channel_options
from sentiment.client.results import CallFailed, failure_of_rpc
from sentiment.security.client_credentials import Credentials
from sentiment.signs import is_starting

C = TypeVar("C")
# No answer comes sooner, even from a small model on the same machine.
ANSWER_S_MIN = 0.001


class Connecting:
    """What a channel is opened with, and the errors of its calls."""

    def __init__(
        self, target: str | None, credentials: grpc.ChannelCredentials | Credentials | None, options: Sequence[tuple[str, Any]]
    ) -> None:
        """Without a connection; the arguments are those of ``Client``.

        Raises:
            BadSettings: the target is invalid, or a credentials file cannot be used.
            TypeError: the target is not a string.
        """
        if not isinstance(target, str | None):
            raise TypeError(f"target must be a string such as HOST:PORT, got {type(target).__name__}")
        self.target = checked_target(default_target() if target is None else target)
        self._token_in_clear = isinstance(credentials, Credentials) and credentials.token_in_clear
        self.credentials = credentials.for_grpc() if isinstance(credentials, Credentials) else credentials
        ours = channel_options() + channel_arguments(self.target, self._token_in_clear)
        self.arguments = list({**dict(ours), **dict(options)}.items())

    def channel(self, secure: Callable[..., C], insecure: Callable[..., C]) -> C:
        """Open the channel, which connects later. ``secure``, ``insecure``: gRPC's functions for its kind."""
        if self.credentials:
            return secure(self.target, self.credentials, self.arguments)
        return insecure(self.target, self.arguments)

    def failure(self, code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, str | bytes]], timeout_s: float) -> CallFailed:
        """The error of a call that had ``timeout_s`` and ended with this status."""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s <= ANSWER_S_MIN:
            return CallFailed(code, f"the timeout of {timeout_s * 1e3:g} ms is too short for any answer; give the call more time")
        # Without trailers no server has answered.
        if code is grpc.StatusCode.UNAVAILABLE and not trailers:
            if is_starting(self.target):
                return CallFailed(code, f"the server at {self.target} is starting")
            if self._token_in_clear and (why := why_token_not_sent(self.target)):
                return CallFailed(code, why)
            if why := why_unanswered(self.target, details, os.environ):
                return CallFailed(code, f"no server answers at {self.target}: {why}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and not trailers:
            variable = proxy_variable(self.target, os.environ)
            proxy = f", through the proxy that {variable} names" * bool(variable)
            return CallFailed(code, f"no answer from {self.target} within the timeout of the call{proxy}")
        return failure_of_rpc(code, details, trailers)
