"""``POST /`` and ``POST /predict`` of a real server, as clients of Hugging Face's servers call them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError

from sentiment.client import Client
from sentiment.doors.http import hugging_face
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX
from tests.conftest import RunningServer
from tests.core.grpc.conftest import hold
from tests.core.grpc.gate import FixedCost, Hold, Start, assert_nothing_left, queued, set_cost, total
from tests.core.http.http import Answer, call

__all__ = ["hold"]

BOTH = pytest.mark.parametrize("path", ["/", "/predict"])
GOOD = {"inputs": "a good film"}
MANY = {"/": lambda texts: {"inputs": texts}, "/predict": lambda texts: {"inputs": [[text] for text in texts]}}


def refusal(answer: Answer) -> tuple[int, str, str]:
    """HTTP status, kind and message of a request that failed."""
    assert set(answer.json) == {"error", "error_type"}
    return answer.status, answer.json["error_type"], answer.json["error"]


def labels(scores: list[dict[str, Any]]) -> list[str]:
    """After a check of their form and order."""
    assert all(set(one) == {"label", "score"} for one in scores)
    assert [one["score"] for one in scores] == sorted((one["score"] for one in scores), reverse=True)
    return [one["label"] for one in scores]


def test_hugging_faces_own_client_reads_the_answers_and_the_errors(server: RunningServer, client: Client) -> None:
    hugging = InferenceClient(model=server.url, token="none-is-needed")
    ours = client.classify("an awful film")

    answers = hugging.text_classification("an awful film")
    best = hugging.text_classification("an awful film", top_k=1, function_to_apply="softmax")

    assert [answer.label for answer in answers] == ["negative", "positive"]
    assert answers[0].score == pytest.approx(ours.score)
    assert best == answers[:1]
    with pytest.raises(BadRequestError, match=r"parameters\.function_to_apply: must be softmax"):
        hugging.text_classification("good", function_to_apply="sigmoid")


def test_the_pipeline_answers_a_list_of_labels_for_each_text(server: RunningServer) -> None:
    one, two, first = (
        call(server, "/", body)
        for body in (GOOD, {"inputs": ["awful", "good"], "parameters": None}, {"inputs": ["good"], "parameters": {"top_k": 1}})
    )

    assert [labels(scores) for scores in one.json] == [["positive", "negative"]]
    assert [labels(scores)[0] for scores in two.json] == ["negative", "positive"]
    assert [labels(scores) for scores in first.json] == [["positive"]]
    assert one.headers["Content-Type"] == "application/json; charset=utf-8"


def test_predict_answers_one_text_with_its_labels_and_a_batch_with_lists_of_them(server: RunningServer) -> None:
    bare, listed, batch = (call(server, "/predict", {"inputs": inputs}).json for inputs in ("good", ["good"], [["good"], ["awful"]]))

    assert labels(bare) == ["positive", "negative"]
    assert listed == bare
    assert [labels(scores)[0] for scores in batch] == ["positive", "negative"]
    assert call(server, "/predict", {"inputs": "good", "raw_scores": False, "truncation_direction": "Right", "truncate": None}).json == bare


def test_predict_reads_pairs_alone_and_in_a_batch(start: Start) -> None:
    server = start(model="paired")
    pair = {"text": "good", "text_pair": "awful"}

    alone, batch = (call(server, "/predict", {"inputs": inputs}).json for inputs in (["good", "awful"], [["good"], ["good", "awful"]]))

    ours = call(server, "/v1/classify", pair).json["prediction"]["scores"]
    assert sorted(alone, key=lambda one: one["label"]) == sorted(ours, key=lambda one: one["label"])
    assert batch[1] == alone
    assert batch[0] != alone


def test_truncate_reads_the_beginning_of_a_long_text_or_refuses_it(server: RunningServer) -> None:
    text = "good " * 20 + "awful " * 1000

    head = call(server, "/predict", {"inputs": text, "truncate": True})
    refused = call(server, "/predict", {"inputs": text, "truncate": False})

    expected = call(server, "/v1/classify", {"text": text, "truncation": "head"}).json["prediction"]
    assert head.json[0]["score"] == expected["score"]
    assert refusal(refused)[:2] == (400, "Validation")
    assert refused.json["error"].startswith("inputs[0]: has ")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/", {"inputs": ["good", ""]}, "inputs[1]: has 0 characters"),
        ("/", {}, "inputs[0]: has 0 characters"),
        ("/", {"inputs": []}, "inputs: must have 1 to 1024 items, got 0"),
        ("/", {"inputs": ["good", 3]}, "inputs[1]: must be a string, got a number"),
        ("/", {"inputs": {"text": "good"}}, "inputs[0]: must be a string, got an object"),
        ("/", ["good"], "the body must be an object, got an array"),
        ("/", {**GOOD, "options": {}}, "unknown field `options`; fields are inputs, parameters"),
        ("/", {**GOOD, "parameters": {"truncation": True}}, "parameters: unknown field `truncation`; fields are top_k, function_to_apply"),
        ("/", {**GOOD, "parameters": 1}, "parameters: must be an object, got a number"),
        ("/", {**GOOD, "parameters": {"top_k": 0}}, "parameters.top_k: must be a whole number of at least 1"),
        ("/", {**GOOD, "parameters": {"top_k": True}}, "parameters.top_k: must be a whole number of at least 1"),
        ("/", {**GOOD, "parameters": {"top_k": 1.5}}, "parameters.top_k: must be a whole number of at least 1"),
        ("/", {**GOOD, "parameters": {"function_to_apply": "none"}}, "parameters.function_to_apply: must be softmax or unset"),
        ("/predict", {"inputs": []}, "inputs: must have 1 to 1024 items, got 0"),
        ("/predict", {"inputs": ["good", "bad", "awful"]}, "inputs: must be a string, or an array of one string or the two of a pair"),
        ("/predict", {"inputs": [["good"], []]}, "inputs[1]: must be a string, or an array of one string or the two of a pair"),
        ("/predict", {"inputs": [["good"], "bad"]}, "inputs[0]: must be a string, got an array"),
        ("/predict", {"inputs": ["good", "bad"]}, "model tiny/1 reads one text; a pair was given"),
        ("/predict", {**GOOD, "raw_scores": True}, "raw_scores: must be false"),
        ("/predict", {**GOOD, "truncate": 1}, "truncate: must be true or false, got a number"),
        ("/predict", {**GOOD, "truncation_direction": "left"}, "truncation_direction: must be right"),
        (
            "/predict",
            {**GOOD, "parameters": {}},
            "unknown field `parameters`; fields are inputs, truncate, truncation_direction, raw_scores",
        ),
        *((path, b"[" * 100_000, "is not valid JSON: it nests too deeply") for path in ("/", "/predict")),
        *((path, b'{"inputs": "\\ud800"}', "inputs[0]: has a lone surrogate") for path in ("/", "/predict")),
        *((path, b'{"inputs": [' + b"[]," * 50_000, "values") for path in ("/", "/predict")),
        *((path, b'{"inputs": "' + b"a" * 20 * 2**20 + b'"}', "the body has more bytes than the limit of") for path in ("/", "/predict")),
        *((path, {"inputs": [["good"]] * 1025} if path == "/predict" else {"inputs": ["good"] * 1025}, "got 1025") for path in MANY),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_answered_is_refused_with_its_place(server: RunningServer, path: str, body: Any, says: str) -> None:
    answer = call(server, path, body)

    assert refusal(answer)[:2] == (400, "Validation")
    assert says in answer.json["error"]
    assert answer.headers["x-request-id"]


@BOTH
def test_a_call_is_counted_once_with_the_code_of_its_first_error(start: Start, path: str) -> None:
    server = start()
    bodies = [MANY[path](texts) for texts in (["good", "bad"], ["good", "", ""])]

    assert [call(server, path, body).status for body in bodies] == [200, 400]

    assert {code: total(server, "requests", method="ClassifyBatch", code=code) for code in ("OK", "INVALID_ARGUMENT")} == {
        "OK": 1,
        "INVALID_ARGUMENT": 1,
    }
    assert [total(server, "items", method="ClassifyBatch", code=code) for code in ("OK", "INVALID_ARGUMENT")] == [2, 3]
    assert_nothing_left(server)


@BOTH
def test_a_deadline_holds_as_in_other_calls(server: RunningServer, path: str) -> None:
    assert refusal(call(server, path, GOOD, Grpc_Timeout="1n"))[:2] == (504, "Backend")
    assert refusal(call(server, path, GOOD, Grpc_Timeout="soon"))[:2] == (400, "Validation")


@BOTH
async def test_a_full_queue_refuses_and_says_when_to_come_back(start: Start, hold: Hold, path: str) -> None:
    server = start(runners=1, queue_rows_max=1, batch_rows_max=1)
    set_cost(server, FixedCost(row_s=0.2))
    gate = hold(server)
    first = asyncio.create_task(asyncio.to_thread(call, server, path, GOOD, Grpc_Timeout="50S"))
    await gate.begun()
    second = asyncio.create_task(asyncio.to_thread(call, server, path, GOOD, Grpc_Timeout="50S"))
    await queued(server, 1)

    refused = await asyncio.to_thread(call, server, path, GOOD, Grpc_Timeout="50S")
    gate.open()

    assert refusal(refused)[:2] == (429, "Overloaded")
    assert 1 <= int(refused.headers["Retry-After"]) <= 10
    assert [(await one).status for one in (first, second)] == [200, 200]


@BOTH
def test_a_call_needs_a_token_where_one_is_set_even_if_the_page_needs_none(start: Start, tmp_path: Path, path: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("first-token-0123456789\n")
    server = start(auth_tokens=str(tokens), auth_exempt=("/",))

    refused = call(server, path, GOOD)

    assert refusal(refused)[:2] == (401, "Validation")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert call(server, "/").status == 200
    assert call(server, path, GOOD, Authorization="Bearer first-token-0123456789").status == 200


def test_hugging_faces_own_client_sends_the_token(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("first-token-0123456789\n")
    server = start(auth_tokens=str(tmp_path / "tokens"))

    assert InferenceClient(model=server.url, token="first-token-0123456789").text_classification("good")[0].label == "positive"
    with pytest.raises(HfHubHTTPError, match="401"):
        InferenceClient(model=server.url, token="another-token-0123456789").text_classification("good")


@BOTH
def test_large_bodies_are_read_and_large_answers_made_in_a_thread(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    in_the_loop: list[tuple[str, bool]] = []

    def seen(name: str) -> None:
        work = getattr(hugging_face, name)

        def noted(*args: Any) -> Any:  # of either function
            in_the_loop.append((name, server.runs_here()))
            return work(*args)

        monkeypatch.setattr(hugging_face, name, noted)

    seen("message_from")
    seen("_answer")
    assert call(server, path, GOOD).status == 200
    assert call(server, path, {"inputs": "good " * INLINE_BYTES_MAX}).status == 200
    answers = call(server, path, MANY[path](["good"] * 500), Accept_Encoding="identity")

    assert len(json.loads(answers.body)) == 500
    names, here = ["message_from", "_answer"] * 3, [True, True, False, True, False, False]
    assert in_the_loop == list(zip(names, here, strict=True))


def test_other_methods_and_requests_that_become_no_call_are_refused_in_the_form_of_their_route(server: RunningServer) -> None:
    assert call(server, "/predict").error[:2] == (405, "UNIMPLEMENTED")
    assert call(server, "/", method="DELETE").error[:2] == (405, "UNIMPLEMENTED")
    for path in MANY:
        assert refusal(call(server, path, GOOD, Origin="http://evil.example"))[:2] == (403, "Validation")
        assert refusal(call(server, path, GOOD, Host="evil.example"))[:2] == (421, "Validation")


def test_it_is_off_where_only_metrics_are_served_and_on_without_the_viewer(start: Start) -> None:
    assert [call(start(web="metrics"), path, GOOD).status for path in MANY] == [404, 404]
    assert [call(start(viewer=False), path, GOOD).status for path in MANY] == [200, 200]
