"""The aiohttp server: metrics, health, the JSON routes below /v1, their description at /openapi.json and /docs, the Open Inference
Protocol below /v2, and the viewer at /.

It runs in the event loop of gRPC. It installs no signal handlers and never ends the process; only ``app`` does.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, Never

import grpc
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

from sentiment.api.grpc.call import REQUEST_ID, Call
from sentiment.api.grpc.calls import A, Calls, Method, Q, StreamMethod, T
from sentiment.api.grpc.open_inference import InferenceService
from sentiment.api.grpc.servicer import SentimentService
from sentiment.api.http.bodies import BodyLimits, batch_limits, inflated, message_of, text_limits
from sentiment.api.http.cors import allow_origins
from sentiment.api.http.docs_page import add_docs_page
from sentiment.api.http.guard import http_guard
from sentiment.api.http.json_answers import INLINE_BYTES_MAX, Lines, error_body, error_of, json_response, refusal
from sentiment.api.http.listening import IDLE_S, listen
from sentiment.api.http.metrics_page import Scrapes
from sentiment.api.http.open_inference import ROOT, OpenInference
from sentiment.api.http.openapi import OpenApi
from sentiment.api.http.viewer import add_viewer
from sentiment.errors import CannotServe, Expired, InvalidInput, RequestError
from sentiment.security.secured import Secured
from sentiment.v1 import sentiment_pb2 as pb

# The format of gRPC's header grpc-timeout: 1 to 8 digits and a unit.
TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Web:
    """The HTTP server."""

    def __init__(
        self,
        service: SentimentService,
        calls: Calls,
        scrape: Callable[[], Awaitable[CollectorRegistry]],
        ready: Callable[[], bool],
        alive: Callable[[], bool],
        message_bytes_max: int,
        text_bytes_max: int,
        batch_items_max: int,
        viewer: bool = True,
        everything: bool = True,
        secured: Secured | None = None,
        origins: Collection[str] = (),
        *,
        inference: InferenceService,
    ) -> None:
        """Create the server. It does not listen before ``start``.

        Args:
            service: answers the routes below /v1.
            calls: runs and counts their calls.
            scrape: returns the metrics for /metrics.
            ready: the result of /readyz.
            alive: the result of /healthz.
            message_bytes_max: maximum bytes of a request as a protobuf message.
            text_bytes_max: maximum bytes of a text.
            batch_items_max: maximum items of a batch.
            viewer: whether to serve the viewer, and the page to try the routes.
            everything: False to serve only /metrics, /healthz and /readyz.
            secured: TLS and tokens; None for neither.
            origins: origins whose pages may read answers (CORS).
            inference: answers the routes below /v2.
        """
        self._https = None if secured is None else secured.https
        self._calls = calls
        self._scrapes = Scrapes(scrape)
        self._ready = ready
        self._alive = alive
        self._text_limits = text_limits(text_bytes_max, message_bytes_max)
        self._batch_limits = batch_limits(batch_items_max, message_bytes_max)
        application = web.Application(client_max_size=max(self._text_limits.bytes_max, self._batch_limits.bytes_max))
        allow_origins(application, origins)
        if secured and secured.guard:
            application.middlewares.append(http_guard(secured.guard))
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/healthz", self._get_healthz)
        application.router.add_get("/readyz", self._get_readyz)
        if everything:
            self._add_calls(application.router, service)
            OpenInference(inference, calls, self._begin, _parsed, self._batch_limits).add_to(application.router)
            OpenApi(text_bytes_max, batch_items_max).add_to(application.router)
            # After the other routes.
            for root in ("/v1", ROOT):
                for path in (root, f"{root}/{{path:.*}}"):
                    application.router.add_route("*", path, _no_route)
        if everything and viewer:
            add_viewer(application.router, service.takes_feedback)
            add_docs_page(application.router)
        self._runner = web.AppRunner(
            application,
            # A client that disconnects cancels its request, as in gRPC.
            handler_cancellation=True,
            # aiohttp would decompress bodies of any route on the event loop, up to its own limit: 300 MB in 0.4 s.
            auto_decompress=False,
            access_log=None,
            logger=_log(),
            shutdown_timeout=5,
            keepalive_timeout=IDLE_S,
        )
        self._server: asyncio.Server | None = None

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
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        assert self._runner.server is not None
        try:
            self._server = await listen(self._runner.server, host.strip("[]"), int(port), self._https)
        except (OSError, OverflowError, UnicodeError) as error:
            raise CannotServe(f"HTTP cannot listen on {address}: {error}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Finish the requests in progress, then close."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        body, content_type = await self._scrapes.make(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self._alive() else web.Response(text="not alive\n", status=503)

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._ready() else web.Response(text="not ready\n", status=503)

    async def _get(self, method: Method[Q, A], parse: Callable[[web.Request], Q], request: web.Request) -> web.Response:
        call, wrong = self._begin(method.name, request)
        return await self._answer(request, call, _work_get(method, parse, request, call) if wrong is None else _refuse(wrong))

    async def _post(self, method: Method[Q, A], limits: BodyLimits, request: web.Request) -> web.Response:
        call, wrong = self._begin(method.name, request)
        return await self._answer(request, call, self._work(method, limits, request, call) if wrong is None else _refuse(wrong))

    async def _answer(self, request: web.Request, call: Call, work: Coroutine[Any, Any, A]) -> web.Response:
        try:
            response = await self._calls.settle(call, work)
        except RequestError as error:
            return refusal(call, error, error_body(error))
        return await json_response(request, response, {REQUEST_ID: call.request_id})

    async def _post_stream(self, method: StreamMethod[Q, A], request: web.Request) -> web.StreamResponse:
        """Answer with one line per message. An error before the first line sets the HTTP status; a later error is the last line."""
        call, wrong = self._begin(method.name, request)
        lines = Lines(request, call)
        try:
            await self._calls.settle(call, self._work_stream(method, request, call, lines) if wrong is None else _refuse(wrong))
        except RequestError as error:
            return await lines.end(error) if lines.prepared else refusal(call, error, error_body(error))
        return lines

    def _begin(self, name: str, request: web.Request) -> tuple[Call, InvalidInput | None]:
        """The call of a request, and the error of its time limit if that is malformed."""
        resource = request.match_info.route.resource
        route = f"{request.method} {resource.canonical if resource is not None else name}"
        call = self._calls.begin(name, None, request.headers.items, route, lambda: _peer_of(request))
        return call, self._take_time_limit(request, call)

    def _take_time_limit(self, request: web.Request, call: Call) -> InvalidInput | None:
        """Set the call's deadline to the client's; returns the error if the header is malformed."""
        try:
            time_left_s = _time_left_s(request.headers.get("Grpc-Timeout"))
        except InvalidInput as error:
            return error
        if time_left_s is not None:
            call.deadline_at = call.arrived_at + self._calls.bounded_s(time_left_s)
        return None

    async def _work(self, method: Method[Q, A], limits: BodyLimits, request: web.Request, call: Call) -> A:
        return await method.answer(await self._message(method.request, limits, request, call), call)

    async def _work_stream(self, method: StreamMethod[Q, A], request: web.Request, call: Call, lines: Lines) -> None:
        await method.write_all(await self._message(method.request, self._text_limits, request, call), call, lines.add)
        await lines.finish()

    async def _message(self, message: type[Q], limits: BodyLimits, request: web.Request, call: Call) -> Q:
        return await _parsed(request, limits.bytes_max, call.deadline_at, lambda body: message_of(message, body, limits))


async def _work_get(method: Method[Q, A], parse: Callable[[web.Request], Q], request: web.Request, call: Call) -> A:
    return await method.answer(parse(request), call)


async def _parsed(request: web.Request, bytes_max: int, deadline_at: float, parse: Callable[[bytes], T]) -> T:
    """What ``parse`` makes of the body, decompressed; in a thread unless the body is small. ``bytes_max`` is its limit."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise InvalidInput("Content-Encoding", f"must be gzip or identity, got {encoding[:32]!r}")
    body = await _body(request, bytes_max, deadline_at)
    if encoding != "identity":
        # Of any size: how large the content is shows only then. In one step, so that no more contents are in memory than there are threads.
        return await asyncio.to_thread(lambda: parse(inflated(body, bytes_max)))
    return parse(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(parse, body)


async def _body(request: web.Request, bytes_max: int, deadline_at: float) -> bytes:
    too_large = InvalidInput("", f"the body has more bytes than the limit of {bytes_max}")
    if (request.content_length or 0) > bytes_max:
        raise too_large
    try:
        if request.content.is_eof():
            # The usual case: all of it came with the headers.
            body = await request.read()
        else:
            async with asyncio.timeout_at(deadline_at):
                body = await request.read()
    except TimeoutError as error:
        raise Expired("the body did not arrive within the deadline") from error
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError as error:
        raise InvalidInput("", "the body does not match its headers, such as Transfer-Encoding") from error
    if len(body) > bytes_max:
        raise too_large
    return body


async def _no_route(request: web.Request) -> web.Response:
    """The answer where no other route below /v1 and /v2 matches the path, or its method."""
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
        message = f"there is no route {path}" + ("" if request.path.startswith(ROOT) else "; /openapi.json lists the routes")
    body = {"error": message} if request.path.startswith(ROOT) else error_of(code, message)
    return web.json_response(body, status=status, headers=headers)


def _peer_of(request: web.Request) -> str:
    """The remote address of a request's connection, as gRPC writes it; empty if it has ended."""
    name = request.get_extra_info("peername")
    return "" if not name else f"ipv4:{name[0]}:{name[1]}" if len(name) == 2 else f"ipv6:[{name[0]}]:{name[1]}"


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


def _time_left_s(header: str | None) -> float | None:
    if header is None:
        return None
    match = TIMEOUT.fullmatch(header)
    if match is None:
        raise InvalidInput("Grpc-Timeout", f"must be 1 to 8 digits and one of H M S m u n, such as 500m for 0.5 s, got {header[:32]!r}")
    return int(match[1]) * UNITS_S[match[2]]


async def _refuse(error: RequestError) -> Never:
    raise error
