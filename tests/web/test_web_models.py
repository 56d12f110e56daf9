"""GET /v1/models of a real server."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from sentiment.client import Client, model_json
from tests.conftest import RunningServer
from tests.rpc.gate import total


def get(server: RunningServer, path: str, **headers: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=10) as response:
            assert response.headers["Content-Type"] == "application/json; charset=utf-8"
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        assert error.headers["x-request-id"]
        return error.code, json.loads(error.read())


def test_models_are_listed_without_and_given_with_their_cards(server: RunningServer, client: Client) -> None:
    described = model_json(client.get_model("tiny"))

    assert get(server, "/v1/models") == (200, {"models": [{**described, "card": ""}]})
    assert get(server, "/v1/models/tiny") == get(server, "/v1/models/tiny/1") == (200, {"model": described})
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
)
def test_a_model_that_is_not_loaded_is_not_found(server: RunningServer, path: str, says: str) -> None:
    before = total(server, "requests", method="GetModel", code="NOT_FOUND")

    status, answer = get(server, f"/v1/models/{path}")

    assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")
    assert says in answer["error"]["message"]
    assert total(server, "requests", method="GetModel", code="NOT_FOUND") == before + 1


def test_both_are_counted_and_keep_the_clients_time_limit(server: RunningServer) -> None:
    before = {method: total(server, "requests", method=method, code="OK") for method in ("ListModels", "GetModel")}

    assert get(server, "/v1/models", **{"Grpc-Timeout": "5S"})[0] == get(server, "/v1/models/tiny")[0] == 200
    assert get(server, "/v1/models", **{"Grpc-Timeout": "soon"})[0] == 400

    assert {method: total(server, "requests", method=method, code="OK") for method in before} == {
        method: count + 1 for method, count in before.items()
    }


def test_no_room_is_told_alike(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    monkeypatch.setattr(server.app._grpc.calls, "_open", server.settings.calls_max)

    status, answer = get(server, "/v1/models")

    monkeypatch.undo()
    assert (status, answer["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
