"""The aiohttp server: metrics, health, the JSON routes below /v1, their description at /openapi.json and /docs, the Open Inference
Protocol below /v2, Hugging Face's ways to call at / and /predict, and the viewer at /.

It runs in the event loop of gRPC. It installs no signal handlers and never ends the process; only ``app`` does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial

import grpc
from aiohttp import hdrs, web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from sentiment.addresses import is_loopback
from sentiment.call.call import REQUEST_ID, Call
from sentiment.call.calls import A, Method, Q, StreamMethod
from sentiment.call.open_inference import SERVER, InferenceService
from sentiment.call.request_bytes import RequestBytes
from sentiment.call.servicer import SentimentService
from sentiment.doors.http.arriving import IS_CALL, begin_call
from sentiment.doors.http.bodies import BodyLimits, batch_limits, message_of, text_limits
from sentiment.doors.http.connections import LINGER_BYTES, LINGER_S, Connection, Connections, connection_of
from sentiment.doors.http.cors import allow_origins, is_preflight
from sentiment.doors.http.grace import Grace
from sentiment.doors.http.hugging_face import HuggingFace
from sentiment.doors.http.json_answers import (
    LAST_LINE_S,
    OPEN_INFERENCE,
    PIPELINE,
    PREDICT,
    Lines,
    error_answer,
    error_body,
    json_response,
    refusal,
)
from sentiment.doors.http.listening import IDLE_S, listen, stop_listening
from sentiment.doors.http.metrics_page import Scrapes
from sentiment.doors.http.open_inference import OpenInference
from sentiment.doors.http.openapi import add_openapi
from sentiment.doors.http.receiving import Body, Receiving
from sentiment.doors.http.screening import BAD_ORIGIN, Screen, http_guard
from sentiment.doors.listening import cannot_listen, split
from sentiment.doors.open_files import http_connections
from sentiment.errors import RequestError
from sentiment.observability.logs import logger
from sentiment.observability.metrics import HTTP_REFUSALS, Metrics
from sentiment.security.secured import Secured
from sentiment.settings import Settings
from sentiment.signs import Sign, shown
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.wings import wing

# aiohttp reads no further in a body when twice as much of it waits to be taken, uncounted.
READ_AHEAD_BYTES = 2**15
# The header Server of every answer, where aiohttp would name the versions of Python and of itself. What the parser refuses passes no hook.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]  # imported there, not exported


class Web:
    """The HTTP server."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        service: SentimentService,
        inference: InferenceService,
        scrape: Callable[[], Awaitable[CollectorRegistry]],
        ready: Callable[[], bool],
        alive: Callable[[], bool],
        secured: Secured,
        request_bytes: RequestBytes,
    ) -> None:
        """Create the server. It does not listen before ``start``.

        Args:
            settings: the server's settings.
            metrics: counts the connections and requests that are refused.
            service: answers the routes below /v1. Its ``calls`` runs and counts all calls.
            inference: answers the routes below /v2.
            scrape: returns the metrics for /metrics.
            ready: the result of /readyz.
            alive: the result of /healthz.
            secured: TLS and tokens.
            request_bytes: the budget for the bytes of bodies.
        """
        self._https = secured.https
        self._calls = calls = service.calls
        self._scrapes = Scrapes(scrape)
        self._ready = ready
        self._alive = alive
        limits, message_bytes_max = service.limits, calls.limits.message_bytes_max
        self._text_limits = text_limits(limits.text_bytes_max, message_bytes_max)
        self._batch_limits = batch_limits(limits.batch_items_max, limits.targets_max, message_bytes_max)
        application = web.Application()
        self._receiving = Receiving(calls, request_bytes, settings.receive_s_max)
        self._grace = Grace()
        self._connections = Connections(
            settings.http_connections_max or http_connections(tls=self._https is not None),
            lambda reason: metrics.http_connections_closed.labels(reason).inc(),
        )
        self._refused = metrics.http_refused
        # Whether each answer closes its connection.
        self._leaving = False
        self._screen_of = partial(Screen, settings.cors_origins, settings.http_hosts)
        application.on_response_prepare.append(self._close_after)
        application.middlewares.append(self._begin_and_end)
        allow_origins(application, settings.cors_origins)
        if secured.guard:
            application.middlewares.append(http_guard(secured.guard))
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/healthz", self._get_healthz)
        application.router.add_get("/readyz", self._get_readyz)
        application.router.add_get("/favicon.ico", _get_favicon)
        if settings.web == "all":
            self._add_calls(application.router, service)
            OpenInference(inference, calls, self._receiving, self._grace, self._batch_limits).add_to(application.router)
            HuggingFace(service, self._receiving, self._grace, self._batch_limits).add_to(application.router)
            add_openapi(application.router, asdict(limits))
            if settings.viewer:
                wing("sentiment.pages", "viewer")(application.router, service.takes_feedback)
            # After the other routes.
            for path in (PIPELINE, *(f"{root}{rest}" for root in ("/v1", OPEN_INFERENCE, PREDICT) for rest in ("", "/{path:.*}"))):
                application.router.add_route("*", path, _no_route)
        self._runner = web.AppRunner(
            application,
            # A client that disconnects cancels its request, as in gRPC.
            handler_cancellation=True,
            # aiohttp would decompress bodies of any route on the event loop, up to its own limit: 300 MB in 0.4 s.
            auto_decompress=False,
            access_log=None,
            logger=_log(),
            # The connections have ended before.
            shutdown_timeout=LAST_LINE_S,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            read_bufsize=READ_AHEAD_BYTES,
        )
        self._server: asyncio.Server | None = None
        self._signs = contextlib.ExitStack()

    def _add_calls(self, router: web.UrlDispatcher, service: SentimentService) -> None:
        texts = self._text_limits
        router.add_post("/v1/classify", partial(self._post, service.classify_method, texts))
        router.add_post("/v1/classify:batch", partial(self._post, service.classify_batch_method, self._batch_limits))
        router.add_post("/v1/explain", partial(self._post_stream, service.explain_method))
        router.add_post("/v1/feedback", partial(self._post, service.feedback_method, texts))
        list_models = partial(self._get, service.list_models_method, lambda _: pb.ListModelsRequest())
        get_model = partial(self._get, service.get_model_method, _model_asked)
        router.add_get("/v1/models", list_models)
        router.add_get("/v1/models/{name}", get_model)
        router.add_get("/v1/models/{name}/{version}", get_model)

    async def start(self, address: str) -> int:
        """Listen on ``host:port``; returns the port.

        Raises:
            CannotServe: the port cannot be bound.
        """
        await self._runner.setup()
        try:
            self._server = await listen(self._connection, *split(address))
        except (OSError, OverflowError, UnicodeError) as error:
            raise cannot_listen("http_listen", address, error) from error
        self._screen = self._screen_of(all(is_loopback(each.getsockname()[0]) for each in self._server.sockets))
        port = int(self._server.sockets[0].getsockname()[1])
        self._signs.enter_context(shown(Sign.SERVING, port))
        return port

    def _connection(self) -> Connection:
        assert self._runner.server is not None, "set up before it listens"
        return Connection(self._connections, self._runner.server, self._https)

    def leave(self) -> None:
        """From now on each answer closes its connection, so that clients go elsewhere without losing a request."""
        self._leaving = True

    async def drain(self, grace_s: float) -> None:
        """Close the port, answer the requests that have arrived, for at most ``grace_s`` seconds, and end the others with an error."""
        self.leave()
        if self._server is not None:
            await stop_listening(self._server, self._connection)
            if not await self._connections.drain(grace_s):
                self._grace.ended = True
                logger().warning("calls_cut", transport="http", calls=self._connections.cancel_requests(), grace_s=grace_s)
                await self._connections.drain(LAST_LINE_S)
        await self.stop()

    async def stop(self) -> None:
        """Close at once. Harmless after ``drain``."""
        self._signs.close()
        if self._server is not None:
            self._server.close()
        self._connections.end()
        await self._runner.cleanup()

    @web.middleware
    async def _begin_and_end(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware, the outermost: tell the connection when a request begins and ends, and refuse what is never answered."""
        connection = connection_of(request)
        connection.begin_request()
        status = 0
        try:
            refusal = self._screen.refusal(request)
            answer = await handler(request) if refusal is None else refusal
            status = answer.status
            return answer
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            if status in HTTP_REFUSALS and IS_CALL not in request:
                self._refused.labels(str(status)).inc()
            connection.end_request(_leaves_much(request))

    async def _close_after(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Say before the answer that its connection will be closed, where it will be."""
        if self._leaving or _leaves_much(request):
            answer.force_close()
            answer.headers[hdrs.CONNECTION] = "close"

    async def _get_metrics(self, request: web.Request) -> web.Response:
        body, content_type = await self._scrapes.make(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self._alive() else web.Response(text="not alive\n", status=503)

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._ready() else web.Response(text="not ready\n", status=503)

    async def _get(self, method: Method[Q, A], parse: Callable[[web.Request], Q], request: web.Request) -> web.Response:
        call = begin_call(self._calls, method.name, request)
        return await self._answer(request, call, lambda _: method.answer(parse(request), call))

    async def _post(self, method: Method[Q, A], limits: BodyLimits, request: web.Request) -> web.Response:
        call = begin_call(self._calls, method.name, request)

        async def work(body: Body) -> A:
            with self._grace:
                return await method.answer(await _message(method.request, limits, request, body), call)

        return await self._answer(request, call, work)

    async def _answer(self, request: web.Request, call: Call, work: Callable[[Body], Awaitable[A]]) -> web.Response:
        try:
            response = await self._receiving.settle(request, call, work)
        except RequestError as error:
            return refusal(call, error, error_body(error))
        return await json_response(request, response, {REQUEST_ID: call.request_id})

    async def _post_stream(self, method: StreamMethod[Q, A], request: web.Request) -> web.StreamResponse:
        """Answer with one line per message. An error before the first line sets the HTTP status; a later error is the last line."""
        call = begin_call(self._calls, method.name, request)
        lines = Lines(request, call)

        async def work(body: Body) -> None:
            with self._grace:
                await method.write_all(await _message(method.request, self._text_limits, request, body), call, lines.add)
                await lines.finish()

        try:
            await self._receiving.settle(request, call, work)
        except RequestError as error:
            return await lines.end(error) if lines.prepared else refusal(call, error, error_body(error))
        if self._leaving:
            # Its head may have been sent before.
            lines.force_close()
        return lines


async def _message(kind: type[Q], limits: BodyLimits, request: web.Request, body: Body) -> Q:
    return await body.parsed(request, limits.bytes_max, lambda content: message_of(kind, content, limits))


async def _get_favicon(_request: web.Request) -> web.Response:
    """Browsers ask for it when they show an answer that names none, such as /metrics."""
    return web.Response(status=204)


async def _no_route(request: web.Request) -> web.Response:
    """The answer where no other route for programs matches the path, or its method."""
    path, allowed = ascii(request.path[:128])[1:-1], set[str]()
    for resource in request.app.router.resources():
        allowed |= (await resource.resolve(request))[1]
    allowed -= {hdrs.METH_ANY}
    if allowed:
        methods = ", ".join(sorted(allowed))
        code, status, headers = grpc.StatusCode.UNIMPLEMENTED, 405, {"Allow": methods}
        message = f"{path} does not take {request.method}; it takes {methods}"
    else:
        code, status, headers = grpc.StatusCode.NOT_FOUND, 404, {}
        message = f"there is no route {path}" + ("" if request.path.startswith(OPEN_INFERENCE) else "; /openapi.json lists the routes")
    answer = error_answer(request, status, code, f"{message}; {BAD_ORIGIN}" if is_preflight(request) else message)
    answer.headers.update(headers)
    return answer


def _leaves_much(request: web.Request) -> bool:
    """Whether more of the body may be to come than makes a connection worth keeping."""
    return not request.content.is_eof() and (request.content_length is None or request.content_length > LINGER_BYTES)


def _log() -> logging.Logger:
    """The logger for aiohttp's own errors."""
    log = logging.getLogger("sentiment.http")
    log.addFilter(_is_not_malformed_request)
    return log


def _is_not_malformed_request(record: logging.LogRecord) -> bool:
    """Drop records of malformed requests: they quote headers, which may hold a token. The caller gets status 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _model_asked(request: web.Request) -> pb.GetModelRequest:
    return pb.GetModelRequest(model="/".join(request.match_info.values()))
