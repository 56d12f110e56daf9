"""Cross-origin requests from browsers (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol), for the origins of a setting.

Pages of other origins cannot read an answer. Their POSTs, which a browser may send without asking first, are refused by ``screening``.

No answer allows credentials: cookies and client certificates of a browser are never sent. A page sends its token in the Authorization
header, which is not a credential in this sense.
"""

from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from sentiment.doors.http.json_answers import is_hugging_face

# Only these, and a POST to / and /predict, are for programs. The pages and /metrics are for the same origin.
PREFIXES, PATHS = ("/v1/", "/v2/"), ("/v2", "/openapi.json")
ANY = "*"
METHODS = "GET, POST"
ASKED_METHOD = "Access-Control-Request-Method"
REQUEST_HEADERS = (
    "Authorization, Content-Encoding, Content-Type, Grpc-Timeout, Inference-Header-Content-Length, traceparent, tracestate, x-request-id"
)
ANSWER_HEADERS = "Inference-Header-Content-Length, Retry-After, WWW-Authenticate, x-request-id"
# Seconds that a browser may keep the answer to a preflight request: the most that Chromium does.
PREFLIGHT_S = "7200"


def allow_origins(application: web.Application, origins: Collection[str]) -> None:
    """Let pages of these origins, and no others, call the application.

    Call it after the screen's middleware and before the guard's: a preflight has no token.

    Args:
        application: the application before its start.
        origins: such as https://example.org, or "*" for any. Empty: none.
    """
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
        if _is_open(request) and not is_preflight(request) and mark(request, answer):
            answer.headers["Access-Control-Expose-Headers"] = ANSWER_HEADERS

    @web.middleware
    async def preflight(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        if not (is_preflight(request) and _is_open(request)):
            return await handler(request)
        answer = web.Response(status=204)
        if mark(request, answer):
            answer.headers["Access-Control-Allow-Methods"] = METHODS
            answer.headers["Access-Control-Allow-Headers"] = REQUEST_HEADERS
            answer.headers["Access-Control-Max-Age"] = PREFLIGHT_S
        return answer

    application.on_response_prepare.append(prepare)
    application.middlewares.append(preflight)


def is_preflight(request: web.Request) -> bool:
    """Whether a browser asks which requests it may send for a page of another origin."""
    return request.method == "OPTIONS" and "Origin" in request.headers and ASKED_METHOD in request.headers


def _is_open(request: web.Request) -> bool:
    method = request.headers.get(ASKED_METHOD, request.method)
    return request.path.startswith(PREFIXES) or request.path in PATHS or is_hugging_face(request.path, method)
