"""Cross-origin requests from browsers (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol), for the origins of a setting.

Pages of other origins can neither read an answer nor send a POST, which a browser may send without asking first.

No answer allows credentials: cookies and client certificates of a browser are never sent. A page sends its token in the Authorization
header, which is not a credential in this sense.
"""

from collections.abc import Awaitable, Callable, Collection

import grpc
from aiohttp import web
from aiohttp.typedefs import Middleware

from sentiment.api.http.json_answers import error_of
from sentiment.api.http.open_inference import ROOT

# Only these are for programs. The pages and /metrics are for the same origin.
PREFIXES, PATHS = ("/v1/", "/v2/"), ("/v2", "/openapi.json")
ANY = "*"
METHODS = "GET, POST"
REQUEST_HEADERS = (
    "Authorization, Content-Encoding, Content-Type, Grpc-Timeout, Inference-Header-Content-Length, traceparent, tracestate, x-request-id"
)
ANSWER_HEADERS = "Inference-Header-Content-Length, Retry-After, WWW-Authenticate, x-request-id"
# Seconds that a browser may keep the answer to a preflight request: the most that Chromium does.
PREFLIGHT_S = "7200"
# How browsers mark requests of pages of other origins (https://w3c.github.io/webappsec-fetch-metadata/#sec-fetch-site-header).
OTHERS = ("cross-site", "same-site")
REFUSAL = "web pages of other origins may not call this server; its setting cors_origins names those that may"


def allow_origins(application: web.Application, origins: Collection[str]) -> None:
    """Let pages of these origins, and no others, call the application. Call it before its middlewares are added: a preflight has no token.

    Args:
        application: the application before its start.
        origins: such as https://example.org, or "*" for any. Empty: none.
    """
    application.middlewares.append(_refuse_all_but(origins))
    if not origins:
        return

    def mark(request: web.Request, answer: web.StreamResponse) -> bool:
        """Add the headers that let the page read the answer; returns whether its origin is allowed."""
        if ANY in origins:
            answer.headers["Access-Control-Allow-Origin"] = ANY
            return True
        # Also without an origin, or with one that is not allowed: a cache must not give that answer to other pages.
        answer.headers["Vary"] = ", ".join([*answer.headers.getall("Vary", ()), "Origin"])
        origin = request.headers.get("Origin", "")
        if origin in origins:
            answer.headers["Access-Control-Allow-Origin"] = origin
        return origin in origins

    async def prepare(request: web.Request, answer: web.StreamResponse) -> None:
        if _is_open(request) and not _is_preflight(request) and mark(request, answer):
            answer.headers["Access-Control-Expose-Headers"] = ANSWER_HEADERS

    @web.middleware
    async def preflight(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        if not (_is_preflight(request) and _is_open(request)):
            return await handler(request)
        answer = web.Response(status=204)
        if mark(request, answer):
            answer.headers["Access-Control-Allow-Methods"] = METHODS
            answer.headers["Access-Control-Allow-Headers"] = REQUEST_HEADERS
            answer.headers["Access-Control-Max-Age"] = PREFLIGHT_S
        return answer

    application.on_response_prepare.append(prepare)
    application.middlewares.append(preflight)


def _refuse_all_but(origins: Collection[str]) -> Middleware:
    @web.middleware
    async def refuse(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        foreign = request.method == "POST" and request.headers.get("Sec-Fetch-Site") in OTHERS
        if not foreign or ANY in origins or request.headers.get("Origin") in origins:
            return await handler(request)
        body = {"error": REFUSAL} if request.path.startswith(ROOT) else error_of(grpc.StatusCode.PERMISSION_DENIED, REFUSAL)
        return web.json_response(body, status=403)

    return refuse


def _is_preflight(request: web.Request) -> bool:
    return request.method == "OPTIONS" and "Origin" in request.headers and "Access-Control-Request-Method" in request.headers


def _is_open(request: web.Request) -> bool:
    return request.path.startswith(PREFIXES) or request.path in PATHS
