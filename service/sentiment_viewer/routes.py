"""Serves the viewer over HTTP: static files with ETags, under the strictest Content-Security-Policy that they run with."""

from collections.abc import Mapping
from functools import cache

from aiohttp import web

from sentiment.doors.http.gzipped import BYTES_MIN, ENCODED, accepts_gzip, gzipped
from sentiment_viewer.page import INDEX, POLICY, Asset, assets, served_index

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers keep the files but revalidate them at each use, because another version of the server has other files.
    "Cache-Control": "no-cache",
}
# Each file is compressed once.
LEVEL = 9


def add_viewer(router: web.UrlDispatcher, feedback: bool = False) -> None:
    """Serve the page at / and its assets below /viewer/. Links are relative, so that a proxy may add a path prefix.

    ``feedback``: whether the server takes right labels.
    """
    # Load the assets now, so that an installation without them fails at the start and not at the first request.
    index = served_index(feedback)

    async def get_index(request: web.Request) -> web.Response:
        return asset_response(request, index)

    router.add_get("/", get_index)
    router.add_get("/viewer/{name}", _get_part)


async def _get_part(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name == INDEX or name not in assets():
        raise web.HTTPNotFound
    return asset_response(request, assets()[name])


def asset_response(request: web.Request, asset: Asset, headers: Mapping[str, str] = HEADERS) -> web.Response:
    """The answer to a request for a file: the file, in gzip if the client accepts that, or 304 if the client has it."""
    headers = {**headers, "ETag": asset.etag}
    if len(asset.body) > BYTES_MIN:
        headers["Vary"] = "Accept-Encoding"
        if accepts_gzip(request):
            asset = _in_gzip(asset)
            headers |= {**ENCODED, "ETag": asset.etag}
    known = [found.strip().removeprefix("W/") for found in request.headers.get("If-None-Match", "").split(",")]
    if asset.etag in known or "*" in known:
        headers.pop("Content-Encoding", None)
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.body, headers={**headers, "Content-Type": asset.content_type})


@cache
def _in_gzip(asset: Asset) -> Asset:
    """The file as it is sent; its ETag is another one, since its bytes are."""
    return Asset(gzipped(asset.body, LEVEL), asset.content_type, f'{asset.etag[:-1]}-gzip"')
