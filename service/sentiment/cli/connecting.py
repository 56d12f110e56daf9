"""A client of a reachable server, or why there is no server: starting, draining, absent, or another program."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import cast

import grpc

from sentiment.addresses import channel_arguments, proxy_variable, why_token_not_sent, why_unanswered
from sentiment.cli.listener import Listener, look
from sentiment.client import CallFailed, Client
from sentiment.client.policy import SERVICE
from sentiment.errors import BadSettings, SentimentError
from sentiment.files.visible import visible
from sentiment.health_check import DRAINING, STALLED, STARTING, WAITING, check
from sentiment.security.client_credentials import Credentials
from sentiment.signs import is_starting

# A running server answers GetModel, and a health check, in milliseconds.
CONNECT_S_MAX = 5.0
HEALTH_S = 2.0
# How long a server that is starting is waited for, unless the user says how long. On a CPU it starts in seconds.
START_S = 30.0
# How often a server that is waited for is looked at. A health check costs it nothing.
CHECK_EVERY_S = 0.2
ATTEMPTS_MAX = 3
# A look needs the first answer, from a new connection, whatever the server's health.
NO_RETRIES = (("grpc.enable_retries", 0), ("grpc.service_config", "{}"), ("grpc.use_local_subchannel_pool", 1))


class NoServer(SentimentError):
    """No server answers at the target. The message says what is there."""


class State(Enum):
    """What is at a target."""

    READY = auto()
    STARTING = auto()
    # It answers, but does not want new callers.
    NOT_READY = auto()
    ABSENT = auto()
    # Another program: waiting does not change it.
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a target: a sentence about it, and what the user can do."""

    state: State
    said: str = ""
    to_do: str = ""

    def awaited(self, asked: bool) -> bool:
        """Whether to wait for it to become ready. ``asked``: the user has said how long."""
        return self.state is State.STARTING or (asked and self.state in (State.NOT_READY, State.ABSENT))


TO_DO = "; see its log, or wait for a ready one with --wait SECONDS"
# By the trailer of a health check: what a server that is not ready does.
_NOT_READY = {
    STARTING: (State.STARTING, "is starting"),
    WAITING: (State.STARTING, "waits for its process that has the model"),
    DRAINING: (State.NOT_READY, "is draining: it ends, and takes no new callers"),
    STALLED: (State.NOT_READY, "is not ready: a batch runs longer than stall_s"),
}


@contextmanager
def connected(target: str, model: str, credentials: Credentials, wait_s: float | None = None) -> Iterator[Client]:
    """A client of the server at the target, once it is ready. A line on standard error says what is waited for.

    ``wait_s``: how long to wait for a server that starts, drains, or is not there yet; None: START_S, and only for one that starts.
    Without a server to wait for it fails within seconds.

    Raises:
        NoServer: no server is ready. The message says what is there instead.
        CallFailed: the server does not have the model, or rejects the credentials.
        BadSettings: a file of the credentials cannot be used, or the token may not be sent there.
    """
    ends_at = time.monotonic() + (START_S if wait_s is None else wait_s)
    # A server that has become ready may end again.
    for _ in range(ATTEMPTS_MAX):
        with Client(target, credentials=credentials) as client:
            failed = _failure(client, model)
            if failed is None:
                yield client
                return
        _wait(partial(find, target, credentials, failed.code), ends_at, wait_s)
    raise NoServer(f"the server at {target} says that it is ready, but does not answer")


def _failure(client: Client, model: str) -> CallFailed | None:
    """Why no server answers; None if one does."""
    try:
        client.get_model(model, timeout_s=CONNECT_S_MAX)
    except CallFailed as error:
        if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED):
            raise
        return error
    return None


def _wait(find: Callable[[], Found], ends_at: float, wait_s: float | None) -> None:
    """Return once ``find`` finds a ready server, if what it finds is worth waiting for."""
    shown = ""
    while (found := find()).state is not State.READY:
        if not found.awaited(asked=wait_s is not None) or wait_s == 0:
            raise NoServer(found.said + found.to_do)
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise NoServer(f"{found.said}, after {wait_s or START_S:g} s of waiting; wait longer with --wait SECONDS")
        if found.said != shown:
            shown = found.said
            print(f"{visible(found.said)}; waiting up to {math.ceil(left_s)} s", file=sys.stderr, flush=True)
        time.sleep(CHECK_EVERY_S)


def find(target: str, credentials: Credentials, failed: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Found:
    """What is at a target, by one health check. ``failed``: how a call there has ended."""
    answer = _health(target, credentials)
    if isinstance(answer, Found):
        return answer
    code, details = answer.code(), answer.details() or ""
    if failed is grpc.StatusCode.UNIMPLEMENTED or code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
        return Found(State.OTHER, f"no server answers at {target}: another gRPC server listens there, without {SERVICE}")
    if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Found(State.OTHER, f"no server answers at {target}: health checks are refused: {code.name}")
    if is_starting(target):
        return Found(State.STARTING, f"the server at {target} is starting", TO_DO)
    why = why_unanswered(target, details, os.environ) or details
    # What is behind a proxy cannot be looked at.
    listener = Listener() if proxy_variable(target, os.environ) else look(target, credentials)
    if not listener.fact and credentials.token_in_clear and (withheld := why_token_not_sent(target)):
        raise BadSettings(withheld)
    said = f"no server answers at {target}: {listener.fact or why}"
    return Found(State.OTHER, said) if listener.other else Found(State.ABSENT, said, "; start one with 'sentiment serve', or use --local")


def _health(target: str, credentials: Credentials) -> Found | grpc.Call:
    """What the server says of itself, or the call that it did not answer."""
    options, of_channel = (*NO_RETRIES, *channel_arguments(target, credentials.token_in_clear)), credentials.for_grpc()
    with grpc.secure_channel(target, of_channel, options) if of_channel else grpc.insecure_channel(target, options) as channel:
        try:
            serving, why = check(channel, SERVICE, HEALTH_S)
        except grpc.RpcError as error:
            return cast(grpc.Call, error)
        if serving:
            return Found(State.READY)
        state, does = _NOT_READY.get(why, (State.NOT_READY, "is not ready"))
        return Found(state, f"the server at {target} {does}", TO_DO)
