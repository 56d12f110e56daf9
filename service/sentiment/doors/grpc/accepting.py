"""Accepts the calls of a server, in place of grpc.aio's own loop. With ``core_calls``, the only module that uses private names of grpcio.

The loop of grpc.aio (1.85) asks the core for one call of each method at a time, and waits for all of them together. This module asks for
several, and takes each as it comes. So:

- A path that is not UTF-8 gets UNIMPLEMENTED, as every unknown method. There it ends the whole server.
- Calls that the core hands over while the server stops are answered. There they are dropped, and end as CANCELLED.
- A call takes a quarter less CPU time.

A version of grpcio without these names is served by its own loop, with a warning.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

from sentiment.observability.logs import logger

# Calls of a method that the core may hand over before the event loop asks again. A call that comes while a server stops is lost if it has
# to wait for that.
ASKED = 16
# How interceptors see an unknown method. No method has this name.
UNKNOWN = "/"
# The names that this module builds on.
NAMES = ("AioServer", "_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
METHODS = ("_make_request_call_future", "_request_call", "_request_registered_call")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # Any: each has its own pair of messages
# By full name, such as /package.Service/Method.
Handlers: TypeAlias = Mapping[str, Handler]
Options: TypeAlias = Sequence[tuple[str, int]]
Interceptors: TypeAlias = Sequence[grpc.aio.ServerInterceptor]


def known() -> bool:
    """Whether this version of grpcio has the names that this module builds on."""
    return all(hasattr(cygrpc, name) for name in NAMES) and all(hasattr(cygrpc.AioServer, name) for name in METHODS)


def accepting_server(options: Options, handlers: Handlers, interceptors: Interceptors = ()) -> grpc.aio.Server:
    """Create a server, neither bound nor started. Call it in the event loop that will serve.

    Args:
        options: its channel arguments.
        handlers: the handlers of all its methods. Each method has a queue of its own in the core, so that a full one of another method
            does not end health probes.
        interceptors: as for ``grpc.aio.server``. An unknown method is named UNKNOWN.
    """
    if known():
        server: grpc.aio.Server = _AcceptingServer(options, handlers, interceptors)  # type: ignore[assignment]  # the stubs know one name
        return server
    logger().warning(
        "grpcio_unknown",
        version=grpc.__version__,
        reason="this version lacks names that the server builds on; a call whose path is not UTF-8 ends the process",
    )
    server = grpc.aio.server(options=options, interceptors=interceptors)
    for name, handler in handlers.items():
        service, _, method = name[1:].partition("/")
        server.add_registered_method_handlers(service, {method: handler})
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    return server


class _AcceptingServer(_server.Server):
    """The public face of ``_Acceptor``."""

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
