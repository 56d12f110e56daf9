"""The only module that uses private names of grpcio: for the accept loop, the core's counts of calls, and the log of ``grpc.aio``.

A test names the version that they were read in. Without ``known`` a server still runs, by grpc.aio's own loop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

# Calls of a method that the core may hand over before the event loop asks again. A call that comes while a server stops is lost if it has
# to wait for that.
ASKED = 16
# How interceptors see an unknown method. No method has this name.
UNKNOWN = "/"
# The names that the accept loop builds on.
NAMES = ("AioServer", "_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
METHODS = ("_make_request_call_future", "_request_call", "_request_registered_call")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # Any: each has its own pair of messages
# By full name, such as /package.Service/Method.
Handlers: TypeAlias = Mapping[str, Handler]
Options: TypeAlias = Sequence[tuple[str, int]]
Interceptors: TypeAlias = Sequence[grpc.aio.ServerInterceptor]


def known() -> bool:
    """Whether this version of grpcio has the names that the accept loop builds on."""
    return all(hasattr(cygrpc, name) for name in NAMES) and all(hasattr(cygrpc.AioServer, name) for name in METHODS)


def servers_from(number: int) -> bytes:
    """A page of the core's servers in channelz, from a number on, as JSON. The source that grpcio-channelz reads too.

    Its servicer is not used, because it would show all connections to every caller.
    """
    page: bytes = cygrpc.channelz_get_servers(number)
    return page


def server_of(number: int) -> bytes:
    """A server in channelz, as JSON.

    Raises:
        ValueError: it is gone.
    """
    found: bytes = cygrpc.channelz_get_server(number)
    return found


def quiet_about_clients() -> None:
    """Drop grpc.aio's log records of what any client can cause."""
    for name in ("grpc", "grpc._cython.cygrpc"):
        logging.getLogger(name).addFilter(_not_of_clients)


def client_left(error: BaseException | None) -> bool:
    """Whether a read or write failed because the client has left."""
    return type(error).__name__ == "ExecuteBatchError"


def _not_of_clients(record: logging.LogRecord) -> bool:
    """Drop records of headers that are not UTF-8, which they quote, and of clients that have left."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, UnicodeDecodeError) and not client_left(error)


class AcceptingServer(_server.Server):
    """A server, neither bound nor started, with a loop of its own. Arguments as for ``accepting_server``; only if ``known``."""

    def __init__(self, options: Options, handlers: Handlers, interceptors: Interceptors) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = _Acceptor(self._loop, options, handlers, interceptors)


class _Acceptor(cygrpc.AioServer):  # type: ignore[misc]  # Any: it has no stubs
    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options, handlers: Handlers, interceptors: Interceptors) -> None:
        super().__init__(loop, None, (), (), tuple(options), None)
        self.add_registered_method_handlers(dict(handlers))
        self._resolver = cygrpc._MethodResolver([], dict(handlers))
        self._called_first = tuple(interceptors)
        self._own_loop = loop
        # The event loop itself keeps no reference to a task.
        self._tasks: set[asyncio.Task[None]] = set()

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[None]:
        """Accept the calls of a method, or of all unknown ones. grpc.aio's loop gets a future that ends with the server."""
        ended: asyncio.Future[None] = self._own_loop.create_future()
        for _ in range(ASKED):
            self._keep(self._accept(method, ended))
        return ended

    async def _accept(self, method: bytes | None, ended: asyncio.Future[None]) -> None:
        ask: Callable[[], Coroutine[Any, Any, Any]] = (  # Any: a call's state, which has no type
            self._request_call if method is None else lambda: self._request_registered_call(method)
        )
        name = UNKNOWN if method is None else method.decode()
        while True:
            try:
                call = await ask()
            except Exception as error:  # the server stops, or grpc.aio ends it for any other error
                if not ended.done():
                    ended.set_exception(error)
                return
            handling = cygrpc._handle_rpc(name, self._resolver, self._called_first, call, self._own_loop, False)
            self._keep(cygrpc._schedule_rpc_coro(handling, call, self._own_loop, name))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:  # Any: the type that a coroutine is sent, which is unused
        task = self._own_loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
