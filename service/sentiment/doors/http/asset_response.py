"""Answers requests for files: compressed once each, with ETags."""

from collections.abc import Mapping
from functools import cache

from aiohttp import web

from sentiment.assets import Asset
from sentiment.doors.http.gzipped import BYTES_MIN, ENCODED, accepts_gzip, gzipped

LEVEL = 9


def asset_response(request: web.Request, asset: Asset, headers: Mapping[str, str]) -> web.Response:
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
