"""/openapi.json: a valid OpenAPI 3.1 document, true of the server that serves it."""

import gzip
import json
from typing import Any

import jsonschema
import pytest
from google.protobuf.message import Message
from openapi_spec_validator import OpenAPIV31SpecValidator

from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.core.http.http import call


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return call(server, "/openapi.json").json


def check(document: Any, value: Any, name: str) -> None:
    """Fail if a value is not what a schema of the document says."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_the_document_is_valid_and_served_to_every_program(server: RunningServer, document: Any) -> None:
    answer = call(server, "/openapi.json", Accept_Encoding="gzip")

    OpenAPIV31SpecValidator(document).validate()
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert json.loads(gzip.decompress(answer.body)) == document
    assert call(server, "/openapi.json", If_None_Match=answer.headers["ETag"], Accept_Encoding="gzip").status == 304


def test_every_route_of_the_server_but_those_of_open_inference_is_in_the_document(server: RunningServer, document: Any) -> None:
    served = {
        (resource.canonical, route.method.lower())
        for resource in server.web._runner.app.router.resources()
        for route in resource
        if route.method not in ("HEAD", "*")
    }
    pages = {(path, "get") for path in ("/", "/viewer/{name}", "/docs", "/docs/{name}", "/openapi.json", "/favicon.ico")}

    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == {(path, method) for path, method in served - pages if not path.startswith("/v2")}


def test_limits_are_those_of_the_server(start: Start) -> None:
    document = call(start(text_bytes_max=1000, batch_items_max=7, targets_max=3), "/openapi.json").json
    schemas = document["components"]["schemas"]

    assert [schemas[name]["properties"]["text"]["maxLength"] for name in ("ClassifyRequest", "Item", "ExplainRequest")] == [1000] * 3
    assert schemas["ClassifyBatchRequest"]["properties"]["items"]["maxItems"] == 7
    assert schemas["Item"]["maxLength"] == 1000
    text, texts = schemas["PipelineRequest"]["properties"]["inputs"]["anyOf"]
    assert (text["maxLength"], texts["items"]["maxLength"], texts["maxItems"]) == (1000, 1000, 7)
    assert [schemas[name]["properties"]["targets"]["maxItems"] for name in ("ClassifyRequest", "Item")] == [3, 3]
    assert "x-setting" not in json.dumps(document)


def test_every_example_of_a_request_is_taken_and_every_example_of_an_answer_has_its_form(server: RunningServer, document: Any) -> None:
    for path, item in document["paths"].items():
        operation = item.get("post", {})
        for asked in operation.get("requestBody", {}).get("content", {}).values():
            for example in asked["examples"].values():
                answer = call(server, path, example["value"])
                if path == "/v1/feedback":
                    # This server keeps no journal. That is said of what has passed every other check.
                    assert answer.error[1] == "FAILED_PRECONDITION", example
                else:
                    assert answer.status == 200, (path, example)
        for answered in operation.get("responses", {}).get("200", {}).get("content", {}).values():
            if "example" in answered:
                check(document, answered["example"], answered["schema"]["$ref"].rpartition("/")[2])
    check(document, document["components"]["responses"]["Wrong"]["content"]["application/json"]["example"], "ErrorBody")


def test_every_field_of_a_message_is_described_in_the_protos_words(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for message in (pb.ClassifyRequest, pb.ClassifyResponse, pb.ExplainOptions, pb.Model, pb.FeedbackRequest, pb.AttentionTile):
        assert list(schemas[message.DESCRIPTOR.name]["properties"]) == [field.name for field in message.DESCRIPTOR.fields]
    assert schemas["ClassifyRequest"]["properties"]["text_pair"]["description"].startswith("The second text of a pair")
    assert "A request may name a value in short: refuse, head, head_tail, windows." in schemas["Truncation"]["description"]
    assert "in short" not in schemas["Verdict"]["description"]
    assert "- TRUNCATION_WINDOWS: Read the whole text in overlapping windows" in schemas["Truncation"]["description"]
    # What is not built is left out.
    assert list(schemas["ClassifyBatchRequest"]["properties"]) == [
        *("items", "model", "truncation", "priority", "sentences", "effort", "no_cache", "abstain_below")
    ]


def test_answers_have_the_form_of_the_document(server: RunningServer, document: Any) -> None:
    check(document, call(server, "/v1/classify", {"text": "good"}).json, "ClassifyResponse")
    check(document, call(server, "/v1/classify", {"text": "good", "explain": {"counterfactuals": True}}).json, "ClassifyResponse")
    check(document, call(server, "/v1/classify:batch", {"items": [{"text": "good"}, {"text": ""}]}).json, "ClassifyBatchResponse")
    check(document, call(server, "/", {"inputs": ["good", "bad"]}).json, "PipelineResponse")
    check(document, call(server, "/predict", {"inputs": "good"}).json, "PredictResponse")
    check(document, call(server, "/predict", {"inputs": ""}).json, "PlainError")
    check(document, call(server, "/v1/models").json, "ListModelsResponse")
    check(document, call(server, "/v1/models/tiny").json, "GetModelResponse")
    check(document, call(server, "/v1/classify", {"text": 3}).json, "ErrorBody")
    lines = call(server, "/v1/explain", {"text": "a good film", "options": {"methods": ["shapley"], "counterfactuals": True}}).lines
    assert len(lines) >= 5
    for line in lines:
        check(document, line, "ExplainLine")


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (pb.ClassifyResponse, "ClassifyResponse"),
        (pb.ListModelsResponse, "ListModelsResponse"),
        (pb.AttentionTile, "AttentionTile"),
        (pb.NeuronView, "NeuronView"),
        (pb.WordGeometry, "WordGeometry"),
        (pb.HeadReport, "HeadReport"),
        (pb.FeedbackResponse, "FeedbackResponse"),
    ],
)
def test_an_empty_answer_has_all_fields_that_are_always_there(document: Any, message: type[Message], name: str) -> None:
    from sentiment.proto_json import json_dict

    empty = json_dict(message())
    check(document, empty, name)
    assert set(document["components"]["schemas"][name].get("required", ())) == set(empty)
