"""The viewer's page over HTTP: what is served, under which headers, and what is not."""

import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from sentiment.viewer.page import assets
from tests.conftest import RunningServer

PARTS = sorted(set(assets()) - {"index.html"})


def get(server: RunningServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(server.url + path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    request.method = method
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_the_page_and_its_parts_are_what_the_package_has(server: RunningServer) -> None:
    assert get(server, "/")[2] == assets()["index.html"].body
    for name in PARTS:
        status, headers, body = get(server, f"/viewer/{name}")
        assert (status, body, headers["Content-Type"]) == (200, assets()[name].body, assets()[name].content_type)
    assert {asset.content_type for asset in assets().values()} >= {
        "text/html; charset=utf-8",
        "text/css; charset=utf-8",
        "text/javascript; charset=utf-8",
    }


@pytest.mark.parametrize("path", ["/", f"/viewer/{PARTS[0]}"])
def test_every_answer_forbids_what_the_page_does_not_need(server: RunningServer, path: str) -> None:
    for found in (get(server, path), get(server, path, "HEAD"), get(server, path, If_None_Match="*")):
        headers = found[1]
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "data:",
            "trusted-types": "'none'",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
        }
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", f"/viewer/{PARTS[0]}"])
def test_head_says_what_get_gives(server: RunningServer, path: str) -> None:
    (status, headers, body), (head_status, head_headers, nothing) = get(server, path), get(server, path, "HEAD")

    assert (status, head_status, nothing) == (200, 200, b"")
    for name in ("ETag", "Content-Type", "Content-Length"):
        assert headers[name] == head_headers[name]
    assert int(headers["Content-Length"]) == len(body)


def test_what_the_browser_has_is_not_sent_again(server: RunningServer) -> None:
    tag = get(server, "/")[1]["ETag"]

    for known in (tag, f'"other", W/{tag}', "*"):
        status, headers, body = get(server, "/", If_None_Match=known)
        assert (status, headers["ETag"], body) == (304, tag, b"")
    for unknown in ('"other"', tag.strip('"'), ""):
        assert get(server, "/", If_None_Match=unknown)[0] == 200
    assert len({asset.etag for asset in assets().values()}) == len({asset.body for asset in assets().values()})


@pytest.mark.parametrize(
    "path",
    [
        "/viewer/",
        "/viewer",
        "/viewer/nosuch.js",
        "/viewer/index.html",
        "/viewer/../page.py",
        "/viewer/%2e%2e%2fpage.py",
        "/viewer/..%5cpage.py",
    ],
)
def test_nothing_else_is_served(server: RunningServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_a_page_cannot_be_written(server: RunningServer) -> None:
    assert get(server, "/", "POST")[0] == get(server, "/", "PUT")[0] == 405


def test_a_server_without_the_viewer_has_all_but_the_page(start: Callable[..., RunningServer]) -> None:
    server = start(viewer=False)

    assert [get(server, path)[0] for path in ("/", "/viewer/", f"/viewer/{PARTS[0]}")] == [404, 404, 404]
    assert [get(server, path)[0] for path in ("/v1/models", "/metrics", "/readyz")] == [200, 200, 200]
