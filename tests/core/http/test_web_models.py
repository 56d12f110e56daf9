"""GET /v1/models of a real server."""

import pytest

from sentiment.client import Client, model_json
from tests.conftest import RunningServer
from tests.core.grpc.gate import total
from tests.core.http.http import call


def test_models_are_listed_without_and_described_with_their_cards(server: RunningServer, client: Client) -> None:
    described = model_json(client.get_model("tiny"))

    listed, by_name, by_version = (call(server, path) for path in ("/v1/models", "/v1/models/tiny", "/v1/models/tiny/1"))

    assert listed.json == {"models": [{**described, "card": ""}]}
    assert by_name.json == by_version.json == {"model": described}
    assert {answer.headers["Content-Type"] for answer in (listed, by_name)} == {"application/json; charset=utf-8"}
    assert described["id"] == {"name": "tiny", "version": 1, "digest": client.get_model().id.digest}
    assert described["default_truncation"].startswith("TRUNCATION_")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nosuch", "model 'nosuch' is not loaded; loaded are tiny/1"),
        ("tiny/2", "'tiny/2'"),
        ("tiny/x", "'tiny/x'"),
        ("%2e%2e", "'..'"),
        ("%ed%a0%80", "is not loaded"),
        ("x" * 5000, "x" * 128 + "'"),
    ],
    ids=["name", "version", "no-number", "dots", "surrogate", "long"],
)
def test_a_model_that_is_not_loaded_is_not_found(server: RunningServer, path: str, says: str) -> None:
    before = total(server, "requests", method="GetModel", code="NOT_FOUND")

    answer = call(server, f"/v1/models/{path}")

    assert answer.error[:2] == (404, "NOT_FOUND")
    assert says in answer.error[2]
    assert answer.headers["x-request-id"]
    assert total(server, "requests", method="GetModel", code="NOT_FOUND") == before + 1


def test_model_routes_are_counted_and_keep_the_clients_time_limit(server: RunningServer) -> None:
    before = {method: total(server, "requests", method=method, code="OK") for method in ("ListModels", "GetModel")}

    assert call(server, "/v1/models", Grpc_Timeout="5S").status == call(server, "/v1/models/tiny").status == 200
    assert call(server, "/v1/models", Grpc_Timeout="soon").status == 400

    assert {method: total(server, "requests", method=method, code="OK") - count for method, count in before.items()} == dict.fromkeys(
        before, 1
    )
