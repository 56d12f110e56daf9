"""The admin port: the repository of models, as Triton's clients ask for it, to callers with a token.

Beside the main port and not on it: whoever may classify may not exchange models.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sentiment.api.grpc.status import code_of, status_of
from sentiment.errors import Broken, InvalidInput, RequestError
from sentiment.observability.logs import logger
from sentiment.oip import inference_pb2 as oip

SERVICE = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
MESSAGE_BYTES_MAX = 2**16

Q = TypeVar("Q", bound=Message)
Context = grpc.aio.ServicerContext[bytes, Any]  # Any: bytes too; the class is generic over both messages


@dataclass(frozen=True, slots=True)
class Entry:
    """A version of a model, loaded or on disk. ``reason``: what there is to say of its state."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository(Protocol):
    """The models, and how they are exchanged."""

    async def index(self) -> list[Entry]:
        """Every version that is known."""

    async def load(self, model: str, use: bool = True) -> None:
        """Load ``name/version``, or the highest of ``name``; ``use``: let the name mean it. Raises RequestError."""

    def use(self, model: str) -> None:
        """Let a name mean this loaded ``name/version``. Raises RequestError."""

    async def unload(self, model: str) -> None:
        """Unload ``name/version``, or all of ``name``. Raises RequestError."""


class Admin:
    """The methods of the port."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def index(self, request: oip.RepositoryIndexRequest) -> oip.RepositoryIndexResponse:
        """What there is."""
        _check_repository(request.repository_name)
        entries = await self._repository.index()
        models = [
            oip.RepositoryIndexResponse.ModelIndex(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
            for entry in entries
            if entry.state == READY or not request.ready
        ]
        return oip.RepositoryIndexResponse(models=models)

    async def load(self, request: oip.RepositoryModelLoadRequest) -> oip.RepositoryModelLoadResponse:
        """Load a model, or put one that is loaded to use."""
        _check_repository(request.repository_name)
        flags = _flags(request.parameters, {"use": True, "loaded": False})
        if flags["loaded"]:
            if not flags["use"]:
                raise InvalidInput("parameters", "loaded without use asks for nothing")
            self._repository.use(request.model_name)
        else:
            await self._repository.load(request.model_name, flags["use"])
        return oip.RepositoryModelLoadResponse()

    async def unload(self, request: oip.RepositoryModelUnloadRequest) -> oip.RepositoryModelUnloadResponse:
        """Unload a model."""
        _check_repository(request.repository_name)
        _flags(request.parameters, {"unload_dependents": False})
        await self._repository.unload(request.model_name)
        return oip.RepositoryModelUnloadResponse()

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[bytes, bytes]]":
        """By the methods' names."""
        return {
            "RepositoryIndex": _handler("RepositoryIndex", oip.RepositoryIndexRequest, self.index),
            "RepositoryModelLoad": _handler("RepositoryModelLoad", oip.RepositoryModelLoadRequest, self.load),
            "RepositoryModelUnload": _handler("RepositoryModelUnload", oip.RepositoryModelUnloadRequest, self.unload),
        }


def make_admin_server(repository: Repository, interceptors: list[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    """The server of the port, not bound and not started. ``interceptors`` let callers in."""
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
    server = grpc.aio.server(interceptors=interceptors, options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, Admin(repository).handlers()),))
    return server


def _handler(name: str, message: type[Q], answer: Callable[[Q], Awaitable[Message]]) -> "grpc.RpcMethodHandler[bytes, bytes]":
    async def handle(data: bytes, context: Context) -> bytes:
        try:
            try:
                request = message.FromString(data)
            except (DecodeError, UnicodeDecodeError) as error:
                raise InvalidInput("", f"the message is no {message.DESCRIPTOR.full_name}") from error
            return (await answer(request)).SerializeToString()
        except RequestError as error:
            refused = error
        except Exception:  # somebody waits for an answer
            logger().exception("admin_failed", method=name)
            refused = Broken("internal error; the server's log has it")
        status = status_of(refused)
        await context.abort(code_of(refused), status.message, (("grpc-status-details-bin", status.SerializeToString()),))
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(handle)


def _check_repository(name: str) -> None:
    if name:
        raise InvalidInput("repository_name", "is set; there is one repository, without a name")


def _flags(given: Mapping[str, oip.ModelRepositoryParameter], known: dict[str, bool]) -> dict[str, bool]:
    """The parameters, each of which is true or false, over what they are if they are not given."""
    for name, value in given.items():
        if name not in known:
            raise InvalidInput("parameters", f"has {name[:64]!r}; known are {', '.join(known)}")
        if value.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidInput(f"parameters[{name}]", "is no bool_param")
    return known | {name: value.bool_param for name, value in given.items()}
