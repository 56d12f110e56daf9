"""Serves the page at /docs, which lists the routes of /openapi.json and sends requests to them, under the viewer's policy."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from aiohttp import web

from sentiment_viewer.page import CONTENT_TYPES, Asset
from sentiment_viewer.routes import asset_response

PAGE, PARTS = "docs.html", ("docs.css", "docs.js", "requests.js")


def add_docs_page(router: web.UrlDispatcher) -> None:
    """Serve the page at /docs and its parts below /docs/. Links are relative, as the viewer's."""
    _assets()
    router.add_get("/docs", _get_page)
    router.add_get("/docs/{name}", _get_part)


async def _get_page(request: web.Request) -> web.Response:
    return asset_response(request, _assets()[PAGE])


async def _get_part(request: web.Request) -> web.Response:
    if (name := request.match_info["name"]) not in PARTS:
        raise web.HTTPNotFound
    return asset_response(request, _assets()[name])


@cache
def _assets() -> Mapping[str, Asset]:
    folder, found = files("sentiment.doors.http").joinpath("assets"), {}
    for name in (PAGE, *PARTS):
        body = folder.joinpath(name).read_bytes()
        found[name] = Asset(body, CONTENT_TYPES[name[name.rfind(".") :]], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return MappingProxyType(found)
