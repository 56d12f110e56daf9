"""Serves the pages for people: the viewer at / and the page to try the routes at /docs, under the strictest policy that they run with."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from aiohttp import web

from sentiment.assets import Asset, asset_of
from sentiment.doors.http.asset_response import asset_response
from sentiment_viewer.page import INDEX, POLICY, assets, served_index

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers keep the files but revalidate them at each use, because another version of the server has other files.
    "Cache-Control": "no-cache",
}
# It lists the routes of /openapi.json and sends requests to them.
DOCS, DOCS_PARTS = "docs.html", ("docs.css", "docs.js", "requests.js")


def add_pages(router: web.UrlDispatcher, feedback: bool) -> None:
    """Serve the pages at / and /docs and their files below /viewer/ and /docs/. Links are relative, so that a proxy may add a path prefix.

    ``feedback``: whether the server takes right labels.
    """
    # Load the files now, so that an installation without them fails at the start and not at the first request.
    index = served_index(feedback)
    _add(router, "/", "/viewer", index, {name: asset for name, asset in assets().items() if name != INDEX})
    _add(router, "/docs", "/docs", _docs()[DOCS], {name: _docs()[name] for name in DOCS_PARTS})


def _add(router: web.UrlDispatcher, path: str, below: str, page: Asset, parts: Mapping[str, Asset]) -> None:
    async def get_page(request: web.Request) -> web.Response:
        return asset_response(request, page, HEADERS)

    async def get_part(request: web.Request) -> web.Response:
        if (name := request.match_info["name"]) not in parts:
            raise web.HTTPNotFound
        return asset_response(request, parts[name], HEADERS)

    router.add_get(path, get_page)
    router.add_get(f"{below}/{{name}}", get_part)


@cache
def _docs() -> Mapping[str, Asset]:
    folder = files("sentiment_viewer").joinpath("docs_assets")
    return MappingProxyType({name: asset_of(name, folder.joinpath(name).read_bytes()) for name in (DOCS, *DOCS_PARTS)})
