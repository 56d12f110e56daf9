"""Cross-origin requests: allowed for the origins of the setting only, without credentials, and preflights need no token."""

from pathlib import Path

import pytest

from sentiment.errors import BadSettings
from sentiment.settings import load_settings
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.core.http.http import Answer, call

OURS, OTHER = "https://app.example.org", "https://example.com"
GOOD = {"text": "good"}
ALLOWED = "Access-Control-Allow-Origin"


def preflight(server: RunningServer, origin: str, path: str = "/v1/classify", method: str = "POST") -> Answer:
    asked = {"Access_Control_Request_Method": method, "Access_Control_Request_Headers": "content-type,grpc-timeout"}
    return call(server, path, method="OPTIONS", Origin=origin, **asked)


def cors(answer: Answer) -> set[str]:
    return {name for name in answer.headers if name.lower().startswith("access-control-")}


@pytest.fixture
def ours(start: Start) -> RunningServer:
    return start(cors_origins=(OURS, "http://localhost:3000"))


def test_without_the_setting_no_answer_speaks_of_origins(server: RunningServer) -> None:
    answers = [call(server, "/v1/classify", GOOD, Origin=OURS), call(server, "/openapi.json", Origin=OURS), preflight(server, OURS)]

    assert [cors(answer) for answer in answers] == [set()] * 3
    assert "Vary" not in answers[0].headers
    assert answers[2].status == 405


@pytest.mark.parametrize("path", ["/v1/classify", "/v2/models/tiny/infer", "/", "/predict"])
def test_the_refusal_of_a_page_names_the_setting_that_would_allow_it(server: RunningServer, path: str) -> None:
    asked, sent = preflight(server, OURS, path), call(server, path, GOOD, Origin=OURS)

    for answer, status in ((asked, 405), (sent, 403)):
        assert answer.status == status
        assert b"its setting cors_origins (SENTIMENT_CORS_ORIGINS) names those that may" in answer.body
    assert b"cors_origins" not in call(server, path, method="OPTIONS").body


def test_an_allowed_origin_may_read_every_answer_and_another_none(ours: RunningServer) -> None:
    for path, body, status in (
        ("/v1/classify", GOOD, 200),
        ("/v1/classify", {"text": ""}, 400),
        ("/v1/explain", GOOD, 200),
        ("/v1/models", None, 200),
        ("/v1/nosuch", None, 404),
        ("/openapi.json", None, 200),
    ):
        allowed, refused, same = (call(ours, path, body, **origin) for origin in ({"Origin": OURS}, {"Origin": OTHER}, {}))
        # A POST of another origin is refused.
        assert [answer.status for answer in (allowed, refused, same)] == [status, 403 if body else status, status]
        assert allowed.headers[ALLOWED] == OURS
        assert "x-request-id" in allowed.headers["Access-Control-Expose-Headers"]
        assert cors(refused) == cors(same) == set()
        for answer in (allowed, refused, same):
            assert "Origin" in answer.headers["Vary"].split(", ")
        assert "Access-Control-Allow-Credentials" not in allowed.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_origin_cannot_send_what_a_browser_sends_without_asking(
    server: RunningServer, ours: RunningServer, site: str
) -> None:
    for path in ("/v1/classify", "/v1/feedback", "/v1/explain"):
        refused = call(server, path, GOOD, Origin=OTHER, Sec_Fetch_Site=site, Content_Type="text/plain")
        assert (refused.status, refused.error[1]) == (403, "PERMISSION_DENIED")
    assert "cors_origins" in call(server, "/v2/models/tiny/infer", GOOD, Origin=OTHER, Sec_Fetch_Site=site).json["error"]
    assert call(ours, "/v1/classify", GOOD, Origin=OTHER, Sec_Fetch_Site=site).status == 403
    assert call(ours, "/v1/classify", GOOD, Origin=OURS, Sec_Fetch_Site=site).status == 200
    assert call(server, "/v1/classify", GOOD, Origin=OTHER, Sec_Fetch_Site="same-origin").status == 200


def test_a_preflight_is_answered_for_an_allowed_origin_only(ours: RunningServer) -> None:
    allowed, refused = preflight(ours, OURS), preflight(ours, OTHER)

    assert (allowed.status, allowed.headers[ALLOWED]) == (204, OURS)
    assert allowed.headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert {"Content-Type", "Grpc-Timeout", "Authorization"} <= set(allowed.headers["Access-Control-Allow-Headers"].split(", "))
    assert (refused.status, cors(refused)) == (204, set())
    assert allowed.headers["Vary"] == refused.headers["Vary"] == "Origin"


@pytest.mark.parametrize(("path", "method"), [("/metrics", "POST"), ("/", "GET"), ("/docs", "POST"), ("/readyz", "POST")])
def test_pages_and_metrics_are_for_the_same_origin(ours: RunningServer, path: str, method: str) -> None:
    assert cors(call(ours, path, Origin=OURS)) == set()
    assert preflight(ours, OURS, path, method).status == 405


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_a_page_of_an_allowed_origin_may_call_as_hugging_faces_clients_do(ours: RunningServer, path: str) -> None:
    answer = call(ours, path, {"inputs": "good"}, Origin=OURS)

    assert (preflight(ours, OURS, path).status, preflight(ours, OURS, path).headers[ALLOWED]) == (204, OURS)
    assert (answer.status, answer.headers[ALLOWED]) == (200, OURS)
    assert cors(preflight(ours, OTHER, path)) == set()
    assert call(ours, path, {"inputs": "good"}, Origin=OTHER).status == 403


def test_a_compressed_answer_varies_by_both(ours: RunningServer) -> None:
    answer = call(ours, "/openapi.json", Origin=OURS, Accept_Encoding="gzip")

    assert answer.headers["Vary"] == "Accept-Encoding, Origin"


def test_any_origin_is_allowed_as_a_star_and_never_with_credentials(start: Start) -> None:
    server = start(cors_origins=("*",))

    for answer in (call(server, "/v1/classify", GOOD, Origin=OTHER), preflight(server, OTHER)):
        assert answer.headers[ALLOWED] == "*"
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert "Vary" not in answer.headers


def test_a_preflight_needs_no_token_and_the_request_does(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-16-characters\n")
    server = start(cors_origins=(OURS,), auth_tokens=str(tokens))

    assert preflight(server, OURS).status == 204
    refused = call(server, "/v1/classify", GOOD, Origin=OURS)
    assert (refused.status, refused.headers[ALLOWED]) == (401, OURS)
    assert call(server, "/v1/classify", GOOD, Origin=OURS, Authorization="Bearer a-token-of-16-characters").status == 200
    # Not a preflight: no method is asked for.
    assert call(server, "/v1/classify", method="OPTIONS", Origin=OURS).status == 401


@pytest.mark.parametrize("origin", ["*", "https://example.org", "http://127.0.0.1:3000", "http://[::1]:3000", "chrome-extension://abc"])
def test_an_origin_is_taken_as_browsers_send_it(origin: str) -> None:
    assert load_settings({}, {"SENTIMENT_CORS_ORIGINS": f"{origin}, https://b.org"})[0].cors_origins == (origin, "https://b.org")


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://Example.org", "https://*.example.org", "null", "**"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(BadSettings, match="must be \\* or an origin"):
        load_settings({}, {"SENTIMENT_CORS_ORIGINS": origin})
