"""Through Envoy without gRPC: gRPC-Web as browsers speak it, and JSON."""

import base64
import json
import struct
import subprocess
from typing import Any

import pytest

from sentiment.v1 import sentiment_pb2 as pb
from tests.deploy.envoy.proxy import Proxy

pytestmark = [pytest.mark.needs_tool("envoy"), pytest.mark.needs_tool("openssl")]
CLASSIFY = "/sentiment.v1.SentimentService/Classify"
JSON = {"Content-Type": "application/json"}


def bearer(proxy: Proxy) -> dict[str, str]:
    return {"Authorization": f"Bearer {proxy.issuer.token()}"}


def frames(body: bytes) -> dict[int, bytes]:
    """The message (0) and the trailers (128) of an answer in gRPC-Web."""
    found, at = {}, 0
    while at < len(body):
        kind, size = struct.unpack_from(">BI", body, at)
        found[kind] = body[at + 5 : at + 5 + size]
        at += 5 + size
    return found


def decoded(body: bytes) -> bytes:
    """Of base64 in pieces, each with its own padding."""
    return b"".join(base64.b64decode(body[at : at + 4]) for at in range(0, len(body), 4))


@pytest.mark.parametrize("text", [False, True], ids=["binary", "base64"])
def test_a_browser_gets_answers_and_errors(proxy: Proxy, text: bool) -> None:
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"

    def call(request: pb.ClassifyRequest) -> tuple[Any, dict[int, bytes]]:
        message = request.SerializeToString()
        body = struct.pack(">BI", 0, len(message)) + message
        headers = {"Content-Type": kind, "Accept": kind, "X-Grpc-Web": "1", "Origin": "https://app.example", **bearer(proxy)}
        status, told, answer = proxy.fetch(CLASSIFY, base64.b64encode(body) if text else body, headers)
        assert status == 200
        return told, frames(decoded(answer) if text else answer)

    headers, good = call(pb.ClassifyRequest(text="a good film"))
    refused, bad = call(pb.ClassifyRequest(text=" "))

    assert pb.ClassifyResponse.FromString(good[0]).prediction.label == "positive"
    assert b"grpc-status:0" in good[128].replace(b" ", b"")
    assert headers["Access-Control-Allow-Origin"] == "https://app.example"
    # An answer of nothing but a status has it among its headers.
    assert (refused["Grpc-Status"], bool(refused["Grpc-Status-Details-Bin"]), bad) == ("3", True, {})


@pytest.mark.parametrize(("origin", "allowed"), [("https://app.example", "https://app.example"), ("https://evil.example", None)])
def test_a_browser_asks_before_and_only_named_pages_may_call(proxy: Proxy, origin: str, allowed: str | None) -> None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,authorization"}

    _, told, _ = proxy.fetch(CLASSIFY, b"", headers, "OPTIONS")

    assert told["Access-Control-Allow-Origin"] == allowed


@pytest.mark.needs_tool("buf")
def test_a_foreign_client_of_grpc_web_is_answered(proxy: Proxy) -> None:
    headers = [f"--header={key}: {value}" for key, value in bearer(proxy).items()]
    curl = ["buf", "curl", "--protocol", "grpcweb", "--cacert", str(proxy.certificate), "--schema", "proto", *headers]

    called = subprocess.run(
        [*curl, "--data", '{"text": "a good film"}', proxy.url + CLASSIFY], capture_output=True, text=True, timeout=30, check=False
    )

    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["prediction"]["label"] == "positive"


def test_json_is_answered_with_the_protos_names(proxy: Proxy) -> None:
    status, headers, body = proxy.fetch(CLASSIFY, b'{"text": "a good film"}', {**JSON, **bearer(proxy)})
    answer = json.loads(body)

    assert (status, headers.get_content_type()) == (200, "application/json")
    assert answer["prediction"]["label"] == "positive"
    assert (answer["truncated"], answer["timing"]["batch_rows"]) == (False, 1)


def test_a_large_batch_fits_in_json(proxy: Proxy) -> None:
    items = json.dumps({"items": [{"text": "good " * 400}] * 1000}).encode()

    status, _, body = proxy.fetch("/sentiment.v1.SentimentService/ClassifyBatch", items, {**JSON, **bearer(proxy)})

    assert (status, len(json.loads(body)["results"])) == (200, 1000)


def test_errors_of_json_requests_are_json(proxy: Proxy) -> None:
    batch = json.dumps({"items": [{"text": "good"}, {"text": ""}]}).encode()

    status, _, refused = proxy.fetch(CLASSIFY, b'{"text": " "}', {**JSON, **bearer(proxy)})
    good, _, results = proxy.fetch("/sentiment.v1.SentimentService/ClassifyBatch", batch, {**JSON, **bearer(proxy)})
    malformed, _, _ = proxy.fetch(CLASSIFY, b'{"txt": 1}', {**JSON, **bearer(proxy)})
    nobody, _, _ = proxy.fetch(CLASSIFY, b'{"text": "good"}', JSON)

    assert status == 400
    assert json.loads(refused)["details"][0]["field_violations"][0]["field"] == "text"
    assert good == 200
    assert [list(result) for result in json.loads(results)["results"]] == [["response"], ["error"]]
    assert (malformed, nobody) == (400, 401)
