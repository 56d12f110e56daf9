"""Client of the admin port: lists, loads, selects and unloads a server's models.

Import it separately from the other clients: the protocol's generated code and Triton's own client cannot be in one process.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import grpc

from sentiment.addresses import channel_arguments, checked_target, why_unanswered
from sentiment.client.results import failure_of_rpc
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc

DEFAULT_TARGET = "127.0.0.1:50053"
# Timeout of a load, which a server does at low priority.
LOAD_TIMEOUT_S = 900.0
TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A version of a model. ``state``: READY, LOADING, UNLOADING or UNAVAILABLE; ``reason``: why, or how it is used."""

    name: str
    version: str
    state: str
    reason: str


class AdminClient:
    """Calls the admin port of one server. Use it as a context manager, or call ``close``."""

    def __init__(self, target: str = DEFAULT_TARGET, *, token: str) -> None:
        """Connect lazily.

        Args:
            target: ``host:port`` or ``unix:PATH`` on this machine, because the token is sent in plaintext. Calls to another machine
                fail with UNAVAILABLE before the token is sent. Use one server, not a load balancer: each has its own models.
            token: a token of the server's ``admin_tokens``.

        Raises:
            BadSettings: the target is a URL or has no valid port.
        """
        kind = grpc.LocalConnectionType.UDS if target.startswith("unix:") else grpc.LocalConnectionType.LOCAL_TCP
        # A proxy on this machine would pass for this machine, and send the token on.
        arguments = channel_arguments(target, token_in_clear=True)
        self._channel = grpc.secure_channel(checked_target(target), grpc.local_channel_credentials(kind), arguments)
        # The stub class is typed for both kinds of channel.
        self._stub = cast(Any, oip_grpc.GRPCInferenceServiceStub(self._channel))
        self._target = target
        self._metadata = (("authorization", f"Bearer {token}"),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def index(self, *, ready: bool = False) -> list[Listed]:
        """All versions that are loaded, on the server's disk, or failed to load; ``ready``: only those that serve.

        Raises:
            CallFailed: here and in every other method; ``code`` says why.
        """
        found = self._call(self._stub.RepositoryIndex, oip.RepositoryIndexRequest(ready=ready), TIMEOUT_S)
        return [Listed(model.name, model.version, model.state, model.reason) for model in found.models]

    def load(self, model: str, *, use: bool = True, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load ``name/version``, or the highest version of ``name``; returns once it serves. ``use``: make it the version in use."""
        self._load(model, {"use": use}, timeout_s)

    def use(self, model: str) -> None:
        """Make this loaded ``name/version`` the version in use of its name, at once."""
        self._load(model, {"loaded": True}, TIMEOUT_S)

    def unload(self, model: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Unload ``name/version``, or all versions of ``name``; returns once their requests are answered."""
        self._call(self._stub.RepositoryModelUnload, oip.RepositoryModelUnloadRequest(model_name=model), timeout_s)

    def _load(self, model: str, flags: dict[str, bool], timeout_s: float) -> None:
        parameters = {name: oip.ModelRepositoryParameter(bool_param=flag) for name, flag in flags.items()}
        self._call(self._stub.RepositoryModelLoad, oip.RepositoryModelLoadRequest(model_name=model, parameters=parameters), timeout_s)

    def _call(self, method: Any, request: object, timeout_s: float) -> Any:  # Any: the stub's methods and messages
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)
            details, trailers = call.details() or "", tuple(call.trailing_metadata() or ())
            if call.code() is grpc.StatusCode.UNAVAILABLE and not trailers:
                why = why_unanswered(self._target, details, {})
                details = f"no admin port answers at {self._target}: {why}" if why else details
            raise failure_of_rpc(call.code(), details, trailers) from error
