"""The viewer's page over HTTP: what is served, under which headers, and what is not."""

import gzip

import pytest

from sentiment_viewer.page import assets
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.core.http.http import call

PARTS = sorted(set(assets()) - {"index.html"})


@pytest.mark.smoke
def test_the_page_and_its_parts_are_what_the_package_has(server: RunningServer) -> None:
    assert call(server, "/").body == assets()["index.html"].body
    for name in PARTS:
        status, headers, body = call(server, f"/viewer/{name}")
        assert (status, body, headers["Content-Type"]) == (200, assets()[name].body, assets()[name].content_type)
    assert {asset.content_type for asset in assets().values()} >= {
        "text/html; charset=utf-8",
        "text/css; charset=utf-8",
        "text/javascript; charset=utf-8",
    }


@pytest.mark.parametrize("path", ["/", f"/viewer/{PARTS[0]}", "/docs", "/docs/docs.js"])
def test_every_answer_forbids_what_the_page_does_not_need(server: RunningServer, path: str) -> None:
    for answer in (call(server, path), call(server, path, method="HEAD"), call(server, path, If_None_Match="*")):
        headers = answer.headers
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
def test_head_has_the_headers_of_get(server: RunningServer, path: str) -> None:
    (status, headers, body), (head_status, head_headers, nothing) = call(server, path), call(server, path, method="HEAD")

    assert (status, head_status, nothing) == (200, 200, b"")
    for name in ("ETag", "Content-Type", "Content-Length"):
        assert headers[name] == head_headers[name]
    assert int(headers["Content-Length"]) == len(body)


def test_an_asset_that_the_browser_has_is_answered_304(server: RunningServer) -> None:
    tag = call(server, "/").headers["ETag"]

    for known in (tag, f'"other", W/{tag}', "*"):
        status, headers, body = call(server, "/", If_None_Match=known)
        assert (status, headers["ETag"], body) == (304, tag, b"")
    for unknown in ('"other"', tag.strip('"'), ""):
        assert call(server, "/", If_None_Match=unknown).status == 200
    assert len({asset.etag for asset in assets().values()}) == len({asset.body for asset in assets().values()})


def test_a_file_is_compressed_for_a_client_that_accepts_it(server: RunningServer) -> None:
    plain, compressed = call(server, "/"), call(server, "/", Accept_Encoding="gzip")
    known = call(server, "/", Accept_Encoding="gzip", If_None_Match=compressed.headers["ETag"])

    assert gzip.decompress(compressed.body) == plain.body
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["Vary"] == compressed.headers["Vary"] == "Accept-Encoding"
    assert plain.headers["ETag"] != compressed.headers["ETag"]
    assert (known.status, known.body) == (304, b"")
    assert call(server, "/", Accept_Encoding="gzip", If_None_Match=plain.headers["ETag"]).status == 200


NOTHING = ("", "nosuch.js", "index.html", "../page.py", "%2e%2e%2fpage.py", "..%5cpage.py")


@pytest.mark.parametrize("path", ["/viewer", *(f"/viewer/{name}" for name in NOTHING)])
def test_nothing_else_is_served(server: RunningServer, path: str) -> None:
    assert call(server, path).status == 404


def test_a_page_cannot_be_written(server: RunningServer) -> None:
    # A POST to / classifies the texts of its body.
    assert [call(server, "/", body, method).status for method, body in (("POST", b""), ("PUT", b"x"), ("DELETE", None))] == [400, 405, 405]
    assert [call(server, "/docs", b"x", method).status for method in ("POST", "PUT")] == [405, 405]


def test_a_server_without_the_viewer_has_all_but_the_page(start: Start) -> None:
    server = start(viewer=False)

    assert [call(server, path).status for path in ("/viewer/", f"/viewer/{PARTS[0]}", "/docs", "/docs/docs.js")] == [404] * 4
    assert call(server, "/").error == (405, "UNIMPLEMENTED", "/ does not take GET; it takes POST")
    assert [call(server, path).status for path in ("/v1/models", "/metrics", "/readyz", "/openapi.json")] == [200] * 4
