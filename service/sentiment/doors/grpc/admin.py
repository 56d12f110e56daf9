"""The admin port: Triton's model repository methods, for callers with an admin token.

It is a port of its own, because a caller that may classify must not be able to change models.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from sentiment.call.parsing import parsed
from sentiment.call.request_bytes import RequestBytes
from sentiment.doors.grpc.accepting import accepting_server
from sentiment.doors.grpc.context import Context, abort
from sentiment.doors.grpc.grpcio import Handler
from sentiment.doors.grpc.receiving import Receiving
from sentiment.doors.grpc.server import NO_ALGORITHM, named
from sentiment.errors import Broken, InvalidInput, RequestError
from sentiment.lifecycle.lifecycle import Lifecycle
from sentiment.lifecycle.states import INDEX_READY
from sentiment.observability.logs import logger
from sentiment.oip import inference_pb2 as oip

SERVICE = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
MESSAGE_BYTES_MAX = 2**16

Q = TypeVar("Q", bound=Message)


class Admin:
    """The methods of the admin port."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def index(self, request: oip.RepositoryIndexRequest) -> oip.RepositoryIndexResponse:
        """List the versions, or only those that are READY."""
        _check_repository(request.repository_name)
        entries = await self._lifecycle.index()
        models = [
            oip.RepositoryIndexResponse.ModelIndex(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
            for entry in entries
            if entry.state == INDEX_READY or not request.ready
        ]
        return oip.RepositoryIndexResponse(models=models)

    async def load(self, request: oip.RepositoryModelLoadRequest) -> oip.RepositoryModelLoadResponse:
        """Load a model, or route its name to a version that is already loaded."""
        _check_repository(request.repository_name)
        flags = _flags(request.parameters, {"use": True, "loaded": False})
        if flags["loaded"]:
            if not flags["use"]:
                raise InvalidInput("parameters", "loaded is true and use is false: nothing to do; set use to true or loaded to false")
            await self._lifecycle.use(request.model_name)
        else:
            await self._lifecycle.load(request.model_name, flags["use"])
        return oip.RepositoryModelLoadResponse()

    async def unload(self, request: oip.RepositoryModelUnloadRequest) -> oip.RepositoryModelUnloadResponse:
        """Unload a model."""
        _check_repository(request.repository_name)
        _flags(request.parameters, {"unload_dependents": False})
        await self._lifecycle.unload(request.model_name)
        return oip.RepositoryModelUnloadResponse()

    def handlers(self, receiving: Receiving) -> dict[str, Handler]:
        """The handlers by method name. ``receiving`` reads their messages."""
        return {
            "RepositoryIndex": _handler("RepositoryIndex", oip.RepositoryIndexRequest, self.index, receiving),
            "RepositoryModelLoad": _handler("RepositoryModelLoad", oip.RepositoryModelLoadRequest, self.load, receiving),
            "RepositoryModelUnload": _handler("RepositoryModelUnload", oip.RepositoryModelUnloadRequest, self.unload, receiving),
        }


def make_admin_server(
    lifecycle: Lifecycle, interceptors: list[grpc.aio.ServerInterceptor], requests: RequestBytes, receive_s_max: float
) -> grpc.aio.Server:
    """The server of the admin port, neither bound nor started.

    Args:
        lifecycle: changes the models.
        interceptors: check the caller's token.
        requests: counts the bytes of requests.
        receive_s_max: seconds in which a request must arrive.
    """
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.compression_enabled_algorithms_bitset", NO_ALGORITHM),
    ]
    handlers = Admin(lifecycle).handlers(Receiving(requests, MESSAGE_BYTES_MAX, receive_s_max))
    return accepting_server(options, named(SERVICE, handlers), interceptors)


def _handler(name: str, message: type[Q], answer: Callable[[Q], Awaitable[Message]], receiving: Receiving) -> Handler:
    async def handle(_: object, context: Context) -> bytes:
        try:
            request = parsed(message, await receiving.message(context, context.peer(), MESSAGE_BYTES_MAX))
            return (await answer(request)).SerializeToString()
        except RequestError as error:
            failure = error
        except Exception:  # the caller waits for an answer
            logger().exception("admin_failed", method=name)
            failure = Broken("internal error; see the server's log")
        return await abort(context, failure, context.time_remaining())

    return grpc.stream_unary_rpc_method_handler(handle)


def _check_repository(name: str) -> None:
    if name:
        raise InvalidInput("repository_name", "must be empty: the server has one repository, which has no name")


def _flags(given: Mapping[str, oip.ModelRepositoryParameter], known: dict[str, bool]) -> dict[str, bool]:
    """The Boolean parameters of a request. ``known`` has the default of each."""
    for name, value in given.items():
        if name not in known:
            raise InvalidInput("parameters", f"has the unknown parameter {name[:64]!r}; expected {', '.join(known)}")
        if value.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidInput(f"parameters[{name}]", "must be a bool_param")
    return known | {name: value.bool_param for name, value in given.items()}
