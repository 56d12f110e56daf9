"""Checks tokens in HTTP: a middleware that passes a request on or answers 401 before its body is read."""

from collections.abc import Awaitable, Callable

import grpc
from aiohttp import web
from aiohttp.typedefs import Middleware

from sentiment.doors.http.arriving import peer_of
from sentiment.doors.http.json_answers import error_answer
from sentiment.observability.logs import logger
from sentiment.security.tokens import CHALLENGE, REFUSAL, Guard


def http_guard(guard: Guard) -> Middleware:
    """Middleware that requires a token for every route, existing or not, except those that the guard exempts."""

    @web.middleware
    async def admit(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        if guard.admits(route, request.headers.getall("Authorization", ())):
            return await handler(request)
        guard.refused("http")
        logger().debug("unauthenticated", peer=peer_of(request))
        answer = error_answer(request, 401, grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
        answer.headers.update((CHALLENGE,))
        return answer

    return admit
