"""Requests that are refused by their headers, before anything else looks at them.

- What two servers might read differently: how long the body is must be said in exactly one way.
- What a browser sends for a page of somebody else. A page that makes its own name resolve to this machine (DNS rebinding) shows by the
  Host header, another one by the Origin header of a POST.
- What has no valid token.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import lru_cache

import grpc
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Middleware

from sentiment.addresses import is_loopback
from sentiment.doors.http.arriving import peer_of
from sentiment.doors.http.cors import ANY
from sentiment.doors.http.json_answers import PIPELINE, error_answer
from sentiment.observability.logs import logger
from sentiment.security.tokens import CHALLENGE, REFUSAL, Guard

HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]{2,45})\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")
# How browsers mark requests of pages of other origins (https://w3c.github.io/webappsec-fetch-metadata/#sec-fetch-site-header). They mark
# requests to HTTPS and to their own machine only.
OTHERS = ("cross-site", "same-site")
BAD_LENGTH = "Transfer-Encoding must be chunked or absent, absent in HTTP/1.0, and absent beside Content-Length"
BAD_HOST = "this server does not answer for the host that the header Host names; its setting http_hosts names those that it does"
BAD_ORIGIN = "web pages of other origins may not call this server; its setting cors_origins (SENTIMENT_CORS_ORIGINS) names those that may"


class Screen:
    """Which requests are refused."""

    def __init__(self, origins: Collection[str], hosts: tuple[str, ...], on_loopback: bool) -> None:
        """Create it.

        Args:
            origins: those whose pages may send a POST, such as https://example.org; "*": any.
            hosts: see ``answers_for``.
            on_loopback: see ``answers_for``.
        """
        self._origins = origins
        self._hosts = hosts
        self._on_loopback = on_loopback

    def refusal(self, request: web.Request) -> web.Response | None:
        """The answer to a request that is refused."""
        headers = request.headers
        if not states_one_length(headers, request.version >= HttpVersion11):
            answer = error_answer(request, 400, grpc.StatusCode.INVALID_ARGUMENT, BAD_LENGTH)
            # Nothing that follows may be read as another request.
            answer.force_close()
            return answer
        if not answers_for(headers.get(hdrs.HOST), self._hosts, self._on_loopback):
            return error_answer(request, 421, grpc.StatusCode.PERMISSION_DENIED, BAD_HOST)
        if request.method == hdrs.METH_POST and is_foreign(headers, request.scheme, self._origins):
            return error_answer(request, 403, grpc.StatusCode.PERMISSION_DENIED, BAD_ORIGIN)
        return None


def states_one_length(headers: Mapping[str, str], is_http_11: bool) -> bool:
    """Whether every server takes the same bytes for the body."""
    encoding = headers.get(hdrs.TRANSFER_ENCODING)
    return encoding is None or (is_http_11 and encoding.lower() == "chunked" and hdrs.CONTENT_LENGTH not in headers)


@lru_cache(maxsize=64)
def answers_for(host: str | None, hosts: tuple[str, ...], on_loopback: bool) -> bool:
    """Whether a request with this Host header is answered.

    On loopback those with a loopback name or address are. Elsewhere all are, or if there are ``hosts``, those with an address (which no
    page can make its own) or a loopback name.

    Args:
        host: the header; None, which no browser sends, is answered.
        hosts: names that are answered too, in lower case; "*": any.
        on_loopback: whether only this machine reaches the server.
    """
    if host is None or ANY in hosts or not (hosts or on_loopback):
        return True
    found = HOST.fullmatch(host.lower())
    if found is None:
        return False
    name = found["six"] or found["name"]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in hosts or name == "localhost" or name.endswith(".localhost")
    return is_loopback(name) or not on_loopback or name in hosts


def is_foreign(headers: Mapping[str, str], scheme: str, origins: Collection[str]) -> bool:
    """Whether a browser sends this request for a page of an origin that is neither the server's own nor among ``origins``."""
    origin, site = headers.get(hdrs.ORIGIN), headers.get("Sec-Fetch-Site")
    if ANY in origins or origin in origins:
        return False
    if site is not None:
        # The browser has compared the origins itself. A proxy may have changed Host and scheme.
        return site in OTHERS
    return origin is not None and origin.lower() != f"{scheme}://{headers.get(hdrs.HOST, '')}".lower()


def http_guard(guard: Guard) -> Middleware:
    """Middleware that requires a token for every route, existing or not, except those that the guard exempts."""

    @web.middleware
    async def admit(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = "" if resource is None else resource.canonical
        if route == PIPELINE and request.method == hdrs.METH_POST:
            # Who exempts the page at / exempts no call.
            route = ""
        if guard.admits(route, request.headers.getall("Authorization", ())):
            return await handler(request)
        guard.refused("http")
        logger().debug("unauthenticated", peer=peer_of(request))
        answer = error_answer(request, 401, grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
        answer.headers.update((CHALLENGE,))
        return answer

    return admit
