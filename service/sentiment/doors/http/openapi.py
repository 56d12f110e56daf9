"""Serves the description of the HTTP routes, OpenAPI 3.1, at /openapi.json. ``docs/openapi.py`` makes its file from the proto."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from aiohttp import web

from sentiment.assets import asset_of
from sentiment.doors.http.asset_response import asset_response

FILE = "openapi.json"
# In the file: the setting that a limit depends on, and the limit's keyword. The server puts its own value there.
SETTING = "x-setting"
KEYWORDS = ("maxLength", "maxItems")
HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}


def add_openapi(router: web.UrlDispatcher, limits: Mapping[str, int]) -> None:
    """Serve the description. ``limits``: by their settings. A character has a byte at least, so one of bytes is one of characters too."""
    description = json.loads(files("sentiment.doors.http").joinpath(FILE).read_bytes())
    limit(description, limits)
    asset = asset_of(FILE, json.dumps(description).encode())

    async def get(request: web.Request) -> web.Response:
        return asset_response(request, asset, HEADERS)

    router.add_get(f"/{FILE}", get)


def limit(node: Any, settings: Mapping[str, int]) -> None:  # Any: JSON
    """Put the server's limits in place of the defaults."""
    if isinstance(node, list):
        for member in node:
            limit(member, settings)
    elif isinstance(node, dict):
        if SETTING in node:
            value = settings[node.pop(SETTING)]
            node.update({keyword: value for keyword in KEYWORDS if keyword in node})
        for member in node.values():
            limit(member, settings)
